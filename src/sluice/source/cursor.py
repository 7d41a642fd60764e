"""Reads a split on from a position: opens and re-opens iterators, and verifies where it stands.

Planner and tasks both read through a cursor, so both notice alike when the service silently starts
behind the position because what was there has been trimmed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from sluice.errors import ServiceError
from sluice.source.data_loss import DataLossPolicy
from sluice.source.offsets import After, AtHorizon, AtTime, Closed, Position
from sluice.source.splits import SplitId
from sluice.source.stream_log import AnyRecord, IteratorStart, Page, StreamLog

__all__ = ["Cursor", "iterator_start"]

_log = logging.getLogger(__name__)


def iterator_start(position: Position) -> IteratorStart:
    """Where to open an iterator so that the record a position names comes first, if it still exists."""
    match position:
        case After():
            return IteratorStart("AT_SEQUENCE_NUMBER", sequence_number=position.position_record)
        case AtTime():
            return IteratorStart("AT_TIMESTAMP", timestamp=position.instant)
        case AtHorizon() | Closed():
            return IteratorStart("TRIM_HORIZON")


class Cursor:
    """A place in a split that moves on with every page.

    Attributes:
        position: everything up to here has been handed out (or was done before).
        reopened: how often the iterator was thrown away by `reopen`.
    """

    def __init__(
        self,
        log: StreamLog,
        data_loss: DataLossPolicy,
        split: SplitId,
        position: Position,
        iterator: str | None = None,
    ) -> None:
        self.split = split
        self.position = position
        self.reopened = 0
        self._log = log
        self._data_loss = data_loss
        self._iterator = iterator
        # Whether the record that the position names has been seen where it should be.
        self._is_verified = iterator is not None or not isinstance(position, After)

    def next_page(self, limit: int) -> Page:
        """The next page, without what the position has behind it; its records may be none.

        Raises:
            DataLossError: records behind the position are gone and data loss is to fail.
            ServiceError: the call failed for good.
        """
        page = self._read(limit)
        if page is None:  # expired: once more with a fresh iterator
            page = self._read(limit)
        if page is None:
            raise ServiceError(
                f"GetRecords of {self.split}: a fresh iterator has expired at once",
                operation="GetRecords",
                target=str(self.split),
                retryable=True,
            )
        if self._lacks_anchor(page):
            self._report_missing_anchor(page)
        is_tip = page.millis_behind == 0 and len(page.records) < limit and page.next_iterator is not None
        fresh = self._take(page)
        if is_tip and isinstance(self.position, After):
            self.position = replace(self.position, idle=self._log.server_time())
        return fresh

    @property
    def is_pushed(self) -> bool:
        """Whether the next page comes by itself: then nobody need wait before asking for it."""
        return False

    def close(self) -> None:
        """Lets go of what the service holds for this cursor."""

    def at(self, position: Position) -> Cursor:
        """A new cursor of the same split, at another position, that asks for pages."""
        return Cursor(self._log, self._data_loss, self.split, position)

    def reopen(self) -> None:
        """Forgets the iterator; the next page is read through a fresh one."""
        self._iterator = None
        self.reopened += 1

    def _read(self, limit: int) -> Page | None:
        if self._iterator is None:
            self._iterator = self._open()
            self._is_verified = not isinstance(self.position, After)
            if self._iterator is None:
                return Page((), None, 0)
        try:
            page = self._log.get_records(self.split, self._iterator, limit)
        except ServiceError as error:
            if not error.expired_iterator:
                raise
            _log.info("%s: the iterator has expired; opening a new one", self.split)
            self._iterator = None
            return None
        self._iterator = page.next_iterator
        return page

    def _open(self) -> str | None:
        try:
            return self._log.get_iterator(self.split, iterator_start(self.position))
        except ServiceError as error:
            if isinstance(self.position, After) and (error.invalid_argument or error.missing):
                # The number may belong to no record of this shard: then the first page will show that.
                # If the shard itself is missing, this fails as well.
                return self._log.get_iterator(self.split, IteratorStart("TRIM_HORIZON"))
            raise

    def _lacks_anchor(self, page: Page) -> bool:
        """Looks, once for each iterator, whether the record the position names is no longer there."""
        position = self.position
        if self._is_verified or not isinstance(position, After):
            return False
        if not page.records and page.next_iterator is not None and page.millis_behind > 0:
            return False  # an empty page in mid-shard says nothing yet
        self._is_verified = True
        return not page.records or int(page.records[0].sequence_number) > int(position.position_record)

    def _report_missing_anchor(self, page: Page) -> None:
        assert isinstance(self.position, After)  # noqa: S101 - no other position has an anchor
        oldest = int(page.records[0].sequence_number) if page.records else None
        self._data_loss.missing_anchor(self.split, self.position, oldest)

    def _take(self, page: Page) -> Page:
        """Moves the position behind the page; the page without what lay before."""
        records = self._fresh(page.records)
        if records:
            last = records[-1]
            self.position = After(last.sequence_number, arrival=last.arrival)
        return Page(records, page.next_iterator, page.millis_behind)

    def _fresh(self, records: Sequence[AnyRecord]) -> Sequence[AnyRecord]:
        position = self.position
        if not isinstance(position, After):
            return records
        # Inside an aggregate the record itself is needed again, for the sub-records that are left.
        done = position.sequence - 1 if position.sub is not None else position.sequence
        count = 0
        while count < len(records) and int(records[count].sequence_number) <= done:
            count += 1
        return records[count:] if count else records
