"""Where a batch without limits ends, and how many calls it takes to find that."""

from __future__ import annotations

import itertools

import pytest
from memory_log import BROKEN, S0, THROTTLED, failing_reads, new_log, put_many
from query import Query, check_exactly_once

from sluice.errors import ServiceError
from sluice.source.model.offsets import After


def test_most_triggers_make_no_call() -> None:
    """Spark asks some 90 times a second; a shard without news is read at most once a second."""
    log = new_log()
    query = Query(log)
    put_many(log, 3)
    query.run_batch()
    calls = log.calls["GetRecords"]
    for _ in range(900):
        query.run_batch()
        log.pass_time(1 / 90)
    assert log.calls["GetRecords"] - calls <= 11


def test_a_busy_shard_takes_two_reads_whatever_its_rate() -> None:
    """A page that is full, and one of records that arrived a moment ago, for a batch of 50,000.

    Before them a few records are read, which tell how large records are.
    """
    log = new_log()
    query = Query(log)
    records = put_many(log, 50_000, per_second=10_000)
    rows = query.run_batch()
    assert rows is not None
    assert log.limits[:3] == [2, 1000, 10_000]
    assert len(rows[S0]) == 50_000
    query.run_to_end()
    check_exactly_once(query, records)


def test_the_end_of_an_old_backlog_is_found_by_time() -> None:
    """Where all records arrived hours ago, the last one is bisected for; they are not all read."""
    log = new_log()
    query = Query(log)
    records = put_many(log, 100_000, per_second=1000)
    log.pass_time(3 * 3600)
    limits_before = len(log.limits)
    query.log_start()
    position = query.plan().position(S0)
    assert isinstance(position, After)
    assert position.sequence == int(records[-1].sequence_number)
    assert sum(log.limits[limits_before:]) < 30_000


def test_a_closed_shard_is_planned_to_its_end_after_one_record() -> None:
    """That record will show whether it is still there. Its children are read in the same batch, after it."""
    log = new_log()
    records = put_many(log, 250)
    children = log.split(S0)
    records += put_many(log, 100)
    query = Query(log)
    first = query.run_batch()
    assert first is not None
    assert list(first) == [S0, *children]
    assert log.limits[0] == 1
    assert log.calls["GetShardIterator"] == 2 * 3  # the planner's and the tasks'
    check_exactly_once(query, records)


def test_a_short_page_is_not_the_tip() -> None:
    """A page that is cut short by its bytes holds fewer records than were asked for; more follow."""
    log = new_log(2, page_size=10)
    query = Query(log)
    records = put_many(log, 500)
    rows = query.run_batch()
    assert rows is not None
    # Of each shard two records that tell their size, and a page, which holds ten records.
    assert sum(map(len, rows.values())) == 24
    query.run_to_end()
    check_exactly_once(query, records)


def test_an_empty_page_at_a_point_in_time_is_read_past() -> None:
    """If the planner gave up there, it would bisect for nothing."""
    log = new_log(empty_every=3)
    query = Query(log)
    put_many(log, 50_000, per_second=10_000)
    query.log_start()
    query.plan()
    assert log.limits == [2, 1000, 10_000, 10_000]


def test_throttling_never_fails_the_query() -> None:
    """A shard whose reads are throttled stays where it is for now."""
    refusals = iter([THROTTLED] * 50)
    log = new_log()
    query = Query(log)
    records = put_many(log, 10)
    log.fault = failing_reads(refusals)
    for _ in range(200):
        assert query.run_batch() is None
        log.pass_time(1)
        if next(refusals, None) is None:
            break
    query.run_to_end()
    check_exactly_once(query, records)


def test_the_lag_of_a_throttled_shard_is_soon_unknown() -> None:
    """It was at its tip, and nobody knows how much has come since."""
    log = new_log(2)
    query = Query(log)
    put_many(log, 10)
    query.run_to_end()
    assert set(query.enumerator.millis_behind_latest.values()) == {0}
    log.fault = failing_reads(itertools.repeat(THROTTLED))
    known = []
    for _ in range(20):
        query.run_batch()
        known.append(len(query.enumerator.millis_behind_latest))
        log.pass_time(1)
    assert known == sorted(known, reverse=True)
    assert (known[0], known[-1]) == (2, 0)

    log.fault = failing_reads(iter(()))
    log.pass_time(2)
    query.run_batch()
    assert set(query.enumerator.millis_behind_latest.values()) == {0}


def test_failures_that_last_fail_the_query() -> None:
    """A shard that cannot be read for a quarter of an hour is an outage, and one for less is none."""
    log = new_log()
    query = Query(log)
    log.fault = failing_reads(itertools.repeat(BROKEN))

    def run_for(seconds: int) -> None:
        for _ in range(seconds // 10):
            query.run_batch()
            log.pass_time(10)

    run_for(890)
    with pytest.raises(ServiceError, match="500 from s"):
        run_for(60)
