"""Batches with limits or a target that end at the subscriptions' positions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from memory_log import SECOND, new_log, put_many
from memory_subscriptions import NO_FAULTS, Faults
from query import check_exactly_once, pushed_query, wait_for_subscriptions

from sluice.source.model.offsets import Position
from sluice.source.model.splits import SplitId
from sluice.source.settings import Limits
from sluice.source.state.subscriptions import SubscriptionProgress


@pytest.mark.parametrize("limit", [1, 30, 100, 500])
def test_a_batch_passes_a_limit_of_records_by_less_than_a_cut_point_counts(limit: int) -> None:
    """It can end at cut points alone, and each counts up to 40 records here."""
    log = new_log(2)
    query, agent = pushed_query(log, event_size=40)
    put_many(log, 4)
    wait_for_subscriptions(query)
    done, calls = len(query.batches), log.calls["GetRecords"]
    put_many(log, 1200)
    agent.subscriptions.rng.seed(1)
    query.run_while_new(Limits(records=limit))
    sizes = query.sizes_since(done)
    assert sum(sizes) == 1200
    assert max(sizes) <= limit + 40
    assert len(sizes) <= 1200 // max(1, limit - 40) + 1 if limit > 40 else len(sizes) >= 1200 // 40
    assert log.calls["GetRecords"] == calls


def test_a_limit_of_bytes_counts_all_records_of_a_cut_point() -> None:
    """And not the last one alone."""
    log = new_log()
    query, _ = pushed_query(log, event_size=10)
    put_many(log, 4)
    wait_for_subscriptions(query)
    done = len(query.batches)
    for index in range(500):
        log.put("s", f"{index:04d}", b"x" * 96)
        log.pass_time(0.001)
    query.run_while_new(Limits(bytes=10_000))
    sizes = query.sizes_since(done)
    assert sum(sizes) == 500
    assert max(sizes) <= 110
    assert len(sizes) <= 6


@pytest.mark.parametrize("event_size", [1, 20, 2_000])
def test_a_batch_keeps_to_a_time_span_however_many_records_a_cut_point_counts(event_size: int) -> None:
    """Where those of the first cut point arrived over a longer time, probes find a closer one."""
    log = new_log(2)
    query, _ = pushed_query(log, event_size=event_size)
    put_many(log, 4)
    wait_for_subscriptions(query)
    done = len(query.batches)
    records = put_many(log, 600, per_second=20)
    query.run_to_end(Limits(span=5 * SECOND))
    for batch in query.batches[done:]:
        arrivals = [record.arrival for rows in batch.values() for record in rows]
        assert not arrivals or max(arrivals) - min(arrivals) <= 5 * SECOND
    assert sum(query.sizes_since(done)) == len(records)


def test_a_cut_point_without_its_first_arrival_may_be_too_long_for_a_time_span() -> None:
    """Probes find a closer one."""
    log = new_log()
    query, agent = pushed_query(log, event_size=2_000)
    put_many(log, 4)
    wait_for_subscriptions(query)
    progress_with = agent.subscriptions.progress

    def progress_without(split: SplitId, position: Position) -> SubscriptionProgress | None:
        given = progress_with(split, position)
        return given and replace(given, cut_points=[point._replace(since=None) for point in given.cut_points])

    agent.subscriptions.progress = progress_without  # type: ignore[method-assign]
    put_many(log, 400, per_second=20)
    done = len(query.batches)
    query.run_to_end(Limits(span=5 * SECOND))
    assert max(query.sizes_since(done)) <= 100
    assert sum(query.sizes_since(done)) == 400


@pytest.mark.parametrize("limits", [Limits(), Limits(records=50), Limits(span=SECOND)])
@pytest.mark.parametrize("faults", [NO_FAULTS, Faults(lag=0.7), Faults(lose=0.5)])
def test_a_run_that_ends_reads_exactly_what_was_there_at_its_start(limits: Limits, faults: Faults) -> None:
    """A cut point that passes the target is cut to it. Events that are late do not end the run."""
    log = new_log(2)
    query, _ = pushed_query(log, event_size=40, events=2, faults=faults)
    records = put_many(log, 20)
    wait_for_subscriptions(query)
    records += put_many(log, 700, per_second=200)
    query.enumerator.stop_at_available()
    while query.run_batch(limits) is not None:
        put_many(log, 10)
        log.pass_time(5)
    check_exactly_once(query, records)


def test_a_range_expects_all_records_that_its_cut_points_count() -> None:
    """The first page that a task asks for depends on it."""
    log = new_log()
    query, _ = pushed_query(log, event_size=100)
    put_many(log, 4)
    wait_for_subscriptions(query)
    put_many(log, 1000)
    (split_range,) = query.enumerator.ranges(query.last_end, query.plan())
    assert split_range.expected == 1000
