"""Reads a split from pages that a service pushes, with polling behind it.

A publisher may break at any time, start late, or give a page twice; the rows come out the same. What looks
like a loss of records is read again by polling, and judged there.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

from sluice.errors import ServiceError
from sluice.source.cursor import Cursor
from sluice.source.data_loss import DataLossPolicy
from sluice.source.offsets import After, Position, SplitRange
from sluice.source.stream_log import Page, RecordPublisher, StreamLog

__all__ = ["OpenPublisher", "PublisherCursor"]

_log = logging.getLogger(__name__)

OpenPublisher = Callable[[SplitRange, Position], RecordPublisher]
"""Opens a publisher of a range from a position on. Raises ServiceError where that can't be done."""

_MAX_IDLE_PAGES = 3
"""A service may say that it is at the tip while records are on their way to it, but not again and again."""


class PublisherCursor(Cursor):
    """A cursor that reads from a publisher, and where the publisher fails goes on by polling.

    Args:
        split_range: what is to be read; it tells what the publisher must bring.
        open_publisher: called when the first page is asked for.
        may_poll: False: a publisher that fails is an error, and its pages are judged as those of polling.
    """

    def __init__(  # noqa: PLR0913 - what any cursor has, and the publisher
        self,
        log: StreamLog,
        data_loss: DataLossPolicy,
        split_range: SplitRange,
        position: Position,
        open_publisher: OpenPublisher,
        *,
        may_poll: bool,
    ) -> None:
        super().__init__(log, data_loss, split_range.split, position)
        self._range = split_range
        self._open_publisher = open_publisher
        self._may_poll = may_poll
        self._publisher: RecordPublisher | None = None
        self._is_over = False
        self._idle_pages = 0

    @property
    def is_pushed(self) -> bool:
        return not self._is_over

    def next_page(self, limit: int) -> Page:
        """See `Cursor.next_page`; a page that is pushed is as long as the service made it.

        Raises:
            DataLossError: as in `Cursor.next_page`.
            ServiceError: the publisher failed and polling is not allowed, or it failed as well.
        """
        if self._is_over:
            return super().next_page(limit)
        try:
            page = self._pushed_page()
        except ServiceError as error:
            if not self._may_poll:
                raise
            self._give_up(str(error))
            return super().next_page(limit)
        doubt = self._integrity_problem(page)
        if doubt is not None and self._may_poll:
            self._give_up(doubt)
            return super().next_page(limit)
        if self._lacks_anchor(page):
            self._report_missing_anchor(page)
        fresh = self._take(page)
        # The position's `idle` stays: the event may be old when it is read.
        is_tip = not fresh.records and fresh.next_iterator is not None and fresh.millis_behind == 0
        return replace(fresh, millis_behind=1) if is_tip and doubt is None else fresh

    def reopen(self) -> None:
        """As `Cursor.reopen`: reads on by polling, or where that is not allowed through another publisher."""
        super().reopen()
        self.close()
        self._is_over = self._may_poll

    def close(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()

    def _pushed_page(self) -> Page:
        if self._publisher is None:
            self._publisher = self._open_publisher(self._range, self.position)
            self._is_verified = self._publisher.is_gapless or not isinstance(self.position, After)
            self._idle_pages = 0
        page = self._publisher.next_page()
        is_idle = not page.records and page.next_iterator is not None and page.millis_behind == 0
        self._idle_pages = self._idle_pages + 1 if is_idle else 0
        return page

    def _give_up(self, why: str) -> None:
        _log.warning("%s: reading on by polling, since what was pushed can't be used: %s", self.split, why)
        self.close()
        self._is_over = True

    def _lacks_anchor(self, page: Page) -> bool:
        if not page.records and page.next_iterator is not None and self._idle_pages < _MAX_IDLE_PAGES:
            return False  # the record may be on its way
        return super()._lacks_anchor(page)

    def _integrity_problem(self, page: Page) -> str | None:
        """Why a page shows that records of the range are gone, or that the publisher leaves them out."""
        if self._idle_pages >= _MAX_IDLE_PAGES:
            return "it is said to be at the tip, again and again, without the record where the batch ends"
        position, end = self.position, self._range.end
        if not self._is_verified and isinstance(position, After) and self._starts_behind(page, position):
            return f"it starts behind record {position.position_record}"
        if not isinstance(end, After):
            return None
        place = bisect_left(page.records, end.sequence, key=lambda record: int(record.sequence_number))
        met = int(page.records[place].sequence_number) if place < len(page.records) else None
        if met is None and page.next_iterator is None:
            return f"it ends before record {end.position_record}, where the batch ends"
        if met is not None and met > int(end.position_record):
            return f"it has no record {end.position_record}, where the batch ends, but record {met}"
        return None

    @staticmethod
    def _starts_behind(page: Page, position: After) -> bool:
        if not page.records:
            return page.next_iterator is None
        return int(page.records[0].sequence_number) > int(position.position_record)
