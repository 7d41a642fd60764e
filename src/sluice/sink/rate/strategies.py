"""Rate limiting strategies (FLIP-242): when a request must wait, and how large it may be."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from sluice.sink.contracts import RateLimitingStrategy, RequestInfo, ResultInfo
from sluice.sink.rate.pace import Pace
from sluice.sink.rate.token_bucket import UNLIMITED

__all__ = [
    "AIMDScalingStrategy",
    "CongestionControlRateLimitingStrategy",
    "NoRateLimitingStrategy",
    "PacedRateLimitingStrategy",
    "ScalingStrategy",
]

_FIRST_RATE: Final = 1000.0  # entries a second
_REQUEST_SPAN: Final = 0.05  # seconds of the pace that a request holds at least
_PATIENCE: Final = 20  # accepted requests since the limit in flight was lowered; each further one raises it
_LATENCY_WEIGHT: Final = 0.1  # of the last answer in the average


class ScalingStrategy(Protocol):
    """How a limit grows after a success and shrinks after a refusal."""

    def scale_up(self, current: int) -> int: ...
    def scale_down(self, current: int) -> int: ...


@dataclass(frozen=True, kw_only=True)
class AIMDScalingStrategy:
    """Additive increase, multiplicative decrease, in Flink's published arithmetic.

    A success adds `increase_rate`, up to `rate_threshold`. A failure multiplies by `decrease_factor`, which
    is strictly between 0 and 1. Raises ValueError for a value out of its range.
    """

    increase_rate: int = 10
    decrease_factor: float = 0.5
    rate_threshold: int

    def __post_init__(self) -> None:
        if not 0 < self.increase_rate <= self.rate_threshold:
            raise ValueError(f"increase_rate must be positive and at most rate_threshold: {self}")
        if not 0.0 < self.decrease_factor < 1.0:
            raise ValueError(f"decrease_factor must be strictly between 0 and 1: {self}")

    def scale_up(self, current: int) -> int:
        return min(current + self.increase_rate, self.rate_threshold)

    def scale_down(self, current: int) -> int:
        """At least 1, rounded half up as Flink's ``Math.round``."""
        return max(1, math.floor(current * self.decrease_factor + 0.5))


class CongestionControlRateLimitingStrategy(RateLimitingStrategy):
    """Limits the entries in flight, as published in FLIP-242: no pace, and any failure counts as load.

    A request that is accepted as a whole raises the limit, any other one lowers it, as the scaling strategy
    says; but by at least one, because rounding would keep a limit of 50 at 50 with a factor of 0.99.

    Args:
        max_in_flight_requests: requests in flight, at most.
        initial_max_in_flight_messages: the limit to start with.
        scaling_strategy: how the limit changes.

    Raises:
        ValueError: a limit that is not positive.
    """

    def __init__(
        self,
        *,
        max_in_flight_requests: int,
        initial_max_in_flight_messages: int,
        scaling_strategy: ScalingStrategy,
    ) -> None:
        limits = (max_in_flight_requests, initial_max_in_flight_messages)
        if min(limits) <= 0:
            raise ValueError(f"limits must be positive: {limits}")
        self._max_requests = max_in_flight_requests
        self._limit = initial_max_in_flight_messages
        self._scaling = scaling_strategy
        self._requests = self._messages = 0

    def register_in_flight_request(self, request: RequestInfo) -> None:
        self._requests += 1
        self._messages += request.batch_size

    def register_completed_request(self, result: ResultInfo) -> None:
        self._forget(result)
        limit = self._limit
        if result.failed_messages:
            limit = min(self._scaling.scale_down(limit), limit - 1)
        else:
            limit = self._scaling.scale_up(limit)
        self._limit = max(1, limit)

    def _forget(self, result: ResultInfo) -> None:
        self._requests = max(0, self._requests - 1)
        self._messages = max(0, self._messages - result.batch_size)

    def should_block(self, request: RequestInfo) -> bool:
        return self.delay(request) > 0

    def delay(self, request: RequestInfo) -> float:
        """Seconds until this request may be sent; infinity if it must wait for an answer."""
        is_full = self._messages + request.batch_size > self._limit
        return math.inf if is_full or self._requests >= self._max_requests else 0.0

    @property
    def max_batch_size(self) -> int:
        """The limit: a larger batch could never be sent."""
        return self._limit

    @property
    def limit(self) -> int:
        """Entries that may be in flight now."""
        return self._limit

    def forget_in_flight(self) -> None:
        """The requests in flight were given up with their writer. What was learned stays."""
        self._requests = self._messages = 0


class _Sent(NamedTuple):
    """What held when a request was sent."""

    rate: float
    messages: int  # in flight, with its own
    waited: bool  # for the pace


class PacedRateLimitingStrategy(CongestionControlRateLimitingStrategy):
    """Limits entries a second and entries in flight: the default, `rateLimiting=aimd`.

    `Pace` learns the entries a second from refusals for load. A request that is refused for load as a
    whole, while others were in flight, is no sign of the pace: servers answer like this that limit requests
    at a time. Such a refusal lowers the limit in flight. Once `_PATIENCE` requests were accepted since
    then, at least in part, each further one raises it. If nothing is in flight, a request of any size may be
    sent.

    A request that fails as a whole for another reason than load changes nothing. An entry that fails by
    itself did get through.

    Args:
        max_in_flight_requests: requests in flight, at most.
        max_batch_size: entries of a request, at most.
        scaling_strategy: how the limit in flight changes, in entries.
        clock: monotonic seconds.
        jitter: returns a random number in [0, 1).

    Raises:
        ValueError: a limit that is not positive.
    """

    def __init__(
        self,
        *,
        max_in_flight_requests: int,
        max_batch_size: int,
        scaling_strategy: ScalingStrategy,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(
            max_in_flight_requests=max_in_flight_requests,
            initial_max_in_flight_messages=max_in_flight_requests * max_batch_size,
            scaling_strategy=scaling_strategy,
        )
        self._max_batch = max_batch_size
        self._clock = clock
        self._pace = Pace(_FIRST_RATE, jitter=jitter)
        self._in_flight: dict[float | None, _Sent] = {}  # by when; if two were sent at once, the later one
        self._latency = 0.0  # seconds until an answer, averaged
        self._lowered_at = -math.inf
        self._accepted_since = 0  # requests
        self._grown = 0.0  # of an entry, by which the limit is to grow

    def use_clock(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def register_in_flight_request(self, request: RequestInfo) -> None:
        super().register_in_flight_request(request)
        now = self._clock() if request.started_at is None else request.started_at
        sent = _Sent(self._pace.rate, self._messages, self._pace.was_awaited(now))
        self._in_flight[request.started_at] = sent
        self._pace.sent(request.batch_size, now, was_idle=self._requests == 1)

    def register_completed_request(self, result: ResultInfo) -> None:
        now, entries, refused = self._clock(), result.batch_size, result.throttled_messages
        sent_at = now if result.started_at is None else result.started_at
        sent = self._in_flight.pop(result.started_at, _Sent(self._pace.rate, self._messages, waited=False))
        beside = max(sent.messages, self._messages)  # in flight while it was
        self._forget(result)
        if not self._requests:
            self._in_flight.clear()  # also of callers that set `started_at` on requests alone
        if not (result.accepted or refused):
            return
        self._latency += (now - sent_at - self._latency) * _LATENCY_WEIGHT
        if refused == entries < beside:
            self._pace.hold(now)
            if sent_at > self._lowered_at:  # else it was sent before, and tells nothing new
                at_most = min(self._limit, beside)
                self._limit = max(1, min(self._scaling.scale_down(at_most), at_most - 1))
                self._lowered_at, self._accepted_since = now, 0
            return
        if result.accepted:
            self._accepted_since += 1
            if self._accepted_since > _PATIENCE:
                # At most one request more in the time of an answer, as in TCP.
                step = self._scaling.scale_up(self._limit) - self._limit
                self._grown += max(0.0, min(step, entries * entries / self._limit))
                self._limit += int(self._grown)
                self._grown %= 1
        self._pace.answered(entries - refused, refused, now, rate=sent.rate, waited=sent.waited)

    def delay(self, request: RequestInfo) -> float:
        is_blocked = self._requests > 0 and super().delay(request) > 0
        return math.inf if is_blocked else self._pace.wait(self._clock())

    @property
    def max_batch_size(self) -> int:
        """Entries of `_REQUEST_SPAN`; more if so few requests may be in flight that each must carry more."""
        # With one at a time, a request carries what the pace has until its answer.
        span = max(_REQUEST_SPAN, self._latency * min(1.0, self._max_batch / self._limit))
        return max(1, min(self._max_batch, math.ceil(self._pace.rate * span)))

    @property
    def rate(self) -> float:
        """Entries a second, as learned so far."""
        return self._pace.rate

    def forget_in_flight(self) -> None:
        super().forget_in_flight()
        self._in_flight.clear()


class NoRateLimitingStrategy(RateLimitingStrategy):
    """No limits in addition to the limits of the writer."""

    def register_in_flight_request(self, request: RequestInfo) -> None:
        pass

    def register_completed_request(self, result: ResultInfo) -> None:
        pass

    def should_block(self, request: RequestInfo) -> bool:  # noqa: ARG002 - the contract's
        return False

    @property
    def max_batch_size(self) -> int:
        return UNLIMITED

    def forget_in_flight(self) -> None:
        pass
