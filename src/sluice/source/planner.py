"""Plans where the next batch ends, for all splits that may be read, side by side."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sluice.errors import ServiceError
from sluice.source.admission import Limits, is_sampled, slice_end, trim
from sluice.source.offsets import After, Closed, before
from sluice.source.probe import PAGE, SAMPLE, SMALL_PAGE, Probe, ProbeSession
from sluice.source.split_state import SplitState
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
    """Finds cuts. Keeps nothing but threads: what is known of a split is in its state.

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

    def plan(self, states: Collection[SplitState], limits: Limits) -> dict[SplitId, End]:
        """The ends of the next batch, for the splits that can advance.

        Raises:
            DataLossError, ServiceError: what a look at a split raised for good.
        """
        ends = self._each(states, self._advance) if limits.is_none else self._plan_slice(states, limits)
        return {state.split.id: end for state, end in ends if end is not None and end != state.position}

    def targets(self, states: Collection[SplitState]) -> dict[SplitId, End]:
        """The tips of all splits as of now, exactly: where a run of what is available ends."""
        until = self._now()
        ends = self._each(states, lambda session, state: self._tip(session, state, until), patient=False)
        return {state.split.id: end for state, end in ends if end is not None}

    def ends_before(self, states: Collection[SplitState], instant: int) -> dict[SplitId, End]:
        """The ends of all that arrived before `instant`, exactly."""
        until = self._now()

        def find(session: ProbeSession, state: SplitState) -> End | None:
            if instant >= until:
                return self._tip(session, state, until)
            session.find_time(instant, exact=True)
            return _end_before(state, instant)

        ends = self._each(states, find, patient=False)
        return {state.split.id: end for state, end in ends if end is not None}

    def _advance(self, session: ProbeSession, state: SplitState) -> End | None:
        """Without limits: the tip, or near it where the split is busy."""
        if state.split.is_closed and not isinstance(state.target, After):
            state.note_quiet()
            return Closed()  # its end is known and will not move
        if self._is_due(state) and not state.seen and not state.has_met_target:
            session.look(SMALL_PAGE)
            if state.seen and not state.is_exhausted:
                session.find_tip(self._now() - _MOMENT, exact=state.target is not None)
        return state.cut_at(len(state.seen))

    def _tip(self, session: ProbeSession, state: SplitState, until: int) -> End | None:
        if state.split.is_closed:
            return Closed()
        session.look(SMALL_PAGE)
        if state.seen and not state.is_exhausted:
            session.find_tip(until - _MOMENT, exact=True)
        return state.cut_at(len(state.seen))

    def _plan_slice(
        self, states: Collection[SplitState], limits: Limits
    ) -> list[tuple[SplitState, End | None]]:
        """With limits: all splits up to the same time of arrival."""
        share = max(1, (limits.records or PAGE) // max(1, len(states)))
        self._each(states, lambda session, state: self._sample(session, state, share))
        until = slice_end(limits, states, self._now())
        counts = {state.split.id: state.count_before(until) for state in states}
        trimmed = trim(limits, states, counts)
        if trimmed != counts:
            return [(state, state.cut_at(trimmed[state.split.id])) for state in states]
        is_strict = limits.span is not None
        return self._each(
            states, lambda session, state: self._cut(session, state, until, is_strict=is_strict)
        )

    def _sample(self, session: ProbeSession, state: SplitState, share: int) -> None:
        """Looks far enough ahead to know how dense the backlog is; often that is several batches."""
        if state.has_ended or state.has_met_target or not self._is_due(state):
            return
        if state.seen and (state.is_at_tip or is_sampled(state, share)):
            return
        session.look(SAMPLE)
        if not is_sampled(state, share):
            session.look(PAGE)

    def _cut(
        self, session: ProbeSession, state: SplitState, until: int | None, *, is_strict: bool
    ) -> End | None:
        count = state.count_before(until)
        is_decided = count < len(state.seen) or state.is_exhausted or state.is_pushed
        if is_decided or not state.seen or state.failing_since is not None:
            return state.cut_at(count)
        exact = state.target is not None
        if until is None:
            session.find_tip(self._now() - _MOMENT, exact=exact)
        else:
            session.find_time(until, exact=exact)
            if is_strict:
                return _end_before(state, until)
        return state.cut_at(len(state.seen))

    def _is_due(self, state: SplitState) -> bool:
        # A run that stops at a target ends when nothing is new: it must not seem so for want of a look.
        return not state.is_pushed and (state.target is not None or state.next_look <= self._now())

    def _each(
        self,
        states: Collection[SplitState],
        work: Callable[[ProbeSession, SplitState], ResultT],
        *,
        patient: bool = True,
    ) -> list[tuple[SplitState, ResultT | None]]:
        """Does `work` for all states side by side: 500 shards take about as long as 50."""

        def session(state: SplitState) -> ResultT | None:
            series = self._probe.session(state)
            while True:
                try:
                    result = work(series, state)
                except ServiceError as error:
                    if not patient and error.throttling:
                        series.back_off()
                        continue
                    series.end()
                    if not patient:
                        raise
                    self._tolerate(state, error)
                    if state.target is None or error.missing:
                        return None
                    series.back_off()  # left where it is, the split would end the run
                    continue
                series.end()
                if series.has_read:
                    state.failing_since = None
                return result

        states = list(states)
        if sum(not state.is_pushed for state in states) <= 1:  # nobody to wait for beside another one
            return [(state, session(state)) for state in states]
        return list(zip(states, self._pool.map(session, states), strict=True))

    def _tolerate(self, state: SplitState, error: ServiceError) -> None:
        """Leaves a split where it is for now, when its trouble may pass."""
        if not (error.retryable or error.throttling or error.missing):
            raise error
        now = self._now()
        state.is_missing = error.missing
        if error.throttling:
            state.next_look = now + _THROTTLE_PAUSE
            _log.warning("%s: not planned further for now: %s", state.split.id, error)
            return
        if state.failing_since is None:
            state.failing_since = now
        is_awaited = error.missing and not self._fail_on_missing
        if now - state.failing_since > self._patience and not is_awaited:
            raise error
        state.next_look = now + _FAILURE_PAUSE
        _log.warning("%s: not planned further for now: %s", state.split.id, error)


def _end_before(state: SplitState, instant: int) -> End | None:
    """The end of what is seen, without a last record that arrived at or after `instant`."""
    count = state.count_before(instant)
    if count < len(state.seen) and not state.has_met_target:
        end = before(state.seen[count].number)
        return end if isinstance(end, After) else None
    return state.cut_at(len(state.seen))
