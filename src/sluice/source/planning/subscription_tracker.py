"""Updates split states from their subscriptions, and leaves the other splits to probes."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from sluice.source.model.offsets import Position
from sluice.source.model.splits import Split, SplitId
from sluice.source.state.cut_points import CutPoint
from sluice.source.state.split_state import Reach, SplitState
from sluice.source.state.subscriptions import SubscriptionProgress, Subscriptions

__all__ = ["SubscriptionTracker"]

_log = logging.getLogger(__name__)


class SubscriptionTracker:
    """Tracks which splits are pushed, and the progress of their subscriptions.

    Args:
        subscriptions: if None, the tracker does nothing.
        max_drift: see `PlannerSettings`.
    """

    def __init__(self, subscriptions: Subscriptions | None, max_drift: int | None) -> None:
        self._subscriptions = subscriptions
        self._max_drift = max_drift
        self._covered: set[SplitId] = set()
        self._has_planned = False

    def follow_rerun(self, starts: Mapping[SplitId, Position]) -> None:
        """Subscribes from the start of a batch that is repeated after a restart.

        Later, `follow` has named all splits. A batch names only splits with records, so following them
        would close the other subscriptions.
        """
        if self._subscriptions is not None and starts and not self._has_planned:
            self._subscriptions.follow(starts)

    def follow(self, readable: Mapping[SplitId, SplitState]) -> None:
        """Subscribes to all splits that may be read, from where the next batch starts in each."""
        self._has_planned = True
        self._covered &= readable.keys()
        if self._subscriptions is not None:
            self._subscriptions.follow({split: state.position for split, state in readable.items()})

    def adopt(self, states: Collection[SplitState], max_span: int | None) -> None:
        """Updates the states of pushed splits; the other splits are left to probes.

        Args:
            max_span: how much arrival time a batch may cover (microseconds); None: no limit. Batches end
                between events, so no event may cover more than this or `max_drift`.
        """
        if self._subscriptions is None:
            return
        spans = [span for span in (max_span, self._max_drift) if span is not None]
        max_span = min(spans, default=None)
        for state in states:
            progress = self._subscriptions.progress(state.split.id, state.position)
            if progress is not None and not _tells_end(state.split, progress):
                progress = None
            if progress is not None and state.is_pushed and state.idle_progress is progress:
                continue  # most splits have nothing new
            state.is_pushed = False
            self._log_coverage(state.split.id, is_covered=progress is not None)
            # A query with a target must not end before it while events are in flight. If an event covers
            # too much, probes find closer cut points, which are kept, because probes may not read each
            # time.
            if (
                progress is not None
                and (progress.cut_points or state.target is None)
                and _keeps_to(max_span, state.after_position(progress.cut_points))
            ):
                state.adopt(progress)
            if not _keeps_to(max_span, state.cut_points):
                state.reset()
        if self._max_drift is not None:
            _leave_holding_back(states, self._max_drift)

    def _log_coverage(self, split: SplitId, *, is_covered: bool) -> None:
        if is_covered and split not in self._covered:
            self._covered.add(split)
            _log.info("%s: subscribed; batches end at the last record that was pushed", split)
        elif not is_covered and split in self._covered:
            self._covered.remove(split)
            _log.info(
                "%s: no subscription covers its position now; probes find the ends of batches",
                split,
            )


def _tells_end(split: Split, progress: SubscriptionProgress) -> bool:
    """Whether a subscription shows where a batch may end. If not, a probe reads the split.

    If the subscription of a closed split is at the tip, the end has not arrived yet. If a subscription
    behind the tip brings nothing, it pushes records that polling has already read.
    """
    return bool(progress.cut_points) or progress.has_ended or (progress.is_at_tip and not split.is_closed)


def _leave_holding_back(states: Collection[SplitState], max_drift: int) -> None:
    """Leaves a split to probes if its last event is so old that other splits would wait for the next one."""
    newest = max((state.cut_points[-1].arrival for state in states if state.cut_points), default=0)
    for state in states:
        is_idle = state.is_pushed and state.reach is Reach.TIP and not state.cut_points
        if is_idle and (state.tip_at or 0) + max_drift < newest:
            state.is_pushed = False


def _keeps_to(span: int | None, points: Sequence[CutPoint]) -> bool:
    """Whether the records that the first cut point counts arrived within `span` (microseconds)."""
    if span is None or not points:
        return True
    first = points[0]
    return first.first_arrival is not None and first.arrival < first.first_arrival + span
