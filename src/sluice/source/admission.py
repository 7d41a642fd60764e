"""Turns limits into a slice of arrival time, the same for all splits, so that splits advance together.

Pure: what is known of the splits goes in, an instant comes out (FLIP-27's event-time alignment).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from sluice.source.split_state import CutPoint, SplitState
from sluice.source.splits import SplitId

__all__ = ["NO_LIMITS", "Limits", "is_sampled", "slice_end", "trim"]

_MARGIN = 1.05
"""What lies unseen is taken for a little more than its density says: a batch should rather be small."""
_DISTINCT_ARRIVALS = 10
"""A density needs so many different times of arrival: writers put hundreds of records at one time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one batch may hold: records, bytes, and arrival time (microseconds) on every split."""

    records: int | None = None
    bytes: int | None = None
    span: int | None = None

    @property
    def is_none(self) -> bool:
        return self.records is None and self.bytes is None and self.span is None


NO_LIMITS = Limits()

_Weigh = Callable[[CutPoint], int]


def is_sampled(state: SplitState, share: int) -> bool:
    """Whether enough is seen of a split to say where a batch with `share` of its records ends."""
    if state.is_exhausted or sum(record.count for record in state.seen) >= share:
        return True
    return len({record.arrival for record in state.seen}) >= _DISTINCT_ARRIVALS


def slice_end(limits: Limits, states: Collection[SplitState], now: int) -> int | None:
    """The instant before which a batch must end; None where the limits allow all there is.

    Args:
        now: no record arrives later (microseconds).
    """
    firsts = [state.seen[0] for state in states if state.seen]
    if limits.is_none or not firsts:
        return None
    start = min(first.arrival for first in firsts)
    ends = []
    if limits.span is not None:
        earliest = (first.first_arrival for first in firsts)
        ends.append(min((at for at in earliest if at is not None), default=start) + limits.span)
    for limit, weigh in _weights(limits):
        profiles = [_Profile(state, weigh) for state in states]
        end = _latest(partial(_weight, profiles), limit, start + 1, now + 1)
        if end is not None:
            ends.append(end)
    return min(ends) if ends else None


def trim(limits: Limits, states: Collection[SplitState], counts: Mapping[SplitId, int]) -> dict[SplitId, int]:
    """Cuts `counts` (of the records seen of each split) where even the first slice holds too many.

    Records that arrived at the same time can't be told apart by time; then they are taken in order,
    as many of each split. At least one is taken.
    """
    counts = dict(counts)
    for limit, weigh in _weights(limits):
        taken = {state.split.id: state.seen[: counts.get(state.split.id, 0)] for state in states}
        if sum(weigh(record) for records in taken.values() for record in records) <= limit:
            continue
        counts = _take(taken, limit, weigh)
    return counts


def _weights(limits: Limits) -> list[tuple[int, _Weigh]]:
    weights: list[tuple[int, _Weigh]] = []
    if limits.records is not None:
        weights.append((limits.records, lambda record: record.count))
    if limits.bytes is not None:
        weights.append((limits.bytes, lambda record: record.size))
    return weights


def _take(taken: Mapping[SplitId, list[CutPoint]], limit: int, weigh: _Weigh) -> dict[SplitId, int]:
    queue = []
    for split, records in taken.items():
        arrival = 0
        for index, record in enumerate(records):
            arrival = max(arrival, record.arrival)  # arrival may step back, order may not
            queue.append((arrival, index, split, weigh(record)))
    counts = dict.fromkeys(taken, 0)
    total = 0
    for _, index, split, weight in sorted(queue):
        total += weight
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


def _weight(profiles: Collection[_Profile], until: int) -> float:
    return sum(profile.weight(until) for profile in profiles)


class _Profile:
    """How much of one split arrived before an instant: as seen, and beyond that as dense as what is seen.

    Asked for many instants, of hundreds of splits: so everything is summed up once.
    """

    def __init__(self, state: SplitState, weigh: _Weigh) -> None:
        # Arrival may step back, and a cut may not: what counts is the latest up to each record.
        self._arrivals = list(accumulate((record.arrival for record in state.seen), max))
        self._totals = [0, *accumulate(map(weigh, state.seen))]
        self._density = 0.0 if state.is_exhausted or not state.seen else self._estimate()

    def weight(self, until: int) -> float:
        count = bisect_left(self._arrivals, until)
        if count < len(self._arrivals) or not self._arrivals:
            return self._totals[count]
        return self._totals[count] + _MARGIN * self._density * (until - self._arrivals[-1])

    def _estimate(self) -> float:
        """Weight a microsecond. The last time of arrival does not count: it may have been cut short."""
        first, last = self._arrivals[0], self._arrivals[-1]
        if last == first:
            return float(self._totals[-1])
        return self._totals[bisect_left(self._arrivals, last)] / (last - first)
