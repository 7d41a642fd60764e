"""Listings that do not come: planning goes on with the splits that are known, and says so once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait

import pytest
from memory_log import MemoryLog
from query import new_policy

from sluice.errors import ServiceError
from sluice.instants import MICROS_PER_SECOND
from sluice.source.listing.discovery import Listing, SplitDiscovery
from sluice.source.logs.stream_log import StreamInfo
from sluice.source.model.splits import Split, SplitId
from sluice.source.probing.probe import Probe, ProbeSettings

INTERVAL = 10.0
FOREVER = 300.0  # only what is broken takes as long


class ListedLog(MemoryLog):
    """Lists when `answering` is set, and not while `error` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.answering = threading.Event()
        self.answering.set()
        self.asked = threading.Semaphore(0)
        self.error: Exception | None = None

    def list_splits(self, stream: str) -> Sequence[Split]:
        self.asked.release()
        assert self.answering.wait(FOREVER)
        if self.error is not None:
            raise self.error
        return super().list_splits(stream)


@pytest.fixture
def log() -> ListedLog:
    made = ListedLog()
    made.create("s")
    return made


def new_discovery(
    log: MemoryLog, *, fail: bool = True, longest_wait: float = FOREVER, interval: float = INTERVAL
) -> SplitDiscovery:
    probe = Probe(log, new_policy(log, fail=fail), ProbeSettings(pause=log.sleep, clock=log.monotonic))
    return SplitDiscovery(probe, ["s"], interval, find_unlisted=lambda _listed: [], longest_wait=longest_wait)


def refusal(*, retryable: bool = True, missing: bool = False) -> ServiceError:
    return ServiceError("ListShards of s failed", retryable=retryable, missing=missing)


def next_listing(discovery: SplitDiscovery, than: Listing) -> Listing:
    """The listing after another one, once it has come."""
    end = time.monotonic() + FOREVER
    while (listing := discovery.current()) is than:
        assert time.monotonic() < end
    return listing


def settle(discovery: SplitDiscovery) -> None:
    """Returns when the listing that is due has come, or has failed."""
    end = time.monotonic() + FOREVER
    discovery.current()
    while discovery._pending is not None:
        discovery.current()
        assert time.monotonic() < end


class LateClock(MemoryLog):
    """Knows the time of the service from its first answer on; before, its host's, which is a day ahead."""

    has_answered = False

    def describe(self, stream: str) -> StreamInfo:
        self.has_answered = True
        return super().describe(stream)

    def server_time(self) -> int:
        return super().server_time() + (0 if self.has_answered else 86_400 * MICROS_PER_SECOND)


def test_a_listing_is_dated_by_the_clock_of_the_service() -> None:
    """Also the first one: what existed by then is in it, and offsets say so."""
    log = LateClock()
    log.create("s")
    now = MemoryLog.server_time(log)
    listing = new_discovery(log).current()

    assert listing.at < listing.begun_at == now


def test_a_service_that_is_silent_stops_nothing(log: ListedLog, caplog: pytest.LogCaptureFixture) -> None:
    """The last listing serves until the new one comes, however often it is asked for."""
    caplog.set_level(logging.INFO)
    discovery = new_discovery(log, longest_wait=0.0)
    first = discovery.current()
    log.answering.clear()
    log.pass_time(INTERVAL)
    log.split(next(iter(log.shards)))
    for _ in range(100):
        log.pass_time(INTERVAL)
        assert discovery.current() is first
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "shards of s could not be listed" in caplog.text
    log.answering.set()
    assert len(next_listing(discovery, first).splits) == 3
    assert "shards of s are listed again, after 990 s" in caplog.text


def test_planning_waits_once_for_a_silent_service(log: ListedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a moment at first, and not at every trigger from then on."""
    waits: list[float] = []
    discovery = new_discovery(log, longest_wait=0.001)
    discovery.current()

    def waited(futures: Sequence[Future[object]], timeout: float) -> object:
        waits.append(timeout)
        return wait(futures, timeout)

    monkeypatch.setattr("sluice.source.listing.discovery.wait_for", waited)
    log.answering.clear()
    log.pass_time(INTERVAL)
    for _ in range(5):
        discovery.current()
    log.answering.set()
    assert waits == [0.001, 0.0, 0.0, 0.0, 0.0]


def test_a_listing_serves_for_the_interval(log: ListedLog) -> None:
    discovery = new_discovery(log)
    for _ in range(100):
        discovery.current()
        log.pass_time(1.0)
    assert log.asked._value == 10


def test_listings_that_fail_are_said_once(log: ListedLog, caplog: pytest.LogCaptureFixture) -> None:
    """They are tried at every interval, and the one that succeeds is said, too."""
    caplog.set_level(logging.INFO)
    discovery = new_discovery(log)
    first = discovery.current()
    log.error = refusal()
    for _ in range(5):
        log.pass_time(INTERVAL)
        settle(discovery)
        assert discovery.current() is first
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "ListShards of s failed" in caplog.text
    log.error = None
    log.pass_time(2 * INTERVAL)
    assert next_listing(discovery, first).created == first.created
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


@pytest.mark.parametrize(
    "make", [lambda: refusal(retryable=False), lambda: refusal(retryable=False, missing=True)]
)
def test_an_error_that_will_not_pass_is_raised(log: ListedLog, make: Callable[[], ServiceError]) -> None:
    """A stream that is gone, or a call that is not allowed."""
    discovery = new_discovery(log)
    discovery.current()
    log.error = make()
    log.pass_time(INTERVAL)
    with pytest.raises(ServiceError, match="ListShards of s failed"):
        discovery.current()


@pytest.mark.parametrize("error", [TimeoutError("no leader in 5 s"), TimeoutError()])
def test_a_log_that_runs_out_of_time_is_asked_again(
    log: ListedLog, error: TimeoutError, caplog: pytest.LogCaptureFixture
) -> None:
    """Its TimeoutError is an answer: it does not mean that an answer may still come."""
    discovery = new_discovery(log)
    first = discovery.current()
    log.error = error
    log.pass_time(INTERVAL)
    assert discovery.current() is first
    assert (str(error) or "TimeoutError") in caplog.text
    log.error = None
    log.split(first.listed[0].id)
    log.pass_time(INTERVAL)
    assert len(discovery.current().listed) == 3


def test_any_other_error_is_raised_once(log: ListedLog) -> None:
    """Splits are listed again behind it."""
    discovery = new_discovery(log)
    first = discovery.current()
    log.error = ValueError("of the log")
    log.pass_time(INTERVAL)
    with pytest.raises(ValueError, match="of the log"):
        discovery.current()
    log.error = None
    log.pass_time(INTERVAL)
    assert discovery.current() is not first


def test_a_stream_that_is_gone_is_waited_for_where_losses_are_tolerated(log: ListedLog) -> None:
    discovery = new_discovery(log, fail=False)
    first = discovery.current()
    log.error = refusal(retryable=False, missing=True)
    log.pass_time(INTERVAL)
    assert discovery.current() is first


def test_the_first_listing_is_waited_for(log: ListedLog) -> None:
    """There are no splits to go on with, so its error is raised."""
    log.error = refusal()
    with pytest.raises(ServiceError, match="ListShards of s failed"):
        new_discovery(log, longest_wait=0.0).current()


def test_a_listing_that_was_begun_before_a_split_ended_is_made_again(log: ListedLog) -> None:
    """It may miss the children."""
    discovery = new_discovery(log, longest_wait=0.0)
    first = discovery.current()
    log.asked.acquire()
    log.answering.clear()
    log.pass_time(INTERVAL)
    assert discovery.current() is first
    assert log.asked.acquire(timeout=FOREVER)
    discovery.mark_stale()
    log.answering.set()
    second = next_listing(discovery, first)
    log.pass_time(1)
    next_listing(discovery, second)


class LateLog(ListedLog):
    """Lists children some time after their parent was closed.

    Args:
        early: how many of them are listed at once.
    """

    def __init__(self, delay: float, early: int) -> None:
        super().__init__()
        self.visible = 0.0
        self.delay = delay
        self.early = early

    def split(self, split: SplitId) -> list[SplitId]:
        self.visible = self.monotonic() + self.delay
        return super().split(split)

    def list_splits(self, stream: str) -> Sequence[Split]:
        splits = super().list_splits(stream)
        return splits if self.monotonic() >= self.visible else splits[: 1 + self.early]


@pytest.mark.parametrize("early", [0, 1])
@pytest.mark.parametrize(("delay", "listings", "seconds"), [(0.3, 1, 0.0), (3.0, 4, 3.5), (1e9, 14, 700.0)])
def test_children_that_are_not_listed_yet_are_looked_for(
    delay: float, listings: int, seconds: float, early: int
) -> None:
    """Soon, and then at longer and longer intervals, which end at the usual one."""
    log = LateLog(delay, early)
    (parent,) = log.create("s")
    discovery = new_discovery(log, interval=100.0)
    discovery.current()
    log.split(parent)
    discovery.mark_stale()
    log.pass_time(1.0)
    began, asked = log.monotonic(), log.asked._value
    while len(discovery.current().splits) < 3 and log.monotonic() < began + 700:
        log.pass_time(0.1)
    assert log.asked._value - asked == listings
    assert log.monotonic() - began <= seconds + 0.2


def test_a_stale_listing_is_not_asked_for_at_every_trigger(log: ListedLog) -> None:
    """The service may show the same for seconds, and there may be ninety triggers a second."""
    discovery = new_discovery(log)
    discovery.current()
    for _ in range(1_000):
        discovery.mark_stale()
        discovery.current()
        log.pass_time(0.01)
    assert log.asked._value <= 22
