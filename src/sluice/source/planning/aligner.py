"""Moves the ends of a batch back, so that no record is left far behind (FLIP-27's event-time alignment)."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from sluice.instants import iso_instant
from sluice.source.model.offsets import After, Closed
from sluice.source.model.splits import SplitId
from sluice.source.planning.alignment_bound import Bound, alignment_bound, exceeds, without_orphans
from sluice.source.probing.pool import ProbePool
from sluice.source.probing.session import ProbeSession
from sluice.source.state.split_state import SplitState

__all__ = ["Aligner"]

_log = logging.getLogger(__name__)

_WAITING_LINE_INTERVAL = 30.0
"""Seconds between two log lines about the slowest split."""
_MAX_CUTS = 3
"""How often a batch is cut back. After each cut, other splits may be behind."""

End = After | Closed


class Aligner:
    """Aligns the ends of a batch, and reads a split if its known records do not show the new end.

    Args:
        clock: monotonic seconds.
        now: the time by the service's clock (microseconds).
        max_drift: see `PlannerSettings`.
    """

    def __init__(
        self, pool: ProbePool, clock: Callable[[], float], now: Callable[[], int], max_drift: int | None
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._now = now
        self._max_drift = max_drift
        self._next_waiting_line = -math.inf

    def align(
        self,
        states: Sequence[SplitState],
        ends: dict[SplitId, End],
        orphans: Sequence[SplitState],
        held: Sequence[SplitState],
        may_lag: Collection[SplitId] = (),
    ) -> dict[SplitId, End]:
        """Returns the ends, moved back so that no record is left far behind.

        Args:
            states: the splits that may be read, parents before their children.
            ends: a split without an end does not advance.
            orphans: splits of `states` with parents that do not end in the batch.
            held: other splits that stay unread. Their records follow all records of their ancestors.
            may_lag: the `orphans` and `held` splits that their ancestors may leave far behind. Their
                records count as if they had arrived no earlier than the latest record of their
                ancestors.

        Raises:
            DataLossError, ServiceError: as `ProbePool.for_each`.
        """
        waiting = [*orphans, *held]
        if self._max_drift is None and not waiting:
            return ends
        self._pool.for_each([state for state in waiting if not state.cut_points], self._find_first)
        unread, movable = [*states, *held], states
        if self._max_drift is None:
            # Ancestors are not cut back: their records precede the waiting ones.
            ancestors = _ancestors(states, waiting)
            unread, movable = waiting, [state for state in states if state.split.id not in ancestors]
        not_before: Mapping[SplitId, int] = {}
        if may_lag:
            latest = _latest_of_ancestors(unread)
            not_before = {split: latest[split] for split in may_lag}
        cut_at: dict[SplitId, int] = {}  # by split, the bound of its end
        for attempt in itertools.count():
            bound = alignment_bound(unread, ends, self._max_drift, not_before)
            if bound is None or bound.instant >= self._now():
                break
            exceeding = {
                split: state
                for split, state in _exceeding(movable, ends, bound).items()
                if cut_at.get(split, math.inf) > bound.instant
            }
            if not exceeding:
                break
            self._log_waiting(len(exceeding), bound)
            before, ends = ends, {split: end for split, end in ends.items() if split not in exceeding}
            if attempt < _MAX_CUTS:  # a split that cannot be cut stays, and may hold back others
                end_by = partial(self._end_by, bound.instant)
                moved: dict[SplitId, End] = self._pool.for_each(exceeding.values(), end_by)
                ends |= {split: _earlier(end, before[split]) for split, end in moved.items()}
                cut_at |= dict.fromkeys(exceeding, bound.instant)
            ends, _ = without_orphans(states, ends)
        return ends

    def _find_first(self, session: ProbeSession, state: SplitState) -> None:
        if not state.is_exhausted and not state.is_pushed and state.is_due(self._clock()):
            session.read_page(1)

    def _end_by(self, bound: int, session: ProbeSession, state: SplitState) -> End | None:
        """Returns the end of the records that arrived at or before `bound` (microseconds)."""
        count = state.count_before(bound + 1)
        is_known = count < len(state.cut_points) or (state.is_exhausted and not state.is_newly_closed)
        if state.is_pushed or (is_known and not state.has_gap):
            return state.cut_at(count)
        state.reset()
        session.seek_to_time(bound + 1, exact=True)
        if not state.cut_points and not state.is_exhausted:
            session.read_page(1, exact=True)  # it may have ended, and others may wait for that
        return state.end_before(bound + 1)

    def _log_waiting(self, count: int, bound: Bound) -> None:
        now = self._clock()
        if now >= self._next_waiting_line:
            self._next_waiting_line = now + _WAITING_LINE_INTERVAL
            _log.info(
                "%s: its unread records hold back %d other shards: the batch takes from them only what "
                "arrived by %s; they resume when it does",
                bound.split,
                count,
                iso_instant(bound.instant),
            )


def _latest_of_ancestors(states: Iterable[SplitState]) -> dict[SplitId, int]:
    """By split, when the latest known record of its ancestors arrived (microseconds). Parents come first."""
    latest: dict[SplitId, int] = {}
    of_ancestors: dict[SplitId, int] = {}
    for state in states:
        split = state.split
        since = max((latest.get(parent, 0) for parent in split.parent_ids), default=0)
        read = state.position.arrival if isinstance(state.position, After) else None
        of_ancestors[split.id] = since
        latest[split.id] = max([since, read or 0, *(point.arrival for point in state.cut_points)])
    return of_ancestors


def _exceeding(
    states: Iterable[SplitState], ends: Mapping[SplitId, End], bound: Bound
) -> dict[SplitId, SplitState]:
    """Returns the splits with ends that may follow records later than the bound."""
    return {
        state.split.id: state
        for state in states
        if (end := ends.get(state.split.id)) is not None and exceeds(state, end, bound.instant)
    }


def _earlier(end: End, other: End) -> End:
    if isinstance(end, Closed) or (isinstance(other, After) and other.sequence < end.sequence):
        return other
    return end


def _ancestors(states: Iterable[SplitState], waiting: Iterable[SplitState]) -> frozenset[SplitId]:
    splits = {state.split.id: state.split for state in (*states, *waiting)}
    found: set[SplitId] = set()
    left = [parent for state in waiting for parent in state.split.parent_ids]
    while left:
        parent = left.pop()
        if parent in splits and parent not in found:
            found.add(parent)
            left += splits[parent].parent_ids
    return frozenset(found)
