"""Batches with limits or a target, whose ends are taken from subscriptions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from memory_log import S0, SECOND, MemoryLog, put_many
from memory_subscriptions import NO_FAULTS, Faults
from query import (
    check_exactly_once,
    pushed_query,
    settle,
)

from sluice.source.admission import Limits
from sluice.source.offsets import Offsets, Position
from sluice.source.splits import SplitId
from sluice.source.subscriptions import SubscriptionProgress


@pytest.mark.parametrize("limit", [1, 30, 100, 500])
def test_limits_are_passed_by_at_most_a_mark(limit: int) -> None:
    """A batch ends where marks are: what it holds beyond the limit is less than one of them."""
    log = MemoryLog()
    log.create("s", 2)
    query, agent = pushed_query(log, event_size=40)
    put_many(log, 4)
    settle(query)
    done, calls = len(query.batches), log.calls["GetRecords"]
    put_many(log, 1200)
    agent.subscriptions.rng.seed(1)
    while query.run_batch(Limits(records=limit)) is not None:
        pass
    sizes = [sum(map(len, batch.values())) for batch in query.batches[done:]]
    assert sum(sizes) == 1200
    assert max(sizes) <= limit + 40
    assert len(sizes) <= 1200 // max(1, limit - 40) + 1 if limit > 40 else len(sizes) >= 1200 // 40
    assert log.calls["GetRecords"] == calls


def test_byte_limit_counts_all_that_a_mark_stands_for() -> None:
    """The bytes of a mark are those of all its records."""
    log = MemoryLog()
    log.create("s")
    query, _ = pushed_query(log, event_size=10)
    put_many(log, 4)
    settle(query)
    done = len(query.batches)
    for index in range(500):
        log.put("s", f"{index:04d}", b"x" * 96)
        log.pass_time(0.001)
    while query.run_batch(Limits(bytes=10_000)) is not None:
        pass
    sizes = [len(batch[S0]) for batch in query.batches[done:]]
    assert sum(sizes) == 500
    assert max(sizes) <= 110
    assert len(sizes) <= 6


@pytest.mark.parametrize("event_size", [1, 20, 2_000])
def test_time_span_holds_however_coarse_the_marks(event_size: int) -> None:
    """A mark that stands for more time than allowed ends no batch: its split is looked at."""
    log = MemoryLog()
    log.create("s", 2)
    query, _ = pushed_query(log, event_size=event_size)
    put_many(log, 4)
    settle(query)
    done = len(query.batches)
    records = put_many(log, 600, per_second=20)
    query.run_to_end(Limits(span=5 * SECOND))
    sizes = []
    for batch in query.batches[done:]:
        arrivals = [record.arrival for rows in batch.values() for record in rows]
        assert not arrivals or max(arrivals) - min(arrivals) <= 5 * SECOND
        sizes.append(len(arrivals))
    assert sum(sizes) == len(records)


def test_mark_of_unknown_length_does_not_pass_for_a_short_one() -> None:
    """Where a mark does not say when its first record came, a limit of time is kept by looks."""
    log = MemoryLog()
    log.create("s")
    query, agent = pushed_query(log, event_size=2_000)
    put_many(log, 4)
    settle(query)
    known = agent.subscriptions.progress

    def unknowing(split: SplitId, position: Position) -> SubscriptionProgress | None:
        given = known(split, position)
        return given and replace(given, cut_points=[point._replace(since=None) for point in given.cut_points])

    agent.subscriptions.progress = unknowing  # type: ignore[method-assign]
    put_many(log, 400, per_second=20)
    done = len(query.batches)
    query.run_to_end(Limits(span=5 * SECOND))
    assert max(len(batch[S0]) for batch in query.batches[done:]) <= 100
    assert sum(len(batch[S0]) for batch in query.batches[done:]) == 400


@pytest.mark.parametrize("limits", [Limits(), Limits(records=50), Limits(span=SECOND)])
@pytest.mark.parametrize("faults", [NO_FAULTS, Faults(lag=0.7), Faults(lose=0.5)])
def test_available_now_takes_what_was_there_and_no_more(limits: Limits, faults: Faults) -> None:
    """A mark beyond the target ends a batch at the target; marks that are late do not end the run."""
    log = MemoryLog()
    log.create("s", 2)
    query, _ = pushed_query(log, event_size=40, events=2, faults=faults)
    records = put_many(log, 20)
    settle(query)
    records += put_many(log, 700, per_second=200)
    query.enumerator.stop_at_available()
    while query.run_batch(limits) is not None:
        put_many(log, 10)
        log.pass_time(5)
    check_exactly_once(query, records)


def test_expected_counts_all_that_marks_stand_for() -> None:
    """What a range is said to hold is what it holds, or a little more."""
    log = MemoryLog()
    log.create("s")
    query, _ = pushed_query(log, event_size=100)
    put_many(log, 4)
    settle(query)
    put_many(log, 1000)
    start = Offsets.from_json(query.offsets[-1])
    (split_range,) = query.enumerator.ranges(start, query.enumerator.advance(start))
    assert split_range.expected == 1000
