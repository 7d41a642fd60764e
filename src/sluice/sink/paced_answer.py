"""What became of a request that was sent at a known pace: see `sluice.sink.pacing`."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

__all__ = ["Answer"]

# Many entries of a request are so many standard deviations more than this part of it. Fewer say nothing of
# load: a service may refuse single ones whatever the rate is, and past the limit there are soon many.
_FEW: Final = 0.05
_MANY: Final = 3.0
# The allowance was used up in the middle of a request when many, at least this number, were refused of it,
# and the rest was not: that is no chance.
_USED_UP: Final = 2


class Answer(NamedTuple):
    """What became of a request.

    Attributes:
        untold: its entries that were refused without a reason.
        throttled: those refused for load.
        entries: those that did not fail for a reason that was told.
        pace: the one when it was sent (entries a second).
        depth: the part of the pace that was sent.
        at: when it was sent (seconds of a monotonic clock).
        now: when it was answered.
    """

    untold: int
    throttled: int
    entries: int
    pace: float
    depth: float
    at: float
    now: float

    @property
    def lost(self) -> int:
        """Its entries that were refused."""
        return self.untold + self.throttled

    @property
    def has_many(self) -> bool:
        """Whether so many of its entries were refused that the rate of a new task may be past the limit."""
        few = _FEW * self.entries
        return self.lost >= min(self.entries, few + _MANY * math.sqrt(few))

    @property
    def is_used_up(self) -> bool:
        """Whether the destination's allowance was used up in the middle of it."""
        return self.has_many and _USED_UP <= self.lost < self.entries
