"""Admission control: turns limits into an arrival time up to which all splits advance.

All splits get the same arrival time, so that they advance together (event-time alignment, FLIP-27). The
functions here depend on their arguments alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import accumulate

from sluice.source.model.splits import SplitId
from sluice.source.settings import Limits
from sluice.source.state.cut_points import CutPoint
from sluice.source.state.split_state import SplitState

__all__ = ["admission_end", "admit", "is_sampled"]

_MARGIN = 1.05
"""Unseen records are estimated a little higher than the density says, so that a batch ends too early rather
than too late."""
_DISTINCT_ARRIVALS = 10
"""A density is estimated from at least this many arrival times: a producer writes hundreds of records at
once."""


_Weight = Callable[[CutPoint], int]


def is_sampled(state: SplitState, share: int) -> bool:
    """Whether the cut points of a split tell where a batch with `share` of its records ends."""
    if state.is_exhausted or sum(point.count for point in state.cut_points) >= share:
        return True
    return len({point.arrival for point in state.cut_points}) >= _DISTINCT_ARRIVALS


def admission_end(limits: Limits, states: Collection[SplitState], now: int) -> int | None:
    """The arrival time before which the batch ends; None if the limits allow all records.

    Args:
        limits: what the batch may hold.
        states: the splits that may be read.
        now: no record has arrived later (microseconds).

    Returns:
        Microseconds since the epoch.
    """
    firsts = [state.cut_points[0] for state in states if state.cut_points]
    if limits.is_none or not firsts:
        return None
    start = min(first.arrival for first in firsts)
    ends = []
    if limits.span is not None:
        earliest = (first.first_arrival for first in firsts)
        ends.append(min((at for at in earliest if at is not None), default=start) + limits.span)
    for limit, weight in _weights(limits):
        profiles = [_DensityProfile(state, weight) for state in states]
        end = _latest(partial(_weight_before, profiles), limit, start + 1, now + 1)
        if end is not None:
            ends.append(end)
    return min(ends) if ends else None


def admit(
    limits: Limits, states: Collection[SplitState], counts: Mapping[SplitId, int]
) -> dict[SplitId, int]:
    """How many cut points of each split the batch takes, `counts` at most.

    Records that arrived at the same time cannot be told apart by time. Where they exceed a limit they are
    taken in order, split by split in turn. At least one is taken.
    """
    counts = dict(counts)
    for limit, weight in _weights(limits):
        offered = {state.split.id: state.cut_points[: counts.get(state.split.id, 0)] for state in states}
        if sum(weight(point) for points in offered.values() for point in points) <= limit:
            continue
        counts = _take(offered, limit, weight)
    return counts


def _weights(limits: Limits) -> list[tuple[int, _Weight]]:
    weights: list[tuple[int, _Weight]] = []
    if limits.records is not None:
        weights.append((limits.records, lambda point: point.count))
    if limits.bytes is not None:
        weights.append((limits.bytes, lambda point: point.size))
    return weights


def _take(offered: Mapping[SplitId, Sequence[CutPoint]], limit: int, weight: _Weight) -> dict[SplitId, int]:
    """The cut points that fit into a limit, in the order of their arrival; at least one."""
    queue = []
    for split, points in offered.items():
        arrival = 0
        for index, point in enumerate(points):
            arrival = max(arrival, point.arrival)  # arrival times may fall, the order stays
            queue.append((arrival, index, split, weight(point)))
    counts = dict.fromkeys(offered, 0)
    total = 0
    for _, index, split, added in sorted(queue):
        total += added
        if total > limit and index + sum(counts.values()) > 0:
            break
        counts[split] = index + 1
    return counts


def _latest(weight: Callable[[int], float], limit: int, low: int, high: int) -> int | None:
    """The latest instant in [low, high] whose weight keeps to `limit`; None if all instants do."""
    if weight(high) <= limit:
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if weight(middle) <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def _weight_before(profiles: Collection[_DensityProfile], until: int) -> float:
    return sum(profile.weight_before(until) for profile in profiles)


class _DensityProfile:
    """How much of one split arrived before an instant: known up to the last cut point, then estimated.

    It is asked for many instants, of hundreds of splits, so all sums are made once.
    """

    def __init__(self, state: SplitState, weight: _Weight) -> None:
        # Arrival times may fall, but a batch cannot leave out a record: the latest time so far counts.
        self._arrivals = list(accumulate((point.arrival for point in state.cut_points), max))
        self._totals = [0, *accumulate(map(weight, state.cut_points))]
        self._density = 0.0 if state.is_exhausted or not state.cut_points else self._estimate()

    def weight_before(self, until: int) -> float:
        count = bisect_left(self._arrivals, until)
        if count < len(self._arrivals) or not self._arrivals:
            return self._totals[count]
        return self._totals[count] + _MARGIN * self._density * (until - self._arrivals[-1])

    def _estimate(self) -> float:
        """Weight per microsecond, without the last arrival time: some of its records may be unknown."""
        first, last = self._arrivals[0], self._arrivals[-1]
        if last == first:
            return float(self._totals[-1])
        return self._totals[bisect_left(self._arrivals, last)] / (last - first)
