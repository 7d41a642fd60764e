"""What a state takes over from a subscription, case by case."""

from __future__ import annotations

from collections.abc import Mapping

from memory_log import MemoryLog
from test_batches import S0

from sluice.source.admission import NO_LIMITS
from sluice.source.cursor import Cursor
from sluice.source.data_loss import DataLossPolicy
from sluice.source.offsets import After, Position
from sluice.source.split_state import CutPoint, SplitState
from sluice.source.splits import Split, SplitId
from sluice.source.subscription_tracker import SubscriptionTracker
from sluice.source.subscriptions import View


def front_at(position: Position) -> SplitState:
    log = MemoryLog()
    data_loss = DataLossPolicy(log, fail=True, now=log.server_time)
    return SplitState(Split(S0), position, Cursor(log, data_loss, S0, position))


def view(*numbers: int, count: int = 1, tip: bool = False, idle: int | None = None) -> View:
    return View([CutPoint(str(n), n, 10, count, n - count) for n in numbers], tip, False, 0, idle)


def numbers(state: SplitState) -> list[int]:
    return [seen.sequence for seen in state.seen]


def test_marks_that_are_done_are_dropped() -> None:
    """An end never lies before the start; inside an aggregate its record is not done yet."""
    state = front_at(After("20"))
    state.adopt(view(10, 20, 30))
    assert numbers(state) == [30]
    state = front_at(After("20", sub=3))
    state.adopt(view(10, 20, 30))
    assert numbers(state) == [20, 30]


def test_a_mark_that_passes_the_target_is_cut_to_it() -> None:
    """What lies before the target still counts, and nothing is known of what comes behind the mark."""
    state = front_at(After("5"))
    state.target = After("25", arrival=25)
    state.adopt(view(10, 20, 30, 40, count=10, tip=True, idle=99))
    assert state.seen[-1] == CutPoint("25", 25, 10, 10, 20)
    assert numbers(state) == [10, 20, 25]
    assert state.cut_at(3) == state.target
    assert state.cursor.position == After("25")
    assert isinstance(state.cursor.position, After)
    assert state.cursor.position.idle is None
    assert not state.is_at_tip


def test_a_target_that_is_a_mark_is_met_by_it() -> None:
    """No record comes twice in what is seen."""
    state = front_at(After("5"))
    state.target = After("20", arrival=20)
    state.adopt(view(10, 20, 30, count=10))
    assert numbers(state) == [10, 20]
    assert state.has_met_target


def test_looks_that_have_come_beyond_the_target_are_cut_to_it() -> None:
    """Else a batch would end behind it, and the next one before where that ended."""
    state = front_at(After("5"))
    state.add(CutPoint(str(n), n, 10) for n in (10, 20, 30))

    state.aim(After("20", arrival=20))

    assert numbers(state) == [10, 20]
    assert state.is_exhausted
    assert state.cut_at(2) == state.target


def test_looks_that_have_come_further_are_kept() -> None:
    """A subscription that brings nothing yet takes nothing away; what it says of the tip is of elsewhere."""
    state = front_at(After("5"))
    state.seen = [CutPoint("10", 10, 1)]
    cursor = state.cursor
    state.adopt(view(tip=True, idle=99))
    assert numbers(state) == [10]
    assert state.cursor is cursor
    assert not state.is_at_tip


def test_idle_time_never_goes_back() -> None:
    """An old event does not undo what is known from a later look."""
    state = front_at(After("5", arrival=5, idle=50))
    state.adopt(view(tip=True, idle=40))
    assert isinstance(state.cursor.position, After)
    assert state.cursor.position.idle == 50
    state.adopt(view(tip=True, idle=70))
    state.adopt(view(tip=True, idle=60))
    assert state.cursor.position.idle == 70
    state.adopt(view(90))
    assert state.quiet == 70


def test_forgetting_keeps_what_is_known_of_idle_time() -> None:
    """A split that is looked at again, for a limit of time, still knows how long nothing came."""
    state = front_at(After("5", arrival=5, idle=50))
    state.adopt(view(tip=True, idle=70))
    state.adopt(view(90, count=5))
    state.unsee()
    assert state.seen == []
    assert not state.is_pushed
    assert state.cursor.position == After("5")
    assert isinstance(state.cursor.position, After)
    assert state.cursor.position.idle == 70


class OneView:
    """A subscriptions that has the same news until it is given others."""

    def __init__(self, given: View) -> None:
        self.given: View | None = given

    def follow(self, positions: Mapping[SplitId, Position]) -> None: ...

    def view(self, split: SplitId, position: Position) -> View | None:
        del split, position
        return self.given

    def close(self) -> None: ...


def test_an_idle_view_is_taken_over_once() -> None:
    """The planner is asked a hundred times a second, and then says nothing new of hundreds of shards."""
    state = front_at(After("5"))
    subscriptions = OneView(view(tip=True, idle=50))
    pushed = SubscriptionTracker(subscriptions, lambda: 0)
    pushed.adopt([state], NO_LIMITS)
    cursor = state.cursor

    pushed.adopt([state], NO_LIMITS)
    assert (state.cursor, state.is_pushed, state.is_at_tip) == (cursor, True, True)
    subscriptions.given = view(7, tip=True)
    pushed.adopt([state], NO_LIMITS)
    assert numbers(state) == [7]
    pushed.adopt([state], NO_LIMITS)  # with marks there is something to plan, each time
    assert state.idle_view is None
    subscriptions.given = None
    pushed.adopt([state], NO_LIMITS)
    assert not state.is_pushed


def test_an_idle_view_is_no_news_behind_another_position() -> None:
    """It said that nothing lay behind the position before."""
    state = front_at(After("5"))
    pushed = SubscriptionTracker(OneView(view(tip=True, idle=50)), lambda: 0)
    pushed.adopt([state], NO_LIMITS)

    state.follow(After("9"))
    pushed.adopt([state], NO_LIMITS)

    assert state.cursor.position == After("9")
