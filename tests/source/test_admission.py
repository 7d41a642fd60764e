"""How much a batch with limits takes, and that it takes the same arrival time on all splits."""

from __future__ import annotations

import random

import pytest
from memory_log import SECOND, THROTTLED, new_log, put_many
from query import Query, check_exactly_once

from sluice.source.settings import Limits


@pytest.mark.parametrize(("shards", "limit"), [(1, 100), (1, 5_000), (4, 1_000), (4, 40_000), (1, 30_000)])
def test_a_batch_passes_a_limit_of_records_by_at_most_a_page_a_shard(shards: int, limit: int) -> None:
    """Over an even backlog. It does not stay far below the limit either."""
    log = new_log(shards)
    query = Query(log)
    count = min(120_000, 12 * limit)
    records = put_many(log, count, per_second=2000)
    query.run_to_end(Limits(records=limit))
    sizes = query.sizes_since(0)
    assert max(sizes) <= limit + (0.02 * limit if limit <= 1000 else 10_000) * shards
    assert len([size for size in sizes if size]) >= count // limit
    assert max(sizes) >= limit * 0.7
    check_exactly_once(query, records)


def test_a_batch_keeps_to_a_limit_of_bytes() -> None:
    """It passes the limit by a record a shard at most."""
    log = new_log(2)
    query = Query(log)
    records = []
    for index in range(3000):
        records.append(log.put("s", f"key-{index}", b"x" * 1000))
        log.pass_time(0.001)
    query.run_to_end(Limits(bytes=100_000))
    sizes = [sum(len(r.data) for records in batch.values() for r in records) for batch in query.batches]
    assert max(sizes) <= 100_000 + 2 * 1_000
    assert len(sizes) >= 30
    check_exactly_once(query, records)


def test_records_with_the_same_arrival_time_are_taken_a_few_at_a_time() -> None:
    """Where more of them come than a batch may hold, time alone cannot divide them."""
    log = new_log(2)
    query = Query(log)
    records = [log.put("s", f"key-{index}") for index in range(60)]
    query.run_to_end(Limits(records=7))
    assert max(query.sizes_since(0)) <= 7
    check_exactly_once(query, records)


def test_a_batch_keeps_to_a_time_span_over_all_shards() -> None:
    """Where many records come as well as where none come for a while."""
    log = new_log(3)
    query = Query(log)
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


def test_an_end_right_before_a_record_keeps_the_number_of_that_record() -> None:
    """A limit of time may end a batch there. A split that then waits while others advance keeps the end."""
    log = new_log(2)
    query = Query(log)
    records = put_many(log, 6000)
    query.run_batch(Limits(span=4 * SECOND))
    assert any("next" in position for position in query.offsets[-1]["streams"]["s"].values())
    for split in log.shards:
        query.restart()
        log.pass_time(30)
        log.fault = lambda _, asked, split=split: THROTTLED if asked == split else None
        end = query.plan()
        log.fault = None
        query.run_planned(end)
    query.run_to_end()
    check_exactly_once(query, records)
