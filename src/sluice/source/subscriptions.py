"""What is known of splits that are pushed: how far each has come, ahead of the planner.

A split whose records a service pushes all the time need not be looked at to know where a batch may
end. Like all that a state holds this is an accelerator: where it is missing, splits are probed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice.source.offsets import Position
from sluice.source.split_state import CutPoint
from sluice.source.splits import SplitId

__all__ = ["Subscriptions", "View"]


@dataclass(frozen=True, slots=True)
class View:
    """What is pushed and buffered of one split behind the position asked for.

    Attributes:
        marks: in order, all behind the position; each a record where a batch may end.
        is_at_tip: the last event said so, and nothing follows the last mark.
        has_ended: the split is closed and ends behind the last mark.
        millis_behind: how far the last event was from the tip (ms).
        idle_at: an instant (microseconds) at which nothing lay behind the last mark.
    """

    marks: Sequence[CutPoint]
    is_at_tip: bool
    has_ended: bool
    millis_behind: int
    idle_at: int | None


class Subscriptions(Protocol):
    """What holds subscriptions to splits between batches. Used by one thread."""

    def follow(self, positions: Mapping[SplitId, Position]) -> None:
        """The splits that may be read now, and where the next batch starts in each.

        What lies before a position is not needed again, and a split that is not named is not needed.
        A subscription is asked for where none covers the position. Called for every trigger, so it is
        cheap and does not block.
        """

    def view(self, split: SplitId, position: Position) -> View | None:
        """What lies behind `position`; None where no subscription covers it, or none does so yet.

        One covers it that will give, or has given, every record behind it. That is not so where the
        record that shows where the position is has not come first: then it may have expired, and others
        with it, which is for polling to judge.
        """

    def close(self) -> None:
        """Ends the subscriptions."""
