"""Plans where the next batch ends, for all splits that may be read, side by side."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sluice.errors import ServiceError
from sluice.instants import MICROS_PER_SECOND, iso_instant
from sluice.source.admission import Limits, admission_end, admit, is_sampled
from sluice.source.alignment import Bound, alignment_bound, exceeds, without_orphans
from sluice.source.offsets import After, AtTime, Closed, before
from sluice.source.probe import LARGEST_PAGE, SAMPLE, SAMPLE_BYTES, SMALL_PAGE, Probe, ProbeSession
from sluice.source.split_state import Reach, SplitState
from sluice.source.splits import SplitId

__all__ = ["Planner", "PlannerSettings"]

_log = logging.getLogger(__name__)

_TIP_DELAY = MICROS_PER_SECOND
"""How long ago the cut point of a busy split arrived (microseconds): later records may not be readable
yet."""
_CLOCK_DOUBT = MICROS_PER_SECOND
"""By how much the service's clock may be ahead of what is known of it (microseconds): answers tell
seconds."""
_RETRY_PAUSE = 2
"""Seconds until a split is read again after a read was throttled or failed."""
_WAITING_LINE_INTERVAL = 30.0
_MAX_CUTS = 3
"""How often a batch is cut back. Each time, other splits may turn out to be behind."""
ResultT = TypeVar("ResultT")

End = After | Closed


@dataclass(frozen=True)
class PlannerSettings:
    """What decides how far a batch goes.

    Attributes:
        fail_on_missing: whether a shard or stream that stays missing fails the query. Otherwise the planner
            waits for it.
        max_drift: how much later than the earliest record that stays unread a record of a batch may have
            arrived (microseconds). None: any time.
        threads: how many splits are probed side by side.
        patience: how long the reads of one split may fail with retryable errors before the query fails
            (seconds). Throttling is an answer, and never fails the query.
    """

    fail_on_missing: bool = True
    max_drift: int | None = None
    threads: int = 64
    patience: float = 60.0


class Planner:
    """Finds the ends of batches. Keeps nothing but threads: what is known of a split is in its state.

    Args:
        probe: reads splits.
        now: the time by the service's clock (microseconds).
        settings: how far a batch goes.
    """

    def __init__(
        self, probe: Probe, now: Callable[[], int], settings: PlannerSettings = PlannerSettings()
    ) -> None:
        self._probe = probe
        self._now = now
        self._clock = probe.settings.clock
        self._fail_on_missing = settings.fail_on_missing
        self._patience = settings.patience
        self.max_drift = settings.max_drift
        self._next_waiting_line = -math.inf
        self._pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="sluice-planner")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def map_splits(self, work: Callable[[SplitId], ResultT], splits: Iterable[SplitId]) -> Iterable[ResultT]:
        """As `map`, side by side."""
        return self._pool.map(work, splits)

    def plan(
        self, states: Sequence[SplitState], limits: Limits, held: Sequence[SplitState] = ()
    ) -> dict[SplitId, End]:
        """The ends of the next batch, for the splits that can advance.

        Args:
            states: of the splits that may be read, parents before their children. A child is read if its
                parents end in the batch.
            held: of their descendants that are left to later batches. The batch ends before their records.

        Raises:
            DataLossError: records after a position are gone, and the query has to fail on data loss.
            ServiceError: the reads of a split fail, and have failed for longer than `patience`.
        """
        planned, orphans = without_orphans(states, self._plan_each(states, limits))
        ends = self._align(states, planned, orphans, held)
        if not _moves(states, ends):
            ends = self._plan_despite_disorder(states, limits, planned, orphans, held) or ends
        for state in states:
            if state.split.id not in ends:
                state.drop_after_gap()
        positions = {state.split.id: state.position for state in states}
        return {split: end for split, end in ends.items() if end != positions[split]}

    def tips(self, states: Collection[SplitState]) -> dict[SplitId, End]:
        """The exact tips of all splits as of now: where a run ends that reads what is available.

        Raises:
            DataLossError, ServiceError: as `plan`; also if a split is missing.
        """
        until = self._now() + _CLOCK_DOUBT
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
                return self._find_tip(session, state, min(until + _CLOCK_DOUBT, instant))
            session.seek_to_time(instant, exact=True)
            return _end_before(state, instant)

        ends = self._for_each(states, find, leave_failing=False)
        return {state.split.id: end for state, end in ends if end is not None}

    def _plan_each(self, states: Sequence[SplitState], limits: Limits) -> dict[SplitId, End]:
        """The ends as the limits have them, whatever is left unread."""
        planned = (
            self._for_each(states, partial(self._plan_to_tip, limits), may_read=self._reads_for_tip)
            if limits.is_none
            else self._plan_with_limits(states, limits)
        )
        return {state.split.id: end for state, end in planned if end is not None}

    def _plan_despite_disorder(
        self,
        states: Sequence[SplitState],
        limits: Limits,
        planned: dict[SplitId, End],
        orphans: Sequence[SplitState],
        held: Sequence[SplitState],
    ) -> dict[SplitId, End]:
        """The ends of a batch where `_align` leaves none.

        Arrival times may fall from a record to one that comes after it, in its split or in a child: hosts
        have clocks of their own. By arrival the second comes first, and by their order, which is kept, it
        cannot. So the first is read although the second is left behind, or no batch would ever be planned.

        Args:
            states, limits, held: as those of `plan`.
            planned: the ends before they were aligned.
            orphans: those of `states` whose parents do not end in the batch.
        """
        may_lag = _with_descendants([*orphans, *held], _has_record)

        def others(of: Sequence[SplitState]) -> list[SplitState]:
            return [state for state in of if state.split.id not in may_lag]

        def align(ends: dict[SplitId, End]) -> dict[SplitId, End]:
            return self._align(others(states), ends, others(orphans), others(held))

        if may_lag:
            if not limits.is_none:  # they may have been used up for records that have to wait
                waiting = {state.split.id for state in orphans}
                roots = [state for state in states if state.split.id not in waiting]
                planned, _ = without_orphans(states, self._plan_each(roots, limits))
            ends = align(self._align(states, align(planned), orphans, held, may_lag))
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
        """Without limits a batch ends at the tip, or near it if the split is busy and the query goes on."""
        if state.split.is_closed and not isinstance(state.target, After):
            state.begin_read()  # keeps the hint of when the split was caught up
            starts_at_time = isinstance(state.position, AtTime) and not self._probe.log.seeks_by_time
            is_wanted = (state.wants_first_record or starts_at_time) and not state.has_ended
            if is_wanted and not state.is_pushed:
                session.read_page(1)
            return Closed()  # nothing can follow the end of a closed split
        # A split with unread records has to be at its tip anew, or it would hold back others by its old one.
        is_stale = not state.cut_points or (self.max_drift is not None and state.reach is Reach.TIP)
        if state.is_due(self._clock()) and is_stale and state.reach is not Reach.TARGET:
            exact = limits.may_be_last or state.target is not None
            session.read_page(SMALL_PAGE, exact=exact)
            if state.cut_points and not state.is_exhausted:
                session.seek_to_tip(self._tip_at(limits), exact=exact)
        return state.cut_at(len(state.cut_points))

    def _tip_at(self, limits: Limits) -> int:
        """The instant (microseconds) that counts as the tip of a busy split."""
        return self._now() + (_CLOCK_DOUBT if limits.may_be_last else -_TIP_DELAY)

    def _reads_for_tip(self, state: SplitState) -> bool:
        """Whether `_plan_to_tip` may read the split, and not only look at what is known of it."""
        return not state.is_pushed and (state.split.is_closed or state.is_due(self._clock()))

    def _find_tip(self, session: ProbeSession, state: SplitState, until: int) -> End | None:
        if state.split.is_closed:
            return Closed()
        session.read_page(SAMPLE, exact=True, most_bytes=SAMPLE_BYTES)
        if state.cut_points and not state.is_exhausted:
            session.seek_to_tip(until, exact=True)
        return state.cut_at(len(state.cut_points))

    def _align(
        self,
        states: Sequence[SplitState],
        ends: dict[SplitId, End],
        orphans: Sequence[SplitState],
        held: Sequence[SplitState],
        may_lag: Collection[SplitId] = (),
    ) -> dict[SplitId, End]:
        """The ends moved back to where no record is left far behind.

        Args:
            orphans: those of `states` whose parents do not end in the batch.
            held: others that stay unread. Their records come after all records of their ancestors.
            may_lag: those of `orphans` and `held` that their ancestors may leave far behind. Their records
                count as if they had arrived no earlier than the latest of those.
        """
        waiting = {state.split.id: state for state in (*orphans, *held)}
        if self.max_drift is None and not waiting:
            return ends
        self._for_each([state for state in waiting.values() if not state.cut_points], self._find_first)
        exempt: Collection[SplitId] = ()
        unread = [*states, *held]
        if self.max_drift is None:
            # Only ancestors are exempt: their records come before those that wait.
            unread, exempt = list(waiting.values()), _ancestors(states, list(waiting.values()))
        not_before: Mapping[SplitId, int] = {}
        if may_lag:
            latest = _latest_of_ancestors(unread)
            not_before = {split: latest[split] for split in may_lag}
        cut_at: dict[SplitId, int] = {}  # by split, the bound that its end keeps to
        for attempt in itertools.count():
            bound = alignment_bound(unread, ends, self.max_drift, not_before)
            if bound is None or bound.instant >= self._now():
                break
            exceeding = {
                split: state
                for split, state in _exceeding(states, ends, bound, exempt).items()
                if cut_at.get(split, math.inf) > bound.instant
            }
            if not exceeding:
                break
            self._log_waiting(len(exceeding), bound)
            before, ends = ends, {split: end for split, end in ends.items() if split not in exceeding}
            if attempt < _MAX_CUTS:  # a split that cannot be cut stays where it is, and may hold back others
                moved = self._for_each(exceeding.values(), partial(self._end_by, bound.instant))
                ends |= {s.split.id: _earlier(end, before[s.split.id]) for s, end in moved if end is not None}
                cut_at |= dict.fromkeys(exceeding, bound.instant)
            ends, _ = without_orphans(states, ends)
        return ends

    def _find_first(self, session: ProbeSession, state: SplitState) -> None:
        if not state.is_exhausted and not state.is_pushed and state.is_due(self._clock()):
            session.read_page(1)

    def _end_by(self, bound: int, session: ProbeSession, state: SplitState) -> End | None:
        """The end of the records that arrived at `bound` (microseconds) or before."""
        count = state.count_before(bound + 1)
        is_known = count < len(state.cut_points) or (state.is_exhausted and not state.is_newly_closed)
        if state.is_pushed or (is_known and not state.has_gap):
            return state.cut_at(count)
        state.reset()
        session.seek_to_time(bound + 1, exact=True)
        if not state.cut_points and not state.is_exhausted:
            session.read_page(1, exact=True)  # it may have ended, and others may wait for that
        return _end_before(state, bound + 1)

    def _log_waiting(self, count: int, bound: Bound) -> None:
        now = self._clock()
        if now >= self._next_waiting_line:
            self._next_waiting_line = now + _WAITING_LINE_INTERVAL
            _log.info(
                "%s: its unread records hold back %d other shards: the batch takes from them only what "
                "arrived by %s; they go on when it does",
                bound.split,
                count,
                iso_instant(bound.instant),
            )

    def _plan_with_limits(
        self, states: Collection[SplitState], limits: Limits
    ) -> list[tuple[SplitState, End | None]]:
        """With limits, all splits advance to the same arrival time."""
        share = max(1, (limits.records or LARGEST_PAGE) // max(1, len(states)))
        self._for_each(states, partial(self._sample, share, limits))
        until = admission_end(limits, states, self._now())
        counts = {state.split.id: state.count_before(until) for state in states}
        admitted = admit(limits, states, counts)
        if admitted != counts:  # the known cut points exceed a limit already
            return [(state, state.cut_at(admitted[state.split.id])) for state in states]
        return self._for_each(states, lambda session, state: self._cut_before(session, state, until, limits))

    def _sample(self, share: int, limits: Limits, session: ProbeSession, state: SplitState) -> None:
        """Reads ahead until the density is known; often that serves several batches without another read."""
        if state.reach in (Reach.END, Reach.TARGET) or not state.is_due(self._clock()):
            return
        if state.cut_points and (state.reach is Reach.TIP or is_sampled(state, share)):
            return
        exact = limits.may_be_last or state.target is not None
        session.read_page(SAMPLE, exact=exact)
        if not is_sampled(state, share):
            session.read_page(LARGEST_PAGE, exact=exact)

    def _cut_before(
        self, session: ProbeSession, state: SplitState, until: int | None, limits: Limits
    ) -> End | None:
        """The end of the batch. Where its span is limited, no record may have arrived at or after `until`."""
        count = state.count_before(until)
        needs_no_seek = count < len(state.cut_points) or state.is_exhausted or state.is_pushed
        if needs_no_seek or not state.cut_points or state.failing_since is not None:
            return state.cut_at(count)
        exact = limits.may_be_last or state.target is not None
        if until is None:
            session.seek_to_tip(self._tip_at(limits), exact=exact)
        else:
            session.seek_to_time(until, exact=exact)
            is_strict = limits.span is not None
            if is_strict or not self._probe.log.seeks_by_time:  # then the session read on, maybe further
                return _end_before(state, until)
        return state.cut_at(len(state.cut_points))

    def _for_each(
        self,
        states: Collection[SplitState],
        work: Callable[[ProbeSession, SplitState], ResultT],
        *,
        may_read: Callable[[SplitState], bool] = lambda state: not state.is_pushed,
        leave_failing: bool = True,
    ) -> list[tuple[SplitState, ResultT | None]]:
        """Does `work` for all splits, side by side where it reads: 500 splits take about as long as 50.

        Args:
            may_read: whether the work of a split may read it.
            leave_failing: if the reads of a split fail, leave it where it is for now; its result is None.
                Otherwise, and where a run has to reach its target, they are repeated.
        """

        def run(state: SplitState) -> ResultT | None:
            session = self._probe.session(state)
            while True:
                begun_at = self._clock()
                try:
                    result = work(session, state)
                except ServiceError as error:
                    session.end()
                    if error.missing and not leave_failing:
                        raise
                    is_left = leave_failing and (state.target is None or error.missing)
                    self._tolerate(state, error, begun_at, is_left=is_left)
                    if is_left:
                        return None
                    session.back_off()  # the run would end if the split stayed where it is
                    continue
                session.end()
                if session.has_read:
                    state.mark_answered()
                return result

        reading = {state.split.id: state for state in states if may_read(state)}
        if len(reading) <= 1:  # one split needs no threads
            return [(state, run(state)) for state in states]
        results = self._pool.map(run, reading.values())  # begins at once; the others are done meanwhile
        done = {state.split.id: run(state) for state in states if state.split.id not in reading}
        done |= zip(reading, results, strict=True)
        return [(state, done[state.split.id]) for state in states]

    def _tolerate(self, state: SplitState, error: ServiceError, begun_at: float, *, is_left: bool) -> None:
        """Puts off the next read of a split; raises `error` if it will not pass, or has lasted too long.

        Args:
            begun_at: when the reads were begun that have failed (monotonic seconds).
            is_left: the batch goes on without the split.
        """
        if not (error.retryable or error.throttling or error.missing):
            raise error
        now = self._clock()
        next_read_at = now + _RETRY_PAUSE
        if error.throttling:
            state.mark_throttled(now, next_read_at)
        else:
            failing_for = state.mark_failed(now, next_read_at, is_missing=error.missing, begun_at=begun_at)
            is_awaited = error.missing and not self._fail_on_missing
            if failing_for > self._patience and not is_awaited:
                raise error
        what = "left out of this batch" if is_left else "the batch waits for it"
        _log.warning("%s: %s, next read in %d s: %s", state.split.id, what, _RETRY_PAUSE, error)


def _moves(states: Collection[SplitState], ends: Mapping[SplitId, End]) -> bool:
    """Whether a batch with these ends advances."""
    return any(ends.get(state.split.id) not in (None, state.position) for state in states)


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


def _has_record(state: SplitState) -> bool:
    """Whether the next record of a split is known."""
    return bool(state.cut_points) and not state.has_gap


def _with_descendants(states: Iterable[SplitState], is_wanted: Callable[[SplitState], bool]) -> set[SplitId]:
    """The ids of those splits, and of all that descend from them. Parents come before their children."""
    found: set[SplitId] = set()
    for state in states:
        if is_wanted(state) or not found.isdisjoint(state.split.parent_ids):
            found.add(state.split.id)
    return found


def _first_of(states: Sequence[SplitState]) -> dict[SplitId, End]:
    """The end after the earliest record known. A batch takes at least one record, even beyond its limits."""
    unread = {state.split.id for state in states}
    roots = [s for s in states if s.cut_points and not unread.intersection(s.split.parent_ids)]
    if not roots:
        return {}
    earliest = min(roots, key=lambda state: state.cut_points[0].arrival)
    end = earliest.cut_at(1)
    return {} if end is None else {earliest.split.id: end}


def _exceeding(
    states: Sequence[SplitState], ends: Mapping[SplitId, End], bound: Bound, exempt: Collection[SplitId]
) -> dict[SplitId, SplitState]:
    """The splits whose ends may be after records that arrived later than the bound."""
    return {
        state.split.id: state
        for state in states
        if (end := ends.get(state.split.id)) is not None
        and state.split.id not in exempt
        and exceeds(state, end, bound.instant)
    }


def _earlier(end: End, other: End) -> End:
    if isinstance(end, Closed) or (isinstance(other, After) and other.sequence < end.sequence):
        return other
    return end


def _ancestors(states: Sequence[SplitState], held: Sequence[SplitState]) -> frozenset[SplitId]:
    """The ids of all ancestors of `held`."""
    splits = {state.split.id: state.split for state in (*states, *held)}
    found: set[SplitId] = set()
    left = [parent for state in held for parent in state.split.parent_ids]
    while left:
        parent = left.pop()
        if parent in splits and parent not in found:
            found.add(parent)
            left += splits[parent].parent_ids
    return frozenset(found)


def _end_before(state: SplitState, instant: int) -> End | None:
    """The end after the last cut point that arrived before `instant`."""
    count = state.count_before(instant)
    if count < len(state.cut_points) and state.reach is not Reach.TARGET:
        end = before(state.cut_points[count].number)
        return end if isinstance(end, After) else None
    return state.cut_at(len(state.cut_points))
