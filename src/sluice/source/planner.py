"""Plans where the next batch ends, for all splits that may be read, side by side."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sluice.errors import ServiceError
from sluice.source.admission import Limits, is_sampled, slice_end, trim
from sluice.source.offsets import After, Closed, before
from sluice.source.probe import GLANCE, PAGE, SAMPLE, Probe, Visit
from sluice.source.split_state import Front
from sluice.source.splits import SplitId

__all__ = ["Planner"]

_log = logging.getLogger(__name__)

_SECOND = 1_000_000
_MOMENT = _SECOND
"""How long ago the cut of a busy split is looked for: later records may still be on their way."""
_THROTTLE_PAUSE = 2 * _SECOND
_FAILURE_PAUSE = 2 * _SECOND
ResultT = TypeVar("ResultT")

End = After | Closed


class Planner:
    """Finds cuts. Keeps nothing but threads: what is known of a split is in its front.

    Args:
        patience: for how long (seconds) a split whose looks fail with errors that may pass is left
            where it is before the query fails. Throttling is borne for ever: it is an answer.
        fail_on_missing: whether a shard or stream that stays missing is such an error; else it is waited
            for.
    """

    def __init__(
        self,
        probe: Probe,
        now: Callable[[], int],
        *,
        fail_on_missing: bool = True,
        threads: int = 32,
        patience: float = 60.0,
    ) -> None:
        self._probe = probe
        self._now = now
        self._fail_on_missing = fail_on_missing
        self._patience = int(patience * _SECOND)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="sluice-planner")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def plan(self, fronts: Collection[Front], limits: Limits) -> dict[SplitId, End]:
        """The ends of the next batch, for the splits that can advance.

        Raises:
            DataLossError, ServiceError: what a look at a split raised for good.
        """
        ends = self._each(fronts, self._advance) if limits.is_none else self._plan_slice(fronts, limits)
        return {front.split.id: end for front, end in ends if end is not None and end != front.position}

    def targets(self, fronts: Collection[Front]) -> dict[SplitId, End]:
        """The tips of all splits as of now, exactly: where a run of what is available ends."""
        until = self._now()
        ends = self._each(fronts, lambda visit, front: self._tip(visit, front, until), patient=False)
        return {front.split.id: end for front, end in ends if end is not None}

    def ends_before(self, fronts: Collection[Front], instant: int) -> dict[SplitId, End]:
        """The ends of all that arrived before `instant`, exactly."""
        until = self._now()

        def find(visit: Visit, front: Front) -> End | None:
            if instant >= until:
                return self._tip(visit, front, until)
            visit.find_time(instant, exact=True)
            return _end_before(front, instant)

        ends = self._each(fronts, find, patient=False)
        return {front.split.id: end for front, end in ends if end is not None}

    def _advance(self, visit: Visit, front: Front) -> End | None:
        """Without limits: the tip, or near it where the split is busy."""
        if front.split.is_closed and not isinstance(front.target, After):
            front.note_quiet()
            return Closed()  # its end is known and will not move
        if self._is_due(front) and not front.seen and not front.has_met_target:
            visit.look(GLANCE)
            if front.seen and not front.is_exhausted:
                visit.find_tip(self._now() - _MOMENT, exact=front.target is not None)
        return front.cut_at(len(front.seen))

    def _tip(self, visit: Visit, front: Front, until: int) -> End | None:
        if front.split.is_closed:
            return Closed()
        visit.look(GLANCE)
        if front.seen and not front.is_exhausted:
            visit.find_tip(until - _MOMENT, exact=True)
        return front.cut_at(len(front.seen))

    def _plan_slice(self, fronts: Collection[Front], limits: Limits) -> list[tuple[Front, End | None]]:
        """With limits: all splits up to the same time of arrival."""
        share = max(1, (limits.records or PAGE) // max(1, len(fronts)))
        self._each(fronts, lambda visit, front: self._sample(visit, front, share))
        until = slice_end(limits, fronts, self._now())
        counts = {front.split.id: front.count_before(until) for front in fronts}
        trimmed = trim(limits, fronts, counts)
        if trimmed != counts:
            return [(front, front.cut_at(trimmed[front.split.id])) for front in fronts]
        is_strict = limits.span is not None
        return self._each(fronts, lambda visit, front: self._cut(visit, front, until, is_strict=is_strict))

    def _sample(self, visit: Visit, front: Front, share: int) -> None:
        """Looks far enough ahead to know how dense the backlog is; often that is several batches."""
        if front.has_ended or front.has_met_target or not self._is_due(front):
            return
        if front.seen and (front.is_at_tip or is_sampled(front, share)):
            return
        visit.look(SAMPLE)
        if not is_sampled(front, share):
            visit.look(PAGE)

    def _cut(self, visit: Visit, front: Front, until: int | None, *, is_strict: bool) -> End | None:
        count = front.count_before(until)
        is_decided = count < len(front.seen) or front.is_exhausted or front.is_pushed
        if is_decided or not front.seen or front.failing_since is not None:
            return front.cut_at(count)
        exact = front.target is not None
        if until is None:
            visit.find_tip(self._now() - _MOMENT, exact=exact)
        else:
            visit.find_time(until, exact=exact)
            if is_strict:
                return _end_before(front, until)
        return front.cut_at(len(front.seen))

    def _is_due(self, front: Front) -> bool:
        # A run that stops at a target ends when nothing is new: it must not seem so for want of a look.
        return not front.is_pushed and (front.target is not None or front.next_look <= self._now())

    def _each(
        self,
        fronts: Collection[Front],
        work: Callable[[Visit, Front], ResultT],
        *,
        patient: bool = True,
    ) -> list[tuple[Front, ResultT | None]]:
        """Does `work` for all fronts side by side: 500 shards take about as long as 50."""

        def visit(front: Front) -> ResultT | None:
            series = self._probe.visit(front)
            while True:
                try:
                    result = work(series, front)
                except ServiceError as error:
                    if not patient and error.throttling:
                        series.back_off()
                        continue
                    series.end()
                    if not patient:
                        raise
                    self._bear(front, error)
                    if front.target is None or error.missing:
                        return None
                    series.back_off()  # left where it is, the split would end the run
                    continue
                series.end()
                if series.has_read:
                    front.failing_since = None
                return result

        fronts = list(fronts)
        if sum(not front.is_pushed for front in fronts) <= 1:  # nobody to wait for beside another one
            return [(front, visit(front)) for front in fronts]
        return list(zip(fronts, self._pool.map(visit, fronts), strict=True))

    def _bear(self, front: Front, error: ServiceError) -> None:
        """Leaves a split where it is for now, when its trouble may pass."""
        if not (error.retryable or error.throttling or error.missing):
            raise error
        now = self._now()
        front.is_missing = error.missing
        if error.throttling:
            front.next_look = now + _THROTTLE_PAUSE
            _log.warning("%s: not planned further for now: %s", front.split.id, error)
            return
        if front.failing_since is None:
            front.failing_since = now
        is_awaited = error.missing and not self._fail_on_missing
        if now - front.failing_since > self._patience and not is_awaited:
            raise error
        front.next_look = now + _FAILURE_PAUSE
        _log.warning("%s: not planned further for now: %s", front.split.id, error)


def _end_before(front: Front, instant: int) -> End | None:
    """The end of what is seen, without a last record that arrived at or after `instant`."""
    count = front.count_before(instant)
    if count < len(front.seen) and not front.has_met_target:
        end = before(front.seen[count].number)
        return end if isinstance(end, After) else None
    return front.cut_at(len(front.seen))
