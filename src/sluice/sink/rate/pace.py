"""How many entries a second a destination accepts, learned from its answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

__all__ = ["Pace"]

_START: Final = 1.5
"""Growth per second of sending until the first refusals, as an exponent: 4.5 times a second."""
_CLEAR: Final = 0.1
"""The refused part of a request that ends this first growth."""
_SETTLE: Final = 1.5
"""Seconds of sending over which answers are averaged."""
_MUCH: Final = 0.5
"""The refused part of a request that shows a fall of the capacity. (All of it does not say how far.)"""
_SETTLE_QUICKLY: Final = 0.2
"""Seconds of sending in which the pace follows such a fall."""
_REFUSED: Final = 0.05
"""The part of the entries that a slow task gets refused at rest. So the pace tests the limit all the time."""
_LEAST_REFUSED: Final = 0.025
"""The same for a fast task. Between the two, slower tasks get more refused and so gain on faster ones."""
_SLOW: Final = 200.0
"""Entries a second at which the refused part is halfway down."""
_CALM: Final = 1.0
"""Seconds of sending without a refusal after which the pace grows faster."""
_GROWTH: Final = 0.03
"""How much faster: by this, times the square of the further seconds."""
_FASTEST: Final = 1.6
"""The most that it grows in `_SETTLE`, as a factor."""
_FLOOR: Final = 0.1
"""The part of what was accepted lately below which the pace does not fall."""
_LATELY: Final = 5.0
"""Seconds over which that is averaged."""
_SLACK: Final = 0.05
"""Seconds of the pace that a late sender may make up for."""
_SPREAD: Final = 0.6
"""The range of the random distances between requests, as a part of the mean. It keeps tasks out of step."""


class Pace:
    """Entries a second, learned by one rule.

    Each answer draws the rate towards what was accepted of the rate at which its request was sent, and a
    little more. So the rate settles where a small part is refused. While nothing is refused, it grows,
    slowly at first. Only entries that had to wait for the pace are evidence for more of it.

    No clock: each method is told the time, in seconds of one monotonic clock.

    Args:
        rate: entries a second to begin with.
        jitter: returns a random number in [0, 1).
    """

    def __init__(self, rate: float, *, jitter: Callable[[], float]) -> None:
        self.rate = rate
        self._jitter = jitter
        self._next = -math.inf  # when the next request is due
        self._starting = True
        self._calm = 0.0  # seconds of sending since the last refusal
        self._taken = 0.0  # entries a second, lately
        self._answered_at = 0.0

    def wait(self, now: float) -> float:
        """Seconds until the next request is due."""
        return max(0.0, self._next - now)

    def is_late(self, now: float) -> bool:
        """Whether a request that is sent now did not have to wait for the pace."""
        return now > self._next + _SLACK

    def sent(self, entries: int, now: float) -> None:
        """A request was sent."""
        distance = entries / self.rate * (1 + _SPREAD * (self._jitter() - 0.5))
        self._next = max(self._next, now - _SLACK) + distance

    def answered(self, taken: int, refused: int, now: float, *, rate: float, was_late: bool) -> None:
        """A request was answered.

        Args:
            taken: its entries that the destination took, whether they failed later or not.
            refused: its entries that were refused for load.
            now: the time.
            rate: the pace when it was sent.
            was_late: see `is_late`.
        """
        entries = taken + refused
        self._count_taken(taken, now)
        part, seconds = refused / entries, entries / rate
        if refused:
            self._calm = 0.0
        elif was_late:
            return
        if self._starting and part >= _CLEAR:
            self._starting = False
            self.rate = max(self._taken, rate * (1 - part))
        if self._starting:
            self.rate = min(self.rate * math.exp(_START * seconds), 2 * rate)
        else:
            self._calm += 0.0 if refused else seconds
            grown = min(_FASTEST, 1 + _GROWTH * max(0.0, self._calm - _CALM) ** 2)
            at_rest = max(_LEAST_REFUSED, _REFUSED * _SLOW / (rate + _SLOW))
            target = rate * (1 - part) / (1 - at_rest) * grown + 1.0
            settle = _SETTLE_QUICKLY if _MUCH <= part < 1 else _SETTLE
            self.rate += (target - self.rate) * min(1.0, seconds / settle)
        self.rate = max(1.0, _FLOOR * self._taken, self.rate)

    def _count_taken(self, entries: int, now: float) -> None:
        passed = max(1e-9, now - self._answered_at)
        self._answered_at = now
        kept = math.exp(-passed / _LATELY)
        self._taken = self._taken * kept + entries / passed * (1 - kept)
