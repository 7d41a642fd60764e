"""A sender that knows what the others must learn. A goal that it misses is missed by every even pace.

It knows the capacity of the service, how many tasks share it, and the share of requests that fail as a whole
and so use up no tokens. It sends at an even pace, a part of what the service takes. It is as late as any
sender must be: until a round trip after its first request it knows nothing, and of a step of the capacity it
knows a round trip after it. In all else it is like `rateLimiting=aimd`: the pace to begin with, the size of
requests, their irregular distances, how many may be in flight. So what it misses is due to these, to the
latency and to the size of the bucket, and not to what must be learnt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from integration.support.shared_capacity import Scenario
from sluice.sink import RateLimitingStrategy, RequestInfo, ResultInfo
from sluice.sink.pacing import PacingRate

__all__ = ["KnownCapacityStrategy"]

FIRST: Final = 1000.0
"""Entries a second of a task that has no answer yet: two batches of 500."""


class KnownCapacityStrategy(RateLimitingStrategy):
    """Sends a part of what a service takes.

    Args:
        scenario: the service.
        part: of its capacity, as a factor.
        clock: seconds since the run began.
        jitter: returns a random number in [0, 1).
    """

    def __init__(
        self, scenario: Scenario, part: float, *, clock: Callable[[], float], jitter: Callable[[], float]
    ) -> None:
        self._scenario = scenario
        self._part = part
        self._clock = clock
        self._known_from = math.inf
        self._pacing = PacingRate(FIRST, max_requests=scenario.in_flight, jitter=jitter)

    @property
    def rate(self) -> float:
        """Entries a second of this task."""
        scenario, now = self._scenario, self._clock()
        if now < self._known_from:
            return FIRST
        taken = scenario.admitted(now - scenario.latency) / (1 - scenario.failing_requests)
        return self._part * taken / scenario.tasks

    def register_in_flight_request(self, request: RequestInfo) -> None:
        now = self._clock()
        self._known_from = min(self._known_from, now + self._scenario.latency)
        self._paced().sent(request.batch_size, now)

    def register_completed_request(self, result: ResultInfo) -> None:
        # Of an answer in which all entries have failed, the pace learns the latency, and nothing else.
        count, now = result.batch_size, self._clock()
        self._pacing.answered(count, 0, 0, now - (result.seconds or 0.0), now, otherwise=count)

    def should_block(self, request: RequestInfo) -> bool:
        return self.delay(request) > 0

    def delay(self, request: RequestInfo) -> float:  # noqa: ARG002 - the contract's
        """Seconds until the next request is due. The writer bounds the number of those in flight."""
        return self._pacing.wait(self._clock())

    @property
    def max_batch_size(self) -> int:
        """Entries of the next request, at most."""
        return self._paced().max_request(self._clock())

    def forget_in_flight(self) -> None:
        self._pacing.forget_in_flight()

    def _paced(self) -> PacingRate:
        self._pacing.rate = self.rate
        return self._pacing
