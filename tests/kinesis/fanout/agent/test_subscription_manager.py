"""The agent's subscriptions: what is buffered, what the planner is told, and when it is given up."""

from __future__ import annotations

import queue
from collections.abc import Callable

import pytest

from sluice.errors import ServiceError
from sluice.kinesis.fanout.agent.shard_buffer import RangeUnavailable
from sluice.kinesis.fanout.agent.subscription_manager import ManagerSettings, SubscriptionManager
from sluice.kinesis.fanout.protocol import (
    INTEGRITY_PROBLEM,
    TAKEN_OVER,
    EventReceived,
    FromAgent,
    ReadRange,
    Subscribe,
    SubscriptionEnded,
)
from sluice.kinesis.fanout.subscriptions.events import EventHead
from sluice.source.cut_points import CutPoint
from sluice.source.splits import SplitId
from sluice.source.stream_log import IteratorStart
from sluice.source.subscriptions import SubscriptionProgress

SPLIT = SplitId("clicks", "shardId-0")
HORIZON = IteratorStart("TRIM_HORIZON")
NOW = 1_700_000_000_000_000
HOUR = 3600 * 1_000_000
PATIENT = 120.0

Said = tuple[bytes, EventHead] | Exception


class FakeSource:
    """Gives what it is told to."""

    def __init__(self) -> None:
        self.said: queue.SimpleQueue[Said] = queue.SimpleQueue()
        self.was_taken_over = False
        self.is_closed = False

    def next_event(self) -> tuple[bytes, EventHead]:
        said = self.said.get(timeout=PATIENT)
        if isinstance(said, Exception):
            raise said
        return said

    def close(self) -> None:
        self.is_closed = True
        self.said.put(ServiceError("closed", code="SubscriptionClosed"))


class Bench:
    """A manager, its sources by shard, and what it reports."""

    def __init__(self, *, capacity: int = 1_000, cut_points: int = 1_000) -> None:
        self.sources: dict[SplitId, list[FakeSource]] = {}
        self.starts: list[IteratorStart] = []
        self.reports: queue.SimpleQueue[FromAgent] = queue.SimpleQueue()
        self.now = NOW
        self.retention = 24 * 3600.0
        self.retention_asked = 0
        self.manager = SubscriptionManager(
            self._open,
            self.reports.put,
            ManagerSettings(capacity, cut_points, ("127.0.0.1", 4000)),
            now=lambda: self.now,
            retention=self._retention,
        )

    def _open(self, split: SplitId, start: IteratorStart) -> FakeSource:
        self.starts.append(start)
        self.sources.setdefault(split, []).append(FakeSource())
        return self.sources[split][-1]

    def _retention(self, stream: str) -> float:
        assert stream == SPLIT.stream
        self.retention_asked += 1
        return self.retention

    def subscribe(
        self, start: IteratorStart = HORIZON, *, generation: int = 1, split: SplitId = SPLIT
    ) -> FakeSource:
        self.manager.subscribe(Subscribe(split, generation, start))
        return self.sources[split][-1]

    def heard(self) -> FromAgent:
        return self.reports.get(timeout=PATIENT)

    def received(self) -> EventReceived:
        heard = self.heard()
        assert isinstance(heard, EventReceived)
        return heard

    def progress(self) -> SubscriptionProgress:
        return self.received().progress

    def read(self, after: int | None, end: int | None, start: IteratorStart = HORIZON) -> list[bytes]:
        fetch = ReadRange(
            SPLIT, start, None if after is None else str(after), None if end is None else str(end), 0.0
        )
        return [bytes(payload) for payload in self.manager.read(fetch)]


EACH = 141
"""Bytes of JSON for a record: 100 that say nothing of it, a number of one digit, and 40 that make 30."""


def event(*numbers: int, behind: int = 0, ended: bool = False) -> tuple[bytes, EventHead]:
    head = EventHead(
        [str(n) for n in numbers], [n * 1000 for n in numbers], None if ended else "c", behind, ended
    )
    return b"x" * (EACH * max(1, len(numbers))), head


@pytest.fixture
def make() -> Callable[..., Bench]:
    return Bench


def test_an_event_is_buffered_before_the_planner_hears_of_it(make: Callable[..., Bench]) -> None:
    """The tasks of a batch that ends there find it."""
    bench = make(cut_points=1)
    source = bench.subscribe()
    source.said.put(event(5, 6, 7))

    heard = bench.received()

    progress = SubscriptionProgress((CutPoint("7", 7000, 90, 3, 5000),), 0, caught_up_at=NOW)
    assert heard == EventReceived(SPLIT, 1, "5", progress, server=("127.0.0.1", 4000))
    assert bench.read(None, 7) == [b"x" * 3 * EACH]


def test_limits_get_cut_points_as_fine_as_they_need(make: Callable[..., Bench]) -> None:
    """An event that holds more than a batch may is divided; its records are all counted."""
    bench = make(cut_points=3)
    source = bench.subscribe()
    source.said.put(event(1, 2, 3, 4, 5, 6, 7))

    cut_points = bench.progress().cut_points

    assert [(point.number, point.count) for point in cut_points] == [("3", 3), ("6", 3), ("7", 1)]
    assert sum(point.size for point in cut_points) == pytest.approx(7 * 30, abs=3)


def test_an_idle_event_tells_until_when_nothing_was_there(make: Callable[..., Bench]) -> None:
    """Only at the tip."""
    bench = make()
    source = bench.subscribe()
    source.said.put(event(behind=900))
    source.said.put(event())

    first, second = bench.progress(), bench.received()

    assert (first.cut_points, first.millis_behind, first.caught_up_at) == ((), 900, None)
    assert second.first is None
    assert (second.progress.millis_behind, second.progress.caught_up_at) == (0, NOW)


def test_a_start_at_a_record_is_told_of_when_that_record_has_come(make: Callable[..., Bench]) -> None:
    """Before that nobody knows whether it still exists."""
    bench = make()
    source = bench.subscribe(IteratorStart("AT_SEQUENCE_NUMBER", "50"))
    source.said.put(event())
    source.said.put(event(50, 51))

    assert [point.number for point in bench.progress().cut_points] == ["50", "51"]
    assert bench.read(50, 51, IteratorStart("AT_SEQUENCE_NUMBER", "50")) == [b"x" * 2 * EACH]


def test_a_record_that_is_gone_is_not_judged_here(make: Callable[..., Bench]) -> None:
    """The shard is given up, without a code of the service: whoever polls will see what is lost."""
    bench = make()
    source = bench.subscribe(IteratorStart("AT_SEQUENCE_NUMBER", "50"))
    source.said.put(event(53, 54))

    heard = bench.heard()

    assert isinstance(heard, SubscriptionEnded)
    assert (heard.split, heard.generation, heard.code) == (SPLIT, 1, "")
    assert "record 50" in heard.reason
    assert source.is_closed
    with pytest.raises(RangeUnavailable):
        bench.read(50, 54, IteratorStart("AT_SEQUENCE_NUMBER", "50"))


def test_a_host_that_slept_for_a_day_does_not_go_on_as_if_nothing_had_expired(
    make: Callable[..., Bench],
) -> None:
    """Events go on behind what was trimmed meanwhile without a word: whoever polls will see what is lost."""
    bench = make()
    source = bench.subscribe()
    source.said.put(event(1))
    bench.progress()
    bench.now += 25 * HOUR
    source.said.put(event(7))

    heard = bench.heard()

    assert isinstance(heard, SubscriptionEnded)
    assert heard.code == INTEGRITY_PROBLEM
    assert "25 h" in heard.reason
    with pytest.raises(RangeUnavailable):
        bench.read(None, 7)


def test_a_record_from_the_future_tells_that_the_clock_is_wrong(make: Callable[..., Bench]) -> None:
    """A clock that stands still, as ours may have, does not hide how long nothing came."""
    bench = make()
    bench.now = 0
    source = bench.subscribe()
    source.said.put(event(1))
    bench.progress()
    source.said.put(event(25 * HOUR // 1000))

    heard = bench.heard()

    assert isinstance(heard, SubscriptionEnded)
    assert heard.code == INTEGRITY_PROBLEM


def test_old_records_and_idle_hours_raise_no_doubt(make: Callable[..., Bench]) -> None:
    """Neither a backlog with long pauses in it, nor a shard that only says that it lives."""
    bench = make()
    source = bench.subscribe()
    for number in (1, 20 * HOUR // 1000, 40 * HOUR // 1000):
        source.said.put(event(number))
        bench.progress()
    for _ in range(30):
        bench.now += HOUR
        source.said.put(event())
        bench.progress()
    source.said.put(event(50 * HOUR // 1000))

    assert bench.progress().cut_points
    assert bench.retention_asked == 0


@pytest.mark.parametrize(("days", "gives_up"), [(1, True), (2, False)])
def test_near_the_end_of_the_retention_polling_is_left_to_judge(
    make: Callable[..., Bench], days: int, *, gives_up: bool
) -> None:
    """What expires while it waits to be pushed is passed over without a word."""
    bench = make()
    bench.retention = days * 24 * 3600.0
    source = bench.subscribe()
    for number in (1, 2):
        source.said.put(event(number, behind=22 * HOUR // 1000))

    heard = bench.heard()

    if gives_up:
        assert isinstance(heard, SubscriptionEnded)
        assert heard.code == INTEGRITY_PROBLEM
        assert "22.0 h behind" in heard.reason
    else:
        assert isinstance(heard, EventReceived)
        assert bench.progress().cut_points
    assert bench.retention_asked == 1


def test_the_end_of_a_shard_ends_its_ranges(make: Callable[..., Bench]) -> None:
    """And is reported, with the last records."""
    bench = make()
    source = bench.subscribe()
    source.said.put(event(1, 2, ended=True))

    assert bench.progress().has_ended
    assert bench.read(None, None) == [b"x" * 2 * EACH]


def test_what_the_service_refuses_is_reported_with_its_code(make: Callable[..., Bench]) -> None:
    """The planner decides by it when to ask again."""
    bench = make()
    source = bench.subscribe()
    source.said.put(ServiceError("not allowed", code="AccessDeniedException"))

    assert bench.heard() == SubscriptionEnded(SPLIT, 1, "not allowed", "AccessDeniedException")


def test_a_fault_of_our_own_is_reported_too(make: Callable[..., Bench]) -> None:
    """A thread that died silently would leave the shard unread."""
    bench = make()
    bench.subscribe().said.put(KeyError("oops"))

    heard = bench.heard()

    assert isinstance(heard, SubscriptionEnded)
    assert heard.code == "KeyError"


def test_another_watch_takes_the_place_of_the_one_before(make: Callable[..., Bench]) -> None:
    """One subscription a shard: the old one is closed, and says nothing more."""
    bench = make()
    old = bench.subscribe()
    new = bench.subscribe(IteratorStart("AT_TIMESTAMP", timestamp=7), generation=2)
    new.said.put(event(9))

    assert old.is_closed
    assert bench.received().generation == 2
    assert [start.kind for start in bench.starts] == ["TRIM_HORIZON", "AT_TIMESTAMP"]


def test_a_shard_nobody_watches_is_lacking(make: Callable[..., Bench]) -> None:
    """Not yet, or not any more."""
    bench = make()
    with pytest.raises(RangeUnavailable, match="no subscription to the shard"):
        bench.read(None, 5)
    bench.subscribe().said.put(event(1))
    bench.progress()
    bench.manager.unsubscribe(SPLIT)
    with pytest.raises(RangeUnavailable, match="no subscription to the shard"):
        bench.read(None, 1)


def test_a_stream_that_somebody_else_reads_with_our_consumer_is_contested(make: Callable[..., Bench]) -> None:
    """Its consumer is not ours alone to deregister, also when the shard is not watched any more."""
    bench = make()
    source = bench.subscribe()
    assert bench.manager.contested == frozenset()
    source.was_taken_over = True
    source.said.put(ServiceError("taken over", code=TAKEN_OVER))
    bench.heard()

    assert bench.manager.contested == {"clicks"}
    bench.manager.unsubscribe(SPLIT)
    assert bench.manager.contested == {"clicks"}


def test_all_is_closed_at_the_end(make: Callable[..., Bench]) -> None:
    """No subscription stays open, and no reason is reported for those we closed."""
    bench = make()
    sources = [bench.subscribe(split=SplitId("clicks", f"shardId-{n}")) for n in range(3)]

    bench.manager.close()

    assert all(source.is_closed for source in sources)
    assert bench.reports.empty()
