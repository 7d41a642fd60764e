"""Plans where the next batch ends in each split that may be read, in parallel."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sluice.instants import MICROS_PER_SECOND
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.offsets import After, Closed, is_by_time
from sluice.source.model.positions import sequence_of
from sluice.source.model.splits import SplitId
from sluice.source.planning.admission import admission_end, admit, is_sampled
from sluice.source.planning.aligner import Aligner
from sluice.source.planning.alignment_bound import alignment_bound, without_orphans
from sluice.source.probing.pool import ProbePool
from sluice.source.probing.probe import Probe
from sluice.source.probing.session import LARGEST_PAGE, SAMPLE, ProbeSession
from sluice.source.settings import Limits
from sluice.source.state.split_state import Reach, SplitState

__all__ = ["Planner", "PlannerSettings"]

_CLOCK_DOUBT = MICROS_PER_SECOND
"""How far the service's clock may be ahead of the known time (microseconds): answers have whole seconds."""

End = After | Closed


@dataclass(frozen=True)
class PlannerSettings:
    """The settings that decide how far a batch goes.

    Attributes:
        fail_on_missing: whether a missing shard or stream fails the query. Otherwise the planner waits
            for it.
        max_drift: how much later than the earliest unread record a record of a batch may have arrived
            (microseconds). None: no limit.
        threads: number of splits that are probed in parallel.
        patience: how long the reads of one split may fail before the query fails (seconds): the value of
            `readRetryDuration`. Throttling counts as an answer, and never fails the query.
    """

    fail_on_missing: bool = True
    max_drift: int | None = None
    threads: int = 64
    patience: float = 900.0


class Planner:
    """Finds the ends of batches. Holds threads, but no state of splits.

    Args:
        now: the time by the service's clock (microseconds).

    Attributes:
        max_drift: see `PlannerSettings`.
        pool: the threads.
    """

    def __init__(
        self, probe: Probe, now: Callable[[], int], settings: PlannerSettings = PlannerSettings()
    ) -> None:
        self._probe = probe
        self._now = now
        self._clock = probe.settings.clock
        self._due_until = -math.inf  # splits that are due before this time (monotonic seconds) are read now
        self.max_drift = settings.max_drift
        awaits_missing = not settings.fail_on_missing
        self.pool = ProbePool(probe, settings.threads, settings.patience, awaits_missing=awaits_missing)
        self._aligner = Aligner(self.pool, self._clock, now, settings.max_drift)

    def close(self) -> None:
        self.pool.close()

    def plan(
        self, states: Sequence[SplitState], limits: Limits, held: Sequence[SplitState] = ()
    ) -> dict[SplitId, End]:
        """Returns the ends of the next batch, for the splits that can advance.

        Args:
            states: the splits that may be read, parents before their children. A child is read if its
                parents end in the batch.
            held: descendants that later batches read. This batch ends before their records.

        Raises:
            DataLossError: records after a position are lost, and ``failOnDataLoss`` is true.
            ServiceError: the reads of a split have failed for longer than `patience`.
        """
        now = self._clock()
        together = self._probe.settings.read_together if any(state.is_due(now) for state in states) else 0.0
        self._due_until = now + together
        planned, orphans = without_orphans(states, self._plan_each(states, limits))
        ends = self._aligner.align(states, planned, orphans, held)
        if not _moves(states, ends):
            ends = self._plan_despite_disorder(states, limits, planned, orphans, held) or ends
        for state in states:
            if state.split.id not in ends:
                state.drop_after_gap()
        positions = {state.split.id: state.position for state in states}
        return {split: end for split, end in ends.items() if end != positions[split]}

    def tips(self, states: Collection[SplitState]) -> dict[SplitId, End]:
        """Returns the exact current tips of all splits, where a query with ``Trigger.AvailableNow`` ends.

        Raises:
            DataLossError, ServiceError: as `plan`; also if a split is missing.
        """
        until = self._now() + _CLOCK_DOUBT
        return self.pool.for_all(states, lambda session, state: self._find_tip(session, state, until))

    def ends_before(self, states: Collection[SplitState], instant: int) -> dict[SplitId, End]:
        """Returns the exact ends of the records that arrived before `instant` (microseconds).

        Raises:
            DataLossError, ServiceError: as `tips`.
        """
        until = self._now()

        def find(session: ProbeSession, state: SplitState) -> End | None:
            tip = session.number_of(IteratorStart("LATEST"))
            number = session.number_of(IteratorStart("AT_TIMESTAMP", timestamp=instant))
            if tip is not None and number is not None and sequence_of(number) < sequence_of(tip):
                return state.end_before_number(number)
            if number is not None or (instant >= until and tip is None):
                end = self._find_tip(session, state, min(until + _CLOCK_DOUBT, instant))
                if not state.cut_points or state.cut_points[-1].arrival < instant:
                    return end
                state.reset()  # later records have arrived meanwhile
            session.seek_to_time(instant, exact=True)
            return state.end_before(instant)

        return self.pool.for_all(states, find)

    def _plan_each(self, states: Sequence[SplitState], limits: Limits) -> dict[SplitId, End]:
        """Returns the ends by the limits alone, however old the unread records are."""
        if limits.is_none:
            return self.pool.for_each(
                states,
                partial(self._plan_to_tip, limits),
                self._reads_for_tip,
                known=_known_end,
                may_be_last=limits.may_be_last,
            )
        return self._plan_with_limits(states, limits)

    def _plan_despite_disorder(
        self,
        states: Sequence[SplitState],
        limits: Limits,
        planned: dict[SplitId, End],
        orphans: Sequence[SplitState],
        held: Sequence[SplitState],
    ) -> dict[SplitId, End]:
        """Returns the ends of a batch if alignment leaves none.

        Because each host has its own clock, arrival times may fall from a record to the next, in a split
        or from a parent to its child. Alignment wants the second record first, but their order forbids
        it. The batch then reads the first and leaves the second behind; otherwise no batch would ever be
        planned.

        Args:
            states, limits, held: see `plan`.
            planned: the ends before alignment.
            orphans: splits of `states` with parents that do not end in the batch.
        """
        may_lag = _known_to_wait([*orphans, *held])

        def others(of: Sequence[SplitState]) -> list[SplitState]:
            return [state for state in of if state.split.id not in may_lag]

        def align(ends: dict[SplitId, End]) -> dict[SplitId, End]:
            return self._aligner.align(others(states), ends, others(orphans), others(held))

        if may_lag:
            if not limits.is_none:  # waiting records may have used the limits up
                waiting = {state.split.id for state in orphans}
                roots = [state for state in states if state.split.id not in waiting]
                planned, _ = without_orphans(states, self._plan_each(roots, limits))
            ends = align(self._aligner.align(states, align(planned), orphans, held, may_lag))
            if _moves(states, ends):
                return ends
        first = _first_of(states)
        if self.max_drift is None:
            return {} if limits.is_none else first
        if align(first) == first:
            return first
        bound = alignment_bound(others([*states, *held]), first, self.max_drift, {})
        return first if bound is not None and bound.split in first else {}

    def _plan_to_tip(self, limits: Limits, session: ProbeSession, state: SplitState) -> End | None:
        """Plans without limits: to the tip, or near it if the split is busy and the query continues."""
        if state.split.is_closed and not isinstance(state.target, After):
            starts_at_time = is_by_time(state.position) and not self._probe.log.seeks_by_time
            is_wanted = (state.wants_first_record or starts_at_time) and not state.has_ended
            if is_wanted and not state.is_pushed:
                session.read_page(1)
            return Closed()  # nothing can follow the end of a closed split
        # A split with unread records is read to its tip again. With its old tip it would hold back
        # others.
        is_stale = not state.cut_points or (self.max_drift is not None and state.reach is Reach.TIP)
        if state.is_due(self._due_until) and is_stale and state.reach is not Reach.TARGET:
            if _must_be_exact(limits, state):
                self._read_to_tip(session, state, self._now() + _CLOCK_DOUBT)
            else:
                session.read_near_tip()
        return state.cut_at(len(state.cut_points))

    def _reads_for_tip(self, state: SplitState) -> bool:
        """Whether `_plan_to_tip` may read the split."""
        return not state.is_pushed and (state.split.is_closed or state.is_due(self._due_until))

    def _find_tip(self, session: ProbeSession, state: SplitState, until: int) -> End | None:
        if state.split.is_closed:
            return Closed()
        self._read_to_tip(session, state, until)
        return state.cut_at(len(state.cut_points))

    def _read_to_tip(self, session: ProbeSession, state: SplitState, until: int) -> None:
        session.read_page(SAMPLE, exact=True)
        if state.cut_points and not state.is_exhausted:
            session.seek_to_tip(until)

    def _plan_with_limits(self, states: Collection[SplitState], limits: Limits) -> dict[SplitId, End]:
        """Plans with limits: all splits advance to the same arrival time."""
        share = max(1, (limits.records or LARGEST_PAGE) // max(1, len(states)))
        self.pool.for_each(states, partial(self._sample, share, limits), may_be_last=limits.may_be_last)
        until = admission_end(limits, states, self._now())
        counts = {state.split.id: state.count_before(until) for state in states}
        admitted = admit(limits, states, counts)
        if admitted != counts:  # the known cut points exceed a limit already
            ends = {state.split.id: state.cut_at(admitted[state.split.id]) for state in states}
            return {split: end for split, end in ends.items() if end is not None}
        return self.pool.for_each(
            states,
            lambda session, state: self._cut_before(session, state, until, limits),
            known=lambda state: state.cut_at(state.count_before(until)),
            may_be_last=limits.may_be_last,
        )

    def _sample(self, share: int, limits: Limits, session: ProbeSession, state: SplitState) -> None:
        """Reads ahead until the density is known, which is often enough for several batches."""
        if state.reach in (Reach.END, Reach.TARGET) or not state.is_due(self._due_until):
            return
        if state.cut_points and (state.reach is Reach.TIP or is_sampled(state, share)):
            return
        exact = _must_be_exact(limits, state)
        session.read_page(SAMPLE, exact=exact)
        if not is_sampled(state, share):
            session.read_page(LARGEST_PAGE, exact=exact)

    def _cut_before(
        self, session: ProbeSession, state: SplitState, until: int | None, limits: Limits
    ) -> End | None:
        """Returns the end of the batch. If its span is limited, all its records arrived before `until`."""
        count = state.count_before(until)
        needs_no_seek = count < len(state.cut_points) or state.is_exhausted or state.is_pushed
        if needs_no_seek or not state.cut_points or state.reads.unanswered_since is not None:
            return state.cut_at(count)
        exact = _must_be_exact(limits, state)
        if until is None and exact:
            session.seek_to_tip(self._now() + _CLOCK_DOUBT)
        elif until is None:
            session.seek_near_tip()
        else:
            session.seek_to_time(until, exact=exact)
            is_strict = limits.span is not None
            if is_strict or not self._probe.log.seeks_by_time:  # the session may have read further
                return state.end_before(until)
        return state.cut_at(len(state.cut_points))


def _known_end(state: SplitState) -> End | None:
    return state.cut_at(len(state.cut_points))


def _moves(states: Collection[SplitState], ends: Mapping[SplitId, End]) -> bool:
    return any(ends.get(state.split.id) not in (None, state.position) for state in states)


def _must_be_exact(limits: Limits, state: SplitState) -> bool:
    """Whether the end has to be exact, because no later batch of this run may take the rest."""
    return limits.may_be_last or state.target is not None


def _known_to_wait(waiting: Iterable[SplitState]) -> set[SplitId]:
    """Returns the splits with a known next record, and their descendants. Parents come before their
    children.
    """
    found: set[SplitId] = set()
    for state in waiting:
        has_record = bool(state.cut_points) and not state.has_gap
        if has_record or not found.isdisjoint(state.split.parent_ids):
            found.add(state.split.id)
    return found


def _first_of(states: Sequence[SplitState]) -> dict[SplitId, End]:
    """Returns the end after the earliest known record. A batch takes at least one, even beyond its limits."""
    unread = {state.split.id for state in states}
    roots = [s for s in states if s.cut_points and not unread.intersection(s.split.parent_ids)]
    if not roots:
        return {}
    earliest = min(roots, key=lambda state: state.cut_points[0].arrival)
    end = earliest.cut_at(1)
    return {} if end is None else {earliest.split.id: end}
