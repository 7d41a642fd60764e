"""Decides whether a gap lost records, and whether a loss fails the query (option ``failOnDataLoss``).

If a record has expired, Kinesis accepts an iterator for it and silently starts at the oldest remaining
record. So a reader requests a known record, and checks that it comes first. If it is missing, hints in
the offsets often prove that no record followed it. Otherwise records may be lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.errors import DataLossError, ServiceError
from sluice.instants import MICROS_PER_SECOND, iso_instant
from sluice.source.logs.stream_log import IteratorStart, StreamLog
from sluice.source.model.offsets import After, AtHorizon, AtTime, Expiry, Position, expected_record
from sluice.source.model.splits import SplitId

__all__ = ["DataLossPolicy"]

_log = logging.getLogger(__name__)

_START_GRACE = 3600 * MICROS_PER_SECOND
"""For how long after the start of a query expired records are no loss (microseconds).

A query that starts at the oldest record may lose it while it is being planned.
"""


@dataclass(frozen=True)
class DataLossPolicy:
    """Raises `DataLossError` for a loss, or logs it and lets the reader resume at the oldest record.

    Attributes:
        fail: whether a loss is an error.
        now: the time by the service's clock (microseconds).
        expiry: by stream, which records had expired at some earlier time.
        source: name of the source, for errors.
    """

    log: StreamLog
    fail: bool
    now: Callable[[], int]
    expiry: dict[str, Expiry] = field(default_factory=dict)
    source: str = ""

    def report(self, what: str) -> None:
        """Reports that records are lost, or may be.

        Raises:
            DataLossError: `fail` is true.
        """
        what = f"source {self.source}: {what}" if self.source else what
        if self.fail:
            raise DataLossError(
                f"{what}. With option 'failOnDataLoss' false this is logged and the query continues"
            )
        _log.warning("data loss, continuing at the oldest record: %s", what)

    def report_recreated(self, stream: str, before: int, now: int) -> None:
        """Reports that a stream has replaced another one of the same name.

        Args:
            before, now: when the old and the new stream were created (microseconds).

        Raises:
            DataLossError: as in `report`.
        """
        self.report(
            f"stream {stream} was deleted and created again since the last batch: the checkpoint belongs to "
            f"the stream created {iso_instant(before)}, and the current one was created "
            f"{iso_instant(now)}"
        )

    def report_missing_record(self, split: SplitId, position: After | AtHorizon, found: str | None) -> None:
        """Reports that the record which `position` names is missing, unless no record can have followed it.

        Args:
            found: the oldest existing sequence number; None if the split holds no record.

        Raises:
            DataLossError: as in `report`.
        """
        if self._cannot_have_lost(split, position):
            return
        shown = self.log.format_position
        gone = shown(expected_record(position) or "")
        oldest = f"the oldest record now is {shown(found)}" if found else "it holds no record now"
        arrival = position.arrival if isinstance(position, After) else None
        arrived = "" if arrival is None else f", which arrived {iso_instant(arrival)},"
        self.report(
            f"{self.log.split_name} {split}: record {gone}{arrived} is gone, and records after it may be: "
            f"{oldest} (the position is older than the stream's retention, or of another stream)"
        )

    def check_start(self, split: SplitId, position: Position, caught_up_at: int | None) -> None:
        """Reports a start from which records may have expired unread, if no record proves the opposite.

        Args:
            caught_up_at: an instant (microseconds) at which no record followed `position`. No record is
                lost if the stream still holds that instant.

        Raises:
            DataLossError: as in `report`.
        """
        match position:
            case AtTime(instant=instant, pinned=int(pinned), number=None):
                was_held = instant > pinned - self._expiry(split).retention
                start = f"the start {iso_instant(instant)}"
            case AtHorizon(next=None):
                was_held, start = True, "the start TRIM_HORIZON, last checked "
            case _:
                return
        known = max((at for at in (position.last_caught_up_at, caught_up_at) if at is not None), default=None)
        if was_held and known is not None and known < self._expiry(split).horizon:
            checked = iso_instant(known) + "," if isinstance(position, AtHorizon) else ""
            self.report(
                f"{split}: {start}{checked} is older than the stream's retention, and records from then on "
                "may have expired unread"
            )

    def observe(self, stream: str, retention: int, logged: Expiry | None) -> Expiry:
        """Updates the expiry of a stream's records.

        Args:
            retention: the current retention (microseconds).
            logged: the expiry when the positions were logged; used if nothing is known yet.
        """
        known = self.expiry.get(stream) or logged or Expiry(retention, 0)
        self.expiry[stream] = known.at(self.now(), retention)
        return self.expiry[stream]

    def _expiry(self, split: SplitId) -> Expiry:
        """Returns the expiry that the planner recorded with the listing or the range.

        A task does not know the service's time yet, and its own clock may be wrong.
        """
        noted = self.expiry.get(split.stream)
        if noted is not None:
            return noted
        try:
            retention = int(self.log.describe(split.stream).retention * MICROS_PER_SECOND)
        except ServiceError as error:
            if not error.missing:
                raise
            retention = 0
        return Expiry(retention, 0).at(self.now(), retention)

    def _cannot_have_lost(self, split: SplitId, position: After | AtHorizon) -> bool:
        """Whether every record after `position` arrived so late that it cannot have expired yet."""
        if isinstance(position, AtHorizon):
            is_start = position.pinned is not None and position.caught_up_at is None
            return is_start and self.now() - (position.pinned or 0) <= _START_GRACE
        unread = IteratorStart("AFTER_SEQUENCE_NUMBER", position.number)
        if position.sub is None and self.log.is_complete_from(split, unread):
            return True
        if position.arrival is None or position.caught_up_at is None:
            return False
        horizon = self._expiry(split).horizon
        # A record that is missing although it cannot have expired contradicts the hints: they prove
        # nothing.
        return position.arrival < horizon < position.caught_up_at
