"""Estimates the share of entries that fail whatever the pace, from what is refused in dips of the pace."""

from __future__ import annotations

import math
from typing import Final

from sluice.sink.decaying import DecayingSum

__all__ = ["FailingShare"]

# `share` is this at most, so that a service that fails nearly everything still leaves something to compare.
_MOST: Final = 0.8
# As good as nothing fails if `share` is surely less than this.
_LEAST: Final = 0.0075
# `share` is well known at this error, and nothing is sure before so many requests.
_WELL: Final = 0.01
_SURE_AFTER: Final = 90
# By which part of its weight a measurement counts at the next one; and if that one shows that less fails:
# load adds to refusals, and never takes away from them.
_KEPT: Final = 0.9
_KEPT_IF_LESS: Final = 0.6
# What is known is out of date if the next measurement is so many errors higher, or lower.
_HIGHER: Final = 2.5
_LOWER: Final = 2.0


class FailingShare:
    """The share of entries that fail whatever the pace.

    Attributes:
        share: of the entries that are sent; 0 until it was measured.
    """

    def __init__(self) -> None:
        self.share = 0.0
        self._known = DecayingSum()

    @property
    def error(self) -> float:
        """How far off `share` may be: a standard error, as a part of what does not fail."""
        return math.sqrt(self._known.variance) / (1 - self.share)

    @property
    def measured(self) -> float:
        """`share`, were there no limit to it."""
        return self._known.share

    @property
    def is_known(self) -> bool:
        return self._known.values > 0

    @property
    def is_well_known(self) -> bool:
        """Whether `share` is known to a percent."""
        return self._known.values > _SURE_AFTER and self.error < _WELL

    @property
    def is_nothing(self) -> bool:
        """Whether it is sure that as good as nothing fails."""
        error = math.sqrt(self._known.variance)
        return self._known.values > _SURE_AFTER and self.share + error < _LEAST

    def is_exceeded_by(self, dip: DecayingSum) -> bool:
        """Whether clearly more was refused in a dip."""
        return self.is_known and dip.share > self.share + 2 * math.sqrt(dip.variance + self._known.variance)

    def learn(self, dip: DecayingSum, outside: DecayingSum) -> None:
        """Averages with what is known, unless it differs: then that is out of date.

        Args:
            dip: what was refused in the dip.
            outside: what was refused since the one before. What fails whatever the pace fails there too: if
                it did not, that more failed in the dip is chance.
        """
        known = self._known
        is_less = dip.share < known.share
        if self.is_known:
            error = math.sqrt(self._variance_of(dip) + known.variance)
            differs = abs(dip.share - known.share) > (_LOWER if is_less else _HIGHER) * error
            if differs and (is_less or outside.share > (known.share + dip.share) / 2):
                known = self._known = DecayingSum()
        known.merge(dip, _KEPT_IF_LESS if is_less else _KEPT)
        self.share = min(_MOST, known.share)

    def load(self, sums: DecayingSum) -> float:
        """The part that was refused for load, of what does not fail anyway. Chance makes it negative."""
        return 1 - (1 - sums.share) / (1 - self.share)

    def error_of_load(self, sums: DecayingSum) -> float:
        """The standard error of `load`."""
        own = self._known.variance if self.is_known else 0.0
        return math.sqrt(self._variance_of(sums) + own * (1 - self.load(sums)) ** 2) / (1 - self.share)

    def _variance_of(self, sums: DecayingSum) -> float:
        # Of a few requests that all ended alike it would come out too small: failures may come by requests.
        of_one = self._known.variance * self._known.values if self.is_known else 0.0
        return max(sums.variance, of_one / sums.values)
