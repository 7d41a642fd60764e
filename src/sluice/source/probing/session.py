"""Reads a split for the planner: some records from where it has read last, or one record at a point in time.

Kinesis has no call that names the last record of a shard. The end of a batch (a cut point) is found by
reading on where few records come, and elsewhere by asking for the first record at or after a time with a
limit of one: two calls and one record, whatever the rate.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.errors import ServiceError
from sluice.instants import MICROS_PER_SECOND
from sluice.source.logs.cursor import Cursor
from sluice.source.logs.stream_log import IteratorStart, Page, size_in_bytes
from sluice.source.model.offsets import AtTime, is_by_time
from sluice.source.model.sequence import sequence_of
from sluice.source.probing.probe import Probe
from sluice.source.probing.tip_search import TipSearch, shortest_span
from sluice.source.state.split_state import SplitState

__all__ = ["LARGEST_PAGE", "SAMPLE", "SAMPLE_BYTES", "SMALL_PAGE", "ProbeSession"]

SMALL_PAGE = 100
"""Records asked for where few may have come."""
SAMPLE = 1_000
"""Records that tell how dense a backlog is."""
SAMPLE_BYTES = 2**18
"""Bytes of a sample, about, where a few hundred records are enough."""
LARGEST_PAGE = 10_000
"""Records of the largest page that Kinesis gives."""

_FIRST_PAGE = 2
"""Records asked for where nothing is known of their size, which may be 10 MiB."""
_PAGE_BYTES = 2**20
"""Bytes that a page of a probe should hold, about. After a page of more than 2 MiB Kinesis refuses to read
the shard for some seconds, and a task may have to read it next."""
_LARGE_RECORD = _PAGE_BYTES / 2
"""Bytes from which on a probe reads as few records as it can: each costs a quarter of a second in which the
shard might have been read, and 5 s if it has 10 MiB."""
_TARGET_FILL = 0.75
"""The share of a page that should be filled, by the known density. A full page may not reach the tip."""

_MAX_EMPTY_PAGES = 20
"""Empty pages in a row after which a split is left for the next trigger, where that may be.

Any number of them may come before a portion of the shard that holds records. Only an answer at the tip, or at
the end of the split, says that there is no record."""
_FEW_EMPTY_PAGES = 4
"""`_MAX_EMPTY_PAGES` where the service does not search by time. Such a service may not say either where the
tip is, and then each trigger would read many empty pages behind its few records."""
_ITERATOR_LIFE = 240.0
"""Seconds for which an iterator surely lives. Kinesis' live for 300."""

_MAX_SEARCHES = 48
"""Searches by time for one tip, at most. Then the probe reads on."""
_RECENT = 3 * MICROS_PER_SECOND
"""How long ago a search begins, at most (microseconds). Nearly every stream has had a record since."""
_SMALL_REST = 16
"""Pages. If the rest of a backlog fills no more than these, a probe reads on before it searches by time."""
_SCANNED_PAGES = 2
"""Pages that a probe reads on towards a tip that need not be exact."""
_BACKLOG_PARTS = 16
"""A batch may leave one in this many parts of an old backlog to the next batch."""
_FAR_BEHIND = 20_000
"""Milliseconds. Further from the tip than this, more than one or two large records are taken to follow."""

_READ_ON_PAGES = 16
"""Pages that a plan reads of a split that cannot be searched by time, at most; the next batch goes on."""
_MOST_CUT_POINTS = 50_000
"""Cut points that a plan keeps of a split that is read to its tip. Hours of a busy split would be
millions."""
_JOINED = 16
"""If there are more, this many cut points become one."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The first records at or after an instant, and a cursor right after them.

    Attributes:
        limit: how many records were asked for.
        asked_at: when (microseconds).
    """

    page: Page
    cursor: Cursor
    limit: int
    asked_at: int


class _UndecidedError(Exception):
    """Only empty pages came, none of them at the tip: whether a record follows is not known yet."""


class ProbeSession:
    """Reads one split for one trigger, paced, and counts the reads.

    Every method raises what `Cursor.next_page` raises.

    Args:
        is_awaited: the plan waits until the split can be read, so a throttled read is repeated.
    """

    def __init__(self, probe: Probe, state: SplitState, *, is_awaited: bool) -> None:
        self._is_awaited = is_awaited
        self._probe = probe
        self._state = state
        self._settings = probe.settings
        self._reads = 0

    @property
    def has_read(self) -> bool:
        return self._reads > 0

    def end(self) -> None:
        """Sets when the split may be read again."""
        cost = min(self._reads, self._settings.burst) * self._settings.seconds_per_read
        if self._reads:
            self._state.reads.schedule(self._settings.clock() + cost)

    def back_off(self) -> None:
        """Leaves a split alone for a while that is throttled or failing."""
        self._settings.pause(2 * self._settings.seconds_per_read)

    def read_page(
        self, limit: int, *, exact: bool = False, most_bytes: int = _PAGE_BYTES, most_empty: int | None = None
    ) -> None:
        """Reads on after the last cut point: one page, or several as long as they are empty.

        Args:
            limit: records that the page may hold.
            most_bytes: bytes that it may hold, about.
            exact: read on until records come, or the service says that there are none. Otherwise the
                next trigger goes on after some empty pages.
            most_empty: how many empty pages to read then; None: as many as suit the service.
        """
        state = self._state
        if most_empty is None:
            # Pages of records that are older than the start look empty, too.
            may_be_tip = not self._probe.log.seeks_by_time and not is_by_time(state.cursor.position)
            most_empty = _FEW_EMPTY_PAGES if may_be_tip else _MAX_EMPTY_PAGES
        state.keep_hint()
        pages = 0
        # Triggers that are far apart would begin with the same empty pages again and again.
        exact = exact or state.has_lost_its_place(self._settings.clock(), _ITERATOR_LIFE)
        while exact or pages < most_empty:
            pages += 1
            self._pace()
            size, affordable = state.record_size, min(limit, self._affordable(most_bytes))
            asked_at = self._probe.log.server_time()
            page = self._next_page(state.cursor, affordable)
            state.record_page(page, affordable, asked_at)
            if state.is_exhausted:
                return
            is_small = size is None and sum(map(size_in_bytes, page.records)) < _PAGE_BYTES // 2
            if page.records and not is_small:
                return
        state.mark_undecided(self._settings.clock())

    def seek_to_tip(self, until: int, *, exact: bool) -> None:
        """Makes the last cut point a record near the tip.

        To be called after a full page, so it is known that records follow.

        Args:
            until: the instant (microseconds) that counts as the tip.
            exact: find the very tip at `until`, and not a record near it.
        """
        if exact:
            number = self._probe.log.number_of(self._state.split.id, IteratorStart("LATEST"))
            if number is not None:
                self._seek_to_number(number)
                return
            recent = min(self._shortest_span(), _RECENT)
            self._seek(min(until, self._probe.log.server_time() - recent), self._page_limit, until)
            return
        last = self._state.last_sequence
        is_before_tip = self.seek_to_time(until)
        if is_before_tip and self._state.last_sequence == last and self._probe.log.seeks_by_time:
            self.read_page(SAMPLE)  # many records came at once, all of them after `until`

    def seek_to_time(self, until: int, *, exact: bool = False) -> bool:
        """Makes the last cut point the first record at or after `until` (microseconds).

        Returns:
            False where there is no such record. Then the last cut point is a record near the tip, or, with
            `exact`, the last record before `until`.
        """
        return self._seek(until, 1, until if exact else None)

    def _seek_to_number(self, number: str) -> None:
        """Makes the last cut point the newest record, where the next one will get `number`.

        The times of records do not matter.
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
        """Reads `limit` records from `instant` on, and looks for the tip if there is none, or more follow.

        Args:
            exact_until: find the very tip at this instant (microseconds); None: a record near it.

        Returns:
            Whether a record arrived at `instant` or later.
        """
        if not self._probe.log.seeks_by_time:
            return self._read_on(instant, exact_until)
        state, is_exact = self._state, exact_until is not None
        try:
            found = self._first_since(instant, limit, exact=is_exact)
        except _UndecidedError:
            return False
        if found is not None:
            self._jump_to(found)
            if limit > 1:
                self._search_tip(None, exact_until)
            return True
        # No record arrived then or later. A backlog is often small: read on before searching by time.
        is_sampled = len(state.cut_points) >= min(SAMPLE, self._affordable(SAMPLE_BYTES))
        if not is_sampled and not (self._is_large and (state.millis_behind or 0) > _FAR_BEHIND):
            self.read_page(SAMPLE, exact=is_exact)
        self._search_tip(instant, exact_until)
        return False

    def _read_on(self, instant: int, exact_until: int | None) -> bool:
        """`_seek` without a search by time: reads on, and some pages only where that may be."""
        state, is_exact = self._state, exact_until is not None
        until = instant if exact_until is None else exact_until
        pages = 0
        while not state.is_exhausted and (is_exact or pages < _READ_ON_PAGES):
            known = len(state.cut_points)
            self.read_page(self._page_limit, exact=is_exact, most_empty=1)
            pages += 1
            if state.cut_points and state.cut_points[-1].arrival >= until:
                break
            if len(state.cut_points) > _MOST_CUT_POINTS:
                state.join_cut_points(_JOINED)
            if len(state.cut_points) == known and not is_exact:
                break  # the tip, or a gap: the next trigger shows
        return bool(state.cut_points) and state.cut_points[-1].arrival >= instant

    def _search_tip(self, high: int | None, exact_until: int | None) -> None:
        """Makes the last cut point the newest record, or one near it.

        Args:
            high: no record arrived at this instant (microseconds) or later; None: not known.
            exact_until: as that of `_seek`. A record that arrived later is new enough.
        """
        state = self._state
        now = self._probe.log.server_time()
        high = now + 1 if high is None else high
        start = state.cut_points[-1].arrival if state.cut_points else high
        searches = pages = 0
        while state.cut_points and not state.is_exhausted:
            low = state.cut_points[-1].arrival
            if exact_until is not None and low > exact_until:
                return
            span = self._span()
            # A batch may leave a part of an old backlog to the next one.
            rest = span if exact_until is not None else max(span, (low - start) // _BACKLOG_PARTS)
            search = TipSearch(now, low, high, span, rest, self._is_large)
            is_small = not searches and high - low <= _SMALL_REST * span and not self._is_large
            instant = None if is_small or searches >= _MAX_SEARCHES else search.next_instant()
            searches += 1
            if instant is None:
                if exact_until is None and (pages == _SCANNED_PAGES or self._is_large):
                    return
                self.read_page(self._page_limit, exact=exact_until is not None)
                pages += 1
                continue
            limit = self._page_limit if search.is_in_reach(instant) else 1
            try:
                found = self._first_since(instant, limit, exact=exact_until is not None)
            except _UndecidedError:
                return
            if found is None:
                high = instant
            elif not self._jump_to(found):
                searches = _MAX_SEARCHES  # arrival times are out of order here: read on

    def _jump_to(self, found: _Found) -> bool:
        """Returns whether some of the records found are new."""
        last = self._state.last_sequence
        self._state.jump_to(found.page, found.cursor, found.limit, found.asked_at)
        return self._state.last_sequence > last

    @property
    def _is_large(self) -> bool:
        return (self._state.record_size or 0.0) >= _LARGE_RECORD

    @property
    def _page_limit(self) -> int:
        """How many records a page holds that takes little of the shard's 2 MiB/s."""
        return self._affordable(_PAGE_BYTES)

    def _affordable(self, most_bytes: int) -> int:
        size = self._state.record_size
        return _FIRST_PAGE if size is None else max(1, min(LARGEST_PAGE, int(most_bytes / max(size, 1.0))))

    def _shortest_span(self) -> int:
        return shortest_span(self._page_limit, self._state.record_size or 1.0)

    def _span(self) -> int:
        """The arrival time that a page covers (microseconds), as far as the pages read have shown it."""
        density, shortest = self._state.density, self._shortest_span()
        return shortest if not density else max(shortest, int(_TARGET_FILL * self._page_limit / density))

    def _first_since(self, instant: int, limit: int, *, exact: bool) -> _Found | None:
        """`_first_at` for an instant (microseconds)."""
        # The service refuses later instants, and counts in milliseconds.
        instant = min(instant, self._probe.log.server_time() // 1000 * 1000)
        return self._first_at(AtTime(instant), limit, exact=exact)

    def _first_at(self, position: AtTime, limit: int, *, exact: bool) -> _Found | None:
        """The first records from a position on; None where the service says there is none.

        Raises:
            _UndecidedError: only empty pages came; never with `exact`.
        """
        cursor = self._probe.cursor(self._state.split, position)
        pages = 0
        while exact or pages < _MAX_EMPTY_PAGES:
            pages += 1
            self._pace()
            asked_at = self._probe.log.server_time()
            page = self._next_page(cursor, limit)
            if page.records:
                return _Found(page, cursor, limit, asked_at)
            if page.next_iterator is None or page.millis_behind == 0:
                return None
        raise _UndecidedError

    def _next_page(self, cursor: Cursor, limit: int) -> Page:
        """Reads a page; repeats a throttled read where the plan waits for this split."""
        while True:
            page = None
            try:
                page = cursor.next_page(limit)
            except ServiceError as error:
                if not (error.throttling and self._is_awaited):
                    raise
            finally:
                self._probe.record_read(self._state.split.id, page)
            if page is not None:
                return page
            self._settings.pause(self._settings.throttled_pause)

    @property
    def _has_backlog(self) -> bool:
        return bool(self._state.cut_points) and not self._state.is_exhausted

    def _pace(self) -> None:
        self._probe.pace(self._state.split.id, for_bytes=self._has_backlog)
        self._reads += 1
