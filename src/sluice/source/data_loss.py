"""Tells a gap that lost records from one that did not, and says what is to be done about it.

A service that is asked for a record it has trimmed starts silently at the oldest one it still has.
So whoever opens an iterator asks for the last record known and looks whether it is there. If it is
not, the hints in the offsets often prove that nothing was behind it; where they do not, records may
be lost, and that is said.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from sluice.errors import DataLossError, ServiceError
from sluice.source.offsets import After, AtTime, Position, iso_instant
from sluice.source.splits import SplitId
from sluice.source.stream_log import StreamLog

__all__ = ["DataLossPolicy"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataLossPolicy:
    """Raises DataLossError (``fail``) or logs it and lets the reader go on with what is there."""

    log: StreamLog
    fail: bool
    now: Callable[[], int]

    def report(self, what: str) -> None:
        """Records are lost, or cannot be proven not to be.

        Raises:
            DataLossError: when the query is to fail on data loss.
        """
        if self.fail:
            raise DataLossError(
                f"{what}. With option 'failOnDataLoss' false this is logged and the query goes on"
            )
        _log.warning("data loss, going on from what is there: %s", what)

    def missing_anchor(self, split: SplitId, position: After, found: int | None) -> None:
        """The record that `position` names is gone; `found` is the oldest number there is now, if any."""
        if self._is_proven_idle(split, position):
            return
        oldest = "the shard holds no record now" if found is None else f"the oldest record now is {found}"
        arrived = "" if position.arrival is None else f", which arrived {iso_instant(position.arrival)},"
        self.report(
            f"{split}: record {position.position_record}{arrived} is gone, and records after it may be: "
            f"{oldest} "
            "(the position is older than the stream's retention, or of another stream)"
        )

    def expired_start(self, split: SplitId, position: Position, quiet: int | None) -> None:
        """A start at an instant that the stream held when it was chosen, and no longer holds.

        Nothing is lost if nothing lay behind it at a later instant (`quiet`) that the stream holds.
        """
        if not isinstance(position, AtTime) or position.pinned is None:
            return
        retention = self._retention(split)
        held_then = position.instant > position.pinned - retention
        if held_then and max(position.known_idle, quiet or 0) < self.now() - retention:
            self.report(
                f"{split}: the start {iso_instant(position.instant)} is older than the stream's retention, "
                "and records from then on have expired unread"
            )

    def _is_proven_idle(self, split: SplitId, position: After) -> bool:
        """Whether whatever follows `position` arrived so late that it cannot have expired yet."""
        if position.arrival is None or position.idle is None:
            return False
        horizon = self.now() - self._retention(split)
        # A record that should still be there but is not speaks against all that the hints prove.
        return position.arrival < horizon < position.idle

    def _retention(self, split: SplitId) -> int:
        try:
            return int(self.log.describe(split.stream).retention * 1_000_000)
        except ServiceError as error:
            if error.missing:
                return 0
            raise
