"""Where a batch without limits ends, and what finding it costs."""

from __future__ import annotations

import pytest
from memory_log import S0, MemoryLog, put_many
from query import (
    Query,
    check_exactly_once,
)

from sluice.errors import ServiceError
from sluice.source.offsets import After


def test_quiet_shard_ends_at_its_last_record() -> None:
    """A page that ends at the tip gives the cut: its last record."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"])
    records = put_many(log, 5)
    assert query.run_batch() == {S0: records}
    assert query.offsets[-1]["streams"]["s"][S0.shard]["after"] == records[-1].sequence_number


def test_nothing_new_is_the_same_offset() -> None:
    """Without news the planner gives back the very offset it was given, so Spark makes no batch."""
    log = MemoryLog()
    log.create("s", 3)
    query = Query(log, ["s"])
    put_many(log, 10)
    query.run_to_end()
    for _ in range(100):
        log.pass_time(5)
        assert query.run_batch() is None


def test_asked_often_the_planner_answers_from_memory() -> None:
    """Spark asks some 90 times a second; a quiet shard is read at most once a second."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"])
    put_many(log, 3)
    query.run_batch()
    calls = log.calls["GetRecords"]
    for _ in range(900):
        query.run_batch()
        log.pass_time(1 / 90)
    assert log.calls["GetRecords"] - calls <= 11


def test_busy_shard_is_cut_with_two_calls_whatever_the_rate() -> None:
    """A full glance and one record a moment ago: no more is read to plan a batch of 50,000."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"])
    records = put_many(log, 50_000, per_second=10_000)
    rows = query.run_batch()
    assert rows is not None
    assert log.limits[:2] == [100, 1]
    assert len(rows[S0]) >= 40_000 - 1
    query.run_to_end()
    check_exactly_once(query, records)


def test_old_backlog_is_taken_whole_without_walking_through_it() -> None:
    """Records that all arrived hours ago: the last is found by bisecting time, not by reading all."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"])
    records = put_many(log, 100_000, per_second=1000)
    log.pass_time(3 * 3600)
    limits_before = len(log.limits)
    end = query.enumerator.advance(query.enumerator.initial())
    position = end.position(S0)
    assert isinstance(position, After)
    assert position.sequence == int(records[-1].sequence_number)
    assert sum(log.limits[limits_before:]) < 30_000


def test_closed_shard_ends_without_a_look() -> None:
    """A closed shard's end is known: no record is read to plan it, and the children come after."""
    log = MemoryLog()
    log.create("s")
    records = put_many(log, 250)
    children = log.split(S0)
    records += put_many(log, 100)
    query = Query(log, ["s"])
    first = query.run_batch()
    assert first is not None
    assert list(first) == [S0]
    assert log.calls["GetShardIterator"] == 1  # the task's
    query.run_to_end()
    assert {split for batch in query.batches[1:] for split in batch} == set(children)
    check_exactly_once(query, records)


def test_empty_pages_in_mid_shard_are_not_the_tip() -> None:
    """An empty page that is behind the tip is read past, by planner and task alike."""
    log = MemoryLog(empty_every=2)
    log.create("s", 2)
    query = Query(log, ["s"], page_limit=10)
    records = put_many(log, 500)
    query.run_to_end()
    check_exactly_once(query, records)


def test_short_pages_are_not_the_tip() -> None:
    """A page cut short by its bytes holds fewer records than asked for, with more behind them."""
    log = MemoryLog(page_size=10)
    log.create("s", 2)
    query = Query(log, ["s"])
    records = put_many(log, 500)
    rows = query.run_batch()
    assert rows is not None
    assert sum(map(len, rows.values())) == 40  # a glance and a sample of each shard, ten records a page
    query.run_to_end()
    check_exactly_once(query, records)


def test_empty_page_at_a_point_in_time_is_not_the_tip() -> None:
    """The record at a time may come behind empty pages; giving up there would bisect for nothing."""
    log = MemoryLog(empty_every=2)
    log.create("s")
    query = Query(log, ["s"])
    put_many(log, 50_000, per_second=10_000)
    query.enumerator.advance(query.enumerator.initial())
    assert log.limits == [100, 1, 1]


def test_throttled_planner_waits_and_goes_on() -> None:
    """Throttling during planning never fails a query: the shard is left where it is for now."""
    refusals = iter([True] * 50)
    throttled = ServiceError("slow down", operation="GetRecords", retryable=True, throttling=True)
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"])
    records = put_many(log, 10)
    log.fault = lambda operation, _: throttled if operation == "GetRecords" and next(refusals, None) else None
    for _ in range(200):
        assert query.run_batch() is None
        log.pass_time(1)
        if next(refusals, None) is None:
            break
    query.run_to_end()
    check_exactly_once(query, records)


def test_failures_that_last_fail_the_query() -> None:
    """A shard that can't be looked at for a minute is an outage that somebody must hear of."""
    broken = ServiceError("500 from s", operation="GetRecords", retryable=True)
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"])
    log.fault = lambda operation, _: broken if operation == "GetRecords" else None

    def run_for_ten_minutes() -> None:
        for _ in range(600):
            query.run_batch()
            log.pass_time(1)

    with pytest.raises(ServiceError, match="500 from s"):
        run_for_ten_minutes()
