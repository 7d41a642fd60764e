"""An agent's subscriptions: what they buffer, what they report, and when they are given up."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator

import pytest

from sluice.errors import ServiceError
from sluice.kinesis.agent.shard_buffer import RangeUnavailable, ShardBuffer
from sluice.kinesis.agent.subscription_manager import ManagerSettings, SubscriptionManager
from sluice.kinesis.shared.protocol import (
    INTEGRITY_PROBLEM,
    TAKEN_OVER,
    EventReceived,
    FromAgent,
    ReadRange,
    Server,
    Subscribe,
    SubscriptionEnded,
)
from sluice.kinesis.subscriptions.events import EventHead
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.splits import SplitId
from sluice.source.state.cut_points import CutPoint
from sluice.source.state.subscriptions import SubscriptionProgress

SPLIT = SplitId("clicks", "shardId-0")
HORIZON = IteratorStart("TRIM_HORIZON")
NOW = 1_700_000_000_000_000
HOUR = 3600 * 1_000_000
PATIENT = 120.0

Outcome = tuple[bytes, EventHead] | Exception


class FakeSource:
    """Gives the events, or raises the errors, that the test puts into it."""

    def __init__(self, asked_at: int, buffer: ShardBuffer) -> None:
        self.asked_at = asked_at
        self._buffer = buffer
        self.outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self.consumer = ""
        self.is_closed = False

    def next_event(self) -> tuple[bytes, EventHead]:
        outcome = self.outcomes.get(timeout=PATIENT)
        if isinstance(outcome, Exception):
            raise outcome
        self._buffer.make_space(len(outcome[0]))
        return outcome

    def close(self) -> None:
        self.is_closed = True
        self.outcomes.put(ServiceError("closed", code="SubscriptionClosed"))


class Bench:
    """A manager, its sources by shard, and what it reports."""

    def __init__(self, *, capacity: int = 1_000_000, cut_points: int = 1_000) -> None:
        self.sources: dict[SplitId, list[FakeSource]] = {}
        self.starts: list[IteratorStart] = []
        self.reports: queue.SimpleQueue[FromAgent] = queue.SimpleQueue()
        self.now = NOW
        self.retention = 24 * 3600.0
        self.retention_asked = 0
        self.manager = SubscriptionManager(
            self._open,
            self.reports.put,
            ManagerSettings(capacity, cut_points, Server("127.0.0.1", 4000, b"start")),
            now=lambda: self.now,
            retention=self._retention,
        )

    def _open(self, split: SplitId, start: IteratorStart, buffer: ShardBuffer) -> FakeSource:
        self.starts.append(start)
        self.sources.setdefault(split, []).append(FakeSource(self.now, buffer))
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

    def report(self) -> FromAgent:
        return self.reports.get(timeout=PATIENT)

    def received(self) -> EventReceived:
        report = self.report()
        assert isinstance(report, EventReceived)
        return report

    def progress(self) -> SubscriptionProgress:
        return self.received().progress

    def read(self, after: int | None, end: int | None, start: IteratorStart = HORIZON) -> list[bytes]:
        request = ReadRange(
            SPLIT, start, None if after is None else str(after), None if end is None else str(end), 0.0
        )
        return [bytes(payload) for payload in self.manager.read(request)]


EACH = 141
"""Bytes of JSON for a record: 100 for the envelope, 1 for its number, and 40 of base64 for 30 of data."""


def event(*numbers: int, behind: int = 0, ended: bool = False) -> tuple[bytes, EventHead]:
    head = EventHead(
        [str(n) for n in numbers], [n * 1000 for n in numbers], None if ended else "c", behind, ended
    )
    return b"x" * (EACH * max(1, len(numbers))), head


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    """Makes benches. Whatever their subscriptions wait for ends with the test."""
    made: list[Bench] = []

    def bench(**settings: int) -> Bench:
        made.append(Bench(**settings))
        return made[-1]

    yield bench
    for source in (source for each in made for sources in each.sources.values() for source in sources):
        source.close()


def test_an_event_is_buffered_before_it_is_reported(make: Callable[..., Bench]) -> None:
    """The tasks of a batch that ends there find it."""
    bench = make(cut_points=1)
    source = bench.subscribe()
    source.outcomes.put(event(5, 6, 7))

    report = bench.received()

    progress = SubscriptionProgress((CutPoint("7", 7000, 90, 3, 5000),), 0, caught_up_at=NOW)
    assert report == EventReceived(SPLIT, 1, "5", progress, server=Server("127.0.0.1", 4000, b"start"))
    assert bench.read(None, 7) == [b"x" * 3 * EACH]


def test_an_event_is_divided_into_cut_points(make: Callable[..., Bench]) -> None:
    """An event may hold more than a batch may take. The cut points count every record once."""
    bench = make(cut_points=3)
    source = bench.subscribe()
    source.outcomes.put(event(1, 2, 3, 4, 5, 6, 7))

    cut_points = bench.progress().cut_points

    assert [(point.number, point.count) for point in cut_points] == [("3", 3), ("6", 3), ("7", 1)]
    assert sum(point.size for point in cut_points) == pytest.approx(7 * 30, abs=3)


def test_an_empty_event_at_the_tip_shows_when_nothing_followed(make: Callable[..., Bench]) -> None:
    """An empty event behind the tip does not."""
    bench = make()
    source = bench.subscribe()
    source.outcomes.put(event(behind=900))
    source.outcomes.put(event())

    first, second = bench.progress(), bench.received()

    assert (first.cut_points, first.millis_behind, first.caught_up_at) == ((), 900, None)
    assert second.first is None
    assert (second.progress.millis_behind, second.progress.caught_up_at) == (0, NOW)


def test_an_event_proves_nothing_about_the_time_until_it_was_read(make: Callable[..., Bench]) -> None:
    """It may have waited: for space in the buffer, or in the socket while the agent stood still. What is
    certain is that it was made after its subscription was asked for.
    """
    bench = make()
    source = bench.subscribe()
    source.outcomes.put(event(5))
    assert bench.progress().caught_up_at == NOW
    for _ in range(2):
        bench.now += 2 * HOUR
        source.outcomes.put(event())
        assert bench.progress().caught_up_at == NOW

    source.asked_at = NOW + HOUR
    source.outcomes.put(event())
    assert bench.progress().caught_up_at == NOW + HOUR


def test_an_event_is_not_older_than_its_records(make: Callable[..., Bench]) -> None:
    """On a busy shard that tells when it was made. An event cannot be older than the one before it either."""
    bench = make()
    source = bench.subscribe()
    arrived = NOW // 1000 + 240_000_000 // 1000
    bench.now += HOUR
    source.outcomes.put(event(arrived))
    source.outcomes.put(event())

    assert [bench.progress().caught_up_at, bench.progress().caught_up_at] == [arrived * 1000] * 2


def test_a_start_at_a_record_is_reported_once_that_record_has_come(make: Callable[..., Bench]) -> None:
    """Before that it is not known whether the record still exists."""
    bench = make()
    source = bench.subscribe(IteratorStart("AT_SEQUENCE_NUMBER", "50"))
    source.outcomes.put(event())
    source.outcomes.put(event(50, 51))

    assert [point.number for point in bench.progress().cut_points] == ["50", "51"]
    assert bench.read(50, 51, IteratorStart("AT_SEQUENCE_NUMBER", "50")) == [b"x" * 2 * EACH]


def test_a_start_record_that_does_not_come_ends_the_subscription(make: Callable[..., Bench]) -> None:
    """Without a code of the service: polling follows at once, and tells whether records are lost."""
    bench = make()
    source = bench.subscribe(IteratorStart("AT_SEQUENCE_NUMBER", "50"))
    source.outcomes.put(event(53, 54))

    report = bench.report()

    assert isinstance(report, SubscriptionEnded)
    assert (report.split, report.generation, report.code) == (SPLIT, 1, "")
    assert "record 50" in report.reason
    assert source.is_closed
    with pytest.raises(RangeUnavailable):
        bench.read(50, 54, IteratorStart("AT_SEQUENCE_NUMBER", "50"))


def test_silence_longer_than_half_the_shortest_retention_ends_it(
    make: Callable[..., Bench],
) -> None:
    """The host may have slept for a day: the next events lie behind expired records, and do not say so."""
    bench = make()
    source = bench.subscribe()
    source.outcomes.put(event(1))
    bench.progress()
    bench.now += 25 * HOUR
    source.outcomes.put(event(7))

    report = bench.report()

    assert isinstance(report, SubscriptionEnded)
    assert report.code == INTEGRITY_PROBLEM
    assert "25 h" in report.reason
    with pytest.raises(RangeUnavailable):
        bench.read(None, 7)


def test_waits_that_add_up_end_it_as_well(make: Callable[..., Bench]) -> None:
    """Events that waited in the socket are older than they seem: the buffer was full twice for 7 h, and the
    records behind the second event may have expired.
    """
    bench = make()
    source = bench.subscribe()
    for _ in range(2):
        source.outcomes.put(event())
        bench.progress()
        bench.now += 7 * HOUR
    source.outcomes.put(event(3))

    report = bench.report()

    assert isinstance(report, SubscriptionEnded)
    assert report.code == INTEGRITY_PROBLEM


def test_the_arrival_of_a_record_corrects_a_clock_that_stood_still(make: Callable[..., Bench]) -> None:
    """The silence is noticed although our clock says that no time has passed."""
    bench = make()
    bench.now = 0
    source = bench.subscribe()
    source.outcomes.put(event(1))
    bench.progress()
    source.outcomes.put(event(25 * HOUR // 1000))

    report = bench.report()

    assert isinstance(report, SubscriptionEnded)
    assert report.code == INTEGRITY_PROBLEM


def test_old_records_and_idle_hours_are_no_integrity_problem(make: Callable[..., Bench]) -> None:
    """Neither is a backlog with long pauses in it, nor a shard that sends empty events for hours."""
    bench = make()
    source = bench.subscribe()
    for number in (1, 20 * HOUR // 1000, 40 * HOUR // 1000):
        source.outcomes.put(event(number))
        bench.progress()
    for _ in range(30):
        bench.now += HOUR
        source.asked_at = bench.now  # a subscription lasts 5 minutes
        source.outcomes.put(event())
        bench.progress()
    source.outcomes.put(event(50 * HOUR // 1000))

    assert bench.progress().cut_points
    assert bench.retention_asked == 0


@pytest.mark.parametrize(("days", "gives_up"), [(1, True), (2, False)])
def test_near_the_end_of_the_retention_the_subscription_is_given_up(
    make: Callable[..., Bench], days: int, *, gives_up: bool
) -> None:
    """Records that expire before they are pushed are left out, and no event tells; polling does."""
    bench = make()
    bench.retention = days * 24 * 3600.0
    source = bench.subscribe()
    for number in (1, 2):
        source.outcomes.put(event(number, behind=22 * HOUR // 1000))

    report = bench.report()

    if gives_up:
        assert isinstance(report, SubscriptionEnded)
        assert report.code == INTEGRITY_PROBLEM
        assert "22.0 h behind" in report.reason
    else:
        assert isinstance(report, EventReceived)
        assert bench.progress().cut_points
    assert bench.retention_asked == 1


def test_an_unexpected_error_is_reported_too(make: Callable[..., Bench]) -> None:
    """A thread that ended silently would leave the shard unread."""
    bench = make()
    bench.subscribe().outcomes.put(KeyError("oops"))

    report = bench.report()

    assert isinstance(report, SubscriptionEnded)
    assert report.code == "KeyError"


def test_another_subscription_takes_the_place_of_the_one_before(make: Callable[..., Bench]) -> None:
    """There is one for each shard: the old one is closed, and reports nothing more."""
    bench = make()
    old = bench.subscribe()
    new = bench.subscribe(IteratorStart("AT_TIMESTAMP", timestamp=7), generation=2)
    new.outcomes.put(event(9))

    assert old.is_closed
    assert bench.received().generation == 2
    assert [start.kind for start in bench.starts] == ["TRIM_HORIZON", "AT_TIMESTAMP"]


def test_a_shard_without_a_subscription_is_unavailable(make: Callable[..., Bench]) -> None:
    """Before there is one, and after it was ended."""
    bench = make()
    with pytest.raises(RangeUnavailable, match="no subscription to the shard"):
        bench.read(None, 5)
    bench.subscribe().outcomes.put(event(1))
    bench.progress()
    bench.manager.unsubscribe(SPLIT)
    with pytest.raises(RangeUnavailable, match="no subscription to the shard"):
        bench.read(None, 1)


def test_the_planner_learns_which_consumer_a_subscription_had(make: Callable[..., Bench]) -> None:
    """Another one may have been registered in its place meanwhile. And whether the reason may pass."""
    bench = make()
    source = bench.subscribe()
    source.consumer = "arn:consumer:1"
    source.outcomes.put(ServiceError("taken over", code=TAKEN_OVER, retryable=True))

    assert bench.report() == SubscriptionEnded(
        SPLIT, 1, "taken over", TAKEN_OVER, "arn:consumer:1", retryable=True
    )


def large(*numbers: int) -> tuple[bytes, EventHead]:
    """An event that is not received before there is space for it."""
    return bytes(5000), event(*numbers)[1]


def test_space_that_no_record_needs_is_given_back(make: Callable[..., Bench]) -> None:
    """Before the next event comes, which may take long."""
    bench = make()
    bench.subscribe().outcomes.put(large())
    bench.progress()

    wait_until(lambda: bench.manager._budget.held == 0)


def test_a_subscription_that_is_given_up_holds_nothing(make: Callable[..., Bench]) -> None:
    """Neither what it has buffered, nor the space for the event that ended it."""
    bench = make()
    source = bench.subscribe(IteratorStart("AT_SEQUENCE_NUMBER", "50"))
    source.outcomes.put(large(51))
    assert isinstance(bench.report(), SubscriptionEnded)

    wait_until(lambda: bench.manager._budget.held == 0)


def test_a_subscription_that_has_ended_is_not_counted(make: Callable[..., Bench]) -> None:
    """The reads that an agent may make are shared by the shards that it polls now."""
    bench = make()
    bench.subscribe(split=SplitId("clicks", "shardId-1"))
    source = bench.subscribe()
    assert bench.manager.count == 2

    source.outcomes.put(event(5, ended=True))
    wait_until(lambda: bench.manager.count == 1)


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.0005)


def test_closing_ends_all_subscriptions(make: Callable[..., Bench]) -> None:
    """Subscriptions that we close ourselves are not reported as ended."""
    bench = make()
    sources = [bench.subscribe(split=SplitId("clicks", f"shardId-{n}")) for n in range(3)]

    bench.manager.close()

    assert all(source.is_closed for source in sources)
    assert bench.reports.empty()
