"""A streaming query without Spark: it logs offsets, reads batches and restarts as Spark does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from memory_log import AnyLog, MemoryLog
from memory_subscriptions import NO_FAULTS, Faults, MemoryAgent

from sluice.source.logs.cursor import Cursor
from sluice.source.logs.data_loss import DataLossPolicy
from sluice.source.logs.stream_log import AnyRecord, Record
from sluice.source.model.logged_offsets import LoggedOffsets
from sluice.source.model.offsets import AtHorizon, AtTime, Expiry, Offsets, Position, SplitRange
from sluice.source.model.read_figures import ReadFigures
from sluice.source.model.splits import Split, SplitId
from sluice.source.planning.enumerator import EnumeratorSettings, InitialPositions, StreamEnumerator
from sluice.source.planning.planner import Planner, PlannerSettings
from sluice.source.probing.probe import Probe, ProbeSettings
from sluice.source.reading.assigner import assign_ranges
from sluice.source.reading.publisher import OpenPublisher, PublisherCursor, RecordPublisher
from sluice.source.reading.reader import RangeReader, ReadSettings
from sluice.source.settings import NO_LIMITS, Limits
from sluice.source.state.subscriptions import Subscriptions


class ClosablePublisher(RecordPublisher, Protocol):
    """A publisher that says whether it was closed."""

    is_closed: bool


class Agent(Protocol):
    """What a query needs of an agent. See `MemoryAgent`."""

    @property
    def subscriptions(self) -> Any: ...

    @property
    def publishers(self) -> Sequence[ClosablePublisher]: ...

    def new_subscriptions(self) -> Subscriptions: ...

    def attach(self, enumerator: StreamEnumerator) -> None: ...

    def open_publisher(self, split_range: SplitRange, position: Position) -> ClosablePublisher: ...


Rows = dict[SplitId, list[Record]]
"""The rows of a batch, by split."""


def at_horizon(splits: Iterable[Split], now: int) -> Mapping[SplitId, Position]:
    return {split.id: AtHorizon(pinned=now) for split in splits}


def at_latest(splits: Iterable[Split], now: int) -> Mapping[SplitId, Position]:
    return {split.id: AtTime(now, pinned=now) for split in splits}


def new_policy(
    log: AnyLog, *, fail: bool = True, expiry: Mapping[str, Expiry] | None = None
) -> DataLossPolicy:
    return DataLossPolicy(log, fail, log.server_time, dict(expiry or {}))


def new_enumerator(
    log: AnyLog,
    streams: list[str],
    *,
    initial: InitialPositions = at_horizon,
    fail: bool = True,
    starting: str = "",
    max_drift: int | None = None,
    max_family: int = 16,
    subscriptions: Subscriptions | None = None,
) -> StreamEnumerator:
    probe = Probe(log, new_policy(log, fail=fail), ProbeSettings(pause=log.sleep, clock=log.monotonic))
    planner = Planner(probe, log.server_time, PlannerSettings(fail, max_drift, threads=1))
    settings = EnumeratorSettings(streams, initial, starting=starting, max_family=max_family)
    return StreamEnumerator(settings, probe, planner, subscriptions=subscriptions)


ReadRange = Callable[[SplitRange], Iterator[Sequence[AnyRecord]]]


def new_reader(
    log: AnyLog,
    open_publisher: OpenPublisher | None = None,
    *,
    fail: bool = True,
    may_poll: bool = True,
    page_limit: int = 10_000,
    pause: Callable[[float], None] | None = None,
    expiry: Mapping[str, Expiry] | None = None,
    figures: ReadFigures | None = None,
) -> ReadRange:
    """Reads ranges as tasks do.

    Args:
        open_publisher: None: ranges are polled.
        pause: None: the log's clock moves on.
        expiry: by stream, as it was logged.
    """
    data_loss = new_policy(log, fail=fail, expiry=expiry)

    def open_cursor(split_range: SplitRange, position: Position) -> Cursor:
        assert open_publisher is not None
        return PublisherCursor(log, data_loss, split_range, position, open_publisher, may_poll=may_poll)

    settings = ReadSettings(page_limit, 0.2, pause or log.sleep, clock=log.monotonic)
    opened = open_cursor if open_publisher else None
    return lambda each: RangeReader(
        log, data_loss, settings, each, open_cursor=opened, figures=figures
    ).read()


def read_range(reader: ReadRange, split_range: SplitRange) -> list[Record]:
    """All records of a range of a `MemoryLog`."""
    records = [record for page in reader(split_range) for record in page]
    plain = [record for record in records if isinstance(record, Record)]
    assert len(plain) == len(records)
    return plain


def through_json(offsets: Offsets, version: int | None = None) -> dict[str, Any]:
    """Offsets as Spark gives them back."""
    parsed: dict[str, Any] = json.loads(json.dumps(offsets.to_json(version)))
    return parsed


class Query:
    """Runs batches as Spark does: the end of a batch is logged as JSON before the batch is read.

    Args:
        agent: gives the planner its subscriptions and tasks their publishers. None: everything is polled.
        versions: of the offsets that are logged, in turn; None: by the number of splits.

    Attributes:
        offsets: the offset log. Batch n lies between the entries n and n + 1.
        batches: the rows of each batch.
    """

    def __init__(
        self,
        log: AnyLog,
        streams: Iterable[str] = ("s",),
        *,
        initial: InitialPositions = at_horizon,
        fail: bool = True,
        page_limit: int = 10_000,
        agent: Agent | None = None,
        starting: str = "",
        max_drift: int | None = None,
        shards_per_task: int = 16,
        versions: Sequence[int | None] = (None,),
    ) -> None:
        self.agent = agent
        self.log = log
        self.versions = versions
        self.streams = list(streams)
        self.initial = initial
        self.starting = starting
        self.max_drift = max_drift
        self.shards_per_task = shards_per_task
        self.fail = fail
        self.page_limit = page_limit
        self.offsets: list[dict[str, Any]] = []
        self.batches: list[Rows] = []
        self._logged = LoggedOffsets()
        self.enumerator = self._new_enumerator()

    # --- what Spark does ---

    def restart(self) -> None:
        """Keeps the offset log, and nothing else."""
        self.enumerator.close()
        self._logged = LoggedOffsets()
        self.enumerator = self._new_enumerator()

    def log_start(self) -> None:
        """Logs where the first batch starts."""
        self.log_end(self.enumerator.initial())

    def log_end(self, end: Offsets) -> None:
        """Logs where a batch ends."""
        self.offsets.append(through_json(end, self.versions[len(self.offsets) % len(self.versions)]))

    def plan(self, limits: Limits = NO_LIMITS) -> Offsets:
        """Where the next batch ends. It is not logged."""
        return self.enumerator.advance(self.last_end, limits)

    def run_planned(self, end: Offsets) -> Rows:
        """Logs and reads a batch that ends at `end`."""
        self.log_end(end)
        self.batches.append(self.read(-1))
        return self.batches[-1]

    def run_batch(self, limits: Limits = NO_LIMITS, *, crash: bool = False) -> Rows | None:
        """Plans and reads one batch. None if nothing is new.

        Args:
            crash: the query dies when the end is logged and nothing is read, and a restarted one reads.
        """
        if not self.offsets:
            self.log_start()
        end = self.plan(limits)
        if through_json(end, self.offsets[-1]["version"]) == self.offsets[-1]:
            return None
        self.log_end(end)
        if crash:
            self.restart()
        self.batches.append(self.read(-1))
        return self.batches[-1]

    def run_to_end(self, limits: Limits = NO_LIMITS, *, empty_triggers: int = 12, step: float = 1.0) -> None:
        """Runs until so many triggers in a row, `step` seconds apart, have found nothing new."""
        empty = 0
        while empty < empty_triggers:
            empty = 0 if self.run_batch(limits) is not None else empty + 1
            self.log.pass_time(step)

    def run_while_new(self, limits: Limits = NO_LIMITS) -> None:
        """Runs until a trigger finds nothing new. No time passes between triggers."""
        while self.run_batch(limits) is not None:
            pass

    def read(self, batch: int, *, by_polling: bool = False) -> Rows:
        """Reads a logged batch from its two offsets alone.

        Args:
            batch: its number; -1 for the last one.
        """
        number = batch if batch >= 0 else len(self.offsets) - 1 + batch
        start, end = map(Offsets.from_json, self.offsets[number : number + 2])
        agent = None if by_polling else self.agent
        open_publisher = None if agent is None else agent.open_publisher
        ranges = self.enumerator.ranges(start, end)
        reader = new_reader(
            self.log,
            open_publisher,
            fail=self.fail,
            page_limit=self.page_limit,
            expiry={each.split.stream: each.expiry for each in ranges if each.expiry is not None},
        )
        tasks = assign_ranges(ranges, self.shards_per_task)
        self._check_families(tasks)
        rows = {each.split: read_range(reader, each) for task in tasks for each in task}
        if agent is not None:
            assert all(publisher.is_closed for publisher in agent.publishers)
        return rows

    # --- what has been read ---

    @property
    def last_end(self) -> Offsets:
        """Where the batch that was logged last ends."""
        offsets: Offsets = self._logged.parse(self.offsets[-1])
        return offsets

    def position_of(self, split: SplitId) -> dict[str, Any]:
        """Where the batch that was logged last ends in a split, as JSON."""
        found = Offsets.from_json(self.offsets[-1])
        position: dict[str, Any] = found.to_json(1)["streams"][split.stream][split.shard]
        return position

    def rows_since(self, batch: int) -> list[Record]:
        """The rows of this batch and all later ones, batch by batch."""
        return [record for rows in self.batches[batch:] for records in rows.values() for record in records]

    def sizes_since(self, batch: int) -> list[int]:
        """How many rows this batch and each later one have."""
        return [sum(map(len, rows.values())) for rows in self.batches[batch:]]

    def by_split(self) -> Rows:
        """All rows read, in the order they came."""
        found: Rows = {}
        for rows in self.batches:
            for split, records in rows.items():
                found.setdefault(split, []).extend(records)
        return found

    def numbers(self) -> list[int]:
        return sorted(int(record.sequence_number) for record in self.rows_since(0))

    def _check_families(self, tasks: Iterable[Iterable[SplitRange]]) -> None:
        """Children come after their parents in the same task, for any listings."""
        places = {
            each.split: (task, place)
            for task, ranges in enumerate(tasks)
            for place, each in enumerate(ranges)
        }
        shards = self.log.shards
        for split, (task, place) in places.items():
            for parent in shards[split].parents if split in shards else ():
                if (found := places.get(SplitId(split.stream, parent))) is not None:
                    assert found[0] == task
                    assert found[1] < place

    def _new_enumerator(self) -> StreamEnumerator:
        subscriptions = self.agent.new_subscriptions() if self.agent is not None else None
        enumerator = new_enumerator(
            self.log,
            self.streams,
            initial=self.initial,
            fail=self.fail,
            starting=self.starting,
            max_drift=self.max_drift,
            max_family=self.shards_per_task,
            subscriptions=subscriptions,
        )
        if self.agent is not None:
            self.agent.attach(enumerator)
        return enumerator


def pushed_query(
    log: MemoryLog,
    *,
    initial: InitialPositions = at_horizon,
    fail: bool = True,
    event_size: int = 50,
    events: int = 1_000,
    faults: Faults = NO_FAULTS,
) -> tuple[Query, MemoryAgent]:
    """A query whose splits are pushed by an agent; see `MemoryAgent`."""
    agent = MemoryAgent(log, event_size=event_size, events=events, faults=faults)
    return Query(log, initial=initial, fail=fail, agent=agent), agent


def wait_for_subscriptions(query: Query) -> None:
    """Runs batches until all splits have a subscription and all records are read."""
    for _ in range(3):
        query.run_batch()
        query.log.pass_time(5)


def check_exactly_once(query: Query, expected: Iterable[Record]) -> None:
    """Every record came once, those of a split in order, and those of a child after its parents'."""
    assert query.numbers() == sorted(int(record.sequence_number) for record in expected)
    check_order(query)


def check_order(query: Query) -> None:
    """Records of a split came in order, and those of a child after its parents'."""
    for records in query.by_split().values():
        sequence = [int(record.sequence_number) for record in records]
        assert sequence == sorted(sequence)
    batches_of: dict[SplitId, list[int]] = {}
    for number, rows in enumerate(query.batches):
        for split, records in rows.items():
            if records:
                batches_of.setdefault(split, []).append(number)
    for split, batches in batches_of.items():
        shard = query.log.shards.get(split)
        for parent in shard.parents if shard else ():
            last = max(batches_of.get(SplitId(split.stream, parent), [-1]))
            assert last <= min(batches)
            if last == min(batches):
                order = list(query.batches[last])
                assert order.index(SplitId(split.stream, parent)) < order.index(split)
