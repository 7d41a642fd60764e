"""Decides whether a gap lost records, and what is done about a loss (option ``failOnDataLoss``).

Kinesis does not refuse an iterator for a record that has expired: it starts silently at the oldest record it
still has. A reader therefore asks for a record that it knows, and checks that this record comes first. If
the record is missing, hints in the offsets often prove that no record followed it; where they do not,
records may be lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from sluice.errors import DataLossError, ServiceError
from sluice.instants import MICROS_PER_SECOND, iso_instant
from sluice.source.offsets import After, AtTime, Position
from sluice.source.splits import SplitId
from sluice.source.stream_log import StreamLog

__all__ = ["DataLossPolicy"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataLossPolicy:
    """Raises `DataLossError` for a loss, or logs it and lets the reader go on with the oldest record.

    Attributes:
        log: asked for the retention of streams.
        fail: whether a loss is an error.
        now: the time by the service's clock (microseconds).
    """

    log: StreamLog
    fail: bool
    now: Callable[[], int]

    def report(self, what: str) -> None:
        """Records are lost, or cannot be proven not to be.

        Raises:
            DataLossError: the query has to fail on data loss.
        """
        if self.fail:
            raise DataLossError(
                f"{what}. With option 'failOnDataLoss' false this is logged and the query goes on"
            )
        _log.warning("data loss, reading on from the oldest record: %s", what)

    def report_missing_record(self, split: SplitId, position: After, found: int | None) -> None:
        """Reports that the record which `position` names is gone, unless no record can have followed it.

        Args:
            found: the oldest sequence number there is now; None where the split holds no record.

        Raises:
            DataLossError: as in `report`.
        """
        if self._cannot_have_lost(split, position):
            return
        oldest = "the shard holds no record now" if found is None else f"the oldest record now is {found}"
        arrived = "" if position.arrival is None else f", which arrived {iso_instant(position.arrival)},"
        self.report(
            f"{split}: record {position.position_record}{arrived} is gone, and records after it may be: "
            f"{oldest} (the position is older than the stream's retention, or of another stream)"
        )

    def check_start(self, split: SplitId, position: Position, caught_up_at: int | None) -> None:
        """Reports a start at an instant that the stream held when it was chosen, and does not hold now.

        Args:
            caught_up_at: a later instant (microseconds) at which no record followed `position`. No record
                is lost if the stream still holds that instant.

        Raises:
            DataLossError: as in `report`.
        """
        if not isinstance(position, AtTime) or position.pinned is None:
            return
        retention = self._retention(split)
        was_held = position.instant > position.pinned - retention
        if was_held and max(position.last_caught_up_at, caught_up_at or 0) < self.now() - retention:
            self.report(
                f"{split}: the start {iso_instant(position.instant)} is older than the stream's retention, "
                "and records from then on have expired unread"
            )

    def _cannot_have_lost(self, split: SplitId, position: After) -> bool:
        """Whether every record after `position` arrived so late that it cannot have expired yet."""
        if position.arrival is None or position.caught_up_at is None:
            return False
        horizon = self.now() - self._retention(split)
        # A record that is gone although it cannot have expired contradicts the hints: they prove nothing.
        return position.arrival < horizon < position.caught_up_at

    def _retention(self, split: SplitId) -> int:
        """For how long the stream keeps records (microseconds)."""
        try:
            return int(self.log.describe(split.stream).retention * MICROS_PER_SECOND)
        except ServiceError as error:
            if error.missing:
                return 0
            raise
