"""Reads one exact range of a split, page by page.

The same range gives the same records in every task and at every time. Records outside the range are cut
away; a record that is missing is a data loss, and never makes the batch shorter silently.
"""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from sluice.errors import ServiceError, SluiceError
from sluice.retry import Retrier, patient
from sluice.source.logs.cursor import Cursor
from sluice.source.logs.data_loss import DataLossPolicy
from sluice.source.logs.page_cost import page_cost
from sluice.source.logs.stream_log import AnyRecord, Page, StreamLog
from sluice.source.model.offsets import After, Closed, Position, SplitRange, before
from sluice.source.model.positions import sequence_of
from sluice.source.model.read_figures import ReadFigures
from sluice.source.model.splits import SplitId

__all__ = ["OpenCursor", "RangeReader", "ReadSettings", "SplitReader"]

_log = logging.getLogger(__name__)

_MAX_REOPENED = 5
"""How often a range is continued through a new iterator when its end, which exists, was not met."""
_CHECK_INTERVAL = 10.0
"""Seconds between two checks whether a stream is still the one whose split is read to its end."""
_SHORTEST_WAIT = 0.5
_LONGEST_WAIT = 8.0
"""Seconds until a read is repeated that was throttled, or whose new iterator had expired."""

ResultT = TypeVar("ResultT")
SplitT_contra = TypeVar("SplitT_contra", contravariant=True)


OpenCursor = Callable[[SplitRange, Position], Cursor]
"""Opens the cursor through which a range is read from a position on."""


class SplitReader(Protocol[SplitT_contra]):
    """FLIP-27's split reader: gives the records of one assigned split in order, then ends."""

    def read(self, split: SplitT_contra) -> Iterator[Any]:
        """Yields the records in pages; no page is empty. Those of a `Source` of one's own are record batches.

        A reader keeps no position between calls: the split says where it starts and ends. After a retryable
        `SluiceError`, `Source.read_task` reads the split again and leaves out the rows that it has already:
        `read` has to yield the same rows in the same order.
        """


@dataclass(frozen=True)
class ReadSettings:
    """How a range is read.

    Attributes:
        page_limit: records asked for at a time.
        interval: pause between two reads of one split (seconds).
        pause: sleeps for a number of seconds. It raises to end the reading.
        clock: monotonic seconds.
        patience: how long reads of a split may fail for reasons that may pass (seconds): Spark gives a task
            no second try in ``local[n]``. Kinesis refuses them for 5 s after a page of 10 MiB, and for as
            long as other readers use up what the shard allows; in an outage a new iterator may have expired
            at once.
    """

    page_limit: int
    interval: float
    pause: Callable[[float], None]
    clock: Callable[[], float] = time.monotonic
    patience: float = 900.0


class _PacedReads:
    """Reads of one split: they wait while the service refuses them, and keep to its limit from then on.

    A service without limits, such as an emulator, is read as fast as it answers.
    """

    def __init__(self, split: SplitId, settings: ReadSettings) -> None:
        self._split = split
        self._settings = settings
        self._is_throttled = False
        self._read_at = -math.inf
        self._cost = 0.0  # seconds until the service allows the next read
        self._next_check = settings.clock() + _CHECK_INTERVAL

    def is_check_due(self) -> bool:
        """Whether to check that the stream is still the same. Most ranges are read before the first check."""
        now = self._settings.clock()
        if now < self._next_check:
            return False
        self._next_check = now + _CHECK_INTERVAL
        return True

    def next_page(self, cursor: Cursor, limit: int) -> Page:
        """The next page of a cursor. What fails for a reason that may pass is repeated, and said once.

        Raises:
            SluiceError: it failed for longer than `ReadSettings.patience`, or for good.
        """
        failing_since: float | None = None
        wait = _SHORTEST_WAIT
        while True:
            try:
                page = cursor.next_page(limit)
            except SluiceError as error:
                now = self._settings.clock()
                is_first = failing_since is None
                failing_since = now if failing_since is None else failing_since
                if not _may_pass(error, cursor) or now - failing_since >= self._settings.patience:
                    raise
                if isinstance(error, ServiceError) and error.throttling:
                    self._wait(now, error)
                    continue
                if is_first:
                    patience = self._settings.patience
                    _log.warning(
                        "%s: reading fails; trying for up to %.0f s: %s", self._split, patience, error
                    )
                self._settings.pause(wait)
                wait = min(2 * wait, _LONGEST_WAIT)
                continue
            if failing_since is not None:
                _log.info("%s: read again after %.0f s", self._split, self._settings.clock() - failing_since)
            self._read_at = self._settings.clock()
            self._cost = page_cost(page)
            return page

    def pause(self, cursor: Cursor) -> None:
        """The pause between two pages. Pages that are pushed need none; the call ends an abandoned reader."""
        if cursor.is_pushed:
            self._settings.pause(0.0)
            return
        wait = self._read_at + self._cost - self._settings.clock() if self._is_throttled else 0.0
        self._settings.pause(max(self._settings.interval, wait))

    def _wait(self, now: float, error: SluiceError) -> None:
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


def _may_pass(error: SluiceError, cursor: Cursor) -> bool:
    """Whether another read may succeed. What is pushed is not read again: its cursor goes over to polling."""
    if isinstance(error, ServiceError) and (error.throttling or error.expired_iterator):
        return True
    return error.retryable and not cursor.is_pushed


class RangeReader:
    """The `SplitReader` of exact ranges of a `StreamLog`.

    Args:
        log: the service.
        data_loss: told when records of the range are gone.
        settings: page size and pauses.
        open_cursor: None for cursors that poll.
        figures: count what was read.
    """

    def __init__(
        self,
        log: StreamLog,
        data_loss: DataLossPolicy,
        settings: ReadSettings,
        open_cursor: OpenCursor | None = None,
        figures: ReadFigures | None = None,
    ) -> None:
        self._log = log
        self._data_loss = data_loss
        self._settings = settings
        self._retrier = Retrier(sleep=settings.pause, clock=settings.clock)
        self._open_cursor = open_cursor or self._poll
        self._figures = figures

    def read(self, split_range: SplitRange) -> Iterator[Sequence[AnyRecord]]:
        """Yields the records of the range. Aggregated records at its edges come whole.

        Raises:
            DataLossError: records of the range are gone, and the query has to fail on data loss.
            ServiceError: a call failed, and retries did not help.
        """
        try:
            yield from self._read(split_range)
        except ServiceError as error:
            if not error.missing:
                raise
            self._data_loss.report(
                f"{split_range.split} is gone, and the records of this batch with it: {error}"
            )

    def _read(self, split_range: SplitRange) -> Iterator[Sequence[AnyRecord]]:
        check = partial(self._data_loss.check_start, split_range.split, split_range.start)
        self._patiently(lambda: check(split_range.end.start_caught_up_at))
        cursor = self._open_cursor(split_range, _start(split_range))
        try:
            yield from self._read_through(cursor, split_range)
        finally:
            cursor.close()

    def _read_through(self, cursor: Cursor, split_range: SplitRange) -> Iterator[Sequence[AnyRecord]]:
        limit = self._first_limit(split_range)
        reads = _PacedReads(split_range.split, self._settings)
        while True:
            page = reads.next_page(cursor, limit)
            records = _until(page.records, split_range.end)
            if records:
                if self._figures is not None:  # a page that the range's end divides counts in part
                    size = page.size * len(records) // len(page.records)
                    self._figures.count_page(
                        split_range.split, len(records), size, is_pushed=cursor.is_pushed
                    )
                yield records
            if self._is_complete(split_range, cursor, page, reads):
                return
            limit = self._settings.page_limit
            reads.pause(cursor)

    def _patiently(self, call: Callable[[], ResultT]) -> ResultT:
        return self._retrier.call(patient(self._settings.patience), call)

    def _poll(self, split_range: SplitRange, position: Position) -> Cursor:
        return Cursor(self._log, self._data_loss, split_range.split, position)

    def _first_limit(self, split_range: SplitRange) -> int:
        """Little more than the range holds: records after its end are dropped."""
        limit, expected = self._settings.page_limit, split_range.expected
        return limit if expected is None else min(limit, expected + expected // 4 + 100)

    def _is_complete(self, split_range: SplitRange, cursor: Cursor, page: Page, reads: _PacedReads) -> bool:
        """Whether the end of the range has been reached, or (after a data loss) cannot be reached."""
        end = split_range.end
        if isinstance(end, Closed):
            return page.next_iterator is None or (
                page.millis_behind == 0 and self._is_recreated(split_range, reads)
            )
        last = sequence_of(page.records[-1].sequence_number) if page.records else None
        if last is not None and last >= end.sequence:
            self._check_end(split_range, end, page.records)
            return True
        if page.next_iterator is None:
            return self._lost_end(split_range, end, "its end comes before it")
        if last is None and page.millis_behind == 0:
            return self._is_over_at_tip(split_range, end, cursor, reads)
        return False

    def _is_recreated(self, split_range: SplitRange, reads: _PacedReads) -> bool:
        """At the tip of a split that is to end: whether it is an open split of a new stream of that name."""
        if split_range.created is None or not reads.is_check_due():
            return False
        created = self._patiently(lambda: self._log.describe(split_range.split.stream).created)
        if created // 1000 == split_range.created // 1000:
            return False
        self._data_loss.report_recreated(split_range.split.stream, split_range.created, created)
        return True

    def _check_end(self, split_range: SplitRange, end: After, records: Sequence[AnyRecord]) -> None:
        """Reports a loss if the record that the end names is missing among records that pass the end."""
        place = bisect_left(records, end.sequence, key=lambda record: sequence_of(record.sequence_number))
        found = records[place].sequence_number
        if sequence_of(found) > sequence_of(end.position_record):
            self._lost_end(split_range, end, f"the next record is {self._log.format_position(found)}")

    def _is_over_at_tip(
        self, split_range: SplitRange, end: After, cursor: Cursor, reads: _PacedReads
    ) -> bool:
        """At the tip without having met the end: whether the record of the end is gone, or only late."""
        here = cursor.position
        if isinstance(here, After) and here.sub is None and here.sequence >= end.sequence:
            return True
        start = before(end.position_record)
        probe = self._first_page(Cursor(self._log, _Silent(self._data_loss), split_range.split, start), reads)
        if probe.records and probe.records[0].sequence_number == end.position_record:
            # The record exists, so the iterator is wrong, or the range ends before it starts.
            if cursor.reopened == _MAX_REOPENED:
                raise ServiceError(
                    f"GetRecords of {split_range.split}: record {end.position_record}, where the batch ends, "
                    f"is there, but reading from {split_range.start} comes to its tip without it",
                    operation="GetRecords",
                    target=str(split_range.split),
                    retryable=True,
                )
            cursor.reopen()
            return False
        return self._lost_end(split_range, end, "its tip comes before it")

    def _first_page(self, cursor: Cursor, reads: _PacedReads) -> Page:
        """The first page with a record, or that of the tip or the end. Empty pages may come before it."""
        while True:
            page = reads.next_page(cursor, 1)
            if page.records or page.next_iterator is None or page.millis_behind == 0:
                return page
            reads.pause(cursor)

    def _lost_end(self, split_range: SplitRange, end: After, why: str) -> bool:
        gone = self._log.format_position(end.position_record)
        self._data_loss.report(
            f"{self._log.split_name} {split_range.split}: record {gone}, where the batch ends, is gone, and "
            f"others with it: {why}"
        )
        return True


class _Silent(DataLossPolicy):
    """For a read that only asks whether a record still exists."""

    def __init__(self, data_loss: DataLossPolicy) -> None:
        super().__init__(data_loss.log, fail=False, now=data_loss.now)

    def report(self, what: str) -> None:
        del what


def _start(split_range: SplitRange) -> Position:
    """The start, with the last instant at which no record followed it; the end may know a later one."""
    start, caught_up_at = split_range.start, split_range.end.start_caught_up_at
    if isinstance(start, After) and caught_up_at is not None:
        return replace(start, caught_up_at=max(start.caught_up_at or 0, caught_up_at))
    return start


def _until(records: Sequence[AnyRecord], end: After | Closed) -> Sequence[AnyRecord]:
    """The records of a page up to the end of the range."""
    if isinstance(end, Closed):
        return records
    if records and sequence_of(records[-1].sequence_number) <= end.sequence:
        return records
    return records[
        : bisect_right(records, end.sequence, key=lambda record: sequence_of(record.sequence_number))
    ]
