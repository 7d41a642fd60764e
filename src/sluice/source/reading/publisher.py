"""Reads a split from pages that a service pushes, and falls back to polling (FLIP-128's record publishers).

A publisher may break at any time, start late, or return a page twice; the records stay the same. If its
pages seem to lack records, polling reads them again and decides whether they are lost.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from sluice.errors import ServiceError
from sluice.source.logs.cursor import Cursor
from sluice.source.logs.data_loss import DataLossPolicy
from sluice.source.logs.stream_log import Page, StreamLog, is_gone
from sluice.source.model.offsets import After, Position, SplitRange, expected_record
from sluice.source.model.positions import sequence_of

__all__ = ["OpenPublisher", "PublisherCursor", "RecordPublisher"]

_log = logging.getLogger(__name__)


class RecordPublisher(Protocol):
    """Pages of one split that a service pushes, from a position on.

    Attributes:
        is_gapless: the publisher has checked that no record is missing between the position and the
            first page. Otherwise the first page begins with the record that the position names.
    """

    is_gapless: bool

    def next_page(self) -> Page:
        """Blocks until the next event.

        The page may be empty. Its ``next_iterator`` is None at the end of a closed split, and otherwise
        any text. Records before the position, and records of earlier pages, may be repeated.

        Raises:
            ServiceError: the publisher has ended. The pages that it has returned stay valid.
        """

    def close(self) -> None:
        """Releases resources. May be called twice, and after the publisher has ended."""


OpenPublisher = Callable[[SplitRange, Position], RecordPublisher]
"""Opens a publisher of a range from a position on. Raises ServiceError if there is none."""

_MAX_CAUGHT_UP_PAGES = 3
"""How many empty pages in a row may claim to be at the tip before the end of the range has arrived.

A page may claim that while records are in flight.
"""


class PublisherCursor(Cursor):
    """A cursor that reads from a publisher, and polls after the publisher has failed.

    Args:
        split_range: the range to read; it shows which records the publisher must return.
        position: where to start.
        open_publisher: called for the first page.
        may_poll: False: if the publisher fails, that is an error, and if its pages lack a record, that
            is a loss.
    """

    def __init__(  # noqa: PLR0913 - the arguments of `Cursor`, and three more
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
        self._is_polling = False
        self._caught_up_pages = 0

    @property
    def is_pushed(self) -> bool:
        return not self._is_polling

    def next_page(self, limit: int) -> Page:
        """See `Cursor.next_page`. `limit` applies only to polling; the service decides the size of
        pushed pages.

        Raises:
            DataLossError: as in `Cursor.next_page`.
            ServiceError: the publisher failed and polling is not allowed, or polling failed as well.
        """
        if self._is_polling:
            return super().next_page(limit)
        try:
            page = self._next_pushed_page()
        except ServiceError as error:
            if not self._may_poll:
                # The error may mean that the publisher's consumer is missing, although the split exists.
                error.missing = error.missing and is_gone(self._log, self.split)
                raise
            return self._poll_instead(limit, str(error))
        problem = self._integrity_problem(page)
        if problem is not None and self._may_poll:
            return self._poll_instead(limit, problem)
        self._check_start(page)
        unread = self._take(page)
        # `position.caught_up_at` is not set here: the event may be old when it is read.
        is_tip = not unread.records and unread.next_iterator is not None and unread.millis_behind == 0
        # The reader must not mistake such a page for the tip.
        return replace(unread, millis_behind=1) if is_tip and problem is None else unread

    def reopen(self) -> None:
        """Continues by polling, or through a new publisher if polling is not allowed."""
        super().reopen()
        self.close()
        self._is_polling = self._may_poll

    def close(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()

    def _next_pushed_page(self) -> Page:
        if self._publisher is None:
            self._publisher = self._open_publisher(self._range, self.position)
            self._is_verified = self._publisher.is_gapless or expected_record(self.position) is None
            self._caught_up_pages = 0
        page = self._publisher.next_page()
        is_caught_up = not page.records and page.next_iterator is not None and page.millis_behind == 0
        self._caught_up_pages = self._caught_up_pages + 1 if is_caught_up else 0
        return page

    def _poll_instead(self, limit: int, why: str) -> Page:
        _log.warning(
            "%s: the pushed records cannot be used, polling the rest of the range: %s", self.split, why
        )
        self.close()
        self._is_polling = True
        return super().next_page(limit)

    def _shows_start(self, page: Page) -> bool:
        is_on_its_way = not page.records and page.next_iterator is not None
        if is_on_its_way and self._caught_up_pages < _MAX_CAUGHT_UP_PAGES:
            return False
        return super()._shows_start(page)

    def _integrity_problem(self, page: Page) -> str | None:
        """Returns why a page shows that records of the range are lost, or that the publisher omits them."""
        if self._caught_up_pages >= _MAX_CAUGHT_UP_PAGES:
            return "it has caught up with the tip without the record where the batch ends"
        expected, end = expected_record(self.position), self._range.end
        if not self._is_verified and expected is not None and _starts_behind(page, expected):
            return f"it starts after record {expected}"
        if not isinstance(end, After):
            return None
        place = bisect_left(
            page.records, end.sequence, key=lambda record: sequence_of(record.sequence_number)
        )
        found = sequence_of(page.records[place].sequence_number) if place < len(page.records) else None
        if found is None and page.next_iterator is None:
            return f"it ends before record {end.position_record}, where the batch ends"
        if found is not None and found > sequence_of(end.position_record):
            return (
                f"it has no record {end.position_record}, where the batch ends, but record "
                f"{page.records[place].sequence_number}"
            )
        return None


def _starts_behind(page: Page, expected: str) -> bool:
    if not page.records:
        return page.next_iterator is None
    return sequence_of(page.records[0].sequence_number) > sequence_of(expected)
