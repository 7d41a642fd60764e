"""Looks at a split for the planner: a few records, or one record at a point in time.

Kinesis has no call that names a shard's last record. So the end of a batch (a cut) is found by
reading on from the last one where a shard is quiet, and where it is busy by asking for the first
record at or after a time, with a limit of one: two calls and one record, whatever the rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sluice.source.cursor import Cursor
from sluice.source.data_loss import DataLossPolicy
from sluice.source.offsets import AtTime, Position
from sluice.source.split_state import CutPoint, SplitState
from sluice.source.splits import Split
from sluice.source.stream_log import AnyRecord, StreamLog

__all__ = ["SMALL_PAGE", "Probe", "ProbeSettings"]

SMALL_PAGE = 100
"""Records asked for where a split may be quiet."""
SAMPLE = 1_000
"""Records that show how dense a backlog is."""
PAGE = 10_000
"""The service's largest page."""

_SECOND = 1_000_000
_MAX_BISECTIONS = 24
_MAX_EMPTY_PAGES = 20
_WALK_PAGES = 2


@dataclass(frozen=True)
class ProbeSettings:
    """How gently the planner asks.

    Attributes:
        pause: sleeps for so many seconds.
        budget: seconds that one read of a split costs it; five reads a second is the service's
            limit, and tasks need most of them.
        burst: reads of one split in a row before each further one waits for ``spacing`` seconds.
    """

    pause: Callable[[float], None]
    budget: float = 1.0
    burst: int = 4
    spacing: float = 0.25


@dataclass(frozen=True, slots=True)
class _Jump:
    """The first record at or after an instant, and a cursor right behind it."""

    record: CutPoint
    cursor: Cursor
    millis_behind: int
    has_ended: bool


class Probe:
    """Asks the service about splits; what it learns goes into their states."""

    def __init__(self, log: StreamLog, data_loss: DataLossPolicy, settings: ProbeSettings) -> None:
        self._log = log
        self._data_loss = data_loss
        self._settings = settings

    def state(self, split: Split, position: Position) -> SplitState:
        return SplitState(split, position, Cursor(self._log, self._data_loss, split.id, position))

    def session(self, state: SplitState) -> ProbeSession:
        """A series of looks at one split in one trigger, with its own budget."""
        return ProbeSession(self._log, self._data_loss, self._settings, state)


class ProbeSession:
    """Looks at one split, paced, and remembers what they cost."""

    def __init__(
        self, log: StreamLog, data_loss: DataLossPolicy, settings: ProbeSettings, state: SplitState
    ) -> None:
        self._log = log
        self._data_loss = data_loss
        self._settings = settings
        self._state_of = state
        self._reads = 0
        # A run that stops at a target can't wait until a look is due; then each one waits a little.
        is_early = state.target is not None and state.next_look > log.server_time()
        self._owed = settings.burst if is_early else 0

    @property
    def has_read(self) -> bool:
        return self._reads > 0

    def end(self) -> None:
        """Sets when the split may be asked again."""
        cost = min(self._reads, self._settings.burst) * self._settings.budget
        if self._reads:
            self._state_of.next_look = self._log.server_time() + int(cost * _SECOND)

    def back_off(self) -> None:
        """Leaves a throttled split alone for a while."""
        self._settings.pause(2 * self._settings.budget)

    def look(self, limit: int) -> None:
        """Reads on behind what has been seen: one page, past empty ones in mid-split."""
        state = self._state_of
        state.note_quiet()
        for _ in range(_MAX_EMPTY_PAGES):
            self._pace()
            asked = self._log.server_time()
            page = state.cursor.next_page(limit)
            state.millis_behind = page.millis_behind
            state.has_ended = page.next_iterator is None
            state.is_at_tip = not state.has_ended and page.millis_behind == 0 and len(page.records) < limit
            state.add(map(_seen, page.records))
            if state.is_at_tip:
                state.note_nothing(asked)
            if page.records or state.is_at_tip or state.has_ended:
                return

    def find_tip(self, until: int, *, exact: bool) -> None:
        """Makes the last of what is seen a record near the tip, or (`exact`) the tip at `until`.

        To be called behind a full page: the split is not quiet.
        """
        last = self._state_of.last_sequence
        is_found = self.find_time(until, exact=exact)
        if is_found and exact:
            self._walk(until, exact=True)
        elif is_found and self._state_of.last_sequence == last:
            self.look(SAMPLE)  # a burst, all of it younger than `until`

    def find_time(self, until: int, *, exact: bool = False) -> bool:
        """Makes the last of what is seen the first record at or after `until`.

        False where there is none: then the last that is seen is a record near the tip, or (`exact`)
        the tip.
        """
        jump = self._jump(until)
        if jump is not None:
            self._leap(jump)
            return True
        # No record so late, but a backlog. It often is small: look further before searching.
        self.look(SAMPLE)
        state = self._state_of
        if state.seen and not state.is_exhausted:
            best = self._bisect(state.seen[-1].arrival, until)
            if best is not None:
                self._leap(best)
            self._walk(until, exact=exact)
        return False

    def _walk(self, until: int, *, exact: bool) -> None:
        pages = 0
        state = self._state_of
        while not state.is_exhausted and (exact or pages < _WALK_PAGES):
            self.look(PAGE)
            pages += 1
            if state.seen and state.seen[-1].arrival > until:
                return

    def _leap(self, jump: _Jump) -> None:
        state = self._state_of
        if jump.record.sequence <= state.last_sequence:
            return  # time and order do not always agree
        state.add([jump.record])
        state.has_gap = True
        state.cursor = jump.cursor
        state.millis_behind = jump.millis_behind
        state.has_ended = jump.has_ended
        state.is_at_tip = False

    def _bisect(self, low: int, high: int) -> _Jump | None:
        """The latest jump found between `low` and `high`, where nothing is at or after `high`."""
        best: _Jump | None = None
        for _ in range(_MAX_BISECTIONS):
            if high - low <= _SECOND:
                break
            middle = (low + high) // 2
            jump = self._jump(middle)
            if jump is None:
                high = middle
            else:
                best = jump
                low = max(middle, min(jump.record.arrival, high))
        return best

    def _jump(self, instant: int) -> _Jump | None:
        """The first record at or after `instant`; None where there is none yet."""
        instant = min(instant, self._log.server_time())  # the service refuses to look into the future
        cursor = Cursor(self._log, self._data_loss, self._state_of.split.id, AtTime(instant))
        for _ in range(_MAX_EMPTY_PAGES):
            self._pace()
            page = cursor.next_page(1)
            has_ended = page.next_iterator is None
            if page.records:
                return _Jump(_seen(page.records[0]), cursor, page.millis_behind, has_ended)
            if has_ended or page.millis_behind == 0:
                return None
        return None

    def _pace(self) -> None:
        if self._owed + self._reads >= self._settings.burst:
            self._settings.pause(self._settings.spacing)
        self._reads += 1


def _seen(record: AnyRecord) -> CutPoint:
    size = len(record.data) + len(record.partition_key.encode())
    return CutPoint(record.sequence_number, record.arrival, size)
