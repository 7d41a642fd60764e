"""A cut of the pace to what was let through, and what is known of it later: see `sluice.sink.untold_pace`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice.sink.decaying import DecayingSum
from sluice.sink.dips import PART_IN_DIPS
from sluice.sink.failing_share import FailingShare

__all__ = ["Cut", "with_care"]

# A little less is sent than is let through: by this part of its standard error, and at most by this part of
# itself.
_CARE: Final = (0.25, 0.05)


@dataclass
class Cut:
    """What is remembered of a cut.

    Attributes:
        before: the pace that was cut (entries a second).
        refused: what was refused of it outside of dips.
        depth: the part of it that was sent in the dip before what was refused; None if there was none.
        is_final: it is not corrected any more.
        is_sure: it is not undone any more.
    """

    before: float
    refused: DecayingSum
    depth: float | None = None
    is_final: bool = False
    is_sure: bool = False

    def load(self, share: float) -> float:
        """The part that was refused for load, if `share` fails whatever the pace."""
        return 1 - (1 - self.refused.share) / max(0.01, 1 - share)

    def pace(self, failing: FailingShare, depth: float) -> float:
        """The pace that is let through, by what is known of failures, with some care.

        A service may save up in dips what it lets through between them. So as much is sent in a cycle as was
        let through in one, dips included. (Was there no room for savings, that is less than could be: by a
        fifth if half fails, by a twentieth if a tenth does.)

        Args:
            failing: what is known.
            depth: the part of the pace that the next dips send.
        """
        load = failing.load(self.refused)
        accepted = 1 - load
        if self.depth is not None:
            accepted = _in_a_cycle(accepted, min(accepted, self.depth)) / _in_a_cycle(1.0, depth)
        return min(self.before, self.before * accepted * with_care(load, failing.error_of_load(self.refused)))


def _in_a_cycle(outside: float, in_dips: float) -> float:
    return (1 - PART_IN_DIPS) * outside + PART_IN_DIPS * in_dips


def with_care(load: float, error: float) -> float:
    """The part of what is let through that is sent after a cut, if the load is known with that error."""
    part, most = _CARE
    return 1 - min(most, part * error / max(0.01, 1 - load))
