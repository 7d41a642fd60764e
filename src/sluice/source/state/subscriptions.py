"""The planner's view of subscriptions, through which the service pushes records (FLIP-128).

Subscriptions only save time: a split without one is probed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice.source.model.offsets import Position
from sluice.source.model.splits import SplitId
from sluice.source.state.cut_points import CutPoint

__all__ = ["SubscriptionProgress", "Subscriptions"]


@dataclass(frozen=True, slots=True)
class SubscriptionProgress:
    """The progress of a subscription after a position.

    Agents send one for every event. `Subscriptions` combines all events after a position, and returns
    the same object until there is news.

    Attributes:
        cut_points: in the order of their sequence numbers, all after the position.
        millis_behind: how far the last event was from the tip of the split (milliseconds).
        has_ended: the split is closed, and no record follows the last cut point.
        caught_up_at: an instant (microseconds) at which no record followed the last cut point.
    """

    cut_points: Sequence[CutPoint]
    millis_behind: int
    has_ended: bool = False
    caught_up_at: int | None = None

    @property
    def is_at_tip(self) -> bool:
        """Whether no record followed the last cut point when the last event was sent."""
        return self.millis_behind == 0 and not self.has_ended


class Subscriptions(Protocol):
    """The subscriptions that stay open between batches. Called by the planning thread alone."""

    @property
    def version(self) -> int:
        """Increases with any news: records, the end of a split or subscription, a split that reaches its tip.

        A split that stays at its tip is not news.
        """

    def follow(self, positions: Mapping[SplitId, Position]) -> None:
        """Keeps a subscription open to each of these splits, and to no other.

        Called for every trigger, so it must be cheap and must not block.

        Args:
            positions: where the next batch starts in each split that may be read now. Earlier records
                are no longer needed. If no subscription covers a position, one is opened.
        """

    def progress(self, split: SplitId, position: Position) -> SubscriptionProgress | None:
        """Returns the progress after `position`; None if no subscription covers it yet.

        A subscription covers a position if it delivers, or has delivered, every record after it. If its
        first record is not the one that the position names, it does not: the records in between may have
        expired, and polling decides whether they were lost.
        """

    def close(self) -> None:
        """Closes the subscriptions."""
