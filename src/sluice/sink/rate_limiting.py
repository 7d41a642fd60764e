"""Rate limiting strategies (FLIP-242): how much may be in flight, learnt from what is accepted.

Strategies are told what was sent and what was answered, and decide whether the next request must wait. They
start no threads; one that depends on time is given a clock.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from sluice.sink.contracts import RateLimitingStrategy, RequestInfo, ResultInfo
from sluice.sink.pacing import PacingRate
from sluice.sink.token_bucket import TokenBucket, TokenUnit, tokens_of

__all__ = [
    "AIMDScalingStrategy",
    "CongestionControlRateLimitingStrategy",
    "NoRateLimitingStrategy",
    "ScalingStrategy",
    "TokenBucketRateLimitingStrategy",
]

# The rate to start with: this many batches a second, and at least this many entries.
_FIRST_BATCHES: Final = 2.0
_FIRST_ENTRIES: Final = 500.0
_UNLIMITED: Final = 2**31 - 1


class ScalingStrategy(Protocol):
    """How a limit grows after a success and shrinks after a refusal."""

    def scale_up(self, current: int) -> int:
        """The limit after a request that was accepted as a whole. Asked for 2**31 - 1, the highest limit."""

    def scale_down(self, current: int) -> int:
        """The limit after a request with refused entries."""


@dataclass(frozen=True, kw_only=True)
class AIMDScalingStrategy:
    """Additive increase, multiplicative decrease.

    Args:
        increase_rate: added on success.
        decrease_factor: multiplied by on failure, strictly between 0 and 1.
        rate_threshold: the limit never rises above it.

    Raises:
        ValueError: a value out of its range.
    """

    increase_rate: int = 10
    decrease_factor: float = 0.5
    rate_threshold: int

    def __post_init__(self) -> None:
        if self.increase_rate <= 0:
            raise ValueError(f"increase_rate must be positive: {self.increase_rate}")
        if not 0.0 < self.decrease_factor < 1.0:
            raise ValueError(f"decrease_factor must be strictly between 0 and 1: {self.decrease_factor}")
        if self.rate_threshold <= 0:
            raise ValueError(f"rate_threshold must be positive: {self.rate_threshold}")
        if self.rate_threshold < self.increase_rate:
            raise ValueError(
                f"rate_threshold ({self.rate_threshold}) must be at least increase_rate "
                f"({self.increase_rate})"
            )

    def scale_up(self, current: int) -> int:
        """``current + increase_rate``, at most the threshold."""
        return min(current + self.increase_rate, self.rate_threshold)

    def scale_down(self, current: int) -> int:
        """``current * decrease_factor`` rounded half up (as Flink's ``Math.round``), at least 1."""
        return max(1, math.floor(current * self.decrease_factor + 0.5))


class CongestionControlRateLimitingStrategy(RateLimitingStrategy):
    """Limits the entries in flight to what the destination accepts, and learns how many a second that are.

    A request that is accepted as a whole raises the limit, any other one lowers it, as the scaling strategy
    says. With a factor of 0.99, rounding to nearest would never lower a limit of 50 or less
    (``floor(50 * 0.99 + 0.5)`` is 50), and a destination that accepts less would be flooded for good.
    `AIMDScalingStrategy` keeps Flink's published arithmetic. So where scaling down does not lower the limit,
    this class lowers it by one, down to 1.

    Entries that failed for another reason than load (`ResultInfo.failed_otherwise`) count as accepted here:
    only load slows the sender.

    Without a clock that is all, as in Flink. With a clock, the strategy also learns how many entries a second
    the destination takes, and delays requests accordingly: see `sluice.sink.pacing`. Then the limit is never
    lower than the learnt rate needs, up to the most that the scaling strategy allows. `AsyncSinkWriter` hands
    over its clock.

    Args:
        max_in_flight_requests: requests in flight, at most.
        initial_max_in_flight_messages: the limit to start with. The scaling strategy says how far it grows.
        scaling_strategy: how the limit changes. Its answer to ``scale_up(2**31 - 1)`` is the most that a
            learnt rate may raise the limit to.
        clock: monotonic seconds; None: that of the first writer, if there is one.
        wall_clock: seconds that are the same on all hosts.
        jitter: returns a random number in [0, 1).

    Raises:
        ValueError: a limit that is not positive.
    """

    def __init__(  # noqa: PLR0913 - three settings, and three hooks for tests
        self,
        *,
        max_in_flight_requests: int,
        initial_max_in_flight_messages: int,
        scaling_strategy: ScalingStrategy,
        clock: Callable[[], float] | None = None,
        wall_clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        if max_in_flight_requests <= 0:
            raise ValueError(f"max_in_flight_requests must be positive: {max_in_flight_requests}")
        if initial_max_in_flight_messages <= 0:
            raise ValueError(
                f"initial_max_in_flight_messages must be positive: {initial_max_in_flight_messages}"
            )
        self._max_in_flight_requests = max_in_flight_requests
        self._initial_max_in_flight_messages = initial_max_in_flight_messages
        self._max_in_flight_messages = initial_max_in_flight_messages
        self._most = initial_max_in_flight_messages  # that the rate may raise the limit to
        self._scaling = scaling_strategy
        self._requests = 0
        self._messages = 0
        self._clock = time.monotonic if clock is None else clock
        self._is_writers_clock = True  # of each so far; or instants that are told may be of another clock
        self._wall_clock = wall_clock
        self._jitter = jitter
        self._has_answers = False  # so that the rate knows for how long entries are in flight
        self._pacing: PacingRate | None = None
        if clock is not None:
            self._start_pacing()

    def use_clock(self, clock: Callable[[], float]) -> None:
        """Takes the clock of a writer, unless there is one already.

        The first clock stays, as what was learnt has instants of it. The next writer's is the same function
        as a rule. If it is another one, instants that writers tell are left alone from then on.
        """
        if self._pacing is None:
            self._clock = clock
            self._start_pacing()
        self._is_writers_clock &= clock == self._clock  # a writer with another one may still be sending

    def _start_pacing(self) -> None:
        initial, requests = self._initial_max_in_flight_messages, self._max_in_flight_requests
        self._most = max(initial, self._scaling.scale_up(_UNLIMITED))
        self._pacing = PacingRate(
            max(_FIRST_BATCHES * initial / requests, _FIRST_ENTRIES),
            max_requests=requests,
            max_entries=self._most,
            jitter=self._jitter,
            wall_offset=lambda: self._wall_clock() - self._clock(),
        )

    def register_in_flight_request(self, request: RequestInfo) -> None:
        self._requests += 1
        self._messages += request.batch_size
        if self._pacing is not None:
            # Its answer comes with the same instant, which says at which pace the request was sent.
            started_at = request.started_at if self._is_writers_clock else None
            self._pacing.sent(request.batch_size, self._clock() if started_at is None else started_at)

    def register_completed_request(self, result: ResultInfo) -> None:
        self._requests = max(0, self._requests - 1)
        self._messages = max(0, self._messages - result.batch_size)
        limit = self._max_in_flight_messages
        if result.failed_messages > result.failed_otherwise:
            lowered = self._scaling.scale_down(limit)
            self._max_in_flight_messages = max(1, lowered if lowered < limit else limit - 1)
        else:
            self._max_in_flight_messages = max(1, self._scaling.scale_up(limit))
        if self._pacing is not None:
            self._has_answers = True
            now = self._clock()
            started_at = result.started_at if self._is_writers_clock else None
            sent_at = now - (result.seconds or 0.0) if started_at is None else started_at
            self._pacing.answered(
                result.batch_size,
                result.throttled_messages,
                result.untold,
                sent_at,
                now,
                otherwise=result.failed_otherwise,
                took=result.seconds,
            )

    def should_block(self, request: RequestInfo) -> bool:
        return self.delay(request) > 0

    def delay(self, request: RequestInfo) -> float:
        """Seconds until this request may be sent; infinity if it must wait for an answer."""
        if self._requests >= self._max_in_flight_requests or self._messages + request.batch_size > self.limit:
            return math.inf
        return self._pacing.wait(self._clock()) if self._pacing is not None else 0.0

    @property
    def max_batch_size(self) -> int:
        """The limit, as a larger batch could never be sent; less if the learnt rate asks for less."""
        limit = self.limit
        return limit if self._pacing is None else min(limit, self._pacing.max_request(self._clock()))

    @property
    def limit(self) -> int:
        """Entries that may be in flight now."""
        # Before the first answer nothing is learnt that would ask for more than the initial limit.
        needed = self._pacing.in_flight if self._pacing is not None and self._has_answers else 1
        return max(self._max_in_flight_messages, min(needed, self._most))

    @property
    def rate(self) -> float | None:
        """Entries a second, as learnt so far; None without a clock."""
        return self._pacing.rate if self._pacing is not None else None

    def forget_in_flight(self) -> None:
        """The requests in flight were given up with their writer. Limit and rate stay."""
        self._requests = 0
        self._messages = 0
        if self._pacing is not None:
            self._pacing.forget_in_flight()


class TokenBucketRateLimitingStrategy(RateLimitingStrategy):
    """Sends at most `rate` tokens' worth a second on average, and `burst` at once, whatever is accepted.

    A request takes its tokens each time it is sent. One that needs more than the burst, as a single large
    entry may where bytes are counted, is sent when the bucket is full.

    Args:
        rate: tokens added a second.
        burst: tokens that the bucket holds at most and starts with; also the most that a request of several
            entries takes.
        unit: what a token is for: ``records``, ``bytes`` or ``requests``.
        clock: monotonic seconds.

    Raises:
        ValueError: `rate` or `burst` is not positive.
    """

    def __init__(
        self,
        *,
        rate: float,
        burst: int,
        unit: TokenUnit = "records",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not rate > 0:
            raise ValueError(f"rate must be positive: {rate}")
        if burst <= 0:
            raise ValueError(f"burst must be positive: {burst}")
        self._rate = rate
        self._burst = burst
        self._unit: TokenUnit = unit
        self._clock = clock
        self._bucket = TokenBucket(rate, burst, clock(), tokens=burst)

    def register_in_flight_request(self, request: RequestInfo) -> None:
        self._bucket.take(tokens_of(request, self._unit), self._clock())

    def register_completed_request(self, result: ResultInfo) -> None:
        """Changes nothing: the rate is fixed."""

    def should_block(self, request: RequestInfo) -> bool:
        return self.delay(request) > 0

    def delay(self, request: RequestInfo) -> float:
        """Seconds until there are tokens for this request."""
        return self._bucket.wait(tokens_of(request, self._unit), self._clock())

    @property
    def max_batch_size(self) -> int:
        """Where records are counted, the burst: the bucket never holds more tokens."""
        return self._burst if self._unit == "records" else _UNLIMITED

    @property
    def max_batch_size_in_bytes(self) -> int:
        """Where bytes are counted, the burst."""
        return self._burst if self._unit == "bytes" else super().max_batch_size_in_bytes

    @property
    def rate(self) -> float | None:
        """Entries a second; None where something else is counted."""
        return self._rate if self._unit == "records" else None

    def forget_in_flight(self) -> None:
        """Changes nothing: tokens that were taken are not given back."""


class NoRateLimitingStrategy(RateLimitingStrategy):
    """No limits other than those of the writer."""

    def register_in_flight_request(self, request: RequestInfo) -> None:
        pass

    def register_completed_request(self, result: ResultInfo) -> None:
        pass

    def should_block(self, request: RequestInfo) -> bool:  # noqa: ARG002 - the contract's
        return False

    @property
    def max_batch_size(self) -> int:
        return _UNLIMITED

    def forget_in_flight(self) -> None:
        pass
