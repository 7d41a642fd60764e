"""Committing an epoch on the driver: what is called, in which order and how often, and how it fails.

The order makes a commit exact: an epoch that an earlier run sealed is recognised before anything is made
visible, so what a restart has written again is undone instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from sluice.errors import CommitError, SluiceError
from sluice.retry import Backoff, Retrier
from sluice.sink.contracts import Committer, CommittingDestination, Epoch, GlobalCommitter

__all__ = ["EpochCommit", "is_committing"]

CommT = TypeVar("CommT")

_log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(max_retries=7, base=0.5, max=10.0, exponent=2.0)
# Spark waits for it to say why the query failed, and what is left over is removed after the next restart.
_ABORTING: Final = Backoff(max_retries=1, base=0.5, max=0.5, exponent=1.0)
_FACTORIES: Final = ("create_committer", "create_global_committer")


def is_committing(destination: object) -> bool:
    """Whether a destination, or its class, is two-phase: `CommittingDestination` says what makes it so."""
    return any(hasattr(destination, factory) for factory in _FACTORIES)


class EpochCommit:
    """Commits or aborts one epoch of a two-phase destination.

    Args:
        destination: makes the committers.
        epoch: which it is; None where no task has told, because none came to its end.
        retrier: how pauses are waited out; replaced in tests.
        backoff: how often a commit is tried, and the pauses.
    """

    def __init__(
        self,
        destination: CommittingDestination[Any],
        epoch: Epoch | None,
        *,
        retrier: Retrier | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._destination = destination
        self._epoch = epoch
        self._retrier = retrier or Retrier()
        self._backoff = backoff or _BACKOFF
        self._name = str(getattr(destination, "name", "") or type(destination).__name__)

    def commit(self, committables: Sequence[Any]) -> bool:
        """Commits what the tasks of the epoch have left.

        An epoch without committables is over without a commit. In a batch write the global committer is
        then told that there will be no more.

        Returns:
            False if an earlier run had committed this epoch: then `committables`, which hold the same rows,
            were aborted.

        Raises:
            CommitError: the epoch is not committed, and why. It has to be tried again by a restart.
        """
        if self._epoch is None:
            if committables:
                raise CommitError(f"{self._name}: committables of an unknown epoch")
            return True
        committer, sealing = self._committers(self._epoch)
        is_new = self._seal(committer, sealing, committables) if committables else True
        if self._epoch.batch is None and sealing is not None:
            self._call(sealing.end_of_input)
        self._clean_up(committed=True)
        return is_new

    def abort(self, committables: Sequence[Any]) -> None:
        """Undoes what is left of an epoch that is not to be committed; safe to be called again.

        Raises:
            CommitError: something of it is left, and why.
        """
        if self._epoch is None:
            return
        committer, _ = self._committers(self._epoch)
        try:
            if committer is not None and committables:
                self._call(lambda: committer.abort(committables), _ABORTING)
        finally:
            self._clean_up(committed=False)

    def _committers(self, epoch: Epoch) -> tuple[Committer[Any] | None, GlobalCommitter[Any, Any] | None]:
        made = [getattr(self._destination, factory, None) for factory in _FACTORIES]
        committer, sealing = (factory(epoch) if factory is not None else None for factory in made)
        return committer, sealing

    def _seal(
        self,
        committer: Committer[Any] | None,
        sealing: GlobalCommitter[Any, Any] | None,
        committables: Sequence[Any],
    ) -> bool:
        if sealing is not None:
            whole = [sealing.combine(committables)]
            if not self._call(lambda: sealing.filter_recovered_committables(whole)):
                _log.warning("%s: %s had been committed before; its rows are not written again", *self._about)
                if committer is not None:
                    self._call(lambda: committer.abort(committables))
                return False
        if committer is not None:
            self._commit_all(committer.commit, committables)
        if sealing is not None:
            self._commit_all(sealing.commit, whole)
        return True

    def _commit_all(
        self, commit: Callable[[Sequence[CommT]], Sequence[CommT]], all_: Sequence[CommT]
    ) -> None:
        """Calls `commit` until it gives nothing back."""
        left = all_

        def attempt() -> None:
            nonlocal left
            left = commit(left)
            if left:
                raise SluiceError(
                    f"{len(left)} of {len(all_)} committables are not committed", retryable=True
                )

        self._call(attempt)

    def _call(self, function: Callable[[], CommT], backoff: Backoff | None = None) -> CommT:
        backoff = backoff or self._backoff
        try:
            return self._retrier.call(backoff, function)
        except SluiceError as error:
            tries = f" after {backoff.max_retries + 1} attempts" if error.retryable else ""
            destination, epoch = self._about
            doing = "aborted" if backoff is _ABORTING else "committed"
            raise CommitError(f"{destination}: {epoch} could not be {doing}{tries}: {error}") from None

    def _clean_up(self, *, committed: bool) -> None:
        clean_up = getattr(self._destination, "clean_up", None)
        if clean_up is None:
            return
        try:
            clean_up(self._epoch, committed=committed)
        except Exception as error:  # noqa: BLE001 - what is left over is invisible; the next run tries again
            _log.warning("%s: remains of failed attempts around %s stay: %s", *self._about, error)

    @property
    def _about(self) -> tuple[str, str]:
        batch = self._epoch.batch if self._epoch else None
        return self._name, "the batch write" if batch is None else f"batch {batch}"
