"""Limits over time. All of them get the time as an argument, and none waits."""

from __future__ import annotations

from collections import deque


class CallLimit:
    """Limits the calls in any second. A refused call does not count."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def take(self, rate: float | None, now: float) -> bool:
        """Whether one more call is allowed, which it then counts as."""
        if rate is None:
            return True
        # A rate of a half means one call in any two seconds.
        span, most = (1.0, int(rate)) if rate >= 1 else (1.0 / rate, 1)
        # A nanosecond of grace: pauses of exactly a fifth of a second add up to a little less than one
        # second.
        while self._times and self._times[0] <= now - span + 1e-9:
            self._times.popleft()
        if len(self._times) >= most:
            return False
        self._times.append(now)
        return True


class TokenBucket:
    """Holds a second's worth. What is larger than the bucket is taken when it is full, and overdraws it."""

    def __init__(self) -> None:
        self._level: float | None = None
        self._at = 0.0

    def has(self, amount: float, rate: float | None, now: float) -> bool:
        """Whether `amount` could be taken."""
        if rate is None:
            return True
        level = rate if self._level is None else min(rate, self._level + (now - self._at) * rate)
        self._level, self._at = level, now
        return level >= min(amount, rate) - 1e-6

    def take(self, amount: float, rate: float | None) -> None:
        """To be called after `has` at the same time."""
        if rate is not None and self._level is not None:
            self._level -= amount


class ReadLimit:
    """Calls and bytes that readers of one shard share.

    A page makes the shard wait: one of more than a second's worth until it has been paid for, in any case not
    longer than `longest`; smaller ones may run ahead by a second.
    """

    def __init__(self) -> None:
        self._calls = CallLimit()
        self._paid_at = 0.0
        self._refused_until = 0.0

    def refusal(self, calls: float | None, byte_rate: float | None, now: float) -> str | None:
        """Why a call is refused now; None: it is allowed, and counts."""
        if now < self._refused_until - 1e-9:
            return "bytes"
        if byte_rate is not None and self._paid_at - now >= 1.0:
            return "bytes"
        return None if self._calls.take(calls, now) else "calls"

    def add(self, size: int, byte_rate: float | None, longest: float | None, now: float) -> None:
        """A page of `size` bytes was given."""
        if byte_rate is None:
            return
        seconds = size / byte_rate
        if seconds <= 1.0 or longest is None:
            self._paid_at = max(self._paid_at, now) + min(seconds, 1.0)
            return
        self._refused_until = now + min(seconds, longest)
        self._paid_at = self._refused_until
