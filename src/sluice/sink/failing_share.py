"""Finds out which share of refusals is not about load, where a service does not say why it refuses.

While there are refusals without a reason, the pace dips now and then, in all tasks in the same seconds of
the wall clock. (BBR measures the shortest round trip in the same way: Cardwell and others, ACM Queue 14(5),
2016.) In a dip less is sent than the service takes, so what it refuses then is not refused for load. Unless
far too much was sent: then about as much is accepted in the dip as before, and the dip only shows that less
than this share fails whatever the pace.

Until the next dip shows what is what, refusals count as load, and the pace does not fall far below what is
accepted of it. So a service that just fails does not bring the sender down.
"""

from __future__ import annotations

import math
from typing import Final

from sluice.sink.decaying import DecayingSum

__all__ = ["FailingShare"]

# Every so many seconds of the wall clock the pace falls to this part of itself, for so long. Both times are
# doubled until a dip is as long as two answers take: a shorter one would be over before it shows.
_CYCLE: Final = 5.0
_DIP: Final = 0.7
_DEPTH: Final = 0.6
# Seconds before a dip with which it is compared; without them, the service may have accepted a burst.
_BEFORE: Final = 0.5
# Answers, and entries in them, that are evidence.
_REQUESTS: Final = 10
_ENTRIES: Final = 20
# A smaller share is of no importance; a larger one is an outage, not a share.
_LEAST: Final = 0.02
_MOST: Final = 0.8
# By which part of its weight a measurement counts at the next one.
_KEPT: Final = 0.8
# The part of what is accepted that the pace does not fall below before the next dip.
_FLOOR: Final = 0.9
_FOREVER: Final = 1e9


class FailingShare:
    """The share of entries that fail whatever the pace. Instants are seconds of one monotonic clock.

    Args:
        wall_offset: added to an instant, gives the same time on all hosts.

    Attributes:
        share: of the entries that are sent; 0 until it was measured.
        floor: the pace to go on at until the next dip, at least: what is accepted of it.
    """

    def __init__(self, wall_offset: float = 0.0) -> None:
        self.share = 0.0
        self.floor = 0.0
        self._offset = wall_offset
        self._since = math.inf  # refusals without a reason have been seen, without a long break
        self._seen = -math.inf
        self._measured = DecayingSum()  # what `share` is made from
        self._before = DecayingSum()  # refusals of the time before a dip
        self._dip = DecayingSum()
        self._dip_requests = 0
        self._is_in_dip = False
        self._scale = 1.0  # of the cycle
        self._is_new = False  # not long enough since `_since` for a floor
        self._paces = [0.0, 0.0]  # the last ones before and in the dip

    @property
    def is_active(self) -> bool:
        """Whether there are refusals without a reason, and so dips."""
        return self._since < math.inf

    def depth(self, at: float, latency: float) -> float:
        """The part of the pace to send at; answers take `latency`."""
        self._scale = 2.0 ** max(0, math.ceil(math.log2(max(_DIP, 2 * latency) / _DIP)))
        phase = (at + self._offset) % (_CYCLE * self._scale)
        return _DEPTH if phase < _DIP * self._scale and at - phase > self._since + 2 * _BEFORE else 1.0

    def answered(  # noqa: PLR0913 - an answer, and when
        self, refused: int, count: int, pace: float, at: float, now: float, *, depth: float
    ) -> bool:
        """A request was answered that was sent at the time `at` and at `depth`, when the rate was `pace`.

        Returns:
            Whether a dip has just been measured.
        """
        if refused:
            self._seen = now
            if self._since == math.inf:
                self._since, self.floor, self._is_new = now, pace, True
        elif now > self._seen + 2 * _CYCLE * self._scale:
            self._since, self.share, self.floor = math.inf, 0.0, 0.0
        if self._is_new and at > self._since + 2 * _BEFORE:
            self._is_new = False
            self._set_floor()
        if depth < 1.0:
            self._dip.add(refused, count, now, _FOREVER)
            self._dip_requests += 1
            self._is_in_dip = True
            self._paces[1] = pace * _DEPTH
            return False
        enough = self._dip_requests >= _REQUESTS and self._dip.whole >= _ENTRIES and self._before.whole > 0
        ended = enough and self._is_in_dip
        if ended:
            self._end_dip()
        self._before.add(refused, count, now, _BEFORE)
        self._paces[0] = pace
        return ended

    def _end_dip(self) -> None:
        """Compares the dip with what was before: load would have become less."""
        self._is_in_dip = False
        dip, before = self._dip, self._before
        # What is accepted of a request, at which it is as likely load as not.
        limit = (1 - before.share) * (1 + self._paces[0] / self._paces[1]) / 2
        doubt = 1.5 * math.sqrt(dip.variance + before.variance)
        fails = dip.share < self.share or 1 - dip.share + doubt < limit
        if not fails and 1 - dip.share - doubt < limit:
            return  # the next dip adds to this one
        self._dip, self._dip_requests = DecayingSum(), 0
        if fails:
            self._learn(dip)
        self._set_floor()

    def _set_floor(self) -> None:
        """Before this, refusals are those of a service that had no tokens left over."""
        self.floor = _FLOOR * self._paces[0] * (1 - self._before.share) / (1 - self.share)

    def _learn(self, dip: DecayingSum) -> None:
        """Averages with what is known, unless it differs: then that is out of date."""
        known = self._measured
        if abs(dip.share - known.share) > 2 * math.sqrt(dip.variance + known.variance):
            known = self._measured = DecayingSum()
        known.merge(dip, _KEPT)
        error = math.sqrt(known.variance)
        self.share = min(_MOST, known.share + error) if known.share > max(_LEAST, error) else 0.0
