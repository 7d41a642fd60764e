"""The default strategy: what lowers its pace and its limit in flight, and what does not."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from sluice.sink import AIMDScalingStrategy, PacedRateLimitingStrategy, RequestInfo, ResultInfo


class Sender:
    """Sends as fast as the strategy lets it, in virtual time; each answer is a draw of the test."""

    def __init__(
        self, *, increase: int = 10, factor: float = 0.5, batch: int = 100, requests: int = 10
    ) -> None:
        self.now = 0.0
        self.strategy = PacedRateLimitingStrategy(
            max_in_flight_requests=requests,
            max_batch_size=batch,
            scaling_strategy=AIMDScalingStrategy(
                increase_rate=increase, decrease_factor=factor, rate_threshold=batch * requests
            ),
            clock=lambda: self.now,
            jitter=lambda: 0.5,
        )

    def send(self, size: int | None = None) -> tuple[int, float]:
        """Sends one request as soon as it may be; returns its size, and when it was sent."""
        count = self.strategy.max_batch_size if size is None else size
        delay = self.strategy.delay(RequestInfo(count))
        assert delay < math.inf
        self.now += delay
        assert not self.strategy.should_block(RequestInfo(count))
        self.strategy.register_in_flight_request(RequestInfo(count, started_at=self.now))
        return count, self.now

    def answer(self, sent: tuple[int, float], *, refused: int = 0, failed: int = 0) -> None:
        count, at = sent
        result: Any = ResultInfo(refused + failed, count, refused, seconds=self.now - at, started_at=at)
        self.strategy.register_completed_request(result)

    def exchange(self, part: float = 0.0, failing: float = 0.0, *, seconds: float = 5.0) -> float:
        """One request after another; returns the entries a second that were sent."""
        begun, sent = self.now, 0
        while self.now < begun + seconds:
            request = self.send()
            sent += request[0]
            self.answer(request, refused=round(request[0] * part), failed=round(request[0] * failing))
        return sent / (self.now - begun)

    def fly(self, count: int) -> list[tuple[int, float]]:
        """So many full requests, whose answers are outstanding."""
        return [self.send(100) for _ in range(count)]


def test_the_pace_grows_while_all_is_accepted_and_falls_to_what_is() -> None:
    sender = Sender()
    sender.exchange()
    high = sender.strategy.rate
    sender.exchange(0.8, seconds=1.0)

    assert high > 2000
    assert sender.strategy.rate < 0.5 * high


def test_failures_change_nothing() -> None:
    """Neither entries that failed, nor whole requests, nor time-outs."""
    sender, other = Sender(), Sender()
    sender.exchange(failing=0.5)
    other.exchange()
    assert sender.strategy.rate == pytest.approx(other.strategy.rate, rel=0.2)

    rate, limit = sender.strategy.rate, sender.strategy.limit
    for _ in range(20):
        sender.answer(request := sender.send(), failed=request[0])
    assert (sender.strategy.rate, sender.strategy.limit) == (rate, limit)


def test_a_pause_or_a_stall_forgets_nothing() -> None:
    """After an hour the sender continues at its pace, and makes up for a tenth of a second of it at most."""
    sender = Sender()
    sender.exchange(0.05)
    rate = sender.strategy.rate
    sender.now += 3600.0
    begun, sent = sender.now, 0
    while sender.now < begun + 0.5:
        sent += sender.send()[0]
        if sender.strategy.delay(RequestInfo(1)) == math.inf:
            break

    assert sender.strategy.rate == rate
    assert sent <= 0.7 * rate


def test_who_sends_less_than_the_pace_learns_no_higher_one() -> None:
    sender = Sender()
    sender.exchange(0.5, seconds=1.0)
    rate = sender.strategy.rate
    for _ in range(200):
        sender.now += 1.0
        sender.answer(sender.send(1))

    assert sender.strategy.rate <= rate


def test_a_whole_refusal_among_others_lowers_only_the_entries_in_flight() -> None:
    """As servers refuse that take a number of requests at a time: requests stay as full."""
    sender = Sender()
    flying = sender.fly(4)
    rate = sender.strategy.rate
    sender.answer(flying[3], refused=100)

    assert sender.strategy.limit == 200
    assert sender.strategy.rate == rate
    assert sender.strategy.delay(RequestInfo(100)) == math.inf, "three are in flight, and two may be"


def test_a_request_that_others_overtake_is_refused_with_them() -> None:
    """It was alone when it was sent. The first answer of all must not take the pace down to nothing."""
    sender = Sender()
    flying = sender.fly(2)
    sender.answer(flying[0], refused=100)

    assert sender.strategy.rate == 1000
    assert sender.strategy.limit == 100


def test_after_a_pause_a_whole_refusal_does_not_stop_the_sink() -> None:
    """Nothing was accepted lately because there was nothing to send."""
    sender = Sender()
    sender.exchange(0.5, seconds=0.5)
    sender.exchange(0.04)
    rate = sender.strategy.rate
    sender.now += 600.0
    flying = sender.fly(3)
    sender.answer(flying[0])
    sender.answer(flying[2], refused=100)

    assert sender.strategy.rate > rate / 2


def test_the_factor_and_the_increase_are_the_users() -> None:
    sender = Sender(increase=30, factor=0.75)
    flying = sender.fly(4)
    sender.answer(flying[3], refused=100)
    assert sender.strategy.limit == 300

    for request in flying[:3]:
        sender.answer(request)
    sender.now += 1.0
    before = sender.strategy.limit
    sender.exchange()
    grown = sender.strategy.limit
    assert before == 300
    assert grown == 1000, "grows again after some requests were accepted"


def test_requests_that_were_sent_before_the_limit_was_lowered_do_not_lower_it_again() -> None:
    sender = Sender()
    flying = sender.fly(8)
    for request in reversed(flying):
        sender.answer(request, refused=100)

    assert sender.strategy.limit == 400


def test_a_partial_refusal_leaves_the_limit_in_flight_alone() -> None:
    sender = Sender()
    flying = sender.fly(4)
    sender.answer(flying[3], refused=99)

    assert sender.strategy.limit == 1000


def test_a_request_larger_than_the_limit_is_sent_alone() -> None:
    """The limit makes no request smaller, and nobody waits for good."""
    sender = Sender(factor=0.01)
    flying = sender.fly(2)
    sender.answer(flying[1], refused=100)
    assert sender.strategy.limit < 100
    sender.answer(flying[0])
    sender.now += 1.0

    assert not sender.strategy.should_block(RequestInfo(100))


def test_requests_are_as_full_as_a_twentieth_of_a_second() -> None:
    sender = Sender(batch=500)
    assert sender.strategy.max_batch_size == 50
    while sender.strategy.rate < 10_000:
        sender.exchange(seconds=1.0)

    assert sender.strategy.max_batch_size == 500


@pytest.mark.parametrize("latency", [0.02, 0.2, 2.0])
def test_who_waits_for_answers_learns_no_higher_pace(latency: float) -> None:
    """Four requests may be in flight, and nothing is refused: the pace stays near the real rate."""
    sender = Sender(batch=500, requests=4)
    flying: list[tuple[float, tuple[int, float]]] = []
    sent, jitter = 0, random.Random(1)
    while sender.now < 60.0:
        while sender.strategy.delay(RequestInfo(1)) == 0.0:
            request = sender.send(500)
            flying.append((sender.now + latency * jitter.uniform(0.5, 1.5), request))
            sent += request[0]
        wake = sender.now + sender.strategy.delay(RequestInfo(1))
        flying.sort()
        sender.now = max(sender.now, min(wake, flying[0][0] if flying else wake))
        while flying and flying[0][0] <= sender.now:
            sender.answer(flying.pop(0)[1])

    assert sender.strategy.rate < 12 * sent / 60.0


def test_time_outs_make_requests_no_larger() -> None:
    sender = Sender(batch=500, requests=1)
    size = sender.strategy.max_batch_size
    for _ in range(5):
        request = sender.send()
        sender.now += 60.0
        sender.answer(request, failed=request[0])

    assert sender.strategy.max_batch_size == size
