"""Reads one exact range of a split, page by page.

The same range gives the same records in every task and at every time. A missing record is a data loss,
and never shortens the batch silently.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from sluice.errors import ServiceError, SluiceError
from sluice.retry import Retrier, patient
from sluice.source.logs.cursor import Cursor
from sluice.source.logs.data_loss import DataLossPolicy
from sluice.source.logs.stream_log import AnyRecord, Page, StreamLog
from sluice.source.model.offsets import After, Closed, Position, SplitRange, before
from sluice.source.model.positions import sequence_of
from sluice.source.model.read_figures import ReadFigures

__all__ = ["OpenCursor", "RangeReader", "ReadSettings", "SplitReader"]

_log = logging.getLogger(__name__)

_MAX_REOPENED = 5
"""How often a range is continued through a new iterator if its end exists, but was not reached."""
_CHECK_INTERVAL = 10.0
"""Seconds between two checks whether the stream was recreated, for a split that is read to its end."""
_SHORTEST_WAIT = 0.5
_LONGEST_WAIT = 8.0
"""Seconds until a throttled read, or a read with an expired new iterator, is repeated."""

ResultT = TypeVar("ResultT")
SplitT_contra = TypeVar("SplitT_contra", contravariant=True)


OpenCursor = Callable[[SplitRange, Position], Cursor]
"""Opens the cursor that reads a range from a position on."""


class SplitReader(Protocol[SplitT_contra]):
    """FLIP-27's split reader: returns the records of one assigned split in order, then ends."""

    def read(self, split: SplitT_contra) -> Iterator[Any]:
        """Yields the records in pages that are not empty. The pages of a custom `Source` are record batches.

        A reader keeps no position between calls: the split defines where it starts and ends. After a
        retryable `SluiceError`, `Source.read_task` reads the split again and skips the rows that it
        already has, so `read` must yield the same rows in the same order.
        """


@dataclass(frozen=True)
class ReadSettings:
    """How a range is read.

    Attributes:
        page_limit: maximum records in one request.
        interval: pause between two reads of one split (seconds).
        pause: sleeps for a number of seconds. It raises to end the reading.
        clock: monotonic seconds.
        patience: how long reads of a split may fail with temporary errors (seconds), because in
            ``local[n]`` Spark does not retry a task. Kinesis refuses reads for 5 s after a page of 10
            MiB, and while other readers use up the shard's limit; in an outage a new iterator may have
            expired at once.
    """

    page_limit: int
    interval: float
    pause: Callable[[float], None]
    clock: Callable[[], float] = time.monotonic
    patience: float = 900.0


def _may_pass(error: SluiceError, cursor: Cursor) -> bool:
    """Whether another read may succeed. Pushed reads are not repeated: their cursor changes to polling."""
    if isinstance(error, ServiceError) and (error.throttling or error.expired_iterator):
        return True
    return error.retryable and not cursor.is_pushed


class RangeReader:
    """Reads one exact range of a `StreamLog`.

    If the service refuses a read, later reads keep to its limit. A service without limits, such as an
    emulator, is read as fast as it answers.

    Args:
        data_loss: notified if records of the range are lost.
        open_cursor: None for a cursor that polls.
        figures: count the reads.
    """

    def __init__(  # noqa: PLR0913 - what a task has for each range
        self,
        log: StreamLog,
        data_loss: DataLossPolicy,
        settings: ReadSettings,
        split_range: SplitRange,
        *,
        open_cursor: OpenCursor | None = None,
        figures: ReadFigures | None = None,
    ) -> None:
        self._log = log
        self._data_loss = data_loss
        self._settings = settings
        self._range = split_range
        self._split = split_range.split
        self._open_cursor = open_cursor or (lambda each, start: Cursor(log, data_loss, each.split, start))
        self._figures = figures
        self._retrier = Retrier(sleep=settings.pause, clock=settings.clock)
        self._is_throttled = False
        self._read_at = -math.inf
        self._cost = 0.0  # seconds until the service allows the next read
        self._next_check = settings.clock() + _CHECK_INTERVAL  # most ranges are read before it
        self._reopened = 0

    def read(self) -> Iterator[Sequence[AnyRecord]]:
        """Yields the records of the range. Aggregated records at its edges are returned whole.

        Raises:
            DataLossError: records of the range are lost, and ``failOnDataLoss`` is true.
            ServiceError: a call failed, and retries did not help.
        """
        start, end = self._range.start, self._range.end
        try:
            self._patiently(lambda: self._data_loss.check_start(self._split, start, end.start_caught_up_at))
            with contextlib.closing(self._open_cursor(self._range, _start(self._range))) as cursor:
                yield from self._pages(cursor)
        except ServiceError as error:
            if not error.missing:
                raise
            self._data_loss.report(f"{self._split} is gone, and the records of this batch with it: {error}")

    def _pages(self, cursor: Cursor) -> Iterator[Sequence[AnyRecord]]:
        limit, expected = self._settings.page_limit, self._range.expected
        if expected is not None:  # only a few more: records after the end of the range are dropped
            limit = min(limit, expected + expected // 4 + 100)
        while True:
            page = self._next_page(cursor, limit)
            records = _until(page.records, self._range.end)
            if records:
                if self._figures is not None:  # if the range ends inside a page, the page counts in part
                    size = page.size * len(records) // len(page.records)
                    self._figures.count_page(self._split, len(records), size, is_pushed=cursor.is_pushed)
                yield records
            if self._is_complete(cursor, page):
                return
            limit = self._settings.page_limit
            self._pause(cursor)

    # --- reads, paced -----------------------------------------------------------------------------------

    def _next_page(self, cursor: Cursor, limit: int) -> Page:
        """Returns the next page of a cursor. A retryable failure is repeated, and logged once.

        Raises:
            SluiceError: it failed for longer than `ReadSettings.patience`, or permanently.
        """
        clock, patience = self._settings.clock, self._settings.patience
        failing_since: float | None = None
        pause = _SHORTEST_WAIT
        while True:
            try:
                page = cursor.next_page(limit)
                break
            except SluiceError as error:
                now, is_first = clock(), failing_since is None
                failing_since = now if failing_since is None else failing_since
                if not _may_pass(error, cursor) or now - failing_since >= patience:
                    raise
                if isinstance(error, ServiceError) and error.throttling:
                    self._wait(now, error)
                    continue
                if is_first:
                    _log.warning(
                        "%s: reading fails; trying for up to %.0f s: %s", self._split, patience, error
                    )
            self._settings.pause(pause)
            pause = min(2 * pause, _LONGEST_WAIT)
        self._read_at, self._cost = clock(), page.cost
        if failing_since is not None:
            _log.info("%s: read again after %.0f s", self._split, self._read_at - failing_since)
        return page

    def _wait(self, now: float, error: SluiceError) -> None:
        """Waits after a throttled read."""
        wait = max(_SHORTEST_WAIT, self._read_at + self._cost - now)
        if not self._is_throttled:
            self._is_throttled = True
            _log.warning(
                "%s: throttled; reading on at the rate that the service allows, next read in %.1f s: %s",
                self._split,
                wait,
                error,
            )
        self._settings.pause(wait)

    def _pause(self, cursor: Cursor) -> None:
        """Pauses between two pages. Pushed pages need no pause, but the call ends an abandoned reader."""
        if cursor.is_pushed:
            self._settings.pause(0.0)
            return
        wait = self._read_at + self._cost - self._settings.clock() if self._is_throttled else 0.0
        self._settings.pause(max(self._settings.interval, wait))

    def _patiently(self, call: Callable[[], ResultT]) -> ResultT:
        return self._retrier.call(patient(self._settings.patience), call)

    # --- the end of the range ---------------------------------------------------------------------------

    def _is_complete(self, cursor: Cursor, page: Page) -> bool:
        """Whether the end of the range has been reached, or (after a data loss) cannot be reached."""
        end = self._range.end
        if isinstance(end, Closed):
            return page.next_iterator is None or (page.millis_behind == 0 and self._is_recreated())
        last = sequence_of(page.records[-1].sequence_number) if page.records else None
        if last is not None and last >= end.sequence:
            self._check_end(end, page.records)
            return True
        if page.next_iterator is None:
            return self._lost_end(end, "its end comes before it")
        if last is None and page.millis_behind == 0:
            return self._is_over_at_tip(end, cursor)
        return False

    def _is_recreated(self) -> bool:
        """Whether a split at its tip that should have ended is an open split of a new stream of that name."""
        known, now = self._range.created, self._settings.clock()
        if known is None or now < self._next_check:
            return False
        self._next_check = now + _CHECK_INTERVAL
        created = self._patiently(lambda: self._log.describe(self._split.stream).created)
        if created // 1000 == known // 1000:
            return False
        self._data_loss.report_recreated(self._split.stream, known, created)
        return True

    def _check_end(self, end: After, records: Sequence[AnyRecord]) -> None:
        """Reports a loss if the record that the end names is missing among records that pass the end."""
        place = bisect_left(records, end.sequence, key=lambda record: sequence_of(record.sequence_number))
        found = records[place].sequence_number
        if sequence_of(found) > sequence_of(end.position_record):
            self._lost_end(end, f"the next record is {self._log.format_position(found)}")

    def _is_over_at_tip(self, end: After, cursor: Cursor) -> bool:
        """Whether reading is over at the tip: the last record has been read, or is lost and not only late."""
        here = cursor.position
        if isinstance(here, After) and here.sub is None and here.sequence >= end.sequence:
            return True
        silent = _Silent(self._data_loss.log, fail=False, now=self._data_loss.now)
        probe = self._first_page(Cursor(self._log, silent, self._split, before(end.position_record)))
        if probe.records and probe.records[0].sequence_number == end.position_record:
            # The record exists, so the iterator is wrong, or the range ends before it starts.
            if self._reopened == _MAX_REOPENED:
                raise ServiceError(
                    f"GetRecords of {self._split}: record {end.position_record}, where the batch ends, "
                    f"exists, but reading from {self._range.start} reaches the tip without it",
                    operation="GetRecords",
                    target=str(self._split),
                    retryable=True,
                )
            self._reopened += 1
            cursor.reopen()
            return False
        return self._lost_end(end, "its tip comes before it")

    def _first_page(self, cursor: Cursor) -> Page:
        """Returns the first page with a record, at the tip or at the end. Empty pages may come before it."""
        while True:
            page = self._next_page(cursor, 1)
            if page.records or page.next_iterator is None or page.millis_behind == 0:
                return page
            self._pause(cursor)

    def _lost_end(self, end: After, why: str) -> bool:
        gone = self._log.format_position(end.position_record)
        self._data_loss.report(
            f"{self._log.split_name} {self._split}: record {gone}, where the batch ends, is gone, and others "
            f"with it: {why}"
        )
        return True


class _Silent(DataLossPolicy):
    """For a read that only checks whether a record still exists."""

    def report(self, what: str) -> None:
        del what


def _start(split_range: SplitRange) -> Position:
    """Returns the start, with the last instant at which no record followed it; the end may have a later
    one.
    """
    start, caught_up_at = split_range.start, split_range.end.start_caught_up_at
    if isinstance(start, After) and caught_up_at is not None:
        return replace(start, caught_up_at=max(start.caught_up_at or 0, caught_up_at))
    return start


def _until(records: Sequence[AnyRecord], end: After | Closed) -> Sequence[AnyRecord]:
    if isinstance(end, Closed):
        return records
    if records and sequence_of(records[-1].sequence_number) <= end.sequence:
        return records
    return records[
        : bisect_right(records, end.sequence, key=lambda record: sequence_of(record.sequence_number))
    ]
