"""A log in memory that answers as Kinesis does. Tests set its clock and its faults."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sluice.errors import ServiceError
from sluice.source.logs.stream_log import IteratorStart, Page, Record, StreamInfo, StreamLog
from sluice.source.model.splits import Split, SplitId

__all__ = ["SECOND", "Fault", "MemoryLog", "MemoryShard", "hash_key"]

SECOND = 1_000_000
"""Microseconds, the unit of instants."""
ITERATOR_LIFE = 300 * SECOND
LAST_HASH = 2**128 - 1

Fault = Callable[[str, SplitId], Exception | None]
"""Given an operation and a shard, the error that the call raises; None: it succeeds."""


def hash_key(partition_key: str) -> int:
    """The hash key of a partition key: its MD5 as a 128-bit number."""
    return int.from_bytes(hashlib.md5(partition_key.encode(), usedforsecurity=False).digest(), "big")


@dataclass
class MemoryShard:
    """A shard, and the records of it that have not expired."""

    id: SplitId
    parents: tuple[str, ...]
    hash_range: tuple[int, int]
    starting_sequence: int
    ending_sequence: int | None = None
    records: list[Record] = field(default_factory=list)


class MemoryLog(StreamLog):
    """A `StreamLog` over plain lists.

    Args:
        empty_every: every n-th read of a shard gives an empty page if records follow, as Kinesis may do;
            0: none does.
        page_size: no page holds more records than this. Kinesis limits the bytes of a page as well.
        fault: asked before every call on a shard; raises the error that it returns.

    Attributes:
        now: the time by the service's clock (microseconds).
        retention: for how long records are kept (seconds). Only `trim` removes records.
        calls: how often each operation was called.
        limits: the limit of every GetRecords, in order.
        slept: for how long `sleep` was asked to sleep (seconds).
        unknown_number: attributes of the `ServiceError` by which GetShardIterator refuses a sequence number
            that belongs to no record. None: the iterator starts with the next record.
    """

    is_thread_safe: ClassVar[bool] = True
    split_name = "shard"

    def __init__(self, *, empty_every: int = 0, page_size: int = 10_000, fault: Fault | None = None) -> None:
        self.now = 1_700_000_000 * SECOND
        self.retention = 24 * 3600.0
        self.shards: dict[SplitId, MemoryShard] = {}
        self.created: dict[str, int] = {}
        self.empty_every = empty_every
        self.page_size = page_size
        self.fault = fault
        self.calls: Counter[str] = Counter()
        self.limits: list[int] = []
        self.slept = 0.0
        self.unknown_number: dict[str, Any] | None = None
        self._sequence = itertools.count(49_000_000_000_000_000_000_000_000, 7)
        self._shard_numbers: dict[str, itertools.count[int]] = {}
        self._iterators: dict[str, tuple[SplitId, int, int]] = {}  # shard, next sequence number, opened
        self._names = itertools.count()
        self._reads: Counter[SplitId] = Counter()
        self._passed = 0.0

    # --- what producers, operators and time do ---

    def create(self, stream: str, shards: int = 1) -> list[SplitId]:
        self.created[stream] = self.now
        self._shard_numbers[stream] = itertools.count()
        width = (LAST_HASH + 1) // shards
        bounds = [(i * width, LAST_HASH if i == shards - 1 else (i + 1) * width - 1) for i in range(shards)]
        return [self._add_shard(stream, (), bound) for bound in bounds]

    def delete(self, stream: str) -> None:
        del self.created[stream]
        self.shards = {split: shard for split, shard in self.shards.items() if split.stream != stream}

    def put(self, stream: str, key: str, data: bytes = b"x", *, arrival: int | None = None) -> Record:
        where = hash_key(key)
        shard = next(
            s
            for s in self.shards.values()
            if s.id.stream == stream
            and s.ending_sequence is None
            and s.hash_range[0] <= where <= s.hash_range[1]
        )
        record = Record(f"{next(self._sequence):030d}", self.now if arrival is None else arrival, key, data)
        shard.records.append(record)
        return record

    def split(self, split: SplitId) -> list[SplitId]:
        low, high = self._close(split).hash_range
        middle = (low + high) // 2
        return [
            self._add_shard(split.stream, (split.shard,), bound)
            for bound in ((low, middle), (middle + 1, high))
        ]

    def merge(self, left: SplitId, right: SplitId) -> SplitId:
        low, high = self._close(left).hash_range[0], self._close(right).hash_range[1]
        return self._add_shard(left.stream, (left.shard, right.shard), (low, high))

    def trim(self, split: SplitId, count: int) -> None:
        """The oldest `count` records of a shard expire."""
        del self.shards[split].records[:count]

    def expire(self, split: SplitId) -> None:
        """Removes a shard from listings, as Kinesis does when the last record of a closed one has expired."""
        del self.shards[split]

    def records(self, split: SplitId) -> list[Record]:
        """The records of a shard that have not expired."""
        return self.shards[split].records

    def pass_time(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)
        self._passed += seconds

    def set_clock(self, seconds: float) -> None:
        """Sets the wall clock on or back. No time passes."""
        self.now += int(seconds * SECOND)

    def monotonic(self) -> float:
        """Seconds that have passed, independent of the wall clock."""
        return self._passed

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.pass_time(seconds)

    def expire_iterators(self) -> None:
        self._iterators = {
            name: (split, at, -ITERATOR_LIFE) for name, (split, at, _) in self._iterators.items()
        }

    # --- StreamLog ---

    def describe(self, stream: str) -> StreamInfo:
        self._require_stream(stream, "DescribeStreamSummary")
        return StreamInfo(stream, self.created[stream], self.retention)

    def list_splits(self, stream: str) -> Sequence[Split]:
        self.calls["ListShards"] += 1
        self._require_stream(stream, "ListShards")
        return [
            Split(
                shard.id,
                shard.parents,
                str(shard.starting_sequence),
                None if shard.ending_sequence is None else str(shard.ending_sequence),
                shard.hash_range,
            )
            for shard in self.shards.values()
            if shard.id.stream == stream
        ]

    def get_iterator(self, split: SplitId, start: IteratorStart) -> str | None:
        self._enter("GetShardIterator", split)
        shard = self._shard(split, "GetShardIterator")
        if self.unknown_number and start.sequence_number is not None:
            known = {record.sequence_number for record in shard.records}
            if start.sequence_number not in known:
                raise ServiceError("unknown number", operation="GetShardIterator", **self.unknown_number)
        match start.kind:
            case "TRIM_HORIZON":
                at = 0
            case "LATEST":
                at = int(shard.records[-1].sequence_number) + 1 if shard.records else 0
            case "AT_SEQUENCE_NUMBER":
                at = int(start.sequence_number or 0)
            case "AFTER_SEQUENCE_NUMBER":
                at = int(start.sequence_number or 0) + 1
            case "AT_TIMESTAMP":
                if start.timestamp is None:
                    raise ValueError(start)
                if start.timestamp > self.now:
                    raise ServiceError("in the future", operation="GetShardIterator", invalid_argument=True)
                late = (int(r.sequence_number) for r in shard.records if r.arrival >= start.timestamp)
                last = int(shard.records[-1].sequence_number) + 1 if shard.records else 0
                at = next(late, last)
        return self._iterator(split, at)

    def get_records(self, split: SplitId, iterator: str, limit: int) -> Page:
        self._enter("GetRecords", split)
        self.limits.append(limit)
        _, at, opened = self._iterators[iterator]
        if self.now - opened > ITERATOR_LIFE:
            raise ServiceError("expired", operation="GetRecords", expired_iterator=True)
        shard = self._shard(split, "GetRecords")
        behind = [record for record in shard.records if int(record.sequence_number) >= at]
        self._reads[split] += 1
        if behind and self.empty_every and self._reads[split] % self.empty_every == 0:
            return Page((), self._iterator(split, at), max(1, (self.now - behind[0].arrival) // 1000))
        limit = min(limit, self.page_size)
        records = behind[:limit]
        if len(behind) > limit:
            lag = max(1, (self.now - records[-1].arrival) // 1000)
            return Page(records, self._iterator(split, int(records[-1].sequence_number) + 1), lag)
        if shard.ending_sequence is not None:
            return Page(records, None, 0)
        following = int(records[-1].sequence_number) + 1 if records else at
        return Page(records, self._iterator(split, following), 0)

    def server_time(self) -> int:
        return self.now

    # --- inside ---

    def _enter(self, operation: str, split: SplitId) -> None:
        self.calls[operation] += 1
        error = self.fault(operation, split) if self.fault is not None else None
        if error is not None:
            raise error

    def _iterator(self, split: SplitId, at: int) -> str:
        name = f"iterator-{next(self._names)}"
        self._iterators[name] = (split, at, self.now)
        return name

    def _add_shard(self, stream: str, parents: tuple[str, ...], bound: tuple[int, int]) -> SplitId:
        split = SplitId(stream, f"shardId-{next(self._shard_numbers[stream]):012d}")
        self.shards[split] = MemoryShard(split, parents, bound, next(self._sequence))
        return split

    def _close(self, split: SplitId) -> MemoryShard:
        shard = self.shards[split]
        shard.ending_sequence = next(self._sequence)
        return shard

    def _require_stream(self, stream: str, operation: str) -> None:
        if stream not in self.created:
            raise ServiceError(f"{operation}: no stream {stream}", operation=operation, missing=True)

    def _shard(self, split: SplitId, operation: str) -> MemoryShard:
        if split not in self.shards:
            raise ServiceError(f"{operation}: no shard {split}", operation=operation, missing=True)
        return self.shards[split]
