"""How much is refused for load while the pace stays about the same, and how much it may grow for that.

See `sluice.sink.untold_pace`.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["ObservedLoad"]

# The pace grows by this factor, so often: up to a third above the last cut it is likely to meet the limit
# again, and tokens that are left over hide for a while that it is too high. Farther up the limit has probably
# changed: the pace grows by this power of the factor before, and by the last one at most (as CUBIC does,
# RFC 9438).
_STEP: Final = 1.05
_ALIKE: Final = 6
_LARGER: Final = 2.0
_LARGEST: Final = 4.0
# After so many dips it need be one error less sure that there is little load.
_PATIENCE: Final = 4


class ObservedLoad:
    """The part that was refused for load, averaged over the dips since the pace has changed by much.

    Attributes:
        is_far: the limit is likely to be much higher than the pace is now.
    """

    def __init__(self, *, is_far: bool = False) -> None:
        self.is_far = is_far
        self._sums = (0.0, 0.0)
        self._of_share = 0.0
        self._step = _STEP
        self._alike = 1 if is_far else _ALIKE  # steps that are still as small as the first
        self._cycles = 0

    def add(self, load: float, error: float, of_share: float) -> None:
        """Adds what was seen since the last dip; `of_share` is the part of the error that all have."""
        weight = 1 / max(1e-6, error**2 - (of_share * (1 - load)) ** 2)
        part, whole = self._sums
        self._sums = part + load * weight, whole + weight
        self._of_share = of_share
        self._cycles += 1

    @property
    def doubt(self) -> float:
        """By how many errors the load must be below the limit for the pace to grow: fewer after a while."""
        return max(0.0, 2.0 - self._cycles / _PATIENCE)

    @property
    def load(self) -> float:
        """The mean of what was added, by how well each is known."""
        return self._sums[0] / self._sums[1]

    @property
    def error(self) -> float:
        """The standard error of `load`."""
        return math.hypot(self._of_share, 1 / math.sqrt(self._sums[1]))

    def next_step(self) -> float:
        """The factor by which the pace may grow. What was seen before does not count any more."""
        self._sums = (0.0, 0.0)
        if self._alike:
            self._alike -= 1
        else:
            self._step = min(_LARGEST, self._step**_LARGER)
        return self._step
