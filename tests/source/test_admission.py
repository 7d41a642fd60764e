"""Batches with limits."""

from __future__ import annotations

import random

import pytest
from memory_log import SECOND, MemoryLog, put_many
from query import (
    Query,
    check_exactly_once,
)

from sluice.errors import ServiceError
from sluice.source.admission import Limits
from sluice.source.offsets import Offsets


@pytest.mark.parametrize(("shards", "limit"), [(1, 100), (1, 5_000), (4, 1_000), (4, 40_000), (1, 30_000)])
def test_record_limit_is_passed_by_at_most_a_page_a_shard(shards: int, limit: int) -> None:
    """Over an even backlog a batch holds about the limit, and never a page a shard more."""
    log = MemoryLog()
    log.create("s", shards)
    query = Query(log, ["s"])
    count = min(120_000, 12 * limit)
    records = put_many(log, count, per_second=2000)
    query.run_to_end(Limits(records=limit))
    sizes = [sum(map(len, batch.values())) for batch in query.batches]
    assert max(sizes) <= limit + (0.02 * limit if limit <= 1000 else 10_000) * shards
    assert len([size for size in sizes if size]) >= count // limit
    assert max(sizes) >= limit * 0.7
    check_exactly_once(query, records)


def test_byte_limit() -> None:
    """The same for bytes."""
    log = MemoryLog()
    log.create("s", 2)
    query = Query(log, ["s"])
    records = []
    for index in range(3000):
        records.append(log.put("s", f"key-{index}", b"x" * 1000))
        log.pass_time(0.001)
    query.run_to_end(Limits(bytes=100_000))
    sizes = [sum(len(r.data) for records in batch.values() for r in records) for batch in query.batches]
    assert max(sizes) <= 100_000 + 2 * 1_000
    assert len(sizes) >= 30
    check_exactly_once(query, records)


def test_limit_below_what_arrived_at_one_time() -> None:
    """Hundreds of records with one time of arrival can still be taken a few at a time."""
    log = MemoryLog()
    log.create("s", 2)
    query = Query(log, ["s"])
    records = [log.put("s", f"key-{index}") for index in range(60)]
    query.run_to_end(Limits(records=7))
    assert max(sum(map(len, batch.values())) for batch in query.batches) <= 7
    check_exactly_once(query, records)


def test_time_span_holds_on_every_shard() -> None:
    """No batch covers more arrival time than allowed, through gaps and dense stretches."""
    log = MemoryLog()
    log.create("s", 3)
    query = Query(log, ["s"])
    records = []
    rng = random.Random(5)
    for _ in range(60):
        for index in range(rng.choice([1, 5, 200])):
            records.append(log.put("s", f"key-{rng.random()}-{index}"))
            log.pass_time(rng.random() * 0.2)
        log.pass_time(rng.choice([0, 1, 30, 100]))
    query.run_to_end(Limits(span=10 * SECOND))
    for batch in query.batches:
        arrivals = [record.arrival for records in batch.values() for record in records]
        assert not arrivals or max(arrivals) - min(arrivals) <= 10 * SECOND
    check_exactly_once(query, records)


def test_a_cut_right_before_a_record_is_logged_again_as_it_is() -> None:
    """A split that waits at such a cut while others move on keeps the number of its next record."""
    log = MemoryLog()
    log.create("s", 2)
    query = Query(log, ["s"])
    records = put_many(log, 6000)
    query.run_batch(Limits(span=4 * SECOND))
    waiting = [p for p in query.offsets[-1]["streams"]["s"].values() if "next" in p]
    assert waiting
    throttled = ServiceError("slow down", operation="GetRecords", retryable=True, throttling=True)
    for split in log.shards:
        query.restart()
        log.pass_time(30)
        log.fault = lambda _, asked, split=split: throttled if asked == split else None
        end = query.enumerator.advance(Offsets.from_json(query.offsets[-1]))
        log.fault = None
        query.offsets.append(end.to_json())
        query.batches.append(query.read(-1))
    query.run_to_end()
    check_exactly_once(query, records)
