"""What a front takes over from a subscription, case by case."""

from __future__ import annotations

from collections.abc import Mapping

from memory_log import MemoryLog
from test_batches import S0

from sluice.source.admission import NO_LIMITS
from sluice.source.cursor import Cursor
from sluice.source.data_loss import LossGuard
from sluice.source.offsets import After, Position
from sluice.source.split_state import Front, Seen
from sluice.source.splits import Split, SplitId
from sluice.source.subscription_tracker import Pushed
from sluice.source.subscriptions import View


def front_at(position: Position) -> Front:
    log = MemoryLog()
    guard = LossGuard(log, fail=True, now=log.server_time)
    return Front(Split(S0), position, Cursor(log, guard, S0, position))


def view(*numbers: int, count: int = 1, tip: bool = False, idle: int | None = None) -> View:
    return View([Seen(str(n), n, 10, count, n - count) for n in numbers], tip, False, 0, idle)


def numbers(front: Front) -> list[int]:
    return [seen.sequence for seen in front.seen]


def test_marks_that_are_done_are_dropped() -> None:
    """An end never lies before the start; inside an aggregate its record is not done yet."""
    front = front_at(After("20"))
    front.adopt(view(10, 20, 30))
    assert numbers(front) == [30]
    front = front_at(After("20", sub=3))
    front.adopt(view(10, 20, 30))
    assert numbers(front) == [20, 30]


def test_a_mark_that_passes_the_target_is_cut_to_it() -> None:
    """What lies before the target still counts, and nothing is known of what comes behind the mark."""
    front = front_at(After("5"))
    front.target = After("25", arrival=25)
    front.adopt(view(10, 20, 30, 40, count=10, tip=True, idle=99))
    assert front.seen[-1] == Seen("25", 25, 10, 10, 20)
    assert numbers(front) == [10, 20, 25]
    assert front.cut_at(3) == front.target
    assert front.cursor.position == After("25")
    assert isinstance(front.cursor.position, After)
    assert front.cursor.position.idle is None
    assert not front.is_at_tip


def test_a_target_that_is_a_mark_is_met_by_it() -> None:
    """No record comes twice in what is seen."""
    front = front_at(After("5"))
    front.target = After("20", arrival=20)
    front.adopt(view(10, 20, 30, count=10))
    assert numbers(front) == [10, 20]
    assert front.has_met_target


def test_looks_that_have_come_beyond_the_target_are_cut_to_it() -> None:
    """Else a batch would end behind it, and the next one before where that ended."""
    front = front_at(After("5"))
    front.add(Seen(str(n), n, 10) for n in (10, 20, 30))

    front.aim(After("20", arrival=20))

    assert numbers(front) == [10, 20]
    assert front.is_exhausted
    assert front.cut_at(2) == front.target


def test_looks_that_have_come_further_are_kept() -> None:
    """A subscription that brings nothing yet takes nothing away; what it says of the tip is of elsewhere."""
    front = front_at(After("5"))
    front.seen = [Seen("10", 10, 1)]
    cursor = front.cursor
    front.adopt(view(tip=True, idle=99))
    assert numbers(front) == [10]
    assert front.cursor is cursor
    assert not front.is_at_tip


def test_idle_time_never_goes_back() -> None:
    """An old event does not undo what is known from a later look."""
    front = front_at(After("5", arrival=5, idle=50))
    front.adopt(view(tip=True, idle=40))
    assert isinstance(front.cursor.position, After)
    assert front.cursor.position.idle == 50
    front.adopt(view(tip=True, idle=70))
    front.adopt(view(tip=True, idle=60))
    assert front.cursor.position.idle == 70
    front.adopt(view(90))
    assert front.quiet == 70


def test_forgetting_keeps_what_is_known_of_idle_time() -> None:
    """A split that is looked at again, for a limit of time, still knows how long nothing came."""
    front = front_at(After("5", arrival=5, idle=50))
    front.adopt(view(tip=True, idle=70))
    front.adopt(view(90, count=5))
    front.unsee()
    assert front.seen == []
    assert not front.is_pushed
    assert front.cursor.position == After("5")
    assert isinstance(front.cursor.position, After)
    assert front.cursor.position.idle == 70


class OneView:
    """A frontier that has the same news until it is given others."""

    def __init__(self, given: View) -> None:
        self.given: View | None = given

    def follow(self, positions: Mapping[SplitId, Position]) -> None: ...

    def view(self, split: SplitId, position: Position) -> View | None:
        del split, position
        return self.given

    def close(self) -> None: ...


def test_an_idle_view_is_taken_over_once() -> None:
    """The planner is asked a hundred times a second, and then says nothing new of hundreds of shards."""
    front = front_at(After("5"))
    frontier = OneView(view(tip=True, idle=50))
    pushed = Pushed(frontier, lambda: 0)
    pushed.adopt([front], NO_LIMITS)
    cursor = front.cursor

    pushed.adopt([front], NO_LIMITS)
    assert (front.cursor, front.is_pushed, front.is_at_tip) == (cursor, True, True)
    frontier.given = view(7, tip=True)
    pushed.adopt([front], NO_LIMITS)
    assert numbers(front) == [7]
    pushed.adopt([front], NO_LIMITS)  # with marks there is something to plan, each time
    assert front.idle_view is None
    frontier.given = None
    pushed.adopt([front], NO_LIMITS)
    assert not front.is_pushed


def test_an_idle_view_is_no_news_behind_another_position() -> None:
    """It said that nothing lay behind the position before."""
    front = front_at(After("5"))
    pushed = Pushed(OneView(view(tip=True, idle=50)), lambda: 0)
    pushed.adopt([front], NO_LIMITS)

    front.follow(After("9"))
    pushed.adopt([front], NO_LIMITS)

    assert front.cursor.position == After("9")
