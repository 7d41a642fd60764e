"""Sums in which old values count less and less."""

from __future__ import annotations

import math

__all__ = ["DecayingSum"]


class DecayingSum:
    """A part of a whole, over the last seconds.

    Every value loses the share ``1 - 1/e`` of its weight in the time constant that `add` is given. Instants
    and durations are seconds.

    Attributes:
        part: the sum of the parts.
        whole: the sum of the wholes.
        values: how many there are.
    """

    def __init__(self) -> None:
        self._at = math.inf  # of the last value
        self.part = 0.0
        self.whole = 0.0
        self.values = 0.0
        self._squares = (0.0, 0.0, 0.0)  # of part, part * whole, and whole

    def add(self, part: float, whole: float, now: float, seconds: float) -> None:
        """Adds `part` of `whole`; what came before decays by the time since then."""
        kept = math.exp(-max(0.0, now - self._at) / seconds)
        self._at = now
        self.part = self.part * kept + part
        self.whole = self.whole * kept + whole
        self.values = self.values * kept + 1.0
        pp, pw, ww = self._squares
        self._squares = (pp * kept + part * part, pw * kept + part * whole, ww * kept + whole * whole)

    def merge(self, other: DecayingSum, kept: float) -> None:
        """Adds `other`, and keeps the part `kept` of what came before."""
        self.part = self.part * kept + other.part
        self.whole = self.whole * kept + other.whole
        self.values = self.values * kept + other.values
        pp, pw, ww = self._squares
        more = other._squares
        self._squares = (pp * kept + more[0], pw * kept + more[1], ww * kept + more[2])

    @property
    def share(self) -> float:
        """The part, of the whole; 0 if there is none."""
        return self.part / self.whole if self.whole else 0.0

    @property
    def variance(self) -> float:
        """Of `share`, from how much it differs between the values: whole requests that fail make it large."""
        if not self.whole:
            return math.inf
        share = self.share
        pp, pw, ww = self._squares
        # Without differences the share of a few values is still not known exactly: as if there were another
        # one, of which half is part.
        least = max(share * (1 - share), 0.01) / self.whole
        few = 0.25 / (self.values * self.values)
        return few + max(least, (pp - 2 * share * pw + share * share * ww) / (self.whole * self.whole))
