"""When the pace dips, so that it shows which refusals are not about load: see `sluice.sink.untold_pace`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

__all__ = ["BEFORE", "PART_IN_DIPS", "Dips"]

# Every so many seconds of the wall clock a dip begins, and lasts for so long. Both are doubled until a dip
# is as long as one and a half answers take: a shorter one would be over before it shows.
_CYCLE: Final = 1.25
_DIP: Final = 0.5
_ANSWERS: Final = 1.5
# The part of the time that is in dips, where they are not rare.
PART_IN_DIPS: Final = _DIP / _CYCLE
# Seconds that the pace must have been the same before a dip.
BEFORE: Final = 0.2
# Where it is well known what fails, only every so many of these dips are made.
_RARE: Final = 4


class Dips:
    """A schedule of dips, the same for all tasks whose clocks agree. Instants and durations are seconds.

    All tasks of a destination dip together. If one did alone, the load would hardly become less, and what it
    sees would tell nothing about load.

    Args:
        wall_offset: what has to be added to an instant for the time of the wall clock. It is asked each time:
            the wall clock may be set while a worker lives.
    """

    def __init__(self, wall_offset: Callable[[], float] = lambda: 0.0) -> None:
        self._wall_offset = wall_offset
        self.scale = 1.0
        """How many times longer than for answers that come at once everything takes."""

    @property
    def cycle(self) -> float:
        """From a dip to the next."""
        return _CYCLE * self.scale

    def follow(self, latency: float) -> None:
        """Makes dips long enough for answers that take so long."""
        self.scale = 2.0 ** max(0, math.ceil(math.log2(max(_DIP, _ANSWERS * latency) / _DIP)))

    def began(self, at: float, since: float, *, is_rare: bool, before: float = BEFORE) -> float | None:
        """When the dip began that `at` is in; None outside of dips.

        Args:
            at: the time.
            since: the pace has been the same since then.
            is_rare: only some of the dips are made.
            before: for how long it must have been the same before a dip (seconds; times `scale`).
        """
        number, phase = divmod(at + self._wall_offset(), self.cycle)
        is_dip = phase < _DIP * self.scale and at - phase >= since + before * self.scale
        return at - phase if is_dip and not (is_rare and number % _RARE) else None

    def cycle_began(self, at: float, *, every: int) -> float | None:
        """When the cycle began that `at` is in; None unless its number is divisible by `every`."""
        number, phase = divmod(at + self._wall_offset(), self.cycle)
        return None if number % every else at - phase

    def end(self, began: float) -> float:
        """When the dip ends that began then."""
        return began + _DIP * self.scale
