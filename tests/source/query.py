"""A streaming query without Spark: an offset log, batches, restarts, and all a source promises, checked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from memory_log import MemoryLog
from memory_subscriptions import NO_FAULTS, Faults, MemoryAgent

from sluice.source.admission import NO_LIMITS, Limits
from sluice.source.cursor import Cursor
from sluice.source.data_loss import DataLossPolicy
from sluice.source.enumerator import EnumeratorSettings, InitialPositions, StreamEnumerator
from sluice.source.offsets import HORIZON, AtTime, Offsets, Position, SplitRange
from sluice.source.planner import Planner
from sluice.source.probe import Probe, ProbeSettings
from sluice.source.publisher import PublisherCursor
from sluice.source.reader import RangeReader, ReadSettings
from sluice.source.splits import Split, SplitId
from sluice.source.stream_log import Record
from sluice.source.subscriptions import Subscriptions

Rows = dict[SplitId, list[Record]]


def at_horizon(splits: Iterable[Split], now: int) -> Mapping[SplitId, Position]:
    del now
    return {split.id: HORIZON for split in splits}


def latest(splits: Iterable[Split], now: int) -> Mapping[SplitId, Position]:
    return {split.id: AtTime(now, pinned=now) for split in splits}


def make_enumerator(
    log: MemoryLog,
    streams: list[str],
    *,
    initial: InitialPositions = at_horizon,
    fail: bool = True,
    discovery_interval: float = 10.0,
    subscriptions: Subscriptions | None = None,
) -> StreamEnumerator:
    data_loss = DataLossPolicy(log, fail, log.server_time)
    probe = Probe(log, data_loss, ProbeSettings(pause=log.sleep))
    planner = Planner(probe, log.server_time, fail_on_missing=fail, threads=1)
    settings = EnumeratorSettings(streams, initial, discovery_interval)
    return StreamEnumerator(settings, probe, planner, subscriptions=subscriptions)


class Query:
    """Runs batches as Spark does: the end is logged as JSON before anything is read.

    Args:
        agent: plans from its subscriptions and reads from its publishers; None for polling alone.
    """

    def __init__(
        self,
        log: MemoryLog,
        streams: list[str],
        *,
        initial: InitialPositions = at_horizon,
        fail: bool = True,
        page_limit: int = 10_000,
        agent: MemoryAgent | None = None,
    ) -> None:
        self.agent = agent
        self.log = log
        self.streams = streams
        self.initial = initial
        self.fail = fail
        self.page_limit = page_limit
        self.offsets: list[dict[str, Any]] = []
        self.batches: list[Rows] = []
        self.enumerator = self._enumerator()

    def restart(self) -> None:
        """Everything but the offset log is gone."""
        self.enumerator.close()
        self.enumerator = self._enumerator()

    def run_batch(self, limits: Limits = NO_LIMITS, *, crash: bool = False) -> Rows | None:
        """Plans and reads one batch. None when there is nothing new.

        Args:
            crash: die after the end was logged and before anything was read, and run it after a restart.
        """
        if not self.offsets:
            self.offsets.append(through_json(self.enumerator.initial()))
        start = Offsets.from_json(self.offsets[-1])
        end = self.enumerator.advance(start, limits)
        if end.to_json() == self.offsets[-1]:
            return None
        self.offsets.append(through_json(end))
        if crash:
            self.restart()
        rows = self.read(-1)
        self.batches.append(rows)
        return rows

    def run_to_end(self, limits: Limits = NO_LIMITS, *, idle_triggers: int = 12, step: float = 1.0) -> None:
        """Runs until nothing is new for long enough that every interval has passed."""
        idle = 0
        while idle < idle_triggers:
            idle = 0 if self.run_batch(limits) is not None else idle + 1
            self.log.pass_time(step)

    def read(self, batch: int, *, by_polling: bool = False) -> Rows:
        """The rows of a logged batch, read from nothing but the log's two offsets."""
        start = Offsets.from_json(self.offsets[batch - 1 if batch < 0 else batch])
        end = Offsets.from_json(self.offsets[batch if batch < 0 else batch + 1])
        data_loss = DataLossPolicy(self.log, self.fail, self.log.server_time)
        settings = ReadSettings(self.page_limit, 0.2, self.log.sleep)
        agent = None if by_polling else self.agent

        def by_feed(split_range: SplitRange, position: Position) -> Cursor:
            assert agent is not None
            return PublisherCursor(
                self.log, data_loss, split_range, position, agent.open_publisher, may_poll=True
            )

        rows: Rows = {}
        for split_range in self.enumerator.ranges(start, end):
            reader = RangeReader(self.log, data_loss, settings, by_feed if agent else None)
            rows[split_range.split] = read_plain(reader, split_range)
        if agent is not None:
            assert all(publisher.is_closed for publisher in agent.publishers)
        return rows

    def by_split(self) -> Rows:
        """All rows read, in the order they came."""
        rows: Rows = {}
        for batch in self.batches:
            for split, records in batch.items():
                rows.setdefault(split, []).extend(records)
        return rows

    def numbers(self) -> list[int]:
        return sorted(int(r.sequence_number) for records in self.by_split().values() for r in records)

    def _enumerator(self) -> StreamEnumerator:
        subscriptions = self.agent.new_subscriptions() if self.agent is not None else None
        return make_enumerator(
            self.log, self.streams, initial=self.initial, fail=self.fail, subscriptions=subscriptions
        )


def through_json(offsets: Offsets) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(json.dumps(offsets.to_json()))
    return parsed


def read_plain(reader: RangeReader, split_range: SplitRange) -> list[Record]:
    """All records of a range, from a log that keeps plain ones."""
    records = [record for page in reader.read(split_range) for record in page]
    plain = [record for record in records if isinstance(record, Record)]
    assert len(plain) == len(records)
    return plain


def check_exactly_once(query: Query, expected: Iterable[Record]) -> None:
    """Every record once, those of a shard in order, children never with or before unread parents."""
    numbers = query.numbers()
    assert numbers == sorted(int(record.sequence_number) for record in expected)
    for records in query.by_split().values():
        sequence = [int(record.sequence_number) for record in records]
        assert sequence == sorted(sequence)
    batch_of: dict[SplitId, list[int]] = {}
    for index, batch in enumerate(query.batches):
        for split, records in batch.items():
            if records:
                batch_of.setdefault(split, []).append(index)
    for split, batches in batch_of.items():
        shard = query.log.shards.get(split)
        for parent in shard.parents if shard else ():
            assert max(batch_of.get(SplitId(split.stream, parent), [-1])) < min(batches)


def pushed_query(
    log: MemoryLog,
    *,
    initial: InitialPositions = at_horizon,
    fail: bool = True,
    event_size: int = 50,
    events: int = 1_000,
    faults: Faults = NO_FAULTS,
) -> tuple[Query, MemoryAgent]:
    agent = MemoryAgent(log, event_size=event_size, events=events, faults=faults)
    return Query(log, ["s"], initial=initial, fail=fail, agent=agent), agent


def settle(query: Query) -> None:
    """Reads what is there, and lets subscriptions that are due come up."""
    for _ in range(3):
        query.run_batch()
        query.log.pass_time(5)
