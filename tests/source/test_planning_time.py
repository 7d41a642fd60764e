"""How long the first batch takes to plan, and how many reads: in virtual time, under the service's limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from memory_log import S0, SECOND, new_log
from query import new_enumerator as memory_enumerator
from steady_log import Backlog, SteadyLog, new_enumerator

from sluice.source.model.offsets import HORIZON, After, Position
from sluice.source.model.splits import SplitId
from sluice.source.probing.session import ProbeSession
from sluice.source.settings import NO_LIMITS, Limits

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
TINY = Backlog(oldest=HOUR + 5, newest=HOUR, rate=1, size=100)
SMALL = Backlog(oldest=700, newest=600, rate=10)
DENSE = Backlog(oldest=150, newest=-1, rate=1000)
LIVE = Backlog(oldest=DAY, newest=-1, rate=20, size=100)
SPARSE = Backlog(oldest=DAY, newest=-1, rate=0.05, size=100)
PAUSED = Backlog(oldest=HOUR, newest=MINUTE, rate=30, size=100)
DENSE_PAUSED = Backlog(oldest=150, newest=10, rate=1000)
DENSE_LONG_PAUSED = Backlog(oldest=DAY, newest=HOUR, rate=1000)
HALF_LARGE = Backlog(oldest=300, newest=10, rate=2, size=2**19)
LARGE = Backlog(oldest=300, newest=10, rate=1, size=2**20)
LARGEST = Backlog(oldest=300, newest=10, rate=0.1, size=10 * 2**20)

KINDS = pytest.mark.parametrize("kind", ["batch", "available", "available with limits"])


def shards(backlog: Backlog, count: int) -> list[Backlog]:
    """Shards that are alike, but no two the same."""
    return [replace(backlog, rate=backlog.rate * (1 - index / (4 * count))) for index in range(count)]


def plan(log: SteadyLog, kind: str) -> Mapping[SplitId, Position]:
    """Plans all existing records, and checks that a plan without limits takes all of them; returns where it
    ends.
    """
    planned = new_enumerator(log)
    there = {split: log.count(split) for split in log.splits}
    if kind == "batch":
        ends: Mapping[SplitId, Position] = {each.split: each.end for each in planned.bounded()}
    else:
        start = planned.initial()
        planned.stop_at_available()
        limits = Limits(records=1000) if kind == "available with limits" else NO_LIMITS
        ends = planned.advance(start, limits).positions
    if kind != "available with limits":
        for split, count in there.items():
            last = ends.get(split)
            assert (last.sequence if isinstance(last, After) else 0) >= count
    return ends


@KINDS
@pytest.mark.parametrize("latency", [0.005, 0.1])
@pytest.mark.parametrize("backlog", [TINY, SMALL, DENSE, LIVE, SPARSE, PAUSED])
def test_a_run_is_planned_in_five_reads(backlog: Backlog, latency: float, kind: str) -> None:
    """As many as a shard answers at once, so nothing is slept."""
    log = SteadyLog([backlog], latency=latency)
    plan(log, kind)
    assert max(log.reads.values()) <= 5
    assert log.slept == 0
    # Two calls are about the stream. A read takes one, and one more where it begins at a time.
    assert log.elapsed <= 11 * latency
    assert not log.refused


@pytest.mark.parametrize("latency", [0.005, 0.1])
@pytest.mark.parametrize("backlog", [TINY, DENSE, SPARSE])
@pytest.mark.parametrize("count", [16, 64])
def test_many_shards_are_planned_as_fast_as_one(backlog: Backlog, count: int, latency: float) -> None:
    log = SteadyLog(shards(backlog, count), latency=latency)
    plan(log, "available")
    assert max(log.reads.values()) <= 5
    assert log.slept == 0
    assert log.elapsed <= 11 * latency
    assert not log.refused


def test_a_shard_without_records_takes_one_read() -> None:
    log = SteadyLog(shards(Backlog(10, 10, 1), 64), latency=0.005)
    plan(log, "available")
    assert set(log.reads.values()) == {1}
    assert log.elapsed <= 4 * log.latency + 1e-9


@pytest.mark.parametrize(
    ("backlog", "most"), [(replace(DENSE_PAUSED, newest=3), 9), (DENSE_PAUSED, 10), (DENSE_LONG_PAUSED, 20)]
)
@pytest.mark.parametrize("kind", ["batch", "available"])
def test_the_end_of_a_dense_backlog_is_searched_once(backlog: Backlog, most: int, kind: str) -> None:
    """A producer wrote all that a shard takes, and has paused. A page is one second of 150, or of a day."""
    log = SteadyLog([backlog], latency=0.005)
    plan(log, kind)
    assert max(log.reads.values()) <= most
    assert log.slept <= 1.05 * ((most - 1) // 5)
    assert not log.refused


@KINDS
@pytest.mark.parametrize("latency", [0.005, 0.1])
@pytest.mark.parametrize("backlog", [LARGE, LARGEST, HALF_LARGE, DENSE_PAUSED])
def test_a_plan_keeps_within_what_a_shard_gives(backlog: Backlog, latency: float, kind: str) -> None:
    """Five reads and 2 MiB a second, if the planner is the only reader: nothing is refused."""
    log = SteadyLog([backlog], latency=latency)
    plan(log, kind)
    assert not log.refused


@pytest.mark.parametrize("kind", ["batch", "available"])
def test_reads_that_strangers_take_are_waited_for(kind: str) -> None:
    """Throttling costs time, and changes nothing."""
    log = SteadyLog([DENSE, PAUSED], latency=0.005, strangers=3)
    plan(log, kind)
    assert log.refused["GetRecords"] > 0
    assert log.elapsed < 10.0


def test_records_are_not_read_twice_to_plan_a_run_with_limits() -> None:
    """What the search for the end of the run has read from its start is counted for its first batch."""
    log = SteadyLog([LIVE], latency=0.005)
    plan(log, "available with limits")
    assert log.from_start == 1


@pytest.mark.parametrize("kind", ["batch", "available"])
def test_more_than_a_page_since_a_moment_ago_is_read_up_to(kind: str) -> None:
    """Emulators take more than Kinesis does, so what came in three seconds may not fit a page."""
    log = SteadyLog([Backlog(oldest=60, newest=1.5, rate=20_000, size=10)], latency=0.005)
    plan(log, kind)
    assert not log.refused


def test_a_record_that_arrived_out_of_order_ends_no_search() -> None:
    """The first record at a time may precede those that are known; the tip is then read up to."""
    log = new_log()
    begun = log.now
    for index in range(3000):
        log.put("s", "key", arrival=begun + index * 1000 + (SECOND * 600 if index == 10 else 0))
    log.pass_time(3600)
    (planned,) = memory_enumerator(log, ["s"]).bounded()
    assert isinstance(planned.end, After)
    assert planned.end.number == log.records(S0)[-1].sequence_number


def test_tasks_get_their_part_of_the_reads() -> None:
    """The planner takes all five reads before the first batch, and four of them afterwards."""
    log = SteadyLog([LIVE], latency=0.005)
    planned = new_enumerator(log)
    start = planned.initial()
    end = planned.advance(start)

    state = planned._probe.state(log.list_splits("s")[0], HORIZON)
    session = ProbeSession(planned._probe, state, 900.0, is_awaited=True)

    def reads(count: int) -> None:
        for _ in range(count):
            session._next_page(state.cursor, 1)

    log.elapsed += 10
    reads(5)
    assert log.slept == 0
    planned.ranges(start, end)
    log.elapsed += 10
    reads(4)
    assert log.slept == 0
    reads(1)
    assert log.slept >= 0.9
