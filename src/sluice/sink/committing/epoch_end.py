"""The end of an epoch, on the driver: commits or aborts what the tasks have written, and reports figures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from sluice.errors import CommitError
from sluice.letterboxes import post
from sluice.retry import patient
from sluice.sink.committing.epoch_commit import EpochCommit
from sluice.sink.contracts import Epoch, Origin
from sluice.sink.reporting.figures import SinkFigures
from sluice.sink.reporting.progress import ProgressListener, SinkProgress
from sluice.sink.setup import CommittingSinkSetup, SinkSetup
from sluice.sink.user_code.loading import run

__all__ = ["Outcome", "TaskResult", "end_epoch", "needs_setup"]

Outcome = Literal["committed", "aborted"]

_LOGGER: Final = "sluice.sink"  # documented: users may filter by it
_log = logging.getLogger(_LOGGER)


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """What one task wrote; plain data, which Spark brings to the driver.

    Attributes:
        origin: the task.
        figures: of its writer. A two-phase destination has records, bytes and its own figures.
        duration: seconds from the first row to the last acknowledgement.
        limit: entries (for `kinesis` with ``aggregate=true``: aggregates) that the rate limiting strategy
            lets be in flight now; None if it has no number for it.
        rate: entries a second that the strategy has learnt, or is set to; None if it has no rate, as with
            `tokenBucketScope=query`.
        committables: of a two-phase destination: what makes the task's rows visible.
    """

    origin: Origin
    figures: SinkFigures
    duration: float = 0.0
    limit: int | None = None
    rate: float | None = None
    committables: tuple[Any, ...] = ()


def needs_setup(setup: SinkSetup) -> bool:
    """Whether the end of an epoch needs the setup, for committers or a listener.

    Without either the driver reads no options at a commit, and does not import the destination.
    """
    return isinstance(setup, CommittingSinkSetup) or setup.load_listener is not None


def end_epoch(
    setup: SinkSetup | None,
    outcome: Outcome,
    results: Sequence[TaskResult | None],
    *,
    write_id: str,
    batch_id: int | None,
) -> None:
    """Commits or aborts an epoch, logs one line of figures, and calls the progress listener.

    Args:
        setup: None if it is not needed, see `needs_setup`.
        outcome: what Spark asks for.
        results: of the tasks; None for a task that failed.
        write_id: the id of a batch write.
        batch_id: the id of the micro-batch; None in a batch write.

    Raises:
        CommitError: the epoch is not committed, or not everything of it is removed.
    """
    done = [result for result in results if result is not None]
    figures = SinkFigures()
    if isinstance(setup, CommittingSinkSetup):
        epoch = _epoch(setup, done, write_id, batch_id)
        commit = EpochCommit(setup.destination, epoch, backoff=patient(setup.max_retry_duration))
        committables = [committable for result in done for committable in result.committables]
        if outcome == "committed":
            commit.commit(committables)
        else:
            commit.abort(committables)
        figures = commit.figures
    try:
        progress = _sum(figures, outcome, batch_id, done, failed_tasks=len(results) - len(done))
        # A warning for an abort: rows that the destination has acknowledged stay there and are written again.
        _log.log(logging.INFO if outcome == "committed" else logging.WARNING, "%s", progress.line)
        post(lambda: {"kind": "sink", **asdict(progress)})
        if setup is not None and setup.load_listener is not None:
            _call_listener(setup.load_listener, progress)
    except Exception:  # noqa: BLE001 - the epoch has ended: an error here would make Spark abort it
        _log.exception("batch %s is %s; its figures are lost", batch_id, outcome)


def _epoch(
    setup: CommittingSinkSetup, done: Sequence[TaskResult], write_id: str, batch_id: int | None
) -> Epoch | None:
    """The epoch; None if no task has succeeded. Spark tells the query's id to the tasks only."""
    if batch_id is None:
        if setup.transaction is None:
            return Epoch(None, write_id, None)
        application, version = setup.transaction
        return Epoch(application, write_id, version, is_transaction=True)
    if any(result.origin.query is None for result in done):
        raise CommitError(f"batch {batch_id}: its tasks did not learn from Spark which query it belongs to")
    origin = next((result.origin for result in done), None)
    if origin is None:
        return None
    return Epoch(origin.query, origin.run, batch_id, setup.content(batch_id))


def _sum(
    figures: SinkFigures,
    outcome: Outcome,
    batch_id: int | None,
    done: Sequence[TaskResult],
    *,
    failed_tasks: int,
) -> SinkProgress:
    """The figures of the committers, and of all tasks."""
    rates = [result.rate for result in done if result.rate is not None]
    for result in done:
        figures.merge(result.figures)
    return SinkProgress(
        outcome=outcome,
        destination=done[0].origin.destination if done else None,
        query_id=done[0].origin.query if done else None,
        batch_id=batch_id,
        tasks=len(done),
        failed_tasks=failed_tasks,
        duration=max((result.duration for result in done), default=0.0),
        limit=min((result.limit for result in done if result.limit is not None), default=None),
        rate=round(sum(rates), 1) if rates else None,
        **figures.summary(),
    )


def _call_listener(load: Callable[[], ProgressListener], progress: SinkProgress) -> None:
    try:
        run(load(), progress)
    except (Exception, SystemExit):  # noqa: BLE001 - the epoch has ended, even if the listener fails
        _log.exception(
            "%s, batch %s: what option 'progressListener' names has failed; the epoch stays %s",
            progress.destination,
            progress.batch_id,
            progress.outcome,
        )
