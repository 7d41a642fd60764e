"""Admission control: turns limits into one arrival time up to which all splits advance (FLIP-27's
event-time alignment). The functions are pure."""

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
"""Unseen records are estimated a little high: a batch should end too early rather than too late."""
_DISTINCT_ARRIVALS = 10
"""Minimum number of arrival times for a density, because a producer writes hundreds of records at once."""


_Weight = Callable[[CutPoint], int]


def is_sampled(state: SplitState, share: int) -> bool:
    """Whether the cut points of a split show where a batch with `share` of its records ends."""
    if state.is_exhausted or sum(point.count for point in state.cut_points) >= share:
        return True
    return len({point.arrival for point in state.cut_points}) >= _DISTINCT_ARRIVALS


def admission_end(limits: Limits, states: Collection[SplitState], now: int) -> int | None:
    """Returns the arrival time before which the batch ends (microseconds); None if the limits allow all
    records.

    Args:
        states: the splits that may be read.
        now: no record has arrived later (microseconds).
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
    """Returns how many cut points of each split the batch takes: up to `counts`, and at least one in total.

    Time cannot separate records that arrived at once. If they exceed a limit, splits take turns.
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
    queue = []
    for split, points in offered.items():
        arrival = 0
        for index, point in enumerate(points):
            arrival = max(arrival, point.arrival)  # arrival times may fall, but the order stays
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
    """Returns the latest instant in [low, high] with a weight up to `limit`; None if all instants qualify."""
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
    """How much of one split arrived before an instant: counted up to the last cut point, then estimated.

    Sums are computed once, because many instants are tried for hundreds of splits.
    """

    def __init__(self, state: SplitState, weight: _Weight) -> None:
        # Arrival times may fall, but a batch cannot skip a record: the latest time so far counts.
        self._arrivals = list(accumulate((point.arrival for point in state.cut_points), max))
        self._totals = [0, *accumulate(map(weight, state.cut_points))]
        self._density = 0.0 if state.is_exhausted or not state.cut_points else self._estimate()

    def weight_before(self, until: int) -> float:
        count = bisect_left(self._arrivals, until)
        if count < len(self._arrivals) or not self._arrivals:
            return self._totals[count]
        return self._totals[count] + _MARGIN * self._density * (until - self._arrivals[-1])

    def _estimate(self) -> float:
        """Returns the weight per microsecond. Skips the last arrival time, because not all its records
        may be known.
        """
        first, last = self._arrivals[0], self._arrivals[-1]
        if last == first:
            return float(self._totals[-1])
        return self._totals[bisect_left(self._arrivals, last)] / (last - first)
