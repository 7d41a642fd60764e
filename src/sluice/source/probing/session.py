"""Reads a split for the planner: some records after its last read, or one record at a point in time.

No call of Kinesis returns the last record of a shard. If few records arrive, reading pages finds the end
of a batch (a cut point). Otherwise a session asks for the first record at or after a time, with a limit
of one: two calls and one record, at any rate.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from sluice.errors import ServiceError
from sluice.instants import MICROS_PER_SECOND
from sluice.source.logs.cursor import Cursor
from sluice.source.logs.stream_log import IteratorStart, Page, size_in_bytes
from sluice.source.model.offsets import AtTime
from sluice.source.model.positions import sequence_of
from sluice.source.probing.probe import Probe
from sluice.source.state.split_state import SplitState

__all__ = ["LARGEST_PAGE", "SAMPLE", "ProbeSession", "next_instant"]

_log = logging.getLogger(__name__)

SAMPLE: Final = 1_000
"""Number of records that show the density of a backlog."""
LARGEST_PAGE: Final = 10_000
"""Kinesis' maximum number of records in a page."""
_SHORTEST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 2.0
"""Seconds until a throttled or failed read is repeated if a batch waits for the split."""

_FIRST_PAGE: Final = 2
"""Number of requested records while their size, up to 10 MiB each, is unknown."""
_PAGE_BYTES: Final = 2**20
"""Approximate bytes of a probe's page. After a page of more than 2 MiB Kinesis refuses reads of the
shard for some seconds, and a task may have to read it next."""
_NEAR_TIP_BYTES: Final = 2**17
"""Approximate bytes of a page near the tip: about a second of small records. The task reads them again."""
_EMPTY_PAGES_SHARE: Final = 0.1
"""Minimum share of the time since the last read for which a plan continues reading empty pages. If
triggers are far apart, the iterator may have expired, and the plan reads the same pages again."""
_FEW: Final = 100
"""Records that a page near the tip may hold, up to `_PAGE_BYTES`, even if they exceed
`_NEAR_TIP_BYTES`: a page with one large record would seem to be full."""
_BACKLOG_COST: Final = 1.0
"""Maximum seconds by which a read of a backlog delays the next read. Longer pauses are for splits near
their tip."""
_TIP_DELAY: Final = MICROS_PER_SECOND // 2
"""How old the end of a batch of a busy split may be (microseconds)."""
_RECENT: Final = 3 * MICROS_PER_SECOND
"""The earliest start of the search for a tip, before now (microseconds)."""
_RECORD_RATE: Final = 1_000
"""Records a second that Kinesis accepts for a shard."""
_BYTE_RATE: Final = 2**20
"""Bytes a second that Kinesis accepts for a shard.

https://docs.aws.amazon.com/streams/latest/dev/service-sizes-and-limits.html
"""
_READ_ON_PAGES: Final = 16
"""Maximum pages that a plan reads of a split that cannot be searched by time; the next batch continues
from there."""
_MOST_CUT_POINTS: Final = 50_000
"""Maximum cut points of a split that is read to its tip. Hours of a busy split would be millions."""
_JOINED: Final = 16
"""If there are more, this many cut points become one."""

ResultT = TypeVar("ResultT")


class _Found(NamedTuple):
    """The first records at or after an instant, and a cursor right after them.

    Attributes:
        limit: number of requested records.
        asked_at: when they were requested (microseconds).
    """

    page: Page
    cursor: Cursor
    limit: int
    asked_at: int


def next_instant(begin: int, now: int, low: int, high: int, span: int) -> int | None:
    """Returns where to ask for the newest record of a split next; None: a page covers all between `low`
    and `high`.

    Producers may have written for seconds and paused for days, or the other way round. So the search
    halves the logarithm of (time written / time paused): it finds a minute's pause, or a minute of
    records, about as fast in an hour as in a year.

    All times are in microseconds.

    Args:
        begin: arrival of the newest record that was known when the search began.
        now: when the search began.
        low: arrival of the newest known record.
        high: no record arrived then or later.
        span: approximate arrival time that one page covers.
    """
    if high - low <= span:
        return None
    latest = high - span  # from later on, a page would hold no more than the rest
    if latest - low <= span:
        return latest  # either answer is the last one
    shortest = min(span, MICROS_PER_SECOND)
    first, last = min(begin, low) - shortest, max(now, high) + shortest

    def ratio(instant: int) -> float:
        return (instant - first) / (last - instant)

    middle = math.sqrt(ratio(low) * ratio(high))
    instant = first + int((last - first) * middle / (1.0 + middle))
    return max(low + 1, min(instant, latest))


class ProbeSession:
    """Reads one split for one trigger, paced, and counts the reads.

    Every method raises what `Cursor.next_page` raises.

    Args:
        patience: how long reads may fail with temporary errors (seconds).
        is_awaited: the plan waits until the split can be read, so failed reads are repeated.
    """

    def __init__(self, probe: Probe, state: SplitState, patience: float, *, is_awaited: bool) -> None:
        self._probe = probe
        self._state = state
        self._settings = probe.settings
        self._patience = patience
        self._is_awaited = is_awaited
        self._reads = 0
        began, due_at = self._settings.clock(), state.reads.next_read_at
        idle = began - due_at if math.isfinite(due_at) else 0.0
        self._empty_pages_until = began + max(probe.settings.empty_pages_for, _EMPTY_PAGES_SHARE * idle)

    def end(self) -> None:
        """Sets when the split may be read again."""
        if self._reads:
            each, state = self._settings.seconds_per_read, self._state
            if not (state.is_exhausted or state.is_busy):
                each = min(each, _BACKLOG_COST)
            cost = min(self._reads, self._settings.burst) * each
            self._state.reads.schedule(self._settings.clock() + cost)

    def will_pass(self, error: ServiceError) -> bool:
        """Whether a failed call may succeed later. Throttling always counts as an answer."""
        since = self._state.reads.failing_since
        has_lasted = since is not None and self._settings.clock() - since > self._patience
        return error.throttling or ((error.retryable or error.missing) and not has_lasted)

    def call(self, call: Callable[[], ResultT]) -> ResultT:
        """Calls the service. If the plan waits for the split, temporary errors are retried."""
        reads, pause = self._state.reads, _SHORTEST_PAUSE
        while True:
            try:
                result = call()
            except ServiceError as error:
                reads.mark_unanswered(
                    self._settings.clock(), self._patience, throttled=error.throttling, missing=error.missing
                )
                if not self._is_awaited or error.missing or not self.will_pass(error):
                    raise
                if pause == _SHORTEST_PAUSE:
                    _log.warning("%s: the batch waits for it: %s", self._state.split.id, error)
            else:
                reads.mark_answered()
                return result
            self._settings.pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def read_page(self, limit: int, *, exact: bool = False) -> None:
        """Reads after the last cut point: one page, or several as long as they are empty.

        Args:
            limit: maximum records of the page.
            exact: continue reading until records come, or the service reports that there are none.
                Otherwise the next trigger continues after an empty page that follows known records, or
                after a time limit.
        """
        state = self._state
        while True:
            size, affordable = state.record_size, min(limit, self._page_limit)
            page, asked_at = self._next_page(state.cursor, affordable)
            state.record_page(page, affordable, asked_at)
            is_small = size is None and sum(map(size_in_bytes, page.records)) < _PAGE_BYTES // 2
            if state.is_exhausted or (page.records and not is_small):
                return
            if not page.records and not exact and (state.cut_points or self._gives_up()):
                return

    def seek_to_tip(self, until: int) -> None:
        """Makes the last cut point the exact tip at `until` (microseconds).

        Called after a full page, which shows that records follow.
        """
        number = self.number_of(IteratorStart("LATEST"))
        if number is not None:
            self._seek_to_number(number)
            return
        recent = min(self._shortest_span(), _RECENT)
        self._seek(min(until, self._probe.log.server_time() - recent), self._page_limit, until)

    def read_near_tip(self) -> None:
        """Makes the last cut point the newest record, or one near it, mostly with one read.

        The read starts after the last cut point. If a page from there does not come near the tip, this
        and later reads start at the records of the last `_TIP_DELAY`, until there are none.
        """
        state = self._state
        if not state.is_busy:
            few = min(_FEW, self._page_limit)  # large ones, which come one by one
            self.read_page(SAMPLE if state.record_size is None else max(few, self._limit(_NEAR_TIP_BYTES)))
            if state.is_exhausted or not state.cut_points:
                return
        self.seek_near_tip()

    def seek_near_tip(self) -> None:
        """As `read_near_tip`, after a read that did not reach the tip."""
        state, since = self._state, self._probe.log.server_time() - _TIP_DELAY
        if state.cut_points and state.cut_points[-1].arrival >= since:
            return
        if not self._probe.log.seeks_by_time:
            self._read_on(since, None)
            return
        limit = self._limit(_NEAR_TIP_BYTES)
        found = self._first_since(since, limit, exact=False)
        state.is_busy = found is not None
        if found is not None and self._jump_to(found):
            return
        if found is not None or not state.cut_points:
            # All records found are known: a record's time is ahead of the clock. Many records may
            # follow.
            self.read_page(limit if found is None else self._page_limit)
        if found is None:
            self._search_tip(since, None)

    def seek_to_time(self, until: int, *, exact: bool = False) -> bool:
        """Makes the last cut point the first record at or after `until` (microseconds).

        Returns:
            False if there is no such record. Then the last cut point is a record near the tip, or, with
                `exact`, the last record before `until`.
        """
        return self._seek(until, 1, until if exact else None)

    def number_of(self, start: IteratorStart) -> str | None:
        """See `StreamLog.number_of`."""
        return self.call(lambda: self._probe.log.number_of(self._state.split.id, start))

    def _seek_to_number(self, number: str) -> None:
        """Makes the last cut point the newest record, if the next one will get `number`. Ignores
        arrival times.
        """
        state, tip = self._state, sequence_of(number)
        span = limit = self._page_limit
        while (first := tip - span) > state.last_sequence + 1:
            found = self._first_at(AtTime(0, number=str(first)), limit, exact=True)
            if found is not None:
                self._jump_to(found)
                break
            span *= 2  # the last numbers may belong to no record
        while not state.is_exhausted and state.last_sequence < tip - 1:
            self.read_page(self._page_limit, exact=True)

    def _seek(self, instant: int, limit: int, exact_until: int | None) -> bool:
        """Reads `limit` records from `instant` on. If there is none, or more follow, searches the tip.

        Args:
            exact_until: find the exact tip at this instant (microseconds); None: a record near it.

        Returns:
            Whether a record arrived at `instant` or later.
        """
        if not self._probe.log.seeks_by_time:
            return self._read_on(instant, exact_until)
        found = self._first_since(instant, limit, exact=exact_until is not None)
        if found is not None:
            self._jump_to(found)
        elif not self._state.cut_points:
            self.read_page(SAMPLE, exact=exact_until is not None)
        if found is None or limit > 1:
            self._search_tip(instant if found is None else None, exact_until)
        return found is not None

    def _read_on(self, instant: int, exact_until: int | None) -> bool:
        """As `_seek`, page by page. Without `exact_until` it reads up to `_READ_ON_PAGES`."""
        state, is_exact = self._state, exact_until is not None
        until = instant if exact_until is None else exact_until
        pages = 0
        while not state.is_exhausted and (is_exact or pages < _READ_ON_PAGES):
            known = len(state.cut_points)
            self.read_page(self._page_limit, exact=is_exact)
            pages += 1
            if state.cut_points and state.cut_points[-1].arrival >= until:
                break
            if len(state.cut_points) > _MOST_CUT_POINTS:
                state.join_cut_points(_JOINED)
            if len(state.cut_points) == known and not is_exact:
                break  # the next trigger shows whether this is the tip or a gap
        return bool(state.cut_points) and state.cut_points[-1].arrival >= instant

    def _search_tip(self, high: int | None, exact_until: int | None) -> None:
        """Makes the last cut point the newest record, or one near it.

        Args:
            high: no record arrived at this instant (microseconds) or later; None: not known.
            exact_until: see `_seek`. A record that arrived later is new enough.
        """
        state, is_exact = self._state, exact_until is not None
        now = self._probe.log.server_time()
        high = now + 1 if high is None else high
        begin = state.cut_points[-1].arrival if state.cut_points else 0
        while state.cut_points and not state.is_exhausted:
            low = state.cut_points[-1].arrival
            if exact_until is not None and low > exact_until:
                return
            span = self._span()
            instant = next_instant(begin, now, low, high, span)
            if instant is None:
                self.read_page(self._page_limit, exact=is_exact)
                if not is_exact:
                    return
                continue
            found = self._first_since(
                instant, self._page_limit if high - instant <= span else 1, exact=is_exact
            )
            if found is None:
                high = instant
            elif not self._jump_to(found):
                high = low  # arrival times are out of order here: read page by page

    def _jump_to(self, found: _Found) -> bool:
        """Whether some of the records found are new."""
        last = self._state.last_sequence
        self._state.jump_to(*found)
        return self._state.last_sequence > last

    @property
    def _page_limit(self) -> int:
        """The number of records in a page that uses little of the shard's 2 MiB/s."""
        return self._limit(_PAGE_BYTES)

    def _limit(self, size_in_bytes: int) -> int:
        """Returns about how many records of the split have this many bytes together."""
        size = self._state.record_size
        return _FIRST_PAGE if size is None else max(1, min(LARGEST_PAGE, int(size_in_bytes / max(size, 1.0))))

    def _shortest_span(self) -> int:
        """Returns the shortest time in which a shard gets a page of records (microseconds)."""
        rate = min(_RECORD_RATE, _BYTE_RATE / max(self._state.record_size or 1.0, 1.0))
        return int(self._page_limit / rate * MICROS_PER_SECOND)

    def _span(self) -> int:
        """Returns the arrival time that a page covers (microseconds), estimated from the pages so far."""
        density, shortest = self._state.density, self._shortest_span()
        return max(shortest, int(self._page_limit / density)) if density else shortest

    def _first_since(self, instant: int, limit: int, *, exact: bool) -> _Found | None:
        # The service rejects future instants, and counts in milliseconds.
        instant = min(instant, self._probe.log.server_time() // 1000 * 1000)
        return self._first_at(AtTime(instant), limit, exact=exact)

    def _first_at(self, position: AtTime, limit: int, *, exact: bool) -> _Found | None:
        """Returns the first records from a position on, or None.

        Unless `exact`, None may also mean that only empty pages have come.
        """
        cursor = self._probe.cursor(self._state.split, position)
        while True:
            page, asked_at = self._next_page(cursor, limit)
            if page.records:
                return _Found(page, cursor, limit, asked_at)
            if page.next_iterator is None or page.millis_behind == 0 or (not exact and self._gives_up()):
                return None

    def _gives_up(self) -> bool:
        """Whether to leave the pages after empty ones to the next trigger."""
        return self._settings.clock() + self._wait() > self._empty_pages_until

    def _next_page(self, cursor: Cursor, limit: int) -> tuple[Page, int]:
        """Reads a page when the split may be read; also returns the time just before (microseconds)."""

        def read() -> tuple[Page, int]:
            if wait := self._wait():
                self._settings.pause(wait)
            self._reads += 1
            page, asked_at = None, self._probe.log.server_time()
            try:
                page = cursor.next_page(limit)
            finally:
                self._state.reads.record_call(page, self._settings.clock())
            return page, asked_at

        return self.call(read)

    def _wait(self) -> float:
        has_backlog = bool(self._state.cut_points) and not self._state.is_exhausted
        return self._state.reads.wait(self._settings.clock(), self._probe.burst, for_bytes=has_backlog)
