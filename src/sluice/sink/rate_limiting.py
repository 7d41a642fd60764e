"""Rate limiting (FLIP-242): how much may be in flight, learnt from what comes back.

Strategies are pure: they are told what was sent and what came back, and answer whether the next
request must wait. They know no thread and no clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from sluice.sink.contracts import RequestInfo, ResultInfo

__all__ = [
    "AIMDScalingStrategy",
    "CongestionControlRateLimitingStrategy",
    "NoRateLimitingStrategy",
    "ScalingStrategy",
]


class ScalingStrategy(Protocol):
    """How far a limit goes up after a success and down after a refusal."""

    def scale_up(self, current: int) -> int:
        """The limit after a request that was accepted as a whole."""

    def scale_down(self, current: int) -> int:
        """The limit after a request of which something was refused."""


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


class CongestionControlRateLimitingStrategy:
    """Limits the entries in flight to what the destination has shown it takes.

    Every request that is accepted as a whole raises the limit, every other one lowers it, as the
    scaling strategy says.

    Rounding to nearest has a trap: with a factor of 0.99 no limit of 50 or below ever falls
    (``floor(50 * 0.99 + 0.5)`` is 50 again), so that a destination which takes less is flooded for
    good. `AIMDScalingStrategy` keeps Flink's published arithmetic; here, a scaling down that would
    leave the limit where it was lowers it by one instead, down to 1.

    Args:
        max_in_flight_requests: requests in flight, at most.
        initial_max_in_flight_messages: the limit to start with.
        scaling_strategy: how the limit moves.
    """

    def __init__(
        self,
        *,
        max_in_flight_requests: int,
        initial_max_in_flight_messages: int,
        scaling_strategy: ScalingStrategy,
    ) -> None:
        if max_in_flight_requests <= 0:
            raise ValueError(f"max_in_flight_requests must be positive: {max_in_flight_requests}")
        if initial_max_in_flight_messages <= 0:
            raise ValueError(
                f"initial_max_in_flight_messages must be positive: {initial_max_in_flight_messages}"
            )
        self._max_in_flight_requests = max_in_flight_requests
        self._max_in_flight_messages = initial_max_in_flight_messages
        self._scaling = scaling_strategy
        self._requests = 0
        self._messages = 0

    def register_in_flight_request(self, request: RequestInfo) -> None:
        self._requests += 1
        self._messages += request.batch_size

    def register_completed_request(self, result: ResultInfo) -> None:
        self._requests = max(0, self._requests - 1)
        self._messages = max(0, self._messages - result.batch_size)
        limit = self._max_in_flight_messages
        if result.failed_messages > 0:
            lowered = self._scaling.scale_down(limit)
            self._max_in_flight_messages = max(1, lowered if lowered < limit else limit - 1)
        else:
            self._max_in_flight_messages = max(1, self._scaling.scale_up(limit))

    def should_block(self, request: RequestInfo) -> bool:
        return (
            self._requests >= self._max_in_flight_requests
            or self._messages + request.batch_size > self._max_in_flight_messages
        )

    @property
    def max_batch_size(self) -> int:
        """The limit: a larger batch could never be sent."""
        return self._max_in_flight_messages

    def forget_in_flight(self) -> None:
        """Requests were given up with their writer; the limit learnt so far stays."""
        self._requests = 0
        self._messages = 0


class NoRateLimitingStrategy:
    """No limit beyond those of the writer itself."""

    def register_in_flight_request(self, request: RequestInfo) -> None:
        pass

    def register_completed_request(self, result: ResultInfo) -> None:
        pass

    def should_block(self, request: RequestInfo) -> bool:  # noqa: ARG002 - the contract's
        return False

    @property
    def max_batch_size(self) -> int:
        return 2**31 - 1

    def forget_in_flight(self) -> None:
        pass
