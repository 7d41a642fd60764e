"""`sluice.testing.MemoryLog`, and what the tests of the source make of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from integration.model import ModelLog

from sluice.errors import ServiceError
from sluice.source.logs.stream_log import Record
from sluice.source.model.splits import SplitId
from sluice.testing.memory_log import (
    ITERATOR_LIFE,
    LAST_HASH,
    SECOND,
    Fault,
    MemoryLog,
    MemoryShard,
    hash_key,
)

__all__ = [
    "BROKEN",
    "ITERATOR_LIFE",
    "LAST_HASH",
    "S0",
    "SECOND",
    "THROTTLED",
    "AnyLog",
    "Fault",
    "MemoryLog",
    "MemoryShard",
    "failing_reads",
    "hash_key",
    "new_log",
    "put_many",
    "put_to",
]

S0 = SplitId("s", "shardId-000000000000")
"""The first shard of stream ``s``."""
THROTTLED = ServiceError("slow down", operation="GetRecords", retryable=True, throttling=True)
BROKEN = ServiceError("500 from s", operation="GetRecords", retryable=True)

AnyLog = MemoryLog | ModelLog
"""Plain lists with faults on demand, or the strict model of the service."""


def new_log(shards: int = 1, *, empty_every: int = 0, page_size: int = 10_000) -> MemoryLog:
    """A log with one stream, ``s``."""
    log = MemoryLog(empty_every=empty_every, page_size=page_size)
    log.create("s", shards)
    return log


def failing_reads(errors: Iterator[Exception]) -> Fault:
    """Every GetRecords raises the next error, until there is none left."""
    return lambda operation, _: next(errors, None) if operation == "GetRecords" else None


def put_to(log: MemoryLog, split: SplitId, count: int) -> list[Record]:
    """Puts `count` records to one split, all at the same time."""
    low, high = log.shards[split].hash_range
    keys = (key for key in map(str, itertools.count()) if low <= hash_key(key) <= high)
    return [log.put(split.stream, key) for key in itertools.islice(keys, count)]


def put_many(log: MemoryLog, count: int, *, per_second: float = 1000.0) -> list[Record]:
    """Puts `count` records to the splits of stream ``s`` at this rate."""
    records = []
    for index in range(count):
        records.append(log.put("s", f"key-{index}"))
        log.pass_time(1 / per_second)
    return records
