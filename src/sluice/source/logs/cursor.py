"""Reads a split from a position: opens and re-opens iterators, and checks that they start there.

Planner and tasks both read through a `Cursor`, so both notice if the records at the position have
expired.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from sluice.errors import ServiceError
from sluice.source.logs.data_loss import DataLossPolicy
from sluice.source.logs.stream_log import AnyRecord, IteratorStart, Page, StreamLog
from sluice.source.model.offsets import After, AtHorizon, AtTime, Closed, Position, expected_record
from sluice.source.model.positions import sequence_of
from sluice.source.model.splits import SplitId

__all__ = ["Cursor", "iterator_start"]

_log = logging.getLogger(__name__)


def iterator_start(position: Position) -> IteratorStart:
    """Returns where to open an iterator that begins with the record which `position` names, if it still
    exists.
    """
    match position:
        case After():
            return IteratorStart("AT_SEQUENCE_NUMBER", sequence_number=position.position_record)
        case AtTime(number=str(number)):
            return IteratorStart("AT_SEQUENCE_NUMBER", sequence_number=number)
        case AtTime():
            return IteratorStart("AT_TIMESTAMP", timestamp=position.instant)
        case AtHorizon() | Closed():
            return IteratorStart("TRIM_HORIZON")


class Cursor:
    """A place in a split. It advances with every page.

    Attributes:
        position: all records before it have been returned, or were read before.

    Args:
        data_loss: notified if the record that the position names is missing.
    """

    def __init__(self, log: StreamLog, data_loss: DataLossPolicy, split: SplitId, position: Position) -> None:
        self.split = split
        self.position = position
        self._log = log
        self._data_loss = data_loss
        self._iterator: str | None = None
        # Whether the record that the position names has been seen where it has to be.
        self._is_verified = expected_record(position) is None
        self._has_doubted = False  # about the first page of the iterator

    def next_page(self, limit: int) -> Page:
        """Reads the next page, without records before the position. The page may be empty.

        Args:
            limit: number of records to request.

        Raises:
            DataLossError: records after the position are lost, and ``failOnDataLoss`` is true.
            ServiceError: the call failed, and retries did not help.
        """
        asked_at = self._log.server_time()
        page = self._read(limit) or self._read(limit)  # again, through a new iterator
        if page is None:
            raise ServiceError(
                f"GetRecords of {self.split}: a new iterator has expired at once",
                operation="GetRecords",
                target=str(self.split),
                retryable=True,
                expired_iterator=True,
            )
        if self._is_doubtful(page):
            self._has_doubted = True
            return replace(page, millis_behind=max(1, page.millis_behind))
        self._check_start(page)
        is_tip = page.millis_behind == 0 and len(page.records) < limit and page.next_iterator is not None
        unread = self._take(page)
        if is_tip and isinstance(self.position, After):
            # The answer may describe any moment since the request.
            self.position = replace(self.position, caught_up_at=asked_at)
        return unread

    @property
    def is_pushed(self) -> bool:
        """Whether the service pushes pages. If so, no pause is needed between two pages."""
        return False

    def close(self) -> None:
        """Releases the service's resources for this cursor."""

    def at(self, position: Position) -> Cursor:
        """Returns a new cursor of the same split at another position. It polls."""
        return Cursor(self._log, self._data_loss, self.split, position)

    def reopen(self) -> None:
        """Drops the iterator; the next page is read through a new one."""
        self._iterator = None

    def _read(self, limit: int) -> Page | None:
        """Returns one page; None if another iterator is needed."""
        is_new = self._iterator is None
        if self._iterator is None:
            self._iterator = self._open()
            self._has_doubted = False
            self._is_verified = expected_record(self.position) is None
            if self._iterator is None:
                return Page((), None, 0)
        try:
            page = self._log.get_records(self.split, self._iterator, limit)
        except ServiceError as error:
            # A recreated stream may reject an iterator of its predecessor as invalid.
            is_of_another = error.invalid_argument and not is_new
            if not (error.expired_iterator or is_of_another):
                raise
            _log.info("%s: the iterator is no longer valid; opening a new one at once", self.split)
            self._iterator = None
            return None
        self._iterator = page.next_iterator
        return page

    def _open(self) -> str | None:
        start = iterator_start(self.position)
        if start.kind == "AT_TIMESTAMP" and not self._log.seeks_by_time:
            # `_unread` skips older records. A log may know a later record to start at.
            start = IteratorStart("TRIM_HORIZON", timestamp=start.timestamp)
        try:
            return self._log.get_iterator(self.split, start)
        except ServiceError as error:
            if start.sequence_number is None or not (error.invalid_argument or error.missing):
                raise
            # The number may belong to no record of this shard, which the first page from the horizon
            # shows. If the shard itself is missing, this call fails as well.
            iterator = self._log.get_iterator(self.split, IteratorStart("TRIM_HORIZON"))
            # A time names no record, so no page shows whether the records since then are still stored.
            if isinstance(self.position, AtTime) and not self._log.is_complete_from(self.split, start):
                self._data_loss.report(f"{error}, so records after the start of the query may be gone")
            return iterator

    def _check_start(self, page: Page) -> None:
        """Reports a missing record. Checks only the first page of every iterator."""
        expected = expected_record(self.position)
        if self._is_verified or expected is None or not self._shows_start(page):
            return
        self._is_verified = True
        oldest = page.records[0].sequence_number if page.records else None
        if isinstance(self.position, After | AtHorizon) and (
            oldest is None or sequence_of(oldest) > sequence_of(expected)
        ):
            self._data_loss.report_missing_record(self.split, self.position, oldest)

    def _is_doubtful(self, page: Page) -> bool:
        """Whether the first page of an iterator is empty and claims to be at the tip, although a record
        has to follow.

        No document excludes that, so the next page is read, too.
        """
        is_empty_tip = not page.records and page.next_iterator is not None and page.millis_behind == 0
        return is_empty_tip and not self._is_verified and not self._has_doubted

    def _shows_start(self, page: Page) -> bool:
        """Whether this page must contain the record that the position names, if it exists.

        Anywhere but at the tip, an empty page may come first.
        """
        return bool(page.records) or page.next_iterator is None or page.millis_behind == 0

    def _take(self, page: Page) -> Page:
        """Moves the position after the page; returns the page without records before the old position."""
        records = self._unread(page.records)
        if records:
            last = records[-1]
            self.position = After(last.sequence_number, arrival=last.arrival)
        return replace(page, records=records)

    def _unread(self, records: Sequence[AnyRecord]) -> Sequence[AnyRecord]:
        position = self.position
        if isinstance(position, AtTime) and position.number is None and not self._log.seeks_by_time:
            count = next((n for n, r in enumerate(records) if r.arrival >= position.instant), len(records))
            return records[count:]
        if not isinstance(position, After):
            return records
        done = position.read_up_to
        count = 0
        while count < len(records) and sequence_of(records[count].sequence_number) <= done:
            count += 1
        return records[count:] if count else records
