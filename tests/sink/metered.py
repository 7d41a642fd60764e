"""A destination that admits a fixed rate, and a sink that feeds it, in virtual time."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from sink_fakes import config

from sluice.sink import AsyncSinkConfig, RateLimitingStrategy, SubmitResult
from sluice.sink.scheduler import Request, SinkScheduler


class Shards:
    """Meters like Kinesis: every shard has a token bucket, and a record without a token is refused.

    Args:
        count: of shards; records are spread at random.
        rate: tokens a second and shard.
        burst: seconds' worth of tokens that a bucket holds at most and starts with.
    """

    def __init__(self, count: int, rate: float = 1000.0, burst: float = 1.0, *, seed: int = 1) -> None:
        self.rate = rate
        self._burst = burst
        self._random = random.Random(seed)
        self._tokens = [rate * burst] * count
        self._counted = [0.0] * count

    @property
    def total(self) -> float:
        return self.rate * len(self._tokens)

    def refused(self, records: int, now: float) -> list[int]:
        """The positions of the records of a request that are refused."""
        return [n for n in range(records) if not self._take(self._random.randrange(len(self._tokens)), now)]

    def _take(self, shard: int, now: float) -> bool:
        passed = max(0.0, now - self._counted[shard])
        self._counted[shard] += passed
        self._tokens[shard] = min(self.rate * self._burst, self._tokens[shard] + passed * self.rate)
        if self._tokens[shard] < 1:
            return False
        self._tokens[shard] -= 1
        return True


class Metered:
    """A sink with more to write than `shards` accept.

    Args:
        make: makes the strategy from the settings and a clock.
        latency: the shortest and the longest time until an answer (seconds).
        all_or_nothing: a request is refused as a whole if any of its records would be refused.
    """

    def __init__(
        self,
        make: Callable[[AsyncSinkConfig, Callable[[], float]], RateLimitingStrategy],
        shards: Shards,
        *,
        latency: tuple[float, float] = (0.005, 0.05),
        batch: int = 500,
        all_or_nothing: bool = False,
    ) -> None:
        self.now = 0.0
        settings = config(
            max_batch_size=batch,
            max_batch_size_in_bytes=10**7,
            max_in_flight_requests=50,
            max_buffered_requests=10_000,
        )
        self.shards = shards
        self.strategy: Any = make(settings, lambda: self.now)
        self._random = random.Random(2)
        self._scheduler: SinkScheduler[int] = SinkScheduler(
            settings,
            self.strategy,
            name="m",
            jitter=self._random.random,
            is_throttling=lambda code: code == "Throttled",
        )
        self._latency = latency
        self._all_or_nothing = all_or_nothing
        self._due: list[tuple[float, int, Request[int], list[int] | None]] = []
        self.accepted: Counter[int] = Counter()  # by second
        self.refused: Counter[int] = Counter()
        self.requests = 0
        self.steps = 0
        self.idle_until = -math.inf

    def run(self, until: float) -> Metered:
        while self.now < until:
            self.steps += 1
            while self.now >= self.idle_until and (room := min(self._scheduler.room, 500)):
                self._scheduler.add(range(room), [1] * room, self.now)
            for request in self._scheduler.advance(self.now):
                self.requests += 1
                self._push(self._random.uniform(*self._latency) / 2, request, None)
            wake = min(self._scheduler.wake_at, self._due[0][0] if self._due else math.inf, until)
            if self.now < self.idle_until:
                wake = min(wake, self.idle_until)
            self.now = max(self.now, wake)
            while self._due and self._due[0][0] <= self.now:
                self._arrive(*heapq.heappop(self._due)[2:])
        return self

    def _push(self, delay: float, request: Request[int], outcome: list[int] | None) -> None:
        heapq.heappush(self._due, (self.now + delay, request.number, request, outcome))

    def _arrive(self, request: Request[int], outcome: list[int] | None) -> None:
        entries = request.entries
        if outcome is None:  # half of the latency is over: the destination decides
            refused = self.shards.refused(len(entries), self.now)
            if refused and self._all_or_nothing:
                refused = list(range(len(entries)))
            self._push(self._random.uniform(*self._latency) / 2, request, refused)
            return
        self.accepted[int(self.now)] += len(entries) - len(outcome)
        self.refused[int(self.now)] += len(outcome)
        codes = {"Throttled": len(outcome)} if outcome else {}
        result = SubmitResult([entries[n] for n in outcome], codes)
        self._scheduler.complete(request.number, result, self.now)

    def throughput(self, start: int, end: int) -> float:
        """The records accepted in these seconds, as a part of what the shards admit."""
        return sum(self.accepted[n] for n in range(start, end)) / (end - start) / self.shards.total

    def refusals(self, start: int, end: int) -> float:
        """The records refused in these seconds, as a part of those sent."""
        refused = sum(self.refused[n] for n in range(start, end))
        return refused / (refused + sum(self.accepted[n] for n in range(start, end)))
