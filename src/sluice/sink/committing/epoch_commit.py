"""Commits or aborts an epoch of a two-phase destination, on the driver (FLIP-143).

The order of the calls makes a commit exact: whether an earlier run committed the epoch is found out before
anything is made visible, and the rows that the new run wrote are then aborted.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from sluice.errors import CommitError, SluiceError
from sluice.retry import Backoff, Retrier
from sluice.sink.contracts import Committer, CommittingDestination, Epoch, GlobalCommitter
from sluice.sink.reporting.figures import SinkFigures, own_figures
from sluice.sink.user_code.loading import adopted, destination_name, run
from sluice.sink.user_code.mistakes import checked_items

__all__ = ["EpochCommit", "is_committing", "other_content"]

CommT = TypeVar("CommT")

_log = logging.getLogger(__name__)

# One retry only: Spark reports why the query failed after the abort, and `clean_up` of the next run removes
# the remains.
_ABORT_RETRIES: Final = Backoff(max_retries=1, base=0.5, max=0.5, exponent=1.0)
_REMEMBERED: Final = 64
_last_committed: Final[OrderedDict[str, int]] = OrderedDict()
"""The last batch that this process has committed, of the newest runs."""


def other_content(batch: str, query: str | None) -> str:
    """What is wrong when a batch is committed already, with other rows, and what helps."""
    return (
        f"{batch} of query {query} was committed before, with other contents: the checkpoint is older than "
        "what was written, because it was restored or copied, or files of it were deleted. Nothing was "
        "written or removed. Start the query with the newest checkpoint, or with a new 'checkpointLocation' "
        "and a starting position after what was written"
    )


def is_committing(destination: object) -> bool:
    """Whether a destination, or its class, is a `CommittingDestination`: it can create a committer."""
    return any(hasattr(destination, name) for name in ("create_committer", "create_global_committer"))


class EpochCommit:
    """Commits or aborts one epoch of a two-phase destination. Closes each committer in any case.

    Attributes:
        figures: of the committers that were closed, in `SinkFigures.destination`.

    Args:
        destination: creates the committers.
        epoch: None if no task has succeeded: then the driver does not know which epoch it is.
        retrier: how pauses are waited out; replaced in tests.
        backoff: how a commit is repeated: for `maxRetryDuration`.
    """

    def __init__(
        self,
        destination: CommittingDestination[Any],
        epoch: Epoch | None,
        *,
        retrier: Retrier | None = None,
        backoff: Backoff,
    ) -> None:
        self._name = destination_name(destination)
        self._destination: CommittingDestination[Any] = adopted(destination, CommittingDestination)
        self._epoch = epoch
        self._retrier = retrier or Retrier()
        self._backoff = backoff
        self.figures = SinkFigures()

    def commit(self, committables: Sequence[Any]) -> None:
        """Commits what the tasks of the epoch have written.

        If an earlier run committed this epoch, `committables`, which hold the same rows, are aborted. Without
        committables no committer is made. In a batch write, `GlobalCommitter.end_of_input` is called at the
        end, also without committables.

        Raises:
            CommitError: the epoch is not committed; with the reason. A restart of the query commits it again.
        """
        if self._epoch is None:
            if committables:
                raise CommitError(f"{self._name}: committables of an unknown epoch")
            return
        create, create_global = self._destination.create_committer, self._destination.create_global_committer
        is_end_of_input = self._epoch.batch is None or self._epoch.is_transaction
        committer = global_committer = None
        with contextlib.ExitStack() as stack:
            if committables:
                self._call(lambda: run(self._destination.check))
                committer = self._open(stack, create, self._epoch, Committer)
            if committables or is_end_of_input:
                global_committer = self._open(stack, create_global, self._epoch, GlobalCommitter)
            if committables:
                self._commit_committables(committer, global_committer, committables)
            if is_end_of_input and global_committer is not None:
                self._call(lambda: run(global_committer.end_of_input))
        if self._epoch.batch is not None:
            _last_committed[self._epoch.run] = self._epoch.batch
            if len(_last_committed) > _REMEMBERED:
                _last_committed.popitem(last=False)
        self._clean_up(self._epoch, committed=True)

    def abort(self, committables: Sequence[Any]) -> None:
        """Removes what the tasks of the epoch have written. May be called several times.

        Raises:
            CommitError: not everything is removed; with the reason.
        """
        if self._epoch is None:
            return
        try:
            if committables:
                with contextlib.ExitStack() as stack:
                    create = self._destination.create_committer
                    committer = self._open(stack, create, self._epoch, Committer, abort=True)
                    if committer is not None:
                        self._call(lambda: run(committer.abort, committables), abort=True)
        finally:
            self._clean_up(self._epoch, committed=False)

    def _open(
        self,
        stack: contextlib.ExitStack,
        create: Callable[[Epoch], Any],
        epoch: Epoch,
        base: type[Any],
        *,
        abort: bool = False,
    ) -> Any:
        """A new committer, with its defaults, which `stack` closes; None if the destination has none."""
        created = self._call(lambda: create(epoch), abort=abort)
        if created is None:
            return None
        committer = adopted(created, base)
        stack.callback(self._close, committer)
        return committer

    def _close(self, committer: Committer[Any] | GlobalCommitter[Any, Any]) -> None:
        self.figures.merge(SinkFigures(destination=own_figures(committer, self._name)))
        try:
            run(committer.close)
        except Exception as error:  # noqa: BLE001 - whether the epoch is committed is decided already
            _log.warning("%s: %s: a committer could not be closed: %s", self._name, self._described, error)

    def _commit_committables(
        self,
        committer: Committer[Any] | None,
        global_committer: GlobalCommitter[Any, Any] | None,
        committables: Sequence[Any],
    ) -> None:
        if committer is None and global_committer is None:
            raise CommitError(f"{self._name}: {self._described} cannot be committed: it has no committer")
        combined: Sequence[Any] = ()
        if global_committer is not None:
            epoch = self._call(lambda: global_committer.combine(committables))
            find_new = global_committer.filter_recovered_committables
            combined = self._call(lambda: checked_items(find_new([epoch]), "filter_recovered_committables"))
            if not combined:
                self._refuse_impossible_repetition()
                _log.warning(
                    "%s: %s had been committed before the restart; removing the rows that were written again",
                    self._name,
                    self._described,
                )
                if committer is not None:
                    self._call(lambda: run(committer.abort, committables))
                return
        if committer is not None:
            self._commit_all(committer.commit, committables)
        if global_committer is not None:
            self._commit_all(global_committer.commit, combined)

    def _refuse_impossible_repetition(self) -> None:
        """Only the first batch of a run can have been committed by an earlier run.

        Raises:
            CommitError: this is not the first batch that this process commits of the run.
        """
        epoch = self._epoch
        if epoch is None or epoch.batch is None:
            return
        if _last_committed.get(epoch.run, epoch.batch) < epoch.batch:
            raise CommitError(other_content(self._described, epoch.query))

    def _commit_all(
        self, commit: Callable[[Sequence[CommT]], Sequence[CommT]], committables: Sequence[CommT]
    ) -> None:
        """Calls `commit` until it returns nothing to try again."""
        left = committables

        def attempt() -> None:
            nonlocal left
            # Without a `return` nothing is left.
            found = commit(left)
            left = () if found is None else checked_items(found, "commit")
            if left:
                raise SluiceError(
                    f"{len(left)} of {len(committables)} committables are not committed", retryable=True
                )

        self._call(attempt)

    def _call(self, function: Callable[[], CommT], *, abort: bool = False) -> CommT:
        attempts = 0

        def attempt() -> CommT:
            nonlocal attempts
            attempts += 1
            return function()

        try:
            return self._retrier.call(_ABORT_RETRIES if abort else self._backoff, attempt)
        except SluiceError as error:
            tried = f" after {attempts} attempts" if error.retryable else ""
            outcome = "aborted" if abort else "committed"
            raise CommitError(
                f"{self._name}: {self._described} could not be {outcome}{tried}: {error}"
            ) from None

    def _clean_up(self, epoch: Epoch, *, committed: bool) -> None:
        try:
            run(self._destination.clean_up, epoch, committed=committed)
        except Exception as error:  # noqa: BLE001 - remains are invisible, and removed by a later epoch
            _log.warning(
                "%s: %s: what failed attempts have left behind could not be removed; "
                "the next commit or abort tries again: %s",
                self._name,
                self._described,
                error,
            )

    @property
    def _described(self) -> str:
        batch = self._epoch.batch if self._epoch else None
        return "the batch write" if batch is None else f"batch {batch}"
