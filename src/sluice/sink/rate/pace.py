"""How many entries a second a destination accepts, learned from its answers.

A *second of sending* is as many entries as the pace allows in a second, however long they really take.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

__all__ = ["Pace"]

_START_GROWTH: Final = 1.5  # per second of sending until the first clear refusal, as an exponent: 4.5 times
_CLEAR: Final = 0.1  # the refused part of a request that ends this first growth
_SETTLE: Final = 1.5  # seconds of sending over which answers are averaged
_FALL: Final = 0.5  # the refused part of a request that shows a fall of the capacity
_SETTLE_AFTER_FALL: Final = 0.2  # seconds of sending in which the pace follows a fall
_REFUSED: Final = 0.025  # the refused part at which a fast task rests: it tests the limit all the time
_SLOW: Final = 200.0  # entries a second: well below, a task rests at twice that, and so gains on fast ones
_GROWTH: Final = 0.03  # of the target, times the square of the seconds of sending since the last refusal
_FASTEST: Final = 1.6  # growth in `_SETTLE`, at most, as a factor
_FLOOR: Final = 0.1  # the part of the recently accepted entries below which the pace does not fall
_LATELY: Final = 5.0  # seconds over which that is averaged
_MOST: Final = 2.0  # times the recently accepted entries, if requests are refused and not for the pace
_SHORTEST: Final = 0.1  # seconds for which something is averaged, at least
_SLACK: Final = 0.05  # seconds of the pace that a late sender may catch up on
_SPREAD: Final = 0.6  # the range of random distances, as a part of the mean: it keeps tasks out of step


class Pace:
    """Entries a second, learned by one rule after a fast start.

    Let *r* be the pace at which a request was sent, and *p* the part of it that was refused for load. Its
    answer moves the pace towards slightly more than *r (1 - p)*. So the pace settles where a small part is
    refused. At the start it grows fast, until a request is clearly refused. After that, it grows while
    nothing is refused: slowly after a refusal, and then faster.

    A request that is accepted as a whole raises the pace only if it had to wait for the pace. A sender
    without rows, or one that waits for answers, learns nothing from accepted requests.

    Each method gets the time, in seconds of one monotonic clock.

    Args:
        rate: entries a second to begin with.
        jitter: returns a random number in [0, 1).
    """

    def __init__(self, rate: float, *, jitter: Callable[[], float]) -> None:
        self.rate = rate
        self._jitter = jitter
        self._next = -math.inf  # when the next request is due
        self._distance = 0.0  # between the last request and the next one
        self._must_wait = False  # the next request was not due yet when the last one was sent
        self._starting = True
        self._calm = 0.0  # seconds of sending since the last refusal
        self._accepted = 0.0  # entries a second, lately
        self._begun_at: float | None = None  # without the times in which nothing was to be sent
        self._counted_at = 0.0

    def wait(self, now: float) -> float:
        """Seconds until the next request is due."""
        return max(0.0, self._next - now)

    def was_awaited(self, now: float) -> bool:
        """Whether a request sent now had to wait for the pace, and is late by one distance at most."""
        return self._must_wait and now <= self._next + self._distance

    def sent(self, entries: int, now: float, *, was_idle: bool) -> None:
        """A request was sent; `was_idle`: nothing was in flight before."""
        if self._begun_at is None:
            self._begun_at = self._counted_at = now
        elif was_idle:
            pause = max(0.0, now - max(self._counted_at, self._next))
            self._begun_at += pause
            self._counted_at += pause
        self._distance = entries / self.rate * (1 + _SPREAD * (self._jitter() - 0.5))
        self._next = max(self._next, now - _SLACK) + self._distance
        self._must_wait = self._next > now

    def answered(self, accepted: int, refused: int, now: float, *, rate: float, waited: bool) -> None:
        """A request was answered: so many entries were refused for load, and the others were not.

        Args:
            accepted, refused: entries.
            now: the time.
            rate: the pace when the request was sent.
            waited: see `was_awaited`.
        """
        entries = accepted + refused
        self._count(accepted, now)
        if not entries or not (refused or waited):
            return
        part, seconds = refused / entries, entries / rate
        self._calm = 0.0 if refused else self._calm + seconds
        if self._starting and part < _CLEAR:
            self.rate = max(self.rate, min(self.rate * math.exp(min(1.0, _START_GROWTH * seconds)), 2 * rate))
            return
        if self._starting and part < 1:
            self.rate = max(self._accepted, rate * (1 - part))
        self._starting = False
        grown = min(_FASTEST, 1 + _GROWTH * self._calm**2)
        at_rest = _REFUSED * (1 + _SLOW / (rate + _SLOW))
        target = rate * (1 - part) / (1 - at_rest) * grown
        if not refused:
            target = max(target, self.rate)  # it may have been sent at a lower pace
        # A request that is refused as a whole does not say how far the capacity fell.
        settle = _SETTLE_AFTER_FALL if _FALL <= part < 1 else _SETTLE
        self.rate += (target - self.rate) * min(1.0, seconds / settle)
        self.rate = max(1.0, _FLOOR * self._accepted, self.rate)

    def hold(self, now: float) -> None:
        """Requests are refused, and not for the pace: it only keeps them from being sent in bursts."""
        self._starting = False
        self._calm = 0.0
        # The average is too low at first, by the part of it that no time has filled yet.
        begun = now if self._begun_at is None else self._begun_at
        filled = 1 - math.exp(-max(_SHORTEST, now - begun) / _LATELY)
        if self._accepted:
            self.rate = max(1.0, min(self.rate, _MOST * self._accepted / filled))

    def _count(self, entries: int, now: float) -> None:
        passed = max(1e-9, now - self._counted_at)
        self._counted_at = now
        kept = math.exp(-passed / _LATELY)
        self._accepted = self._accepted * kept + entries / passed * (1 - kept)
