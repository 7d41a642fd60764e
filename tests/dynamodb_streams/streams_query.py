"""A streaming query of DynamoDB Streams without Spark, over the strict model of the service."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from integration.model import FaultPlan, ManualClock
from integration.streams_model import Laws, ModelCalls, StreamsModel

from sluice.dynamodb_streams.client import EMPTY_PAGES_IN_RANGE, DynamoDbStreamsLog
from sluice.dynamodb_streams.options import EMPTY_PAGES_AT_TIP
from sluice.dynamodb_streams.starting_positions import StartingPosition, initial_positions
from sluice.dynamodb_streams.streams import TableRef
from sluice.source.logs.data_loss import DataLossPolicy
from sluice.source.model.offsets import Expiry, Offsets, SplitRange
from sluice.source.model.splits import SplitId
from sluice.source.planning.enumerator import EnumeratorSettings, StreamEnumerator
from sluice.source.planning.planner import Planner, PlannerSettings
from sluice.source.probing.probe import Probe, ProbeSettings
from sluice.source.reading.assigner import assign_ranges
from sluice.source.reading.reader import RangeReader, ReadSettings
from sluice.source.settings import NO_LIMITS, Limits

TABLE = "orders"
Rows = dict[SplitId, list[int]]
"""The sequence numbers of a batch, by shard, in the order in which they came."""


def new_model(
    laws: Laws | None = None, seed: int = 0, *, shards: int = 1, faults: FaultPlan | None = None
) -> StreamsModel:
    """A model with one table that has a stream."""
    model = StreamsModel(laws, ManualClock(), seed, faults=faults)
    model.enable(TABLE, shards=shards)
    return model


def new_log(model: StreamsModel, **settings: Any) -> DynamoDbStreamsLog:
    """The source's own client of the model."""
    return DynamoDbStreamsLog(
        ModelCalls(model), [TableRef(TABLE)], **{"empty_pages": EMPTY_PAGES_AT_TIP, **settings}
    )


class StreamsQuery:
    """Runs batches as Spark does: the end of a batch is logged as JSON before the batch is read.

    Attributes:
        offsets: the offset log. Batch n lies between the entries n and n + 1.
        batches: the rows of each batch.
    """

    def __init__(
        self,
        model: StreamsModel,
        *,
        start: StartingPosition = "TRIM_HORIZON",
        fail: bool = True,
        page_limit: int = 1_000,
    ) -> None:
        self.model = model
        self.offsets: list[dict[str, Any]] = []
        self.batches: list[Rows] = []
        self._start: StartingPosition = start
        self._fail = fail
        self._page_limit = page_limit
        self.enumerator = self._new_enumerator()

    def restart(self) -> None:
        """Keeps the offset log, and nothing else."""
        self.enumerator.close()
        self.enumerator = self._new_enumerator()

    def log_start(self) -> None:
        """Logs where the first batch starts."""
        self.offsets.append(_through_json(self.enumerator.initial()))

    def run_batch(self, limits: Limits = NO_LIMITS, *, crash: bool = False) -> Rows | None:
        """Plans and reads one batch. None if nothing is new.

        Args:
            crash: the query dies when the end is logged and nothing is read, and a restarted one reads.
        """
        if not self.offsets:
            self.log_start()
        end = self.enumerator.advance(Offsets.from_json(self.offsets[-1]), limits)
        if _through_json(end) == self.offsets[-1]:
            return None
        self.offsets.append(_through_json(end))
        if crash:
            self.restart()
        self.batches.append(self.read(-1))
        return self.batches[-1]

    def run_to_end(self, limits: Limits = NO_LIMITS, *, empty_triggers: int = 4, step: float = 12.0) -> None:
        """Runs until so many triggers in a row, `step` seconds apart, have found nothing new."""
        empty = 0
        while empty < empty_triggers:
            empty = 0 if self.run_batch(limits) else empty + 1
            self.model.clock.advance(step)

    def read(self, batch: int) -> Rows:
        """Reads a logged batch from its two offsets alone."""
        number = batch if batch >= 0 else len(self.offsets) - 1 + batch
        start, end = map(Offsets.from_json, self.offsets[number : number + 2])
        ranges = self.enumerator.ranges(start, end)
        tasks = assign_ranges(ranges, 16)
        rows = {each.split: self._read_range(each) for task in tasks for each in task}
        return {split: numbers for split, numbers in rows.items() if numbers}

    def numbers(self) -> list[int]:
        """The sequence numbers of all rows."""
        return sorted(number for rows in self.batches for numbers in rows.values() for number in numbers)

    def check_order(self, parents: Mapping[str, str | None]) -> None:
        """The rows of each shard came in order, and after those of its parent."""
        place = {
            number: place
            for place, (_, number) in enumerate(
                (split, number)
                for rows in self.batches
                for split, numbers in rows.items()
                for number in numbers
            )
        }
        by_shard: dict[str, list[int]] = {}
        for rows in self.batches:
            for split, numbers in rows.items():
                by_shard.setdefault(split.shard, []).extend(numbers)
        for shard, numbers in by_shard.items():
            assert numbers == sorted(numbers)
            if earlier := by_shard.get(parents.get(shard) or ""):
                assert place[earlier[-1]] < place[numbers[0]]

    def _read_range(self, split_range: SplitRange) -> list[int]:
        log, clock = new_log(self.model, empty_pages=EMPTY_PAGES_IN_RANGE), self.model.clock
        expiry = {} if split_range.expiry is None else {split_range.split.stream: split_range.expiry}
        reader = RangeReader(
            log,
            _policy(log, fail=self._fail, expiry=expiry),
            ReadSettings(self._page_limit, 0.2, clock.sleep, clock=clock.elapsed),
            split_range,
        )
        return [int(record.sequence_number) for page in reader.read() for record in page]

    def _new_enumerator(self) -> StreamEnumerator:
        log, clock = new_log(self.model), self.model.clock
        settings = ProbeSettings(
            pause=clock.sleep, clock=clock.elapsed, seconds_per_read=0.5, burst=9, first_burst=10
        )
        probe = Probe(log, _policy(log, fail=self._fail), settings)
        planner = Planner(probe, log.server_time, PlannerSettings(self._fail, threads=1))
        return StreamEnumerator(
            EnumeratorSettings([TABLE], lambda splits, now: initial_positions(self._start, splits, now, log)),
            probe,
            planner,
        )


def _policy(
    log: DynamoDbStreamsLog, *, fail: bool, expiry: Mapping[str, Expiry] | None = None
) -> DataLossPolicy:
    return DataLossPolicy(log, fail, log.server_time, dict(expiry or {}))


def _through_json(offsets: Offsets) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(json.dumps(offsets.to_json()))
    return parsed


def put_many(model: StreamsModel, count: int, *, per_second: float = 1000.0, name: str = "key") -> list[int]:
    """Changes `count` items at this rate; the sequence numbers."""
    numbers = []
    for index in range(count):
        numbers.append(model.put(TABLE, f"{name}-{index}").number)
        model.clock.advance(1 / per_second)
    return numbers


def all_numbers(model: StreamsModel, arns: Iterable[str]) -> list[int]:
    """The sequence numbers of all records that the streams hold."""
    return sorted(record.number for arn in arns for record in model.records(arn))
