"""A fixed rate: a token bucket of one task, and what counts as a token."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from sluice.sink.contracts import RateLimitingStrategy, RequestInfo, ResultInfo

__all__ = ["UNLIMITED", "TokenBucketRateLimitingStrategy", "TokenUnit", "tokens_of"]

UNLIMITED: Final = 2**31 - 1  # entries of a request
_ROUNDING: Final = 1e-6  # tokens are sums of fractions: no task waits for less than this

TokenUnit: TypeAlias = Literal["records", "bytes", "requests"]


def tokens_of(request: RequestInfo, unit: TokenUnit) -> int:
    """How many tokens a request takes."""
    return {"records": request.batch_size, "bytes": request.size_in_bytes, "requests": 1}[unit]


class TokenBucketRateLimitingStrategy(RateLimitingStrategy):
    """Sends at most `rate` tokens' worth a second on average, and `burst` at once, regardless of answers.

    A request takes its tokens each time it is sent. A request that needs more than the burst, such as a large
    entry if bytes are counted, is sent when the bucket is full. It leaves a debt that later requests wait
    for.

    Args:
        rate: tokens a second.
        burst: tokens that the bucket holds at most, and at first; a request of several entries takes no more.
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
        if not (rate > 0 and burst > 0):
            raise ValueError(f"rate and burst must be positive: {rate}, {burst}")
        self._rate = rate
        self._burst = burst
        self._unit: TokenUnit = unit
        self._clock = clock
        self._tokens = float(burst)
        self._counted_at = clock()

    def register_in_flight_request(self, request: RequestInfo) -> None:
        tokens, now = tokens_of(request, self._unit), self._clock()
        # A request that was sent without asking must not delay later ones for long: it leaves no debt.
        floor = min(0.0, float(self._burst - tokens))
        self._tokens = max(floor, self._available(now) - tokens)
        self._counted_at = now

    def register_completed_request(self, result: ResultInfo) -> None:
        """Changes nothing: the rate is fixed."""

    def should_block(self, request: RequestInfo) -> bool:
        return self.delay(request) > 0

    def delay(self, request: RequestInfo) -> float:
        """Seconds until there are tokens for this request."""
        missing = min(tokens_of(request, self._unit), self._burst) - self._available(self._clock())
        return missing / self._rate if missing > _ROUNDING else 0.0

    def _available(self, now: float) -> float:
        return min(float(self._burst), self._tokens + (now - self._counted_at) * self._rate)

    @property
    def max_batch_size(self) -> int:
        return self._burst if self._unit == "records" else UNLIMITED

    @property
    def max_batch_size_in_bytes(self) -> int:
        return self._burst if self._unit == "bytes" else super().max_batch_size_in_bytes

    @property
    def rate(self) -> float | None:
        """Entries a second; None if something else is counted."""
        return self._rate if self._unit == "records" else None

    def forget_in_flight(self) -> None:
        """Changes nothing: tokens that were taken are not given back."""
