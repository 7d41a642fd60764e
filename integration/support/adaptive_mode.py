"""The SDK's adaptive retry mode as a rate limiting strategy, to compare with.

The SDK limits requests a second of a client by a token bucket, whose rate follows a CUBIC curve: see
`botocore.retries.adaptive`. Its own classes calculate here, with the clock of the run. The SDK sees only
requests that are refused as a whole; here each request with an entry that was refused for load counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from botocore.exceptions import CapacityNotAvailableError
from botocore.retries.adaptive import ClientRateLimiter, RateClocker
from botocore.retries.bucket import TokenBucket
from botocore.retries.throttling import CubicCalculator

from sluice.sink import RequestInfo, ResultInfo
from sluice.sink.contracts import RateLimitingStrategy

_UNLIMITED = 2**31 - 1


class AdaptiveModeStrategy(RateLimitingStrategy):
    """Sends at the requests a second that the SDK would allow itself; `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.current_time = clock  # as botocore.retries.bucket.Clock has it
        this: Any = self
        self._bucket: Any = TokenBucket(max_rate=1, clock=this)
        self._limiter: Any = ClientRateLimiter(
            rate_adjustor=CubicCalculator(starting_max_rate=0, start_time=clock()),
            rate_clocker=RateClocker(self),
            token_bucket=self._bucket,
            throttling_detector=self,
            clock=self,
        )
        self._limits = False

    def is_throttling_error(self, *, result: ResultInfo) -> bool:
        """What the limiter asks of an answer."""
        return result.throttled_messages > 0

    def register_in_flight_request(self, request: RequestInfo) -> None:  # noqa: ARG002
        if self._limits:
            self._bucket.acquire(block=False)

    def register_completed_request(self, result: ResultInfo) -> None:
        self._limits |= self.is_throttling_error(result=result)
        self._limiter.on_receiving_response(result=result)

    def should_block(self, request: RequestInfo) -> bool:
        return self.delay(request) > 0

    def delay(self, request: RequestInfo) -> float:  # noqa: ARG002 - the contract's
        """Seconds until there is a token."""
        if not self._limits:
            return 0.0
        try:
            self._bucket.acquire(block=False)
        except CapacityNotAvailableError:
            missing: float = 1 - self._bucket.available_capacity
            rate: float = self._bucket.max_rate
            return max(1e-3, missing / rate)
        self._bucket._current_capacity += 1
        return 0.0

    @property
    def max_batch_size(self) -> int:
        return _UNLIMITED

    def forget_in_flight(self) -> None:
        pass
