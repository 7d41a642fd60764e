"""Tells whether a service takes more, where some requests are refused whatever the pace is.

Without such refusals a sender knows that there is more to have when it is not refused for a while. With them
it is always refused now and then. So it sends faster for a moment (as BBR does: Cardwell and others, ACM
Queue 14(5), 2016): if the service is at its limit, clearly more is refused then. All tasks of a destination
do so in the same moments of the wall clock, or what one sends would hardly matter.

A probe costs what is refused in it. So after each one that shows the limit, half as many follow.
"""

from __future__ import annotations

import math
from typing import Final

from sluice.sink.dips import Dips

__all__ = ["UpwardProbes"]

# In a probe the pace is so many times itself.
_GAIN: Final = 1.15
# A probe begins after this part of a cycle (see `Dips`), when a dip has passed; and takes that part.
_BEGINS: Final = 0.5
_LASTS: Final = 0.4
# If probes show the limit, only every so many cycles have one, at most.
_MOST_CYCLES: Final = 4
# Fewer requests show nothing.
_FEWEST: Final = 6
# It counts as if at least this part of requests were refused whatever the pace is, and one probe says no more
# than so many refused requests that fail to come: growth needs three of them.
_LEAST_SHARE: Final = 0.01
_MOST_EVIDENCE: Final = 1.5


class UpwardProbes:
    """Probes of one task. Instants are seconds of one monotonic clock.

    Args:
        dips: the schedule of dips, which probes fit into.
    """

    def __init__(self, dips: Dips) -> None:
        self._dips = dips
        self._cycles = 1  # from a probe to the next
        self._began = -math.inf  # the last one
        self._refused: list[float] = []  # parts of its requests

    def gain(self, at: float) -> float:
        """What the pace is multiplied by at this time: 1 if there is no probe."""
        began = self._dips.cycle_began(at, every=self._cycles)
        if began is None:
            return 1.0
        began += _BEGINS * self._dips.cycle
        if not 0.0 <= at - began < _LASTS * self._dips.cycle:
            return 1.0
        if began > self._began + self._dips.cycle / 2:
            self._began, self._refused = began, []
        return _GAIN

    def answered(self, refused: float, sent_at: float) -> None:
        """A request of a probe was answered; `refused` is the part that was refused for load."""
        if sent_at >= self._began:
            self._refused.append(refused)

    def evidence(self, share: float, sent_at: float) -> float:
        """What the last probe says, once: how much more likely it is now that the service takes more.

        The logarithm of a likelihood ratio; 0 if the probe shows nothing, or the limit.

        Args:
            share: the part of requests that is refused whatever the pace is.
            sent_at: when a request was sent that is answered now. The probe ends before it, or says nothing.
        """
        requests = len(self._refused)
        if not requests or sent_at <= self._began + _LASTS * self._dips.cycle:
            return 0.0
        refused, self._refused = sum(self._refused), []
        if requests < _FEWEST:
            return 0.0
        by_load = 1 - 1 / _GAIN  # would be refused at the limit
        evidence = requests * by_load - refused * math.log1p(by_load / max(_LEAST_SHARE, share))
        self._cycles = 1 if evidence > 0.0 else min(_MOST_CYCLES, 2 * self._cycles)
        return max(0.0, min(evidence, _MOST_EVIDENCE))
