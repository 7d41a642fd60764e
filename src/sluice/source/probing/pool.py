"""Probes many splits in parallel, and decides whether a failed read is repeated, skipped or raised."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from sluice.errors import ServiceError
from sluice.source.model.splits import SplitId
from sluice.source.probing.probe import Probe
from sluice.source.probing.session import ProbeSession
from sluice.source.state.split_state import SplitState

__all__ = ["ProbePool"]

_log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
Work = Callable[[ProbeSession, SplitState], ResultT | None]


def _is_probed(state: SplitState) -> bool:
    return not state.is_pushed


def _nothing(_state: SplitState) -> None:
    return None


class ProbePool:
    """The planner's threads: reading 500 splits takes about as long as 50.

    Args:
        threads: number of splits that are probed in parallel.
        patience: how long the reads of one split may fail with retryable errors (seconds).
        awaits_missing: whether to wait without limit for a split that the service does not know.
    """

    def __init__(self, probe: Probe, threads: int, patience: float, *, awaits_missing: bool) -> None:
        self._probe = probe
        self._patience = patience
        self._awaits_missing = awaits_missing
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="sluice-planner")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def map(self, work: Callable[[SplitId], ResultT], splits: Iterable[SplitId]) -> Iterable[ResultT]:
        """Like the function `map`, in parallel."""
        return self._threads.map(work, splits)

    def for_each(
        self,
        states: Collection[SplitState],
        work: Work[ResultT],
        may_read: Callable[[SplitState], bool] = _is_probed,
        *,
        known: Callable[[SplitState], ResultT | None] = _nothing,
        may_be_last: bool = False,
    ) -> dict[SplitId, ResultT]:
        """Does `work` for all splits. If the reads of a split fail, it does not advance now, and has no
        result.

        If a run has to reach its target, reads are repeated, unless the split is missing.

        Args:
            may_read: whether the work of a split may read it.
            known: makes the result for a throttled split from its known records.
            may_be_last: as in `Limits`. Reads are repeated.

        Returns:
            By split, the results that are not None.

        Raises:
            DataLossError: records after a position are lost, and ``failOnDataLoss`` is true.
            ServiceError: the reads of a split have failed for longer than `patience`.
        """
        return self._side_by_side(states, partial(self._probe_split, work, known, may_be_last), may_read)

    def for_all(self, states: Collection[SplitState], work: Work[ResultT]) -> dict[SplitId, ResultT]:
        """As `for_each`, but failed reads are repeated until every split has its result.

        Raises:
            DataLossError, ServiceError: as `for_each`; also if a split is missing.
        """
        return self._side_by_side(states, partial(self._probe_split, work, None, True), _is_probed)

    def _side_by_side(
        self,
        states: Collection[SplitState],
        run: Callable[[SplitState], ResultT | None],
        may_read: Callable[[SplitState], bool],
    ) -> dict[SplitId, ResultT]:
        reading = {state.split.id: state for state in states if may_read(state)}
        if len(reading) <= 1:  # one split needs no threads
            done = {state.split.id: run(state) for state in states}
        else:
            results = self._threads.map(run, reading.values())  # begins at once
            done = {state.split.id: run(state) for state in states if state.split.id not in reading}
            done |= zip(reading, results, strict=True)
        return {split: result for split, result in done.items() if result is not None}

    def _probe_split(
        self,
        work: Work[ResultT],
        known: Callable[[SplitState], ResultT | None] | None,
        is_awaited: bool,
        state: SplitState,
    ) -> ResultT | None:
        is_awaited |= state.target is not None
        session = ProbeSession(self._probe, state, self._patience, is_awaited=is_awaited)
        try:
            return work(session, state)
        except ServiceError as error:
            will_pass = session.will_pass(error) or (error.missing and self._awaits_missing)
            if known is None or not will_pass:
                raise
            what = "the batch takes only its known records" if error.throttling else "left out of this batch"
            _log.warning("%s: %s: %s", state.split.id, what, error)
            return known(state) if error.throttling else None
        finally:
            session.end()
