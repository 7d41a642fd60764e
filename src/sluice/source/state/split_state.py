"""The planner's knowledge of a split ahead of the last batch. A dropped state is rebuilt from the
position."""

from __future__ import annotations

import enum
import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sluice.instants import MICROS_PER_SECOND
from sluice.source.logs.cursor import Cursor
from sluice.source.logs.stream_log import Page, size_in_bytes
from sluice.source.model.offsets import After, AtHorizon, AtTime, Closed, Expiry, Position, before
from sluice.source.model.positions import sequence_of
from sluice.source.model.splits import Split
from sluice.source.state.cut_points import CutPoint
from sluice.source.state.read_pace import ReadPace
from sluice.source.state.subscriptions import SubscriptionProgress

__all__ = ["Reach", "SplitState"]

_MIN_HINT_GAIN = 600 * MICROS_PER_SECOND
"""Minimum gain of a hint over the logged one (microseconds)."""
_LAG_HOLDS = 15.0
"""Seconds without an answer after which a lag counts as unknown."""


class Reach(enum.Enum):
    """What follows the last cut point of a split."""

    UNKNOWN = enum.auto()
    """More records may follow; a probe has to read them."""
    TIP = enum.auto()
    """No record followed at the last answer."""
    END = enum.auto()
    """The split is closed, and no record follows."""
    TARGET = enum.auto()
    """The query ends here, and ignores records that follow."""


@dataclass(slots=True)
class SplitState:
    """The state of one split between two batches. Held by the enumerator. It is updated in one of two ways:

    - *probed* (the default): a probe reads pages, see `record_page` and `jump_to`;
    - *pushed* (`is_pushed`): a subscription reports its progress, see `adopt`.

    A hint is an instant at which no record followed a position. It is part of `position` and of
    `cursor.position`. `unchanged_with_hints` logs it as ``idle``, `end_with_hints` as ``quiet``.

    Attributes:
        split: as in the last listing.
        position: the end of the last batch, with the last hint.
        cursor: reads from right after the last cut point.
        expiry: which records of the stream had expired when the state was made; None if not known.
        reads: its pace, and whether the service answers.
        target: where a query with ``Trigger.AvailableNow`` ends; no cut point follows it.
        cut_points: where the next batch may end, in order, all after `position`.
        reach: what follows the last cut point.
        record_size: mean bytes of a record in the last page with records; None before the first.
        density: records per microsecond of arrival time, from the last page that shows it; None before
            the first.
        millis_behind: how far the last answer was from the tip (milliseconds).
        tip_at: when the service last reported that nothing follows the last cut point (microseconds).
        first_number: number of the first record after `position`, if a probe has seen it.
        is_busy: a page from the last cut point did not reach the tip, and records kept coming.
        is_pushed: a subscription reports new records, and probes do not read the split.
        idle_progress: the last adopted progress, if it reported no record after `position`; else None.
    """

    split: Split
    position: Position
    cursor: Cursor
    expiry: Expiry | None = None
    reads: ReadPace = field(default_factory=ReadPace)
    target: After | Closed | None = None
    cut_points: Sequence[CutPoint] = ()
    reach: Reach = Reach.UNKNOWN
    record_size: float | None = None
    density: float | None = None
    millis_behind: int | None = None
    tip_at: int | None = None
    first_number: str | None = None
    is_busy: bool = False
    is_pushed: bool = False
    idle_progress: SubscriptionProgress | None = field(default=None, repr=False)

    # --- what is known --------------------------------------------------------------------------------

    @property
    def has_gap(self) -> bool:
        """Whether uncounted records lie before a cut point."""
        return any(point.is_after_gap for point in self.cut_points)

    @property
    def is_exhausted(self) -> bool:
        """Whether no record for the next batch can follow the last cut point."""
        return self.reach is not Reach.UNKNOWN

    @property
    def has_ended(self) -> bool:
        return self.reach is Reach.END

    @property
    def is_newly_closed(self) -> bool:
        """Whether the split was closed since a read reached its tip. Records may follow."""
        return self.split.is_closed and self.reach is Reach.TIP

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last known record, or right before `position`; -1 if there is none."""
        if self.cut_points:
            return self.cut_points[-1].sequence
        here = self.position
        if isinstance(here, AtTime) and here.number is not None:
            return sequence_of(here.number) - 1
        return here.sequence if isinstance(here, After) else -1

    @property
    def wants_first_record(self) -> bool:
        """Whether the number of the first record will be needed to prove that none has expired."""
        here = self.position
        is_start = isinstance(here, AtHorizon) and here.pinned is not None and here.caught_up_at is None
        return is_start and self.first_number is None

    def start_has_expired(self, now: int) -> bool:
        """Whether records may have expired unread after a position that names no record (`now` in
        microseconds).

        No later record would show this to a reader.
        """
        here = self.position
        if self.cut_points or not isinstance(here, AtTime | AtHorizon):
            return False
        known = here.last_caught_up_at
        return known is not None and self.expiry is not None and not self._holds(known, now)

    def is_due(self, now: float) -> bool:
        """Whether a probe may read the split at `now` (monotonic seconds).

        A split with a target is always due: otherwise the query could end only because the split was not
        read.
        """
        return not self.is_pushed and (self.target is not None or self.reads.next_read_at <= now)

    def count_before(self, instant: int | None) -> int:
        """Returns how many cut points precede the first that arrived at or after `instant`."""
        if instant is None:
            return len(self.cut_points)
        for count, point in enumerate(self.cut_points):
            if point.arrival >= instant:
                return count
        return len(self.cut_points)

    def count_up_to(self, end: After) -> int:
        """Returns how many cut points a batch up to `end` takes."""
        return bisect_right(self.cut_points, end.sequence, key=lambda point: point.sequence)

    def cut_at(self, count: int) -> After | Closed | None:
        """Returns the end of a batch that takes the first `count` cut points; None if that is no progress."""
        if count == len(self.cut_points):
            if self.reach is Reach.TARGET:
                return self.target
            if self.reach is Reach.END:
                return Closed()
        if count == 0:
            return None
        point = self.cut_points[count - 1]
        here = self.cursor.position
        is_last = count == len(self.cut_points)
        caught_up_at = here.caught_up_at if is_last and isinstance(here, After) else None
        return After(point.number, arrival=point.arrival, caught_up_at=caught_up_at)

    def end_before(self, instant: int) -> After | Closed | None:
        """Returns the end of a batch that takes the records that arrived before `instant` (microseconds)."""
        count = self.count_before(instant)
        if count < len(self.cut_points) and self.reach is not Reach.TARGET:
            end = before(self.cut_points[count].number)
            return end if isinstance(end, After) else None
        return self.cut_at(len(self.cut_points))

    def end_before_number(self, number: str) -> After | None:
        """Returns the end of a batch that takes the records before the record `number`; None: there are
        none.
        """
        end = before(number)
        return end if isinstance(end, After) and end.sequence > self.last_sequence else None

    def after_position(self, points: Sequence[CutPoint]) -> Sequence[CutPoint]:
        """Returns the `points` of a subscription that follow `position`."""
        if not isinstance(self.position, After):
            return points
        done = self.position.read_up_to
        count = 0
        while count < len(points) and points[count].sequence <= done:
            count += 1
        return points[count:]

    def lag(self, count: int, now: float) -> int | None:
        """Returns the lag of a batch that takes the first `count` cut points (milliseconds).

        Args:
            now: monotonic seconds.

        Returns:
            None if not known: the split has never answered, or not for 15 s.
        """
        since = self.reads.unanswered_since
        if self.millis_behind is None or (since is not None and now - since >= _LAG_HOLDS):
            return None
        if not self.cut_points or count >= len(self.cut_points):
            return self.millis_behind
        arrival = self.cut_points[max(0, count - 1)].arrival
        return self.millis_behind + max(0, self.cut_points[-1].arrival - arrival) // 1000

    def end_with_hints(self, end: After | Closed, logged: Position) -> After | Closed:
        """Adds the last hint about the start of the batch to `end`, if it is much newer than the
        `logged` one.
        """
        known, before_ = _hint(self.position), _hint(logged)
        if known is None or before_ is None or known - before_ < _MIN_HINT_GAIN:
            return end
        return replace(end, start_caught_up_at=known)

    def unchanged_with_hints(self, position: Position) -> Position:
        """Returns the position of a split that does not advance, with the instant at which it was last
        caught up.

        A newer hint alone makes no batch. After a restart, the hint shows whether the split got no
        records or its records have expired.
        """
        here = self.position
        if position != here:
            return position
        return replace(here, next=self.first_number or here.next) if isinstance(here, AtHorizon) else here

    # --- probes ---------------------------------------------------------------------------------------

    def record_page(self, page: Page, limit: int, asked_at: int) -> None:
        """Records a page that a probe has read through `cursor`.

        Args:
            limit: number of requested records.
            asked_at: when the page was requested (microseconds).
        """
        self.millis_behind = page.millis_behind
        self._set_reach(self._reach_of(page, limit))
        points = list(map(CutPoint.of, page.records))
        if points:
            self.record_size = sum(point.size for point in points) / len(points)
            self._observe_density(points)
            if not self.cut_points and not self.start_has_expired(asked_at):
                self.first_number = points[0].number
        self._add(points)
        if self.reach is Reach.TIP:
            self.tip_at = asked_at
            self._confirm_caught_up(asked_at)
        self._take_hint()

    def jump_to(self, page: Page, cursor: Cursor, limit: int, asked_at: int) -> None:
        """Records a page that a probe has found by time. A gap may separate it from the known records.

        Args:
            page: the records that were found.
            cursor: continues reading after them.
            limit, asked_at: see `record_page`.
        """
        records, last = page.records, self.last_sequence
        known = bisect_right(records, last, key=lambda record: sequence_of(record.sequence_number))
        if known == len(records):
            return  # the first record at that time may precede a known record
        size = page.size or sum(map(size_in_bytes, records))
        if self.record_size is None:
            self.record_size = size / len(records)
        if known and not self.has_gap:
            points = list(map(CutPoint.of, records[known:]))
        else:  # after a gap, batches end only between pages
            points = [CutPoint.of_all(records[known:], size)._replace(is_after_gap=not known)]
        self._add(points)
        self.cursor = cursor
        self.millis_behind = page.millis_behind
        self._observe_density(points)
        self._set_reach(self._reach_of(page, limit))
        if self.reach is Reach.TIP:
            self.tip_at = asked_at

    def drop_after_gap(self) -> None:
        """Makes probes continue before the first gap, where they count all records."""
        if self.has_gap:
            points = list(itertools.takewhile(lambda point: not point.is_after_gap, self.cut_points))
            self.cut_points, self.reach = points, Reach.UNKNOWN
            self.cursor = self.cursor.at(self._behind_last(None))

    def join_cut_points(self, count: int) -> None:
        """Joins groups of `count` cut points to their last one, which then counts all their records."""
        points = self.cut_points
        groups = [points[first : first + count] for first in range(0, len(points), count)]
        self.cut_points = [
            group[-1]._replace(
                size=sum(point.size for point in group),
                count=sum(point.count for point in group),
                since=group[0].first_arrival,
            )
            for group in groups
        ]

    def mark_start_reported(self, now: int) -> None:
        """Records that at `now` (microseconds) records after `position` were reported as maybe expired."""
        if not isinstance(self.position, Closed):
            self.position = replace(self.position, caught_up_at=now)

    # --- subscriptions --------------------------------------------------------------------------------

    def adopt(self, progress: SubscriptionProgress) -> None:
        """Replaces the cut points by those of a subscription after `position`.

        If the subscription has brought nothing yet, the probes' cut points stay, and are planned first.
        """
        is_idle = progress.is_at_tip and not progress.cut_points and self.target is None
        self.is_pushed = True
        self.idle_progress = progress if is_idle else None
        self.reads.mark_answered()
        self.millis_behind = progress.millis_behind
        points = self.after_position(progress.cut_points)
        if not points and (self.cut_points or self.reach is Reach.TARGET):
            return
        self._drop_cut_points()
        self._add(points)
        last = self.cut_points[-1].number if self.cut_points else None
        is_whole = not points or last == points[-1].number  # otherwise the target has removed some
        if is_whole:
            tip_or_not = Reach.TIP if progress.is_at_tip else Reach.UNKNOWN
            self._set_reach(Reach.END if progress.has_ended else tip_or_not)
        caught_up_at = progress.caught_up_at if is_whole else None
        self.cursor = self.cursor.at(self._behind_last(caught_up_at))
        if caught_up_at is not None:
            # A probe may have reached the tip since the event was made.
            self.tip_at = caught_up_at if points else max(caught_up_at, self.tip_at or 0)
            self._confirm_caught_up(caught_up_at)
        self._take_hint()

    # --- batches --------------------------------------------------------------------------------------

    def stop_at(self, target: After | Closed) -> None:
        """Makes the query end at `target`, even if probes have read further."""
        self.target = target
        points, self.cut_points = self.cut_points, ()
        self._add(points)

    def can_advance_to(self, position: Position) -> bool:
        """Whether the state stays valid if the last batch ended at `position`."""
        if position == self.position:
            return True
        is_ahead = not isinstance(self.position, After) or (
            isinstance(position, After) and position.sequence > self.position.sequence
        )
        return isinstance(position, After) and is_ahead and position.sequence <= self.last_sequence

    def advance_to(self, position: Position) -> None:
        """Moves the state to `position`, the end of the last batch.

        Cut points after a gap are dropped, unless the batch has taken the records in the gap.
        """
        if isinstance(position, After) and position != self.position:
            self.cut_points = self.cut_points[self.count_up_to(position) :]
            if self.cut_points and position == before(self.cut_points[0].number):
                self.cut_points = [self.cut_points[0]._replace(is_after_gap=False), *self.cut_points[1:]]
            self.position = position
            self.first_number = None
            self.drop_after_gap()
            self._take_hint()

    def reset(self) -> None:
        """Makes probes begin again right after `position`."""
        self._drop_cut_points()
        self.is_pushed = False
        self.cursor = self.cursor.at(self._behind_last(None))

    # --- inside ---------------------------------------------------------------------------------------

    def _drop_cut_points(self) -> None:
        if self.cut_points:
            self.tip_at = None
        self.cut_points, self.reach = (), Reach.UNKNOWN

    def _observe_density(self, points: Sequence[CutPoint]) -> None:
        first = points[0].arrival if points[0].since is None else points[0].since
        count = sum(point.count for point in points)
        if points[-1].arrival > first:
            self.density = (count - 1) / (points[-1].arrival - first)

    def _reach_of(self, page: Page, limit: int) -> Reach:
        if page.next_iterator is None:
            return Reach.END
        if page.millis_behind != 0 or len(page.records) >= limit:
            return Reach.UNKNOWN
        # A split that was listed as closed before the read gets no more records: its tip is its end,
        # even if the service reports that only on the next page. The records of its children are older
        # than this answer.
        return Reach.END if self.split.is_closed else Reach.TIP

    def _set_reach(self, reach: Reach) -> None:
        """Keeps `Reach.TARGET` until the cut points are dropped, because records after a target do not
        matter.
        """
        if self.reach is not Reach.TARGET:
            self.reach = reach

    def _add(self, points: Iterable[CutPoint]) -> None:
        target = self.target
        if not isinstance(target, After):
            self.cut_points = [*self.cut_points, *points]
            return
        kept = list(self.cut_points)
        for point in points:
            if point.sequence <= target.sequence:
                kept.append(point)
            elif point.count > 1 and self.reach is not Reach.TARGET:
                # This cut point counts the target: the records up to the target belong to the query.
                kept.append(point._replace(number=target.number, arrival=target.arrival or point.arrival))
            if point.sequence >= target.sequence:
                self.reach = Reach.TARGET
        self.cut_points = kept

    def _confirm_caught_up(self, now: int) -> None:
        """Confirms that no record has followed a position that names no record.

        There no record can prove that nothing has expired. But if the stream still holds the instant of
        the last confirmation, no record can have arrived and expired since.
        """
        here = self.position
        if not self.cut_points and isinstance(here, AtTime | AtHorizon):
            known = here.last_caught_up_at
            if known is None or (self._holds(known, now) and known < now):
                self.position = replace(here, caught_up_at=now)

    def _take_hint(self) -> None:
        """Copies the cursor's hint about a position that names a record."""
        if self.cursor.position == self.position and isinstance(self.position, After):
            self.position = self.cursor.position

    def _holds(self, instant: int, now: int) -> bool:
        """Whether records that arrived at `instant` have not expired at `now`."""
        expiry = self.expiry
        return expiry is not None and expiry.at(now, expiry.retention).horizon < instant

    def _behind_last(self, caught_up_at: int | None) -> Position:
        """Returns the position after the last cut point, with the instant at which no record followed it."""
        if self.cut_points:
            last = self.cut_points[-1]
            return After(last.number, arrival=last.arrival, caught_up_at=caught_up_at)
        here = self.position
        if not isinstance(here, After) or caught_up_at is None:
            return here
        return replace(here, caught_up_at=max(here.caught_up_at or 0, caught_up_at))


def _hint(position: Position) -> int | None:
    return position.caught_up_at if isinstance(position, After) else position.last_caught_up_at
