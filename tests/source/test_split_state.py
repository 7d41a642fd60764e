"""The state of a split: what each transition changes, and that nobody else changes it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from memory_log import S0, MemoryLog
from query import new_policy

from sluice.source.logs.cursor import Cursor
from sluice.source.logs.stream_log import Page, Record
from sluice.source.model.offsets import After, Closed, Position
from sluice.source.model.splits import Split, SplitId
from sluice.source.planning.alignment_bound import earliest_unread
from sluice.source.planning.subscription_tracker import SubscriptionTracker
from sluice.source.state.cut_points import CutPoint
from sluice.source.state.split_state import Reach, SplitState
from sluice.source.state.subscriptions import SubscriptionProgress


def state_at(position: Position) -> SplitState:
    log = MemoryLog()
    return SplitState(Split(S0), position, Cursor(log, new_policy(log), S0, position))


def progress(
    *numbers: int, count: int = 1, tip: bool = False, caught_up_at: int | None = None
) -> SubscriptionProgress:
    points = [CutPoint(str(n), n, 10, count, n - count) for n in numbers]
    return SubscriptionProgress(points, 0 if tip else 1000, caught_up_at=caught_up_at)


def page(*numbers: int, ends: bool = False, behind: int = 1000) -> Page:
    return Page([Record(str(n), n, "k", b"123456789") for n in numbers], None if ends else "on", behind)


def numbers(state: SplitState) -> list[int]:
    return [point.sequence for point in state.cut_points]


# --- probes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "reach"),
    [
        (page(10, 20), Reach.UNKNOWN),
        (page(), Reach.UNKNOWN),
        (page(10, behind=0), Reach.TIP),
        (page(10, 20, 30, behind=0), Reach.UNKNOWN),  # as many as were asked for: more may follow
        (page(10, ends=True), Reach.END),
        (page(ends=True, behind=0), Reach.END),
    ],
)
def test_a_page_tells_what_lies_behind_it(given: Page, reach: Reach) -> None:
    """Only a page that is not full says that it ends at the tip."""
    state = state_at(After("5"))
    state.record_page(given, limit=3, asked_at=0)
    assert state.reach is reach
    assert numbers(state) == [int(record.sequence_number) for record in given.records]
    assert state.millis_behind == given.millis_behind


def test_the_tip_of_a_split_that_was_closed_before_is_its_end() -> None:
    """Also where only the next page will say so. Its children may have older records than this answer."""
    for ending_sequence, reach in ((None, Reach.TIP), ("99", Reach.END)):
        state = state_at(After("5"))
        state.split = Split(S0, ending_sequence=ending_sequence)
        state.record_page(page(10, behind=0), limit=3, asked_at=1_000)
        assert state.reach is reach
        assert earliest_unread(state, After("10")) == (1_000 if reach is Reach.TIP else None)
        assert earliest_unread(state, Closed()) == (10 if reach is Reach.TIP else None)
    newly_closed = state_at(After("5"))
    newly_closed.record_page(page(10, behind=0), limit=3, asked_at=1_000)
    newly_closed.split = Split(S0, ending_sequence="99")
    assert newly_closed.is_newly_closed
    assert earliest_unread(newly_closed, After("10")) == 1_000  # it was still open then


def test_a_subscription_at_the_tip_says_nothing_of_the_children_of_a_closed_split() -> None:
    """Their records may be older than its last event, and wait for the event that ends it."""
    state = state_at(After("5"))
    state.adopt(progress(10, tip=True, caught_up_at=1_000))
    assert earliest_unread(state, After("10")) == 1_000
    state.split = Split(S0, ending_sequence="99")
    assert earliest_unread(state, After("10")) == 10


def test_a_jump_leaves_a_gap_and_never_goes_back() -> None:
    """Records found by time may lie before a known one: then they are no news."""
    state = state_at(After("5"))
    state.record_page(page(10, 20), limit=2, asked_at=0)
    cursor = state.cursor
    state.jump_to(page(15), cursor.at(After("15")), limit=1, asked_at=0)
    assert (numbers(state), state.has_gap) == ([10, 20], False)
    state.jump_to(page(90), cursor.at(After("90")), limit=1, asked_at=0)
    assert (numbers(state), state.has_gap) == ([10, 20, 90], True)
    assert state.cursor.position == After("90")
    assert state.reach is Reach.UNKNOWN
    state.jump_to(page(95, behind=0), cursor.at(After("95")), limit=2, asked_at=7)
    assert (numbers(state), state.reach, state.tip_at) == ([10, 20, 90, 95], Reach.TIP, 7)


def test_what_lies_before_a_gap_can_be_gone_back_to() -> None:
    """Limits count all records, also those that a search for the tip has left out."""
    state = state_at(After("5"))
    state.record_page(page(10, 20), limit=2, asked_at=0)
    for number in (90, 95):
        state.jump_to(page(number, behind=0), state.cursor.at(After(str(number))), limit=2, asked_at=0)
    state.drop_after_gap()
    assert (numbers(state), state.has_gap, state.reach) == ([10, 20], False, Reach.UNKNOWN)
    assert state.cursor.position == After("20")
    state.drop_after_gap()
    assert numbers(state) == [10, 20]


@pytest.mark.parametrize(
    ("end", "unread", "left"),
    [
        (None, 10, [10, 20]),
        (After("10"), 20, [20]),
        (After("20"), 20, []),
        (After("50"), 20, []),
        (After("89"), 90, [90, 95]),
        (After("90"), 95, [95]),
    ],
)
def test_records_in_a_gap_are_unread_until_a_batch_takes_them(
    end: After | None, unread: int, left: list[int]
) -> None:
    """They may have arrived right after the record before the gap. What lies behind the gap is dropped if a
    batch ends before it: the next batch would be planned as if the gap held nothing.
    """
    state = state_at(After("5"))
    state.record_page(page(10, 20), limit=2, asked_at=0)
    state.jump_to(page(90), state.cursor.at(After("90")), limit=1, asked_at=0)
    state.record_page(page(95), limit=1, asked_at=0)
    assert earliest_unread(state, end) == unread
    if end is None:
        state.drop_after_gap()
    else:
        state.advance_to(end)
    assert (numbers(state), state.has_gap) == (left, False)


def test_a_lag_is_not_known_when_no_answer_has_come_for_a_while() -> None:
    """The last one may have said that nothing follows: 0 would be a lie. A subscription answers, too."""
    state = state_at(After("5"))
    assert state.lag(0, now=10) is None
    state.adopt(progress(tip=True, caught_up_at=9))
    assert state.lag(0, now=1000) == 0  # nothing has failed
    state.reads.mark_unanswered(1000, 900, throttled=True)
    state.reads.mark_unanswered(1010, 900, throttled=False)
    assert [state.lag(0, now=now) for now in (1014.9, 1015)] == [0, None]
    state.reads.mark_answered()
    assert state.lag(0, now=1020) == 0
    state.reads.mark_unanswered(1020, 900, throttled=False)
    state.adopt(progress(tip=True, caught_up_at=9))
    assert state.lag(0, now=2000) == 0


# --- a target -----------------------------------------------------------------------------------------


def test_a_cut_point_that_passes_the_target_is_cut_to_it() -> None:
    """The records before the target count, and nothing is known of those behind the cut point."""
    state = state_at(After("5"))
    state.stop_at(After("25", arrival=25))
    state.adopt(progress(10, 20, 30, 40, count=10, tip=True, caught_up_at=99))
    assert state.cut_points[-1] == CutPoint("25", 25, 10, 10, 20)
    assert numbers(state) == [10, 20, 25]
    assert state.cut_at(3) == state.target
    assert isinstance(state.cursor.position, After)
    assert state.cursor.position == After("25")
    assert state.cursor.position.caught_up_at is None
    assert state.reach is Reach.TARGET


def test_a_target_stays_met_whatever_lies_behind_it() -> None:
    """A page that ends the split behind the target does not end the batch behind it."""
    state = state_at(After("5"))
    state.stop_at(After("20"))
    state.record_page(page(10, 20, 30, ends=True), limit=9, asked_at=0)
    state.record_page(page(40, behind=0), limit=9, asked_at=0)
    assert state.reach is Reach.TARGET
    assert numbers(state) == [10, 20]
    assert state.cut_at(2) == After("20")
    assert state.cut_at(1) == After("10")


# --- subscriptions ------------------------------------------------------------------------------------


def test_cut_points_that_were_read_are_dropped() -> None:
    """No end lies before the start. Inside an aggregate its record is read again."""
    state = state_at(After("20"))
    state.adopt(progress(10, 20, 30))
    assert numbers(state) == [30]
    state = state_at(After("20", sub=3))
    state.adopt(progress(10, 20, 30))
    assert numbers(state) == [20, 30]


def test_the_instant_without_records_never_goes_back() -> None:
    """An old event does not undo what a later read has shown."""
    state = state_at(After("5", arrival=5, caught_up_at=50))
    state.adopt(progress(tip=True, caught_up_at=40))
    assert isinstance(state.cursor.position, After)
    assert state.cursor.position.caught_up_at == 50
    state.adopt(progress(tip=True, caught_up_at=70))
    state.adopt(progress(tip=True, caught_up_at=60))
    assert state.cursor.position.caught_up_at == 70
    state.adopt(progress(90))
    assert state.position.caught_up_at == 70  # type: ignore[union-attr]


def test_a_reset_keeps_the_instant_without_records() -> None:
    """A split that is probed again, because of a limit of time, still knows until when no record came."""
    state = state_at(After("5", arrival=5, caught_up_at=50))
    state.adopt(progress(tip=True, caught_up_at=70))
    state.adopt(progress(90, count=5))
    state.reset()
    assert not state.cut_points
    assert not state.is_pushed
    assert isinstance(state.cursor.position, After)
    assert state.cursor.position == After("5")
    assert state.cursor.position.caught_up_at == 70


class OneProgress:
    """Subscriptions with the same progress until they are given another."""

    def __init__(self, given: SubscriptionProgress) -> None:
        self.given: SubscriptionProgress | None = given

    version = 0

    def follow(self, positions: Mapping[SplitId, Position]) -> None: ...

    def progress(self, split: SplitId, position: Position) -> SubscriptionProgress | None:
        del split, position
        return self.given

    def close(self) -> None: ...


def test_a_progress_without_records_is_adopted_once() -> None:
    """Spark asks a hundred times a second, and hundreds of splits have no news."""
    state = state_at(After("5"))
    subscriptions = OneProgress(progress(tip=True, caught_up_at=50))
    tracker = SubscriptionTracker(subscriptions, None)
    tracker.adopt([state], None)
    cursor = state.cursor

    tracker.adopt([state], None)
    assert (state.cursor, state.is_pushed, state.reach) == (cursor, True, Reach.TIP)
    subscriptions.given = progress(7, tip=True)
    tracker.adopt([state], None)
    assert numbers(state) == [7]
    subscriptions.given = None
    tracker.adopt([state], None)
    assert not state.is_pushed
