"""Plans where the next batch ends, for all splits that may be read, side by side."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sluice.errors import ServiceError
from sluice.instants import MICROS_PER_SECOND
from sluice.source.admission import Limits, admission_end, admit, is_sampled
from sluice.source.offsets import After, Closed, before
from sluice.source.probe import LARGEST_PAGE, SAMPLE, SMALL_PAGE, Probe, ProbeSession
from sluice.source.split_state import Reach, SplitState
from sluice.source.splits import SplitId

__all__ = ["Planner"]

_log = logging.getLogger(__name__)

_TIP_DELAY = MICROS_PER_SECOND
"""How long ago the cut point of a busy split arrived: records that arrived since may not be readable yet."""
_RETRY_PAUSE = 2
"""Seconds until a split is read again that was throttled, or whose read failed."""
ResultT = TypeVar("ResultT")

End = After | Closed


class Planner:
    """Finds the ends of batches. Keeps nothing but threads: what is known of a split is in its state.

    Args:
        probe: reads splits.
        now: the time by the service's clock (microseconds).
        fail_on_missing: whether a shard or stream that stays missing fails the query. Otherwise the planner
            waits for it.
        threads: how many splits are probed side by side.
        patience: how long the reads of one split may fail with retryable errors before the query fails
            (seconds). Throttling is an answer, and never fails the query.
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
        self._clock = probe.settings.clock
        self._patience = patience
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="sluice-planner")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def plan(self, states: Collection[SplitState], limits: Limits) -> dict[SplitId, End]:
        """The ends of the next batch, for the splits that can advance.

        Raises:
            DataLossError: records after a position are gone, and the query has to fail on data loss.
            ServiceError: the reads of a split fail, and have failed for longer than `patience`.
        """
        ends = (
            self._for_each(states, self._plan_to_tip)
            if limits.is_none
            else self._plan_with_limits(states, limits)
        )
        return {state.split.id: end for state, end in ends if end is not None and end != state.position}

    def tips(self, states: Collection[SplitState]) -> dict[SplitId, End]:
        """The exact tips of all splits as of now: where a run ends that reads what is available.

        Raises:
            DataLossError, ServiceError: as `plan`; an error that may pass is not waited for.
        """
        until = self._now()
        ends = self._for_each(
            states, lambda session, state: self._find_tip(session, state, until), leave_failing=False
        )
        return {state.split.id: end for state, end in ends if end is not None}

    def ends_before(self, states: Collection[SplitState], instant: int) -> dict[SplitId, End]:
        """The exact ends of the records that arrived before `instant` (microseconds).

        Raises:
            DataLossError, ServiceError: as `tips`.
        """
        until = self._now()

        def find(session: ProbeSession, state: SplitState) -> End | None:
            if instant >= until:
                return self._find_tip(session, state, until)
            session.seek_to_time(instant, exact=True)
            return _end_before(state, instant)

        ends = self._for_each(states, find, leave_failing=False)
        return {state.split.id: end for state, end in ends if end is not None}

    def _plan_to_tip(self, session: ProbeSession, state: SplitState) -> End | None:
        """Without limits a batch ends at the tip, or near it where many records come."""
        if state.split.is_closed and not isinstance(state.target, After):
            state.begin_read()  # keeps the hint of when the split was caught up
            if state.wants_first_record and not state.is_pushed:
                session.read_page(1)
            return Closed()  # nothing can follow the end of a closed split
        if state.is_due(self._clock()) and not state.cut_points and state.reach is not Reach.TARGET:
            exact = state.target is not None
            session.read_page(SMALL_PAGE, exact=exact)
            if state.cut_points and not state.is_exhausted:
                session.seek_to_tip(self._now() - _TIP_DELAY, exact=exact)
        return state.cut_at(len(state.cut_points))

    def _find_tip(self, session: ProbeSession, state: SplitState, until: int) -> End | None:
        if state.split.is_closed:
            return Closed()
        session.read_page(SMALL_PAGE, exact=True)
        if state.cut_points and not state.is_exhausted:
            session.seek_to_tip(until - _TIP_DELAY, exact=True)
        return state.cut_at(len(state.cut_points))

    def _plan_with_limits(
        self, states: Collection[SplitState], limits: Limits
    ) -> list[tuple[SplitState, End | None]]:
        """With limits, all splits advance to the same arrival time."""
        share = max(1, (limits.records or LARGEST_PAGE) // max(1, len(states)))
        self._for_each(states, lambda session, state: self._sample(session, state, share))
        until = admission_end(limits, states, self._now())
        counts = {state.split.id: state.count_before(until) for state in states}
        admitted = admit(limits, states, counts)
        if admitted != counts:  # the known cut points exceed a limit already
            return [(state, state.cut_at(admitted[state.split.id])) for state in states]
        is_strict = limits.span is not None
        return self._for_each(
            states, lambda session, state: self._cut_before(session, state, until, is_strict=is_strict)
        )

    def _sample(self, session: ProbeSession, state: SplitState, share: int) -> None:
        """Reads ahead until the density is known; often that serves several batches without another read."""
        if state.reach in (Reach.END, Reach.TARGET) or not state.is_due(self._clock()):
            return
        if state.cut_points and (state.reach is Reach.TIP or is_sampled(state, share)):
            return
        exact = state.target is not None
        session.read_page(SAMPLE, exact=exact)
        if not is_sampled(state, share):
            session.read_page(LARGEST_PAGE, exact=exact)

    def _cut_before(
        self, session: ProbeSession, state: SplitState, until: int | None, *, is_strict: bool
    ) -> End | None:
        """The end of the batch; with `is_strict` no record may have arrived at or after `until`."""
        count = state.count_before(until)
        needs_no_seek = count < len(state.cut_points) or state.is_exhausted or state.is_pushed
        if needs_no_seek or not state.cut_points or state.failing_since is not None:
            return state.cut_at(count)
        exact = state.target is not None
        if until is None:
            session.seek_to_tip(self._now() - _TIP_DELAY, exact=exact)
        else:
            session.seek_to_time(until, exact=exact)
            if is_strict:
                return _end_before(state, until)
        return state.cut_at(len(state.cut_points))

    def _for_each(
        self,
        states: Collection[SplitState],
        work: Callable[[ProbeSession, SplitState], ResultT],
        *,
        leave_failing: bool = True,
    ) -> list[tuple[SplitState, ResultT | None]]:
        """Does `work` for all splits side by side, so that 500 splits take about as long as 50.

        Args:
            leave_failing: a split whose reads fail is left where it is for now; its result is None. Otherwise
                throttling is waited out, and other errors are raised.
        """

        def run(state: SplitState) -> ResultT | None:
            session = self._probe.session(state)
            while True:
                try:
                    result = work(session, state)
                except ServiceError as error:
                    if not leave_failing and error.throttling:
                        session.back_off()
                        continue
                    session.end()
                    if not leave_failing:
                        raise
                    self._tolerate(state, error)
                    if state.target is None or error.missing:
                        return None
                    session.back_off()  # a run with a target would end if the split stayed where it is
                    continue
                session.end()
                if session.has_read:
                    state.mark_answered()
                return result

        states = list(states)
        if sum(not state.is_pushed for state in states) <= 1:  # one split needs no threads
            return [(state, run(state)) for state in states]
        return list(zip(states, self._pool.map(run, states), strict=True))

    def _tolerate(self, state: SplitState, error: ServiceError) -> None:
        """Leaves a split where it is for now; raises `error` if it will not pass, or has lasted too long."""
        if not (error.retryable or error.throttling or error.missing):
            raise error
        now = self._clock()
        next_read_at = now + _RETRY_PAUSE
        if error.throttling:
            state.mark_throttled(next_read_at)
        else:
            failing_for = state.mark_failed(now, next_read_at, is_missing=error.missing)
            is_awaited = error.missing and not self._fail_on_missing
            if failing_for > self._patience and not is_awaited:
                raise error
        _log.warning("%s: left out of this batch, next read in %d s: %s", state.split.id, _RETRY_PAUSE, error)


def _end_before(state: SplitState, instant: int) -> End | None:
    """The end after the last cut point that arrived before `instant`."""
    count = state.count_before(instant)
    if count < len(state.cut_points) and state.reach is not Reach.TARGET:
        end = before(state.cut_points[count].number)
        return end if isinstance(end, After) else None
    return state.cut_at(len(state.cut_points))
