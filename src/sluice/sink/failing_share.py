"""Finds out which share of refusals is not about load, where a service does not say why it refuses.

Refusals without a reason count as load, until there is evidence to the contrary: if the pace has fallen well
below what was being accepted, and about as large a share is refused as before, that share is not load. All
tasks that write to one destination see the same share of refusals, and slow down together; so one task's
experiment is not hidden by the others, and none has to be arranged.

A share that was learnt may become less, or some load may have been taken for it. So while there is one, the
pace dips for a moment now and then, in all tasks in the same seconds of the wall clock. What is refused in a
dip corrects the share. (BBR measures the shortest round trip in the same way: Cardwell and others, ACM Queue
14(5), 2016.)
"""

from __future__ import annotations

import math
from typing import Final

from sluice.sink.decaying import DecayingSum

__all__ = ["FailingShare"]

# "Well below": this part of what was accepted at the highest pace.
_WELL_BELOW: Final = 0.6
# "About as large": more than this part of the share at the highest pace.
_AS_LARGE: Final = 0.8
# The pace must have been there for so long (seconds): by then all tasks have slowed down, if it was load.
_SETTLING: Final = 1.5
# Answers, and entries in them, that are evidence.
_REQUESTS: Final = 16
_ENTRIES: Final = 20
# Every so many seconds of the wall clock the pace falls to this part of itself, for so long.
_CYCLE: Final = 6.0
_DIP: Final = 0.6
_DEPTH: Final = 0.6
# A smaller share is of no importance; a larger one is an outage, not a share.
_LEAST: Final = 0.01
_MOST: Final = 0.8
# By which part of its weight a measurement counts at the next one.
_KEPT: Final = 0.8
# The highest pace is forgotten by this time constant (seconds), and so is the share at it.
_MEMORY: Final = 1.0
_FOREVER: Final = 1e9


class FailingShare:
    """The share of entries that fail whatever the pace. Instants are seconds of one monotonic clock.

    Args:
        wall_offset: added to an instant, gives the same time on all hosts.

    Attributes:
        share: of the entries that are sent; 0 until there is evidence.
    """

    def __init__(self, wall_offset: float = 0.0) -> None:
        self.share = 0.0
        self._offset = wall_offset
        self._pace = 0.0  # the highest that refusals were measured at
        self._high = DecayingSum()  # refusals near it
        self._low = DecayingSum()  # refusals well below what was accepted there
        self._low_requests = 0
        self._low_since = math.inf
        self._measured = DecayingSum()  # what `share` is made from
        self._dip = DecayingSum()

    def depth(self, at: float) -> float:
        """The part of the pace to send at."""
        in_dip = self.share > 0 and (at + self._offset) % _CYCLE < _DIP
        return _DEPTH if in_dip else 1.0

    def answered(self, refused: int, count: int, pace: float, at: float, now: float) -> float:
        """A request was answered that was sent at the time `at`, when the pace was `pace`.

        Returns:
            The pace to go back to, as its refusals were no load; 0 if there is no evidence of that.
        """
        if self.depth(at) < 1.0:
            self._dip.add(refused, count, now, _FOREVER)
            return 0.0
        if self._dip.whole:
            self._end_dip()
        if pace > self._pace:
            # A little higher: the same measurement goes on. Much higher: it begins.
            if pace > self._pace / _WELL_BELOW:
                self._high = DecayingSum()
            self._pace = pace
            self._forget_low()
        if pace > _WELL_BELOW * self._pace:
            self._high.add(refused, count, now, _MEMORY)
            return 0.0
        if pace > _WELL_BELOW * self._pace * self._passing:
            return 0.0
        self._low_since = min(self._low_since, at)
        if at < self._low_since + _SETTLING:
            return 0.0
        self._low.add(refused, count, now, _FOREVER)
        self._low_requests += 1
        if self._low_requests < _REQUESTS or self._low.whole < _ENTRIES:
            return 0.0
        return self._conclude(pace)

    @property
    def _passing(self) -> float:
        """The share of entries accepted at the highest pace, of those that do not fail anyway."""
        return min(1.0, (1 - self._high.share) / (1 - self.share))

    def _conclude(self, pace: float) -> float:
        low, high, highest = self._low, self._high, self._pace
        before = self.share
        doubt = 2 * math.sqrt(low.variance + high.variance)
        is_failing = low.share > before + _LEAST and low.share + doubt > before + _AS_LARGE * (
            high.share - before
        )
        self._forget_low()
        self._high, self._pace = DecayingSum(), pace
        if not is_failing:
            return 0.0
        self._learn(low)
        return highest

    def _end_dip(self) -> None:
        dip, self._dip = self._dip, DecayingSum()
        known = self._measured
        # More than was known may be load that even a dip does not relieve.
        more = dip.share - known.share > 2 * math.sqrt(dip.variance + known.variance)
        if dip.whole >= _ENTRIES and not more:
            self._learn(dip)

    def _learn(self, low: DecayingSum) -> None:
        """Averages with what is known, unless it differs: then that is out of date."""
        known = self._measured
        if abs(low.share - known.share) > 2 * math.sqrt(low.variance + known.variance):
            known = self._measured = DecayingSum()
        known.merge(low, _KEPT)
        # What is not known for sure counts as failing: the other way the pace would sink and sink.
        error = math.sqrt(known.variance)
        self.share = min(_MOST, known.share + error) if known.share > max(_LEAST, error) else 0.0

    def _forget_low(self) -> None:
        self._low, self._low_requests, self._low_since = DecayingSum(), 0, math.inf
