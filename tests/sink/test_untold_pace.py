"""What is learnt of refusals without a reason: when the pace dips, what fails, and what follows.

With a service that has a limit, and with several tasks: `test_congestion`.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable

import pytest

from sluice.sink.decaying import DecayingSum
from sluice.sink.dips import PART_IN_DIPS, Dips
from sluice.sink.failing_share import FailingShare
from sluice.sink.observed_load import ObservedLoad
from sluice.sink.pace_cut import Cut
from sluice.sink.paced_answer import Answer
from sluice.sink.untold_pace import Stage, UntoldPace

# --- dips ---------------------------------------------------------------------------------------------


def in_dip(dips: Dips, since: float, *, is_rare: bool = False, until: int = 4000) -> list[float]:
    return [n / 100 for n in range(until) if dips.began(n / 100, since, is_rare=is_rare) is not None]


def test_tasks_dip_in_the_same_seconds_whatever_their_clocks_begin_with() -> None:
    one, other = Dips(lambda: 0.0), Dips(lambda: 7.35)

    later = [round(at + 7.35, 2) for at in in_dip(other, -100.0)]
    assert set(in_dip(one, -100.0)) & set(later) == {at for at in later if at < 40.0}


def test_a_wall_clock_that_is_set_is_followed() -> None:
    """A worker that has been there before dips with those that have come since."""
    offset = [0.0]
    old = Dips(lambda: offset[0])
    assert in_dip(old, -100.0) == in_dip(Dips(lambda: 0.0), -100.0)
    offset[0] = 0.6

    assert in_dip(old, -100.0) == in_dip(Dips(lambda: 0.6), -100.0)


def test_a_dip_takes_half_a_second_and_ends_when_it_says() -> None:
    dips = Dips()
    began = dips.began(5.2, -1.0, is_rare=False)

    assert began is not None
    assert began == pytest.approx(5.0)
    assert dips.end(began) == pytest.approx(5.5)
    assert dips.began(5.51, -1.0, is_rare=False) is None


def test_no_dip_without_something_to_compare_it_with() -> None:
    """The pace must have been the same for a while when a dip begins."""
    dips = Dips()

    assert dips.began(5.2, since=4.9, is_rare=False) is None
    assert dips.began(5.2, since=5.1, is_rare=False) is None
    assert dips.began(6.3, since=4.9, is_rare=False) is not None


@pytest.mark.parametrize(("latency", "longer"), [(0.01, 1), (0.3, 1), (0.4, 2), (2.0, 8), (10.0, 32)])
def test_dips_are_long_enough_for_answers(latency: float, longer: int) -> None:
    dips = Dips()
    dips.follow(latency)

    assert dips.scale == longer
    assert dips.end(0.0) >= 1.5 * latency


def test_dips_that_are_rare_are_some_of_the_others() -> None:
    dips = Dips()
    often, rare = set(in_dip(dips, -100.0)), set(in_dip(dips, -100.0, is_rare=True))

    assert rare < often
    assert len(rare) == pytest.approx(len(often) / 4, rel=0.1)


# --- the share that fails -----------------------------------------------------------------------------


def refused(*parts: float, of: int = 10) -> DecayingSum:
    """Answers to requests of `of` entries each, of which these parts were refused."""
    sums = DecayingSum()
    for part in parts:
        sums.add(part * of, of, 0.0, 1e9)
    return sums


def test_nothing_is_known_at_first() -> None:
    share = FailingShare()

    assert not share.is_known
    assert not share.is_nothing
    assert share.load(refused(0.3, 0.3)) == pytest.approx(0.3)


def test_load_is_what_is_refused_beyond_the_share() -> None:
    share = FailingShare()
    share.learn(refused(*[0.5] * 50), refused(*[0.5] * 50))

    assert share.share == pytest.approx(0.5)
    assert share.load(refused(*[0.75] * 50)) == pytest.approx(0.5)
    assert share.load(refused(*[0.5] * 50)) == pytest.approx(0.0)


def test_what_differs_clearly_replaces_what_was_known() -> None:
    share = FailingShare()
    for _ in range(5):
        share.learn(refused(*[0.1] * 40), refused(*[0.1] * 40))
    share.learn(refused(*[0.6] * 40), refused(*[0.6] * 40))
    assert share.share == pytest.approx(0.6)

    share.learn(refused(*[0.1] * 40), refused(*[0.1] * 40))
    assert share.share == pytest.approx(0.1)


def test_a_dip_in_which_more_fails_than_outside_of_it_is_chance() -> None:
    """Of many tasks one sees such a dip every few seconds. What fails whatever the pace fails outside too."""
    by_chance, changed = FailingShare(), FailingShare()
    for share in (by_chance, changed):
        share.learn(refused(*[0.5] * 400), refused(*[0.5] * 400))
    by_chance.learn(refused(*[0.7] * 90), refused(*[0.55] * 150))
    changed.learn(refused(*[0.7] * 90), refused(*[0.7] * 150))

    assert by_chance.share < 0.55
    assert changed.share == pytest.approx(0.7)


def test_dips_that_agree_make_it_better_known() -> None:
    share = FailingShare()
    share.learn(refused(*[0.2, 0.4] * 20), refused(*[0.2, 0.4] * 20))
    first = share.error
    share.learn(refused(*[0.2, 0.4] * 20), refused(*[0.2, 0.4] * 20))

    assert share.error < 0.8 * first


def test_requests_that_fail_as_a_whole_are_less_evidence() -> None:
    by_entries, by_requests = FailingShare(), FailingShare()
    by_entries.learn(refused(*[0.5] * 40), refused(*[0.5] * 40))
    by_requests.learn(refused(*[0.0, 1.0] * 20), refused(*[0.0, 1.0] * 20))

    assert by_requests.error > 2 * by_entries.error
    # A few that all failed are not taken for certain: half of all requests fail.
    assert by_requests.error_of_load(refused(1.0, 1.0, 1.0)) > 0.4


def test_that_nothing_fails_takes_many_requests() -> None:
    share = FailingShare()
    share.learn(refused(*[0.0] * 40), refused(*[0.0] * 40))
    assert not share.is_nothing

    for _ in range(4):
        share.learn(refused(*[0.0] * 40), refused(*[0.0] * 40))
    assert share.is_nothing


# --- the load that is observed ---------------------------------------------------------------------------


def test_what_is_known_better_counts_more() -> None:
    observed = ObservedLoad()
    observed.add(0.0, 0.01, of_share=0.0)
    observed.add(0.3, 0.1, of_share=0.0)

    assert observed.load == pytest.approx(0.003, abs=0.001)
    assert observed.error < 0.01


def test_the_error_of_the_share_does_not_become_less_with_more_dips() -> None:
    observed = ObservedLoad()
    for _ in range(100):
        observed.add(0.0, 0.11, of_share=0.1)

    assert observed.error == pytest.approx(0.1, rel=0.02)


def test_steps_become_larger_and_need_less_certainty() -> None:
    observed = ObservedLoad()
    doubts, steps = [], []
    for _ in range(12):
        observed.add(0.0, 0.05, of_share=0.0)
        doubts.append(observed.doubt)
        steps.append(observed.next_step())

    assert doubts == sorted(doubts, reverse=True)
    assert doubts[0] > 1.5
    assert doubts[-1] == 0.0
    assert steps == sorted(steps)
    assert steps[:6] == [1.05] * 6
    assert steps[6] > 1.05
    assert steps[-1] <= 4.0


def test_after_what_may_have_been_an_outage_steps_become_larger_sooner() -> None:
    near, far = ObservedLoad(), ObservedLoad(is_far=True)

    assert math.prod(far.next_step() for _ in range(6)) > 1.4 * math.prod(near.next_step() for _ in range(6))


MOST = 10_000.0
"""The pace up to which a task has something to send."""

# --- the pace -----------------------------------------------------------------------------------------


class Task:
    """Sends to a service that fails a part of the entries, and refuses what exceeds what it takes."""

    def __init__(
        self, *, latency: float = 0.05, rate: float = 1000.0, interval: float = 0.025, jitter: float = 0.0
    ) -> None:
        self.now = 0.0
        self.rate = rate
        self.pace = UntoldPace(rate)
        self.stages: list[Stage] = []
        self._latency, self._interval, self._jitter = latency, interval, jitter
        self._draw = random.Random(3).random
        self._answers: list[tuple[float, Answer]] = []

    def run(
        self,
        seconds: float,
        fails: float,
        takes: Callable[[float], float] = lambda _: 1e9,
        *,
        offered: float = math.inf,
    ) -> Task:
        """A request after each interval, with `offered` entries a second at most."""
        end = self.now + seconds
        while self.now < end:
            self.now += self._interval
            depth = self.pace.depth(self.now, self._latency, self.rate)
            sent = min(self.rate * depth, offered)
            count = max(1, round(sent * self._interval))
            over = max(0.0, 1 - takes(self.now) / sent)
            lost = sum(self._draw() < fails or self._draw() < over for _ in range(count))
            took = self._latency * (1 + self._jitter * (self._draw() - 0.5) if self._jitter else 1)
            answer = Answer(lost, 0, count, self.rate, depth, self.now, self.now + took)
            if not self._jitter:
                self._hear(answer, offered)
                continue
            heapq.heappush(self._answers, (answer.now, answer))
            while self._answers[0][0] <= self.now:
                self._hear(heapq.heappop(self._answers)[1], offered)
        return self

    def _hear(self, answer: Answer, offered: float) -> None:
        growth = 2.5 * self.rate if self.rate < MOST and offered == math.inf else 0.0
        self.rate = max(1.0, self.pace.answered(answer, rate=self.rate, growth=growth))
        if not self.stages or self.stages[-1] is not self.pace.stage:
            self.stages.append(self.pace.stage)


def test_a_cut_of_long_ago_is_not_undone() -> None:
    """The pace was held again since then, and it was found that little was load."""
    task = Task(rate=900.0)
    pace = task.pace
    pace.stage, pace._is_first_hold, pace._has_limit = Stage.HOLDING, False, True
    pace._failing.learn(refused(*[0.1] * 40), refused(*[0.1] * 40))
    pace._cut = Cut(50_000.0, refused(*[0.5] * 400))
    pace._cruise = refused(*[0.1] * 400)

    assert pace._decide_at_once(900.0, 10.0) == 900.0
    pace._cruise = refused(*[0.1] * 400)
    pace._dip = refused(*[0.5] * 40)
    assert pace._end_dip(900.0, 12.0) < 2000.0


def test_an_odd_dip_long_after_a_cut_does_not_undo_it() -> None:
    """With few answers in a dip there is one sooner or later in which as much fails as was refused then."""

    def after(seconds: float) -> float:
        pace = UntoldPace(1000.0)
        pace.stage, pace._cut_at = Stage.LIMITED, 100.0
        pace._cut = Cut(2000.0, refused(*[0.6] * 40), is_final=True)
        pace._failing.learn(refused(*[0.2] * 40), refused(*[0.2] * 40))
        pace._dip, pace._cruise = refused(*[0.6] * 40), refused(*[0.5] * 40)
        return pace._end_dip(500.0, 100.0 + seconds)

    assert after(3.0) == 2000.0
    assert after(30.0) < 600.0


def test_what_a_cut_rests_on_does_not_change_afterwards() -> None:
    """A hold that showed little load is not judged by what is refused later."""
    pace = UntoldPace(1000.0)
    pace._failing.learn(refused(*[0.5] * 400), refused(*[0.5] * 400))
    pace.stage, pace._cruise = Stage.HOLDING, refused(*[0.52] * 100)
    assert pace._limit(1000.0, 10.0) == 1000.0
    pace._cruise.add(1000.0, 1000.0, 10.1, 1e9)

    assert pace._cut is not None
    assert pace._cut.load(0.5) == pytest.approx(0.04)


def test_a_cut_that_is_known_to_be_for_load_is_not_undone() -> None:
    """If more begins to fail afterwards, that says nothing about it."""
    pace = UntoldPace(1000.0)
    pace.stage, pace._cut_at = Stage.LIMITED, 100.0
    pace._cut = Cut(2000.0, refused(*[0.6] * 40), is_final=True)
    pace._failing.learn(refused(*[0.2] * 4000), refused(*[0.2] * 4000))
    assert pace._undone(1000.0, 101.0) == 1000.0
    pace._failing.learn(refused(*[0.6] * 400), refused(*[0.6] * 400))

    assert pace._undone(1000.0, 102.0) == 1000.0


def test_a_cut_is_corrected_when_it_is_better_known_what_fails() -> None:
    """It was made after the first dip, which shows the share of failures to a tenth only."""
    pace = UntoldPace(1000.0)
    pace._failing.learn(refused(*[0.4] * 6), refused(*[0.4] * 6))
    pace.stage, pace._cruise = Stage.HOLDING, refused(*[0.75] * 400)
    cut = pace._limit(8000.0, 10.0)
    assert cut == pytest.approx(8000 * 0.25 / 0.6, rel=0.06)

    pace._failing.learn(refused(*[0.5] * 4000), refused(*[0.5] * 4000))
    corrected = pace._follow(cut, refused(*[0.5] * 400), 11.0)
    assert corrected == pytest.approx(8000 * 0.25 / 0.5, rel=0.02)
    pace._follow(corrected, refused(*[0.5] * 400), 20.0)
    assert pace._cut is not None
    assert pace._cut.is_final  # from here on the pace follows what is refused


def test_a_cut_is_not_corrected_by_a_hold_before_the_last_one() -> None:
    """The pace has been held again since, and it was found that little was load."""
    pace = UntoldPace(1000.0)
    pace._failing.learn(refused(*[0.5] * 4000), refused(*[0.5] * 4000))
    pace.stage, pace._cruise = Stage.HOLDING, refused(*[0.75] * 400)
    cut = pace._limit(8000.0, 10.0)
    pace._hold(11.0)
    pace.stage = Stage.LIMITED

    assert pace._follow(cut, refused(*[0.5] * 400), 12.0) == cut
    assert pace._follow(6000.0, refused(*[0.5] * 400), 12.0) == 6000.0


@pytest.mark.parametrize("fails", [0.0, 0.5])
def test_after_a_cut_as_much_is_sent_in_a_cycle_as_was_let_through_in_one(fails: float) -> None:
    """A service gives out between dips what it saved in them: up to a half more than it takes."""
    failing, sent = FailingShare(), 2000.0
    failing.learn(refused(*[fails] * 40_000), refused(*[fails] * 40_000))
    in_dips = 500.0  # of which nothing is refused for load
    between = (sent - PART_IN_DIPS * in_dips) / (1 - PART_IN_DIPS)
    lost = 1 - (1 - fails) * between / 8000
    cut = Cut(8000.0, refused(*[lost] * 40_000), depth=in_dips / 8000)

    pace = cut.pace(failing, 0.9)
    assert between > 1.4 * sent
    assert pace * (1 - PART_IN_DIPS + PART_IN_DIPS * 0.9) == pytest.approx(sent, rel=0.01)


def test_a_task_that_has_just_met_the_limit_dips_with_the_others() -> None:
    """It would be cut a dip later than they are, and keep what they gave up by then."""
    pace = UntoldPace(1000.0)
    pace._failing.learn(refused(*[0.5] * 400), refused(*[0.5] * 400))
    pace._hold(1.25 - 0.15)  # a dip begins at 1.25

    assert pace.depth(1.3, 0.1, 1000.0) < 1.0


def test_the_first_dip_needs_more_answers_before_it() -> None:
    """They tell how deep it has to be, as long as nothing is known of failures."""
    pace = UntoldPace(1000.0)
    pace._hold(1.25 - 0.15)

    assert pace.depth(1.3, 0.1, 1000.0) == 1.0
    assert pace.depth(2.6, 0.1, 1000.0) < 1.0


def test_the_first_hold_ends_with_what_was_let_through_in_a_cycle() -> None:
    """Between its dips the service gives out what it has saved in the first of them."""
    pace, rate = UntoldPace(1000.0), 1000.0
    pace._hold(0.0)
    for now, depth in ((2.0, 0.12), (3.25, 0.3)):
        pace._depth = depth
        pace._cruise, pace._dip = refused(*[0.85] * 400), refused(*[0.5] * 400)
        rate = pace._end_dip(rate, now)

    assert pace.stage is Stage.LIMITED
    assert rate == pytest.approx(1000 * (0.6 * 0.3 + 0.4 * 0.12) / (0.6 + 0.4 * 0.85), rel=0.02)


def test_what_was_saved_in_a_dip_of_the_last_hold_is_gone() -> None:
    pace = UntoldPace(1000.0)
    pace._hold(0.0)
    pace._depth = 0.12
    pace._cruise, pace._dip = refused(*[0.85] * 400), refused(*[0.5] * 400)
    pace._end_dip(1000.0, 2.0)
    pace._hold(20.0)
    pace._cruise = refused(*[0.85] * 400)

    assert pace._decide_at_once(1000.0, 21.0) == pytest.approx(300.0, rel=0.02)


def test_the_pace_does_not_grow_if_load_was_seen_just_before_the_first_dip() -> None:
    """A service has tokens left over at first, so little of all that was sent since then was refused."""

    def after(just_before: float) -> Stage:
        pace = UntoldPace(1000.0)
        pace._hold(0.0)
        pace._depth = 0.4
        pace._cruise, pace._dip = refused(*[0.55] * 400), refused(*[0.5] * 100)
        pace._before_dip = refused(*[just_before] * 60)
        pace._end_dip(1000.0, 2.0)
        return pace.stage

    assert after(0.5) is Stage.GROWING
    assert after(0.8) is Stage.HOLDING


def test_of_what_may_be_chance_a_part_is_cut() -> None:
    """Of many tasks some see twice the load by chance; they would have half of what the others have."""

    def cut(requests: int) -> float:
        pace = UntoldPace(1000.0)
        pace.stage = Stage.LIMITED
        pace._failing.learn(refused(*[0.5] * 4000), refused(*[0.5] * 4000))
        two_thirds = refused(*[0.0, 1.0, 1.0] * requests)
        assert pace._failing.load(two_thirds) == pytest.approx(1 / 3)
        return 1 - pace._follow(1000.0, two_thirds, 10.0) / 1000

    assert cut(1000) == pytest.approx(1 / 3, abs=0.01)
    assert cut(20) < 0.2


def test_as_long_as_no_load_was_seen_the_pace_grows_without_many_dips() -> None:
    """A dip and its answers take half of the time; what is found a second later is refused for longer."""
    new, near_limit = Task(rate=1000.0), Task(rate=1000.0)
    near_limit.pace._has_met_limit = True

    assert new.run(3.0, fails=0.5).rate > 2 * near_limit.run(3.0, fails=0.5).rate


def test_a_limit_that_is_clearly_seen_is_not_far() -> None:
    """Then dips are rare again, and a later outage does not bring back the pace of before the sudden cut."""
    pace = UntoldPace(1000.0)
    pace.stage, pace._observed = Stage.LIMITED, ObservedLoad(is_far=True)
    pace._failing.learn(refused(*[0.1] * 400), refused(*[0.1] * 400))

    pace._follow(1000.0, refused(*[0.1] * 400), 10.0)
    assert pace._observed.is_far
    pace._observed = ObservedLoad(is_far=True)
    pace._follow(1000.0, refused(*[0.14] * 4000, of=100), 12.0)
    assert not pace._observed.is_far


def test_without_refusals_it_says_nothing() -> None:
    task = Task().run(5.0, fails=0.0)

    assert task.stages == [Stage.NONE]
    assert task.rate == 1000.0


@pytest.mark.parametrize("fails", [0.05, 0.5])
def test_what_fails_whatever_the_pace_is_no_load(fails: float) -> None:
    task = Task().run(6.0, fails)

    assert task.rate >= MOST
    assert Stage.LIMITED not in task.stages


@pytest.mark.parametrize("fails", [0.0, 0.1, 0.5])
def test_what_exceeds_it_is_load(fails: float) -> None:
    task = Task(rate=4000.0).run(20.0, fails, takes=lambda _: 1000.0)

    assert task.rate == pytest.approx(1000.0, rel=0.2)


def test_if_nothing_fails_every_refusal_is_load() -> None:
    """Then the rule for refusals that are told takes over."""
    task = Task(rate=2000.0).run(11.0, fails=0.0, takes=lambda _: 1000.0)

    assert Stage.LOAD in task.stages
    assert not task.pace.is_in_charge


def test_much_that_is_refused_is_not_acted_on_before_a_dip() -> None:
    """The pace is held; it is not lowered to what is accepted of it, again and again."""
    task = Task().run(0.4, fails=0.6)

    assert task.pace.stage is Stage.HOLDING
    assert task.rate == 1000.0


def test_an_outage_says_nothing_about_the_pace() -> None:
    task = Task(rate=3000.0).run(8.0, fails=0.1, takes=lambda _: 3000.0)
    before = task.rate
    task.run(10.0, fails=1.0)
    assert task.rate > 0.7 * before

    task.run(3.0, fails=0.1, takes=lambda _: 3000.0)
    assert task.rate == pytest.approx(3000.0, rel=0.2)


def test_what_begins_to_fail_does_not_lower_the_pace() -> None:
    """It may be cut at once, as it may be load; the next dip shows that it is not."""
    task = Task(rate=3000.0).run(15.0, fails=0.1, takes=lambda _: 3000.0)
    assert task.pace.stage is Stage.LIMITED
    before = task.rate
    task.run(4.0, fails=0.6, takes=lambda _: 3000.0)

    assert task.rate > 0.75 * before


def test_what_is_load_after_all_stays_cut() -> None:
    """The service takes a fifth of what it took."""
    task = Task(rate=3000.0).run(15.0, fails=0.1, takes=lambda _: 3000.0).run(15.0, 0.1, lambda _: 600.0)

    assert task.rate == pytest.approx(600.0, rel=0.3)


def test_it_ends_when_there_have_been_no_refusals_for_a_while() -> None:
    task = Task().run(4.0, fails=0.3).run(20.0, fails=0.0)

    assert task.pace.stage is Stage.NONE


def test_the_pace_does_not_grow_while_rows_come_slowly() -> None:
    """That little is refused says nothing about the pace then; a backlog would be sent far too fast later."""
    task = Task(rate=3000.0).run(15.0, fails=0.1, takes=lambda _: 3000.0)
    before = task.rate
    task.run(120.0, fails=0.1, takes=lambda _: 3000.0, offered=400.0)

    assert 0.6 * before < task.rate < 1.1 * before


@pytest.mark.parametrize("passes", [0.02, 0.05, 0.1])
def test_an_outage_that_lets_a_little_through_does_not_end_the_pace(passes: float) -> None:
    task = Task(rate=3000.0).run(10.0, fails=0.1, takes=lambda _: 3000.0)
    task.run(10.0, fails=1 - passes, takes=lambda _: 3000.0)
    task.run(60.0, fails=0.1, takes=lambda _: 3000.0)

    assert task.rate > 0.6 * 3000


@pytest.mark.parametrize("fails", [0.1, 0.5])
def test_the_pace_comes_back_from_next_to_nothing(fails: float) -> None:
    """A few entries a second say little: it takes minutes, and does not take for ever."""
    task = Task().run(10.0, fails, lambda _: 1000.0).run(30.0, fails, lambda _: 2.0)
    task.run(240.0, fails, lambda _: 1000.0)

    assert task.rate > 500


def test_a_limit_that_was_known_is_not_forgotten_for_one_refusal_without_a_reason() -> None:
    pace = UntoldPace(1000.0)
    rate = 1000.0
    for n in range(400):
        now = n * 0.025
        depth = pace.depth(now, 0.05, rate)
        answer = Answer(int(n == 5), 0, max(1, round(rate * depth * 0.025)), rate, depth, now, now + 0.05)
        rate = pace.answered(answer, rate=rate, growth=2.5 * rate, has_limit=True)
        assert rate < 1300 or n > 200


def test_a_pause_does_not_make_it_forget() -> None:
    """Between two micro-batches nothing is sent, and so nothing refused."""
    task = Task().run(4.0, fails=0.3)
    task.now += 300.0
    task.run(0.5, fails=0.0)

    assert task.pace.stage is not Stage.NONE


def test_where_answers_are_late_refusals_after_none_are_load_until_a_dip_shows_what_they_are() -> None:
    """A dip takes seconds then. The pace does not fall far below what was accepted at first."""
    task = Task(latency=2.0).run(2.0, fails=0.0).run(1.0, 0.0, lambda _: 600.0)

    assert task.pace.stage is Stage.LOAD
    assert 0.15 * 1000 < task.pace.floor < 0.25 * 1000


@pytest.mark.parametrize("fails", [0.4, 0.1])
def test_where_answers_are_late_the_pace_is_lowered_until_it_is_known_what_fails(fails: float) -> None:
    """The first requests fail already, or those that came before the limit was met."""
    task = Task(latency=2.0, jitter=0.5).run(0.5, fails).run(3.5, fails, lambda _: 500.0)
    assert task.stages[-1] is Stage.LOWERED
    task.run(4.5, fails, lambda _: 500.0)

    assert task.stages[-2:] == [Stage.LOWERED, Stage.LIMITED]
    assert task.pace._failing.share == pytest.approx(fails, abs=0.05)
    assert task.rate == pytest.approx(500, rel=0.2)


def test_a_pace_that_was_lowered_for_no_load_comes_back() -> None:
    task = Task(latency=2.0, jitter=0.5).run(3.0, fails=0.5)
    assert task.stages[-1] is Stage.LOWERED
    before = task.pace._lowered.before if task.pace._lowered else 0.0
    while task.pace.stage is Stage.LOWERED:
        task.run(0.1, fails=0.5)

    assert task.now < 8.0
    assert task.pace.stage is Stage.GROWING
    assert task.rate == pytest.approx(before, rel=0.1)


def late(first: list[Answer]) -> UntoldPace:
    """It hears of requests that take 2 s: fifty that were accepted, and then these."""
    pace = UntoldPace(1000.0)
    pace.depth(0.0, 2.0, 1000.0)
    clean = [Answer(0, 0, 100, 1000.0, 1.0, n / 50 - 1.0, n / 50 + 1.0) for n in range(50)]
    for answer in (*clean, *first):
        pace.answered(answer, rate=5000.0, growth=1.0)
    return pace


def test_the_least_pace_is_a_part_of_what_was_let_through_and_not_of_what_was_sent() -> None:
    """The pace grew to five times, and nothing was refused at first: tokens were left over. The least pace
    followed from the highest pace and the mean of the refusals: 570, where a third of 390 was let through."""
    sent = [1000.0 * 5 ** (n / 40) for n in range(40)]
    answers = [Answer(50, 0, 100, 1000.0, 1.0, 0.0, 2.0)]
    for number, each in enumerate(sent):
        lost = 0 if number < 12 else 95
        answers.append(Answer(lost, 0, 100, each, 1.0, number / 40, 2.0 + number / 40))
    pace = late(answers)

    assert pace.stage is Stage.LOAD
    let_through = sum((100 if n < 12 else 5) for n in range(40)) / sum(100 / each for each in sent)
    assert pace.floor == pytest.approx(0.3 * let_through, rel=0.25)


def test_there_is_a_least_pace_though_the_first_requests_all_fail() -> None:
    """That nothing was let through at first did not only mean a least pace of 0, but that it stayed so."""
    answers = [Answer(50, 0, 100, 1000.0, 1.0, 0.0, 2.0)]
    for number in range(40):
        lost = 100 if number < 20 else 50
        answers.append(Answer(lost, 0, 100, 1000.0, 1.0, number / 40, 2.0 + number / 40))
    pace = late(answers)

    assert pace.stage is Stage.LOAD
    assert pace.floor == pytest.approx(0.3 * 1000 * 0.25, rel=0.1)


def test_single_refusals_after_none_are_no_load_where_answers_are_late() -> None:
    """Requests that fail as a whole whatever the pace is: one task went down to a fifth for that."""
    answers = [Answer(100 * (n % 10 == 0), 0, 100, 1000.0, 1.0, n / 50, 2.0 + n / 50) for n in range(50)]

    assert late(answers).stage is Stage.GROWING


def test_requests_are_small_while_it_is_uncertain_what_fails() -> None:
    """As long as the pace is held those of all tasks are, but not if nothing passes: that tells nothing."""
    holding = Task(rate=3000.0).run(1.2, fails=0.3, takes=lambda _: 1000.0)
    outage = Task(rate=3000.0).run(1.2, fails=1.0)
    known = Task(rate=3000.0).run(20.0, fails=0.1, takes=lambda _: 3000.0)
    seldom = Task(rate=3000.0).run(1.0, fails=0.01)

    assert (holding.pace.stage, outage.pace.stage) == (Stage.HOLDING, Stage.HOLDING)
    assert holding.pace.is_uncertain
    assert not outage.pace.is_uncertain
    assert not known.pace.is_uncertain
    assert seldom.pace.stage is Stage.GROWING
    assert not seldom.pace.is_uncertain


def test_answers_that_overtake_each_other_do_not_make_two_dips_of_one() -> None:
    """The last of a dip come after the first that were sent later. Two dips decide: one may be chance."""
    task = Task(latency=0.1, interval=0.0015, jitter=1.0)
    while task.pace.stage is not Stage.LIMITED and task.now < 10.0:
        task.run(0.05, fails=0.1, takes=lambda _: 300.0)

    assert 3.0 < task.now < 3.5  # dips end 1.75 and 3 s after the start


def test_the_pace_does_not_grow_while_some_load_is_seen() -> None:
    """Other tasks yield at less load than this one, and then it would take all that they leave."""
    task = Task(rate=3000.0).run(15.0, fails=0.1, takes=lambda _: 3000.0)
    assert task.pace.stage is Stage.LIMITED
    before = task.rate
    task.run(15.0, fails=0.1, takes=lambda _: 0.96 * task.rate)

    assert task.pace.stage is Stage.LIMITED
    assert 0.8 * before < task.rate < 1.3 * before


def test_nine_of_ten_refused_is_no_outage_where_half_fail() -> None:
    """A quarter of what could be is accepted: the pace is cut at once, without waiting for a dip."""
    task = Task(rate=1500.0).run(15.0, fails=0.5)
    assert task.rate >= MOST
    task.run(1.0, fails=0.5, takes=lambda _: 0.13 * MOST)

    assert task.rate < 0.2 * MOST
