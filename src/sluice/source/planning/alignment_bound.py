"""Keeps splits together in time (FLIP-27's event-time alignment).

The watermark follows the latest rows of all splits, and Spark drops rows that are later. So a batch
takes no record that arrived much later than the earliest record that it leaves unread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sluice.source.model.offsets import After, AtHorizon, Closed, before
from sluice.source.model.splits import SplitId
from sluice.source.state.split_state import Reach, SplitState

__all__ = ["Bound", "alignment_bound", "earliest_unread", "exceeds", "without_orphans"]

End = After | Closed


@dataclass(frozen=True, slots=True)
class Bound:
    """The latest arrival time in a batch.

    Attributes:
        instant: microseconds since the epoch.
        split: the split that the others wait for.
    """

    instant: int
    split: SplitId


def alignment_bound(
    states: Iterable[SplitState],
    ends: Mapping[SplitId, End],
    max_drift: int | None,
    not_before: Mapping[SplitId, int],
) -> Bound | None:
    """Returns the latest arrival that a batch may take, given where it ends in each split.

    If a split has unread records, its descendants are ignored, because their records arrived later.

    Args:
        states: the splits that may have unread records after the batch, parents before their children.
        ends: a split without an end does not advance.
        max_drift: how much later than the earliest unread record a record may be (microseconds).
        not_before: by split, the arrival time that replaces earlier ones (microseconds).
    """
    known: list[tuple[int, SplitId]] = []
    behind: set[SplitId] = set()  # splits with unread records, and their descendants
    for state in states:
        split = state.split
        if not behind.isdisjoint(split.parent_ids):
            behind.add(split.id)
        elif (instant := earliest_unread(state, ends.get(split.id))) is not None:
            behind.add(split.id)
            known.append((max(instant, not_before.get(split.id, 0)), split.id))
    if not known:
        return None
    earliest, earliest_split = min(known)
    return Bound(earliest + (max_drift or 0), earliest_split)


def earliest_unread(state: SplitState, end: End | None) -> int | None:
    """Returns a time before which none of the records arrived that a batch up to `end` leaves unread
    (microseconds).

    If a split has ended, the records of its children are also unread until the children are listed.

    Returns:
        None if no record can be left.
    """
    if isinstance(end, Closed):
        return None if state.split.is_closed else _last_known(state)
    taken = 0 if end is None else state.count_up_to(end)
    if taken < len(state.cut_points):
        return _arrival_at(state, taken, end)
    match state.reach:
        case Reach.TARGET:
            return None
        case Reach.END if state.split.is_closed:
            return None
        # A closed split may report its tip before its last event. Its children wait for that event, and
        # their records may be older than earlier events.
        case Reach.TIP if state.tip_at is not None and not (state.is_pushed and state.split.is_closed):
            return state.tip_at
    return _last_known(state)


def exceeds(state: SplitState, end: End, bound: int) -> bool:
    """Whether a batch up to `end` may hold a record that arrived after `bound` (microseconds)."""
    points = list(state.cut_points)
    taken = len(points)
    if isinstance(end, After):
        taken = state.count_up_to(end)
        is_known = taken > 0 and points[taken - 1].sequence == end.sequence
        if not is_known and (state.has_gap or taken == len(points)):
            return taken == len(points) or points[taken].arrival > bound
    elif state.reach is not Reach.END:
        return True  # the end has not been read
    if state.has_gap:
        return taken > 0 and points[taken - 1].arrival > bound
    return any(point.arrival > bound for point in points[:taken])


def without_orphans(
    states: Collection[SplitState], ends: Mapping[SplitId, End]
) -> tuple[dict[SplitId, End], list[SplitState]]:
    """Removes the ends of splits with parents that do not end in the batch.

    Args:
        states: parents before their children.

    Returns:
        The remaining ends, and the states of the removed splits.
    """
    kept = dict(ends)
    unfinished: set[SplitId] = set()
    orphans = []
    for state in states:
        split_id = state.split.id
        if any(parent in unfinished for parent in state.split.parent_ids):
            kept.pop(split_id, None)
            orphans.append(state)
        if not isinstance(kept.get(split_id), Closed):
            unfinished.add(split_id)
    return kept, orphans


def _arrival_at(state: SplitState, taken: int, end: End | None) -> int:
    point = state.cut_points[taken]
    if point.is_after_gap and end == before(point.number):
        return point.arrival  # the batch takes the records in the gap
    if point.first_arrival is not None and not point.is_after_gap:
        return point.first_arrival
    known = state.cut_points[taken - 1].arrival if taken else _known_since(state)
    return min(point.arrival, known)


def _last_known(state: SplitState) -> int:
    """Returns a time before which no record after the known ones arrived."""
    return state.cut_points[-1].arrival if state.cut_points else _known_since(state)


def _known_since(state: SplitState) -> int:
    """Returns a time before which no record after the position arrived, for a split that was not read
    since.
    """
    here = state.position  # a query may start later than the arrival of its oldest record
    return (here.caught_up_at if isinstance(here, AtHorizon) else here.last_caught_up_at) or 0
