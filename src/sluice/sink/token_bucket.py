"""A token bucket, and what counts as a token."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from sluice.sink.contracts import RequestInfo

__all__ = ["TokenBucket", "TokenUnit", "tokens_of"]

_ROUNDING: Final = 1e-6
"""Tokens are sums of fractions. Nobody waits for less than this."""

TokenUnit: TypeAlias = Literal["records", "bytes", "requests"]


def tokens_of(request: RequestInfo, unit: TokenUnit) -> int:
    """How many tokens a request takes."""
    match unit:
        case "records":
            return request.batch_size
        case "bytes":
            return request.size_in_bytes
        case "requests":
            return 1


class TokenBucket:
    """Tokens that come at a rate. No clock: every method is told the time, in monotonic seconds.

    A request for more tokens than the bucket ever holds is let through when the bucket is full. The bucket is
    then in debt, which later requests wait for, so that the rate holds all the same.

    Args:
        rate: tokens a second.
        burst: the most that it holds.
        now: the time.
        tokens: what it starts with.
    """

    def __init__(self, rate: float, burst: float, now: float, *, tokens: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = tokens
        self._counted_at = now

    def wait(self, tokens: float, now: float) -> float:
        """Seconds until a request may take this many."""
        missing = min(tokens, self._burst) - self._available(now)
        return missing / self._rate if missing > _ROUNDING else 0.0

    def take(self, tokens: float, now: float) -> None:
        """A request takes tokens."""
        # A request that was sent without asking must not delay later ones for long: it leaves no debt.
        floor = min(0.0, self._burst - tokens)
        self._tokens = max(floor, self._available(now) - tokens)
        self._counted_at = now

    def _available(self, now: float) -> float:
        return min(self._burst, self._tokens + (now - self._counted_at) * self._rate)
