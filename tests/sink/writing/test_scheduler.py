"""The decisions of the writer, without threads and without a clock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from sink_fakes import config, is_load

from sluice.errors import ServiceError
from sluice.sink import (
    NoRateLimitingStrategy,
    RateLimitingStrategy,
    RequestInfo,
    ResultInfo,
    SubmitResult,
    TokenBucketRateLimitingStrategy,
)
from sluice.sink.writing.scheduler import Request, SinkScheduler


class Driven:
    """A scheduler; the test sets the time and gives the answers."""

    def __init__(self, *, strategy: Any = None, jitter: float = 1.0, **settings: Any) -> None:
        self.scheduler: SinkScheduler[str] = SinkScheduler(
            config(**settings),
            strategy or NoRateLimitingStrategy(),
            name="fake",
            is_throttling=is_load,
            jitter=lambda: jitter,
        )
        self.now = 0.0

    def add(self, *entries: str) -> list[list[str]]:
        self.scheduler.add(entries, [len(entry) for entry in entries], self.now)
        return self.sent()

    def requests(self, *, draining: bool = False) -> list[Request[str]]:
        return self.scheduler.advance(self.now, draining=draining)

    def sent(self, *, draining: bool = False) -> list[list[str]]:
        return [request.entries for request in self.requests(draining=draining)]

    def at(self, now: float) -> Driven:
        self.now = now
        return self

    def answer(self, number: int, *failed: str, codes: dict[str, int] | None = None) -> None:
        self.scheduler.complete(number, SubmitResult(failed, codes or {}), self.now)

    def fail(self, number: int, error: Exception | None = None, *, fatal: bool = False) -> None:
        self.scheduler.fail(number, error or OSError("gone"), fatal=fatal, now=self.now)

    @property
    def failure(self) -> str:
        return str(self.scheduler.failure)


class Recording(RateLimitingStrategy):
    """A strategy that blocks on demand and keeps its calls."""

    def __init__(self, *, most: int = 1000) -> None:
        self.blocked = False
        self.most = most
        self.seen: list[RequestInfo | ResultInfo] = []
        self.asked: list[int] = []

    def register_in_flight_request(self, request: RequestInfo) -> None:
        self.seen.append(request)

    def register_completed_request(self, result: ResultInfo) -> None:
        self.seen.append(result)

    def should_block(self, request: RequestInfo) -> bool:
        self.asked.append(request.batch_size)
        return self.blocked

    @property
    def max_batch_size(self) -> int:
        return self.most


def letters(count: int, start: int = 0) -> list[str]:
    return [sys.intern(chr(ord("a") + start + n)) for n in range(count)]


# --- when a batch is sent -----------------------------------------------------------------------------


def test_a_batch_waits_until_it_is_full_in_records() -> None:
    """A request is sent when maxBatchSize records are buffered, and holds exactly as many."""
    driven = Driven(max_batch_size=3)

    assert driven.add("a", "b") == []
    assert driven.add("c", "d") == [["a", "b", "c"]]
    assert driven.scheduler.buffered == 1


def test_a_batch_waits_until_it_is_full_in_bytes() -> None:
    """A request is sent when maxBatchSizeInBytes are buffered, and never holds more."""
    driven = Driven(max_batch_size_in_bytes=10, max_record_size_in_bytes=10)

    assert driven.add("aaaa", "bbbb") == []
    assert driven.add("cccc") == [["aaaa", "bbbb"]]


def test_time_sends_all_that_is_buffered() -> None:
    """Flink: a time-based flush sends all that is buffered, once the oldest has waited long enough."""
    driven = Driven(max_time_in_buffer=5.0)
    driven.add("a")
    driven.at(4.0).add("b")

    assert driven.scheduler.wake_at == 5.0
    assert driven.at(4.999).sent() == []
    assert driven.at(5.0).sent() == [["a", "b"]]


def test_no_more_requests_than_allowed_are_in_flight() -> None:
    """maxInFlightRequests bounds the requests in flight; an answer makes room for the next."""
    driven = Driven(max_batch_size=1, max_in_flight_requests=2)

    assert driven.add(*letters(4)) == [["a"], ["b"]]
    driven.answer(1)
    assert driven.sent() == [["c"]]


def test_a_write_must_wait_while_the_buffer_is_full() -> None:
    """maxBufferedRequests records may wait; there is room again when some were sent."""
    driven = Driven(max_batch_size=2, max_buffered_requests=3)
    driven.add(*letters(2))
    driven.add("c", "d", "e")
    assert driven.scheduler.room == 0

    driven.answer(0)
    assert driven.sent() == [["c", "d"]]
    assert driven.scheduler.room == 2


# --- the rate limiter ---------------------------------------------------------------------------------


def test_the_strategy_limits_batches_and_learns_their_real_size() -> None:
    """A batch is no larger than the strategy allows, and the strategy learns how many entries were sent and
    refused.
    """
    strategy = Recording(most=4)
    driven = Driven(
        strategy=strategy,
        max_batch_size_in_bytes=3,
        max_record_size_in_bytes=3,
        max_in_flight_requests=5,
    )
    assert driven.add(*letters(4)) == [["a", "b", "c"]]
    driven.answer(0, "b")
    driven.at(100.0).requests(draining=True)
    driven.fail(1)

    assert strategy.seen == [RequestInfo(3), ResultInfo(1, 3, 1), RequestInfo(2), ResultInfo(2, 2)]
    assert strategy.asked == [3, 2]


@pytest.mark.parametrize(
    ("most", "sizes"), [(2.5, [2, 2, 1]), (0.5, [1] * 5), (float("inf"), [3, 2]), (float("nan"), [3, 2])]
)
def test_a_strategy_may_compute_fractions(most: Any, sizes: list[int]) -> None:
    """Requests have no more entries than that, nor than maxBatchSize; one at least."""
    driven = Driven(strategy=Recording(most=most), max_batch_size=3, max_in_flight_requests=9)
    driven.scheduler.add(letters(5), [1] * 5, 0.0)

    assert [len(entries) for entries in driven.sent(draining=True)] == sizes


def test_where_bytes_are_counted_a_request_has_no_more_than_the_burst() -> None:
    """Save for a single entry that is larger: it goes alone, and is paid off before the next one."""
    times = [0.0]
    bucket = TokenBucketRateLimitingStrategy(rate=1.0, burst=4, unit="bytes", clock=lambda: times[0])
    driven = Driven(strategy=bucket, max_in_flight_requests=10)
    sent = [(0, entries) for entries in driven.add("ab", "cd", "ef", "gggggg", "h")]
    for now in range(20):
        times[0] = float(now)
        sent += [(now, entries) for entries in driven.at(float(now)).sent(draining=True)]

    # 4 at the start; 2 after 2 s; 6 when there are 4 again, with a debt of 2; 1 when that is paid.
    assert sent == [(0, ["ab", "cd"]), (2, ["ef"]), (6, ["gggggg"]), (9, ["h"])]


def test_a_blocking_strategy_is_asked_again() -> None:
    """A strategy that blocks while nothing is in flight is asked again a moment later, not at once."""
    strategy = Recording()
    strategy.blocked = True
    driven = Driven(strategy=strategy, max_batch_size=2)

    assert driven.add("a", "b") == []
    assert driven.now < driven.scheduler.wake_at <= driven.now + 0.1
    strategy.blocked = False
    assert driven.at(driven.scheduler.wake_at).sent() == [["a", "b"]]


def test_the_log_says_once_that_a_strategy_lets_nothing_pass(caplog: pytest.LogCaptureFixture) -> None:
    """After a minute without a request in flight: nothing else would tell of rows that wait for ever."""
    strategy = Recording()
    strategy.blocked = True
    driven = Driven(strategy=strategy, max_batch_size=2)
    driven.add("a", "b")

    for second in range(1, 200):
        driven.at(float(second)).sent()
        assert len(caplog.records) == (second >= 60)

    assert "2 records wait" in caplog.text


class Timed(Recording):
    """A strategy that says how long a request must wait."""

    def __init__(self, delay: float) -> None:
        super().__init__()
        self.blocked = True
        self.seconds = delay

    def delay(self, request: RequestInfo) -> float:  # noqa: ARG002 - the contract's
        return self.seconds


@pytest.mark.parametrize(("delay", "wakes"), [(7.0, 7.0), (0.0, 0.001)])
def test_a_strategy_that_says_how_long_is_asked_then(delay: float, wakes: float) -> None:
    """Not earlier; but never at once, however its answer is rounded."""
    driven = Driven(strategy=Timed(delay), max_batch_size=2)
    driven.add("a", "b")

    assert driven.scheduler.wake_at == wakes


@pytest.mark.parametrize("delay", ["inf", "nan"])
def test_a_strategy_that_waits_for_an_answer_is_not_asked_before(delay: str) -> None:
    """An infinite delay: nothing is due while a request is in flight; with none it is asked again."""
    strategy = Timed(float(delay))
    strategy.blocked = False
    driven = Driven(strategy=strategy, max_batch_size=2, max_in_flight_requests=5, request_timeout=99.0)
    assert driven.add("a", "b") == [["a", "b"]]
    strategy.blocked = True
    assert driven.add("c", "d") == []
    assert driven.scheduler.wake_at == 99.0
    driven.answer(0)
    assert driven.sent() == []
    assert driven.scheduler.wake_at <= driven.now + 0.1


# --- what is refused ----------------------------------------------------------------------------------


def test_equal_entries_are_told_apart() -> None:
    """If the same object is sent twice and refused once, it is sent again once."""
    driven = Driven(max_batch_size=3)
    driven.add("a", "a", "b")
    driven.answer(0, "a")

    assert driven.at(1.0).sent(draining=True) == [["a"]]
    assert driven.scheduler.figures.records == 2


# --- pauses -------------------------------------------------------------------------------------------


def test_entries_refused_for_load_go_back_to_the_head() -> None:
    """In their order, before entries that wait; refused once more, they wait, and others pass them."""
    driven = Driven(max_batch_size=2, jitter=0.5)
    driven.add("a", "b", "c")
    driven.answer(0, "b")
    assert driven.at(0.01).sent() == [["b", "c"]]
    driven.answer(1, "b", "c")
    assert driven.at(0.02).sent() == [["c"]]
    driven.answer(2)

    assert driven.at(0.12).sent() == [["b"]]


def test_an_entry_that_failed_waits_a_moment_and_others_pass_it() -> None:
    """With full jitter, jitter * 0.1 s at first: it is not retried at once, and holds up no other entry."""
    driven = Driven(max_batch_size=1, jitter=0.5)
    driven.add("a", "b")
    driven.fail(0)

    assert driven.at(0.01).sent() == [["b"]]
    driven.answer(1)
    assert driven.at(0.049).sent() == []
    assert driven.scheduler.wake_at == pytest.approx(0.05)
    assert driven.at(0.05).sent() == [["a"]]


def test_in_an_outage_one_request_at_a_time_is_tried() -> None:
    """After twelve requests without an accepted entry; the first that is accepted ends it at once."""
    driven = Driven(max_batch_size=1, max_in_flight_requests=20)
    driven.add(*letters(20))
    for number in range(20):
        driven.fail(number)

    assert driven.sent() == []
    assert driven.at(1.0).sent() == [["a"]]
    driven.fail(20)
    assert driven.at(1.1).sent() == []
    assert driven.at(2.0).sent() == [["a"]]
    driven.answer(21)
    assert len(driven.sent()) == 19


class Told(NoRateLimitingStrategy):
    """Keeps the sent requests, and how they ended."""

    def __init__(self) -> None:
        self.requests: list[RequestInfo] = []
        self.results: list[ResultInfo] = []

    def register_in_flight_request(self, request: RequestInfo) -> None:
        self.requests.append(request)

    def register_completed_request(self, result: ResultInfo) -> None:
        self.results.append(result)


def test_a_strategy_learns_why_and_when() -> None:
    """By the codes: refused for load, or failed; and when the request was sent."""
    told = Told()
    scheduler: SinkScheduler[str] = SinkScheduler(
        config(max_batch_size=5), told, name="fake", is_throttling=lambda code: code == "Slow"
    )
    scheduler.add(letters(5), [1] * 5, 1.0)
    scheduler.advance(2.0)
    scheduler.complete(0, SubmitResult(letters(4), {"Slow": 1, "Broken": 2, "Odd": 1}), 2.5)
    result = told.results[0]

    assert (result.accepted, result.failed_messages, result.throttled_messages) == (1, 4, 1)
    assert (result.started_at, result.seconds) == (2.0, 0.5)
    assert told.requests[0].started_at == 2.0


@pytest.mark.parametrize(
    ("error", "throttled"),
    [
        (ServiceError("x", code="Slow", retryable=True), 2),
        (ServiceError("x", code="429", retryable=True, throttling=True), 2),
        (ServiceError("x", code="Broken", retryable=True), 0),
        (OSError("gone"), 0),
    ],
)
def test_a_strategy_learns_why_a_whole_request_failed(error: Exception, throttled: int) -> None:
    """By the error's code, and by its word that the service throttles."""
    told = Told()
    scheduler: SinkScheduler[str] = SinkScheduler(
        config(max_batch_size=2), told, name="fake", is_throttling=lambda code: code == "Slow"
    )
    scheduler.add(letters(2), [1] * 2, 0.0)
    scheduler.advance(0.0)
    scheduler.fail(0, error, fatal=False, now=1.0)

    assert told.results == [ResultInfo(2, 2, throttled)]


def test_pauses_grow_while_nothing_is_accepted() -> None:
    """0.1 s, doubled with each round without success, at most 5 s; a success starts again from 0.1 s."""
    driven = Driven(max_batch_size=1)
    driven.add("a")
    pauses = []
    for number in range(8):
        driven.fail(number)
        before = driven.now
        driven.sent()
        driven.at(driven.scheduler.wake_at).sent()
        pauses.append(round(driven.now - before, 3))
    driven.answer(8)
    driven.add("b")
    driven.fail(9)
    driven.sent()

    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert driven.scheduler.wake_at - driven.now == pytest.approx(0.1)


def test_a_destination_may_ask_for_a_pause() -> None:
    """During that time nothing is sent, not even entries that were never refused; the longest of several
    pauses counts.
    """
    driven = Driven(max_batch_size=1, max_in_flight_requests=3)
    driven.add("a", "b", "c", "d")
    for number, pause in ((0, 30.0), (1, 10.0)):
        busy = ServiceError("busy", code="429", retryable=True, throttling=True, retry_after=pause)
        driven.fail(number, busy)
    driven.answer(2)

    assert driven.sent() == []
    assert driven.scheduler.wake_at == 30.0
    assert driven.at(29.9).sent() == []
    assert driven.at(30.0).sent() == [["a"], ["b"], ["d"]]


def test_an_answer_may_ask_for_a_pause_as_well() -> None:
    """Where some entries were accepted, too; not where none is to be sent again."""
    driven = Driven(max_batch_size=2, max_in_flight_requests=2)
    driven.add("a", "b", "c", "d", "e", "f")
    driven.sent()
    driven.scheduler.complete(0, SubmitResult(["b"], {"429": 1}, retry_after=30.0), 0.0)

    assert driven.sent() == []
    assert driven.scheduler.wake_at == 30.0
    driven.scheduler.complete(1, SubmitResult(retry_after=60.0), 0.0)
    assert driven.at(30.0).sent() == [["b", "e"]]


def test_a_pause_that_is_asked_for_does_not_outlast_the_patience_of_the_task() -> None:
    """After maxRetryDuration the task fails, however long the pause is to be."""
    driven = Driven(max_batch_size=1, max_retry_duration=60.0)
    driven.add("a")
    driven.fail(0, ServiceError("closed until Monday", code="429", retryable=True, retry_after=1e6))

    assert driven.sent() == []
    assert driven.scheduler.wake_at == 60.0
    driven.at(60.0).sent()
    assert "closed until Monday" in driven.failure


def test_requests_refused_together_make_one_pause() -> None:
    """Requests that were in flight together count as one round."""
    driven = Driven(max_batch_size=1, max_in_flight_requests=3)
    driven.add(*letters(3))
    for number in range(3):
        driven.fail(number)
    driven.sent()

    assert driven.scheduler.wake_at == pytest.approx(0.1)


# --- timeouts -----------------------------------------------------------------------------------------


def test_a_request_that_takes_too_long_is_sent_again() -> None:
    """After requestTimeout a request counts as failed, and its entries are sent first."""
    driven = Driven(max_batch_size=2, request_timeout=10.0)
    driven.add("a", "b")
    assert driven.scheduler.wake_at == 10.0

    assert driven.at(10.0).sent() == []
    assert driven.at(11.0).sent() == [["a", "b"]]
    assert driven.scheduler.figures.timeouts == 1


def test_a_late_success_changes_nothing() -> None:
    """Flink: a late success after a timeout; the entries were sent again, and that request counts."""
    strategy = Recording()
    driven = Driven(strategy=strategy, max_batch_size=1, request_timeout=10.0)
    driven.add("a")
    driven.at(10.0).sent()
    driven.at(11.0).sent()
    driven.answer(0)

    assert driven.scheduler.figures.records == 0
    assert not driven.scheduler.idle
    driven.answer(1)
    assert driven.scheduler.figures.records == 1
    assert driven.scheduler.idle
    assert strategy.seen == [RequestInfo(1), ResultInfo(1, 1), RequestInfo(1), ResultInfo(0, 1)]


@pytest.mark.parametrize("ends", [lambda driven: driven.answer(0), lambda driven: driven.fail(0)])
def test_an_epoch_ends_after_the_requests_that_timed_out(ends: Callable[[Driven], None]) -> None:
    """Their entries were accepted in another request, but the service may still carry out the first one."""
    driven = Driven(max_batch_size=1, request_timeout=10.0)
    driven.add("a")
    driven.at(10.0).sent()
    driven.at(11.0).sent()
    driven.answer(1)
    assert (driven.scheduler.idle, driven.scheduler.running) == (False, 1)
    assert driven.scheduler.wake_at == 20.0
    driven.at(19.0).sent()
    ends(driven)

    assert driven.scheduler.idle
    assert driven.scheduler.failure is None
    assert driven.scheduler.figures.records == 1


def test_a_request_that_never_ends_is_fatal() -> None:
    """At twice requestTimeout: whether its rows are accepted in the meantime or not."""
    driven = Driven(max_batch_size=1, request_timeout=10.0)
    driven.add("a")
    driven.at(10.0).sent()
    driven.at(11.0).sent()
    driven.answer(1)
    driven.at(19.9).sent()
    assert driven.scheduler.failure is None
    driven.at(20.0).sent()

    assert "fake: a request is still running 10 s after requestTimeout, which is 10 s: its epoch" in (
        driven.failure
    )


def test_a_timeout_can_be_fatal() -> None:
    """failOnTimeout: the error names destination and time."""
    driven = Driven(max_batch_size=1, request_timeout=10.0, fail_on_timeout=True)
    driven.add("a")
    driven.at(10.0).sent()

    assert "fake: a request of 1 records got no answer within 10 s" in driven.failure


# --- giving up ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False])
def test_with_fail_on_error_the_first_refusal_is_fatal(*, whole: bool) -> None:
    """failOnError: one refused record, or a failed request that would be retried, is fatal."""
    driven = Driven(max_batch_size=2, fail_on_error=True)
    driven.add("a", "b")
    if whole:
        driven.fail(0, OSError("gone"))
        assert driven.failure == "gone"
    else:
        driven.answer(0, "a", codes={"TooMuch": 1})
        assert driven.failure == ("fake: 1 of 2 records were not accepted (failOnError is true): TooMuch (1)")


def test_a_record_refused_for_too_long_fails_the_task() -> None:
    """maxRetryDuration counts from a record's first refusal; the error has number, time and cause."""
    driven = Driven(max_batch_size=3, max_retry_duration=60.0)
    driven.add(*letters(3))
    driven.answer(0, "a", "b", codes={"TooMuch": 2})
    for number, now in enumerate((20.0, 40.0), start=1):
        driven.at(now).sent(draining=True)
        driven.answer(number, "a", "b", codes={"TooMuch": 2})
        assert driven.scheduler.failure is None
    driven.at(59.0).sent(draining=True)
    driven.at(61.0).answer(3, "a", "b", codes={"TooMuch": 2})

    error = driven.scheduler.failure
    assert isinstance(error, ServiceError)
    assert error.code == "TooMuch"
    assert str(error) == (
        "fake: 2 records are still not accepted after 61.0 s (maxRetryDuration is 60 s): TooMuch (2)"
    )
