"""Finds out which share of refusals is not about load, where a service does not say why it refuses.

A share of refusals that does not fall when the pace falls is not load. So while there are such refusals, the
pace dips for one second in four. In a dip less is sent than is accepted: what is refused then, failed. What
is refused beyond that share at full pace is refused for load. To begin with, what is refused at the start,
when little is sent, counts as failed.

One task of sixteen that slows down changes nothing. So all tasks dip in the same seconds of the wall clock,
wherever they run. Clocks of hosts differ by milliseconds where NTP runs; where they differ by more, dips are
less deep, and more refusals are taken for failures.

BBR measures the shortest round trip in the same way, by sending less for a moment (Cardwell and others, ACM
Queue 14(5), 2016).
"""

from __future__ import annotations

import math
from typing import Final

from sluice.sink.decaying import DecayingSum

__all__ = ["FailingShare"]

_CYCLE: Final = 4.0
_DIP: Final = 1.0
# The pace in a dip, as a part of the pace.
_DEPTH: Final = 0.6
# A service that fails more than this, whatever the pace, is taken for overloaded.
_MOST: Final = 0.6
# Time constant of what is measured in dips, and at full pace (seconds).
_MEMORY: Final = 8.0
_CRUISE_MEMORY: Final = 3.0
# Entries that a dip must have told of.
_ENOUGH: Final = 20
# Without such refusals for this long (seconds) there are no more dips.
_FORGOTTEN: Final = 30.0
# What is sent in the first seconds counts as a dip.
_FIRST: Final = 0.5
# If accepted entries a second fall by less than this part of what the pace falls by, all of it is load.
_ALL_LOAD: Final = 0.8
# A dip in which this part of the share at full pace is refused did not help.
_AS_BAD: Final = 0.85
# What differs by less than so many standard deviations does not differ.
_SIGNIFICANT: Final = 1.0


class FailingShare:
    """The share of entries that fail whatever the pace. Instants are seconds of one monotonic clock.

    Args:
        wall_offset: added to an instant, gives the same time on all hosts.
    """

    def __init__(self, wall_offset: float = 0.0) -> None:
        self._offset = wall_offset
        self._last_refusal = -math.inf
        self._settled_at = math.inf  # the pace grew quickly until then
        self._measuring_until: float | None = None  # no pace is known yet that is surely low enough
        self._dip = DecayingSum()  # what was sent in the dip that is going on
        self._low = DecayingSum()  # in the dips before it
        self._full = DecayingSum()  # at full pace
        self.dips = 0  # that were evaluated
        self.did_not_help = False  # as large a share was refused in the last dip as at full pace
        self.is_saturated = False  # as much was accepted in the last dip as at full pace

    def depth(self, now: float) -> float:
        """The part of the pace to send at."""
        if now < self._settled_at or now - self._last_refusal > _FORGOTTEN:
            return 1.0
        return _DEPTH if (now + self._offset) % _CYCLE < _DIP else 1.0

    def answered(self, untold: int, count: int, sent_at: float, now: float) -> None:
        """Of the `count` entries of a request, `untold` were refused without a reason."""
        if self._measuring_until is None:
            self._measuring_until = sent_at + _FIRST
        if sent_at < self._measuring_until or self.depth(sent_at) < 1:
            self._dip.add(untold, count, now, _MEMORY)
        else:
            if self._dip.whole >= _ENOUGH:
                self._end_dip()
            self._full.add(untold, count, now, _CRUISE_MEMORY)
        if untold:
            self._last_refusal = now

    def _end_dip(self) -> None:
        dip, self._dip = self._dip, DecayingSum()
        self.did_not_help = False
        self.dips += 1
        most = (1 - self._full.share) * (1 / _DEPTH - 1)
        gained = self._full.share - dip.share
        doubt = math.sqrt(dip.variance + self._full.variance)
        self.is_saturated = self._full.whole >= _ENOUGH and gained > max(_ALL_LOAD * most, doubt)
        doubt = _SIGNIFICANT * math.sqrt(dip.variance + self._low.variance) if self._low.whole else math.inf
        change = dip.share - self._low.share
        if change > doubt and dip.share < _AS_BAD * self._full.share:
            return  # the pace is too high even in a dip; what exceeds the share known so far lowers it
        self.did_not_help = change > doubt
        if abs(change) > doubt:
            self._low = DecayingSum()
        self._low.merge(dip, 0.7)

    @property
    def share(self) -> float:
        """Of the entries of which the service did not refuse any for load, those that fail."""
        return min(_MOST, self._low.share)

    @property
    def excess(self) -> float:
        """The share of entries that is refused for load."""
        if not self._low.whole:
            return 0.0
        difference = self._full.share - self.share
        doubt = _SIGNIFICANT * math.sqrt(self._full.variance + self._low.variance)
        return difference / (1 - self.share) if difference > doubt else 0.0

    def settled(self, now: float) -> None:
        """Slow start is over: from now on, dips tell."""
        if self._settled_at == math.inf:
            self._settled_at = now
            self._full = DecayingSum()

    def lowered(self) -> None:
        """The pace was lowered to what is accepted: what was measured at the old one is forgotten."""
        self.is_saturated = False
        self._full = DecayingSum()
