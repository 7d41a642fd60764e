"""What the planner knows of a split ahead of the last batch. All of it is an accelerator: a state
that is thrown away is rebuilt from the position alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from sluice.source.cursor import Cursor
from sluice.source.offsets import After, AtTime, Closed, Position
from sluice.source.splits import Split

if TYPE_CHECKING:
    from sluice.source.subscriptions import View

__all__ = ["CutPoint", "SplitState"]


class CutPoint(NamedTuple):
    """A record behind which a batch may end: what planning needs of it, and of those that lie before it.

    Of a split that is read by looks each is one record. Of one that is pushed it may be the last of many
    that came together.
    """

    number: str
    arrival: int  # microseconds
    size: int  # bytes, partition key included, of all that are counted
    # Records from the one before in the list (excluded) up to this one (included).
    count: int = 1  # type: ignore[assignment]  # hides that of tuples, which nobody needs
    since: int | None = None  # when the first of those counted arrived (microseconds), where it is known

    @property
    def sequence(self) -> int:
        return int(self.number)

    @property
    def first_arrival(self) -> int | None:
        """When the first of those counted arrived (microseconds); None where that is not known."""
        return self.arrival if self.count == 1 and self.since is None else self.since


@dataclass
class SplitState:
    """A split, the position planned last, and what is known to lie behind it.

    Attributes:
        split: as listed last.
        position: the end of the last batch.
        cursor: reads on right behind ``seen``.
        target: where a run that ends with what is available stops; ``seen`` never goes beyond.
        seen: records behind ``position``, in order; between two of them others may lie unseen.
        is_at_tip: nothing lay behind ``seen`` at the last look.
        has_ended: the split is closed and ends behind ``seen``.
        has_met_target: nothing between ``seen`` and the target needs a look.
        millis_behind: how far the last look was from the tip.
        has_gap: records lie unseen between those seen.
        quiet: an instant (microseconds) at which nothing lay behind ``position``.
        next_look: the earliest time (microseconds) to ask the service again.
        failing_since: since when (microseconds) no look has succeeded.
        is_missing: the service says that there is no such split.
        retention: for how long records are kept (microseconds), 0 where that is not known.
        is_pushed: all this comes from a subscription, and the service is not to be asked.
        idle_view: what was adopted last, where it said that nothing lies behind ``position``.
        waits_since: since when (microseconds) a subscription has brought nothing and is not at the tip.
    """

    split: Split
    position: Position
    cursor: Cursor
    target: After | Closed | None = None
    seen: list[CutPoint] = field(default_factory=list)
    is_at_tip: bool = False
    has_ended: bool = False
    has_met_target: bool = False
    millis_behind: int | None = None
    has_gap: bool = False
    quiet: int | None = None
    next_look: int = 0
    failing_since: int | None = None
    is_missing: bool = False
    retention: int = 0
    is_pushed: bool = False
    waits_since: int | None = None
    idle_view: View | None = None

    @property
    def is_exhausted(self) -> bool:
        """Whether there is nothing to look for behind ``seen``."""
        return self.is_at_tip or self.has_ended or self.has_met_target

    @property
    def last_sequence(self) -> int:
        """The number of the last record known, -1 where none is."""
        if self.seen:
            return self.seen[-1].sequence
        return self.position.sequence if isinstance(self.position, After) else -1

    def note_quiet(self) -> None:
        """Before anything is read behind `position`: remembers until when nothing was there."""
        here = self.cursor.position
        if not self.seen and isinstance(here, After) and here == self.position:
            self.quiet = here.idle

    def note_nothing(self, now: int) -> None:
        """At the tip with nothing seen behind a start at a time, which has no record that would show it.

        Since the last time that was so, nothing can have come and expired again, if that is not too
        long ago.
        """
        if not self.seen and isinstance(self.position, AtTime):
            known = self.position.known_idle if self.quiet is None else self.quiet
            if known < now < known + self.retention:
                self.quiet = now

    def add(self, records: Iterable[CutPoint]) -> None:
        """Notes records read behind ``seen``, up to the target."""
        if not isinstance(self.target, After):
            self.seen.extend(records)
            return
        target = self.target
        for record in records:
            if record.sequence <= target.sequence:
                self.seen.append(record)
            elif record.count > 1 and not self.has_met_target:
                # The target is one of the many that came together, and what lies before it counts.
                self.seen.append(
                    record._replace(number=target.number, arrival=target.arrival or record.arrival)
                )
            self.has_met_target = self.has_met_target or record.sequence >= target.sequence

    def aim(self, target: After | Closed) -> None:
        """A run ends at `target`, also where looks have come further by now."""
        self.target = target
        seen, self.seen = self.seen, []
        self.add(seen)

    def adopt(self, view: View) -> None:
        """Takes over what a subscription has brought behind `position`, in place of what was looked up.

        Whoever looks again goes on behind it, and nothing is read twice.
        """
        self.is_pushed = True
        self.idle_view = view if view.is_at_tip and not view.marks and self.target is None else None
        self.failing_since, self.is_missing = None, False
        self.millis_behind = view.millis_behind
        marks = self._behind_position(view.marks)
        if not marks and (self.seen or self.has_met_target):
            return  # looks have come further: that is planned first
        if marks:
            self.note_quiet()
        self.seen, self.has_gap, self.has_met_target = [], False, False
        self.add(marks)
        is_whole = not marks or (bool(self.seen) and self.seen[-1].number == marks[-1].number)
        self.is_at_tip = view.is_at_tip and is_whole
        self.has_ended = view.has_ended and is_whole
        idle = view.idle_at if is_whole else None
        self.cursor = self.cursor.at(self._behind_seen(idle))
        if idle is not None:
            self.note_nothing(idle)

    def unsee(self) -> None:
        """Forgets what was seen: looks begin again right behind `position`."""
        self.seen, self.has_gap, self.has_met_target = [], False, False
        self.is_pushed = self.is_at_tip = self.has_ended = False
        self.idle_view = None
        self.cursor = self.cursor.at(self._behind_seen(self.quiet))

    def _behind_position(self, marks: Sequence[CutPoint]) -> Sequence[CutPoint]:
        if not isinstance(self.position, After):
            return marks
        # Inside an aggregate the record itself is still to come, with the sub-records that are left.
        done = self.position.sequence - (self.position.sub is not None)
        count = 0
        while count < len(marks) and marks[count].sequence <= done:
            count += 1
        return marks[count:]

    def _behind_seen(self, idle: int | None) -> Position:
        """The place behind ``seen``, at which nothing lay behind it at the instant `idle`."""
        if self.seen:
            return After(self.seen[-1].number, arrival=self.seen[-1].arrival, idle=idle)
        here = self.position
        if not isinstance(here, After):
            return here
        looked = self.cursor.position
        before = looked.idle if isinstance(looked, After) and looked == here else None
        known = [instant for instant in (here.idle, before, idle) if instant is not None]
        return replace(here, idle=max(known, default=None))

    def can_follow(self, position: Position) -> bool:
        """Whether what is known still holds when the last batch ended at `position`."""
        if position == self.position:
            return True
        is_ahead = not isinstance(self.position, After) or (
            isinstance(position, After) and position.sequence > self.position.sequence
        )
        return isinstance(position, After) and is_ahead and position.sequence <= self.last_sequence

    def follow(self, position: Position) -> None:
        """Forgets what a batch that ended at `position` has taken."""
        if isinstance(position, After) and position != self.position:
            taken = sum(1 for record in self.seen if record.sequence <= position.sequence)
            self.seen = self.seen[taken:]
            self.has_gap = False
            self.position = position
            self.quiet = None
            self.idle_view = None

    def count_before(self, instant: int | None) -> int:
        """How many of ``seen`` come before the first that arrived at or after `instant`."""
        if instant is None:
            return len(self.seen)
        for count, record in enumerate(self.seen):
            if record.arrival >= instant:
                return count
        return len(self.seen)

    def cut_at(self, count: int) -> After | Closed | None:
        """The end of a batch that takes the first `count` of ``seen``; None for no progress."""
        if count == len(self.seen):
            if self.has_met_target:
                return self.target
            if self.has_ended:
                return Closed()
        if count == 0:
            return None
        record = self.seen[count - 1]
        return After(record.number, arrival=record.arrival, idle=self._idle(count))

    def lag(self, count: int) -> int | None:
        """How far (ms) a batch that ends behind `count` records seen is from the tip."""
        if self.millis_behind is None:
            return None
        if not self.seen or count >= len(self.seen):
            return self.millis_behind
        here = self.seen[max(0, count - 1)].arrival
        return self.millis_behind + max(0, self.seen[-1].arrival - here) // 1000

    def _idle(self, count: int) -> int | None:
        here = self.cursor.position
        return here.idle if count == len(self.seen) and isinstance(here, After) else None
