"""A service whose records are computed and not kept: streams of any length and number of shards cost nothing.

Reads take their time by a virtual clock, and are refused beyond the limits of the service. Shards that a
planner reads side by side are read side by side in virtual time, too (`SideBySide`).
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from integration.model.limits import CallLimit, ReadLimit
from query import at_horizon

from sluice.errors import ServiceError
from sluice.source.logs.data_loss import DataLossPolicy
from sluice.source.logs.stream_log import IteratorStart, Page, Record, StreamInfo, StreamLog
from sluice.source.model.splits import Split, SplitId
from sluice.source.planning.enumerator import EnumeratorSettings, StreamEnumerator
from sluice.source.planning.planner import Planner, PlannerSettings
from sluice.source.probing.probe import Probe, ProbeSettings

SECOND = 1_000_000
MIB = 2**20
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Backlog:
    """The records of one shard: evenly spread from `oldest` to `newest`, both in seconds before the plan.

    Attributes:
        rate: records a second.
        size: bytes of a record.
        newest: below 0 if the producer continues.
    """

    oldest: float
    newest: float
    rate: float
    size: int = 1024


@dataclass
class _Shard:
    backlog: Backlog
    reads: ReadLimit = field(default_factory=ReadLimit)
    iterators: CallLimit = field(default_factory=CallLimit)


class SteadyLog(StreamLog):
    """A `StreamLog` of stream ``s``.

    Args:
        backlogs: one for each shard.
        latency: seconds that every call takes.
        strangers: reads a second of each shard by others.

    Attributes:
        reads: GetRecords by shard, refused ones included.
        refused: calls beyond the service's limits.
        elapsed: seconds since the log was made.
        from_start: iterators that begin with the oldest record.
        slept: what of them a planner has slept, in all shards together.
    """

    def __init__(self, backlogs: Sequence[Backlog], *, latency: float, strangers: float = 0.0) -> None:
        self.planned_at = 1_700_000_000 * SECOND
        self.elapsed = 0.0
        self.slept = 0.0
        self.from_start = 0
        self.latency = latency
        self.reads: Counter[SplitId] = Counter()
        self.refused: Counter[str] = Counter()
        self._strangers = strangers
        self._shards = {
            SplitId("s", f"shardId-{index:012d}"): _Shard(each) for index, each in enumerate(backlogs)
        }

    # --- time ---

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.elapsed += seconds

    def monotonic(self) -> float:
        return self.elapsed

    def server_time(self) -> int:
        return self.planned_at + round(self.elapsed * SECOND)

    # --- StreamLog ---

    def describe(self, stream: str) -> StreamInfo:
        self.elapsed += self.latency
        return StreamInfo(stream, 0, 365 * 24 * 3600.0)

    def list_splits(self, stream: str) -> Sequence[Split]:
        del stream
        self.elapsed += self.latency
        width = 2**128 // len(self._shards)
        return [
            Split(split, (), "1", None, (index * width, (index + 1) * width - 1))
            for index, split in enumerate(self._shards)
        ]

    def get_iterator(self, split: SplitId, start: IteratorStart) -> str | None:
        self.elapsed += self.latency
        shard = self._shards[split]
        if not shard.iterators.take(5, self.elapsed):
            raise self._refusal("GetShardIterator")
        if start.kind == "TRIM_HORIZON":
            self.from_start += 1
            return "0"
        if start.timestamp is not None:
            return str(min(self._count_before(shard.backlog, start.timestamp), self.count(split)))
        return str(int(start.sequence_number or 0) - (start.kind == "AT_SEQUENCE_NUMBER"))

    def get_records(self, split: SplitId, iterator: str, limit: int) -> Page:
        self.reads[split] += 1
        self.elapsed += self.latency
        shard = self._shards[split]
        if self._strangers:
            self._let_strangers_read(shard)
        if shard.reads.refusal(5, 2 * MIB, self.elapsed):
            raise self._refusal("GetRecords")
        begin, there = int(iterator), self.count(split)
        end = min(begin + limit, there, begin + max(1, 10 * MIB // shard.backlog.size))
        data = bytes(shard.backlog.size)
        records = [
            Record(f"{index + 1:030d}", self._arrival(shard.backlog, index), "", data)
            for index in range(begin, end)
        ]
        size = len(records) * shard.backlog.size
        shard.reads.add(size, 2 * MIB, 5.0, self.elapsed)
        behind = 0 if end == there else max(1, (self.server_time() - records[-1].arrival) // 1000)
        return Page(records, str(end), behind, size)

    @property
    def splits(self) -> Sequence[SplitId]:
        return list(self._shards)

    def count(self, split: SplitId) -> int:
        """How many records the shard has by now."""
        return self._count_before(self._shards[split].backlog, self.server_time() + 1)

    def arrival(self, split: SplitId, index: int) -> int:
        """When the record arrived whose number is `index` + 1."""
        return self._arrival(self._shards[split].backlog, index)

    # --- inside ---

    def _arrival(self, backlog: Backlog, index: int) -> int:
        return self.planned_at - round(backlog.oldest * SECOND) + round(index / backlog.rate * SECOND)

    def _count_before(self, backlog: Backlog, instant: int) -> int:
        end = self.planned_at - round(backlog.newest * SECOND) if backlog.newest >= 0 else math.inf
        since = min(instant, end) - (self.planned_at - round(backlog.oldest * SECOND))
        return max(0, math.ceil(round(since * backlog.rate / SECOND, 6)))

    def _let_strangers_read(self, shard: _Shard) -> None:
        for number in range(int(self._strangers)):
            shard.reads.refusal(5, None, self.elapsed - number / 1e6)

    def _refusal(self, operation: str) -> ServiceError:
        self.refused[operation] += 1
        return ServiceError("rate exceeded", operation=operation, throttling=True, retryable=True)


class SideBySide:
    """Stands for a planner's thread pool: runs one after the other, in virtual time side by side."""

    def __init__(self, log: SteadyLog, threads: int) -> None:
        self._log = log
        self._threads = threads

    def map(self, work: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> list[ResultT]:
        free_at = [self._log.elapsed] * self._threads
        results = []
        for item in items:
            self._log.elapsed = heapq.heappop(free_at)
            results.append(work(item))
            heapq.heappush(free_at, self._log.elapsed)
        self._log.elapsed = max(free_at)
        return results

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        """Has no threads."""


def new_enumerator(log: SteadyLog, seconds_per_read: float = 1.0, threads: int = 64) -> StreamEnumerator:
    """Starts with the oldest record; see `ProbeSettings` and `PlannerSettings`."""
    data_loss = DataLossPolicy(log, fail=True, now=log.server_time)
    settings = PlannerSettings(threads=threads)
    probe = Probe(
        log, data_loss, ProbeSettings(log.sleep, clock=log.monotonic, seconds_per_read=seconds_per_read)
    )
    planner = Planner(probe, log.server_time, settings)
    planner.close()
    planner.pool._threads = SideBySide(log, settings.threads)  # type: ignore[assignment]
    return StreamEnumerator(EnumeratorSettings(["s"], at_horizon), probe, planner)
