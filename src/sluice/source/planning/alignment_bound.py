"""Keeps splits together in time (FLIP-27's event-time alignment), so that no batch leaves a split far behind.

Spark drops rows that are later than the watermark, and the watermark follows the latest rows of all splits.
So a batch takes no record that arrived much later than the earliest record that it leaves unread.
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
    """No record that arrived later may be in a batch.

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
    """The latest arrival that a batch may take, given where it ends in each split.

    If a split has unread records, those of its descendants arrived later, and are ignored.

    Args:
        states: the splits that may have unread records after the batch, parents before their children.
        ends: a split without an end does not advance.
        max_drift: microseconds by which a record may be later than the earliest unread one.
        not_before: by split, the arrival time that its earlier records get (microseconds).
    """
    known: list[tuple[int, SplitId]] = []
    behind: set[SplitId] = set()  # the splits with unread records, and their descendants
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
    """A time before which no record arrived that a batch up to `end` leaves unread (microseconds). If a split
    has ended, records of its children are unread, too, until the children are listed.

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
        # Before its last event, a closed split may report that it is at its tip. Its children wait for that
        # last event, and their records may be older than the events before it.
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
        return True  # the end was not looked for
    if state.has_gap:
        return taken > 0 and points[taken - 1].arrival > bound
    return any(point.arrival > bound for point in points[:taken])


def without_orphans(
    states: Collection[SplitState], ends: Mapping[SplitId, End]
) -> tuple[dict[SplitId, End], list[SplitState]]:
    """Leaves out the ends of splits whose parents do not end in the batch.

    Args:
        states: parents before their children.

    Returns:
        The ends that are kept, and the states of the splits whose ends are left out.
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
    """`earliest_unread`, where `taken` cut points are in the batch, and more are known."""
    point = state.cut_points[taken]
    if point.is_after_gap and end == before(point.number):
        return point.arrival  # the batch takes the records in the gap
    if point.first_arrival is not None and not point.is_after_gap:
        return point.first_arrival
    known = state.cut_points[taken - 1].arrival if taken else _known_since(state)
    return min(point.arrival, known)


def _last_known(state: SplitState) -> int:
    """A time before which no record arrived after the known ones of the split."""
    return state.cut_points[-1].arrival if state.cut_points else _known_since(state)


def _known_since(state: SplitState) -> int:
    """A time before which no record arrived after the position of a split that has not been read since."""
    here = state.position  # a query that starts at the oldest record may be younger than its records
    return (here.caught_up_at if isinstance(here, AtHorizon) else here.last_caught_up_at) or 0
