"""Finds the pace where a service does not say why it refuses: for load, or because it fails.

A share of refusals that does not fall when the pace falls is not load. So the pace dips for half a second
now and then, in all tasks of a destination in the same seconds of the wall clock, to what is accepted of
it. (BBR measures the shortest round trip in the same way: Cardwell and others, ACM Queue 14(5), 2016.) In a
dip no more is sent than the service has just accepted, so load can't be the reason for what it refuses then:
that fails whatever the pace. What is refused beyond that share outside of dips is load.

As long as it is not well known what fails, requests are small: it may fail by requests, and the more of them
there are, the sooner it is known.

A share is known from a few hundred answers, and to a few percent; acting on each answer would drive tasks
apart. So between dips the pace is constant, and after a dip all tasks decide, at the same time:

- *Growing*: no load has been seen. The pace grows, up to many times what the last dip has shown to be no
  load, until much more is refused than fails. Until it has grown that far there are fewer dips: in a dip, and
  until it is answered, it does not grow.
- *Holding*: much is refused. The pace stays, so that what is accepted shows what the service takes, and the
  next dips show what fails. Then the pace is cut to what is let through, ``accepted / (1 - share)``; between
  two dips of one hold, to that of a whole cycle, as a service with a bucket of tokens saves them up in a dip
  and gives them out after it. The share is known from few dips by then, so the cut is corrected after each of
  the next ones.
- *Lowered*: the same where answers are late, so that dips are far apart. The pace is lowered at once to what
  is accepted, and load can't be the reason for what is refused then. Answers to what was sent before show
  what is let through: see `sluice.sink.lowered_pace`.
- *Limited*: the pace follows what is refused for load, as slowly as that is uncertain. Where none is clearly
  seen, it grows by small steps, then by larger ones.
- *Load*: nothing fails. Every refusal is load, and `sluice.sink.pacing` acts on it as if it had been told;
  dips are rare. If refusals halve the pace before the next one, something may fail by now: it is held again.
  Where answers are late, this is assumed if nothing had failed for a while before there was load.

If much more is suddenly refused, the pace is cut at once to what is accepted. The cut is undone if the next
dip shows that it was no load, or if nothing at all is accepted afterwards: then it is an outage.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from copy import copy
from typing import Final

from sluice.sink.decaying import DecayingSum
from sluice.sink.dips import BEFORE, Dips
from sluice.sink.failing_share import FailingShare
from sluice.sink.lowered_pace import LoweredPace
from sluice.sink.observed_load import ObservedLoad
from sluice.sink.pace_cut import Cut, with_care
from sluice.sink.paced_answer import Answer

__all__ = ["Stage", "UntoldPace"]

# Seconds that the pace must have been the same before a dip, once something is known of failures. Few, so
# that a task which has met the limit a little later than others is still cut with them, and not when they
# have made room for it.
_BEFORE_IF_KNOWN: Final = 0.1
# In a dip the pace is this part of what is accepted of it.
_MARGIN: Final = 0.9
# In a dip the pace is this part of itself at most.
_SHALLOWEST: Final = 0.85
# In a dip the pace is this part of itself at least; and this one where it is limited, so that little is lost.
_DEEPEST: Final = 0.12
_DEEPEST_IF_LIMITED: Final = 0.4
# If a dip sent more than this many times what is accepted outside of dips, its refusals may have been load.
_TOO_SHALLOW: Final = 1.15
# Seconds after a dip until all its answers are there, more or less.
_LATE: Final = 0.1
# Requests, and entries in them, that are evidence.
_REQUESTS: Final = 6
_ENTRIES: Final = 20
# Seconds over which refusals are averaged to see a sudden change, and while the pace grows.
_WINDOW: Final = 0.3
_WHILE_GROWING: Final = 1.2
# After so many seconds (longer where dips are) and requests without a refusal that lacks a reason, nothing is
# known of them any more, but that nothing fails (`LOAD`). Of the time between two answers, only so many
# seconds count.
_QUIET: Final = 10.0
_QUIET_REQUESTS: Final = 100
_PAUSE: Final = 1.0
# An outage: more than this part is refused, and in a dip less than so many times the part is accepted that is
# accepted outside of it.
_OUTAGE: Final = 0.8
_HELPS: Final = 1.5
# Load: this part is much, where it is clear that it is more than this many errors; this part is little.
_MUCH: Final = 0.25
_CLEARLY: Final = 2.5
_VERY_CLEARLY: Final = 3.5
_LITTLE: Final = 0.1
# What fails is known quite badly at this error, and does not matter much below this part.
_QUITE_UNCERTAIN: Final = 0.03
_SELDOM: Final = 0.04
# The pace grows up to so many times what was no load, and less far once much was refused that does not fail
# anyway; also less far if what fails is known less well than this. Until much was refused, dips are rare
# below this part of the pace up to which it grows.
_GROWTH: Final = 16.0
_GROWTH_NEAR_LIMIT: Final = 4.0
_QUITE_WELL: Final = 0.1
_FAR_BELOW: Final = 0.9
# While it is not known what fails, the pace is held for two dips; for one if load is less than `_MUCH` by so
# many errors, and no more than half of that just before the dip.
_QUITE_CLEARLY: Final = 1.5
# When it is known, the pace is held for one dip; or only for this time (seconds), if the error of the load is
# less than the second number by then.
_AT_ONCE: Final = 0.4
_KNOWN_AT_ONCE: Final = 0.08
# Where nothing failed: something does if the share is more than this one.
_SOMETHING: Final = 0.015
# Where nothing fails: if refusals lower the pace to this part before the next dip, something may fail by now.
_SUNK: Final = 0.5
# After a cut the pace stays for so many seconds, but for what is known better of that cut.
_FRESH_FOR: Final = 4.0
# A dip that shows after more cycles than this that a cut was for no load is taken for chance.
_CYCLES_UNDONE: Final = 9.0
# Answers are late if dips are at least this many times as long as usual. Load is assumed if so many times as
# many requests were answered before the first refusal as from then on, and the pace does not fall below the
# last number, as a part of what was accepted at first, before a dip shows what it is.
_LATE_ANSWERS: Final = 2.0
_CLEAN_TIMES: Final = 2.0
_FLOOR: Final = 0.3
# Where the pace is limited: the part that is refused for load at which it stays, the error at which it
# follows half as fast, how much it follows at most after a dip, and the load that is too much.
_AIM: Final = 0.02
_HALF_AS_FAST: Final = 0.03
_FOLLOWS: Final = 0.31
_TOO_MUCH: Final = 0.06
# Of a load that is known to this error, half is cut.
_HALF_IS_CHANCE: Final = 0.1
# It grows only if more than this part of what was sent had to wait for it.
_MOSTLY: Final = 0.5


class Stage(enum.Enum):
    """What is known of the refusals that have no reason."""

    NONE = "there are none"
    GROWING = "no load has been seen"
    HOLDING = "many, and not known why"
    LOWERED = "many, and not known why, and answers are late"
    LIMITED = "for load, and because it fails"
    LOAD = "all for load"


class UntoldPace:
    """The pace of a task, where refusals have no reason. Instants and durations are seconds of one clock.

    Args:
        start: the pace that all tasks begin with (entries a second).
        wall_offset: what has to be added to an instant for the time of the wall clock.

    Attributes:
        stage: what is known.
        floor: the pace does not fall below this one, as long as it is only assumed that there is load.
    """

    def __init__(self, start: float, wall_offset: Callable[[], float] = lambda: 0.0) -> None:
        self._start = start
        self._dips = Dips(wall_offset)
        self._forget()

    def _forget(self) -> None:
        self.stage = Stage.NONE
        self.floor = 0.0
        self._is_assumed = False  # that refusals are load
        self._failing = FailingShare()
        self._last = -math.inf  # the last answer
        self._quiet_requests, self._quiet = 0, 0.0  # since the last refusal without a reason; and seconds
        self._has_limit = False  # found before there were such refusals
        self._first_most = math.inf
        self._since = math.inf  # the pace holds, or refusals are seen at all
        self._dip = DecayingSum()  # refusals without a reason, in the last dips
        self._dip_began = self._dip_ends = -math.inf
        self._evaluated = -math.inf  # when the dip began that was last learnt from
        self._depth = 1.0  # of the last dip
        self._cruise = DecayingSum()  # refusals outside of dips since the last one
        self._pushed = DecayingSum()  # what only the pace has delayed, since then
        self._window = DecayingSum()  # refusals of the last moment
        self._before_dip = DecayingSum()  # those of the moment before the last dip
        self._safe = self._start  # a pace that was no load
        self._dips_held = 0
        self._first_depth: float | None = None  # of the first dip of this hold, if there is to be another
        self._is_first_hold = True  # nothing was known of failures when this hold began
        self._cut_at = -math.inf
        self._has_met_limit = False  # much was refused since it is known what fails
        self._cut: Cut | None = None  # the last one; or a hold after which there was nothing to cut
        self._confirmed = 0.0  # the pace when a dip last showed that nothing fails
        self._before_outage = self._start  # the pace before a sudden cut, which may have been for an outage
        self._observed = ObservedLoad()
        self._clean_requests = 0  # that were answered before the first refusal without a reason
        self._requests = 0  # that were answered from then on
        self._let_through = DecayingSum()  # entries, in the seconds that they stand for
        self._lowered: LoweredPace | None = None
        self._latency = 0.0  # seconds until an answer

    @property
    def is_in_charge(self) -> bool:
        """Whether the pace is found here."""
        return self.stage not in {Stage.NONE, Stage.LOAD}

    @property
    def is_uncertain(self) -> bool:
        """Whether it is not well known what fails, so that many small requests would tell more.

        Of an overloaded service small requests get more than large ones, as each gets what is there when it
        comes. So all tasks have them while the pace is held.
        """
        if self.stage in {Stage.HOLDING, Stage.LOWERED}:
            return self._window.share < 1.0
        is_seldom = max(self._failing.share, self._cruise.share) < _SELDOM  # more requests may cost money
        return self.is_in_charge and not is_seldom and self._failing.error > _QUITE_UNCERTAIN

    def depth(self, at: float, latency: float, pace: float) -> float:
        """The part of the pace to send at: less than 1 in a dip.

        Args:
            at: the time.
            latency: how long answers take.
            pace: entries a second.
        """
        self._dips.follow(latency)
        self._latency = latency
        if self.stage in {Stage.NONE, Stage.LOWERED}:
            return 1.0
        # Where load is assumed, what was sent before the first refusal came is still being refused.
        since = self._since + (self._dips.cycle if self._is_assumed else 0.0)
        is_rare = self._is_settled or self._is_far_below(pace)
        before = _BEFORE_IF_KNOWN if self._failing.is_known else BEFORE
        began = self._dips.began(at, since, is_rare=is_rare, before=before)
        if began is None:
            return 1.0
        if began > self._dip_began + self._dips.cycle / 2:
            self._dip_began, self._dip_ends = began, self._dips.end(began)
            self._depth = min(_SHALLOWEST, self._deep_enough(pace))
            self._before_dip = copy(self._window)
        return self._depth

    @property
    def _is_settled(self) -> bool:
        if self.stage is Stage.LOAD:
            return not self._is_assumed
        return self.stage is Stage.LIMITED and self._failing.is_well_known and not self._observed.is_far

    def _is_far_below(self, pace: float) -> bool:
        """Whether the pace grows, and may do so for a while before another dip is needed."""
        is_far = self.stage is Stage.GROWING and self._failing.is_known and not self._has_met_limit
        return is_far and pace < _FAR_BELOW * self._most

    def _deep_enough(self, pace: float) -> float:
        accepted = 1 - self._cruise.share
        match self.stage:
            case Stage.LOAD if self._failing.is_known:
                return _SHALLOWEST
            case Stage.HOLDING:
                return max(_DEEPEST, _MARGIN * min(accepted, 1 - self._window.share))
            case Stage.LOAD:
                return max(_DEEPEST, _MARGIN * (1 - self._window.share))
            case Stage.GROWING if self._failing.is_known:
                return max(_DEEPEST, self._safe / pace)
        failing = self._failing
        passing = min(1.0, (1 - failing.share) * (1 + failing.error)) if failing.is_known else 1.0
        least = _DEEPEST_IF_LIMITED if self.stage is Stage.LIMITED else _DEEPEST
        return max(least, _MARGIN * accepted / passing)

    def answered(self, answer: Answer, *, rate: float, growth: float, has_limit: bool = False) -> float:
        """A request was answered.

        Args:
            answer: what became of it.
            rate: the pace now (entries a second).
            growth: by how much the pace may grow in a second as long as there is no load; 0 if it is not the
                pace that limits what is sent.
            has_limit: whether a limit has been found before, from refusals for load.

        Returns:
            The pace from now on.
        """
        now = answer.now
        self._see(answer, rate, has_limit=has_limit)
        if answer.at > self._cut_at and (self.stage is not Stage.NONE or self._is_late):
            self._window.add(answer.lost, answer.entries, now, _WINDOW * self._dips.scale)
        if self.stage is Stage.NONE:
            return rate
        self._requests += 1
        self._pushed.add(answer.entries if growth else 0, answer.entries, now, math.inf)
        if self._lowered:
            self._lowered.add(answer, self._latency)
            return self._end_lowered(self._lowered, now) if self._lowered.is_over else self._lowered.pace
        if answer.depth < 1.0:
            is_new = self._dip_began > self._evaluated and answer.at > self._cut_at
            if is_new and answer.entries > answer.throttled:
                self._dip.add(answer.untold, answer.entries - answer.throttled, now, math.inf)
            return self._notice(rate, answer)
        if self._has_ended(answer.at):
            self._evaluated = self._dip_began
            rate = self._end_dip(rate, now)
            self._pushed = DecayingSum()
        return self._cruised(rate, growth, answer) if answer.at > self._cut_at else rate

    def _see(self, answer: Answer, rate: float, *, has_limit: bool) -> None:
        """Begins with the first refusal without a reason, and ends when there have been none for a while."""
        now, before = answer.now, self._last
        self._last = now
        if not answer.untold:
            self._quiet_requests += 1
            self._quiet += min(_PAUSE, max(0.0, now - before))  # a pause between micro-batches says nothing
            is_over = self._quiet_requests > _QUIET_REQUESTS and self._quiet > _QUIET * self._dips.scale
            if is_over and self.stage not in {Stage.NONE, Stage.LOAD}:
                clean = self._quiet_requests
                self._forget()
                self._quiet_requests = clean
            return
        if self.stage is Stage.NONE:
            self._clean_requests = self._quiet_requests
            self._since, self.stage, self._has_limit = now, Stage.GROWING, has_limit
            if has_limit:
                self._first_most = rate
        self._quiet_requests, self._quiet = 0, 0.0

    @property
    def _is_late(self) -> bool:
        """Whether answers are late."""
        return self._dips.scale >= _LATE_ANSWERS

    def _has_ended(self, at: float) -> bool:
        """Whether there was a dip before `at`, or several, with enough in them."""
        is_enough = self._dip.values >= _REQUESTS and self._dip.whole >= _ENTRIES
        return is_enough and at > self._dip_ends + _LATE * self._dips.scale

    def _cruised(self, rate: float, growth: float, answer: Answer) -> float:
        """An answer to what was not sent in a dip. Returns the pace."""
        is_growing = self.stage is Stage.GROWING
        memory = _WHILE_GROWING * self._dips.scale if is_growing else math.inf
        self._cruise.add(answer.lost, answer.entries, answer.now, memory)
        rate = self._notice(rate, answer)
        if self.stage is not Stage.GROWING:
            return rate
        return max(rate, min(self._most, rate + growth * answer.entries / answer.pace))

    @property
    def _most(self) -> float:
        """The highest pace before the next dip."""
        if not self._failing.is_known:
            return self._first_most
        growth = _GROWTH_NEAR_LIMIT if self._has_met_limit else _GROWTH
        return self._safe * (1 + (growth - 1) / (1 + (self._failing.error / _QUITE_WELL) ** 2))

    # --- between dips ---------------------------------------------------------------------------------

    def _notice(self, rate: float, answer: Answer) -> float:
        """Acts on a sudden change. Returns the pace."""
        if not self._window.values:
            return rate
        load, error = self._failing.load(self._window), self._failing.error_of_load(self._window)
        at, now = answer.at, answer.now
        match self.stage:
            case Stage.GROWING:
                return self._notice_load(rate, answer, load, is_much=load > max(_CLEARLY * error, _MUCH))
            case Stage.HOLDING if self._window.share == 1.0:
                self._cruise = DecayingSum()  # an outage says nothing about the pace
            case Stage.HOLDING if not self._is_first_hold and at > self._since + _AT_ONCE * self._dips.scale:
                return self._decide_at_once(rate, now)
            case Stage.LOAD if self._is_assumed and at < self._since:
                self._follow_floor(answer)
            case Stage.LOAD if rate < _SUNK * self._confirmed:
                self._hold(now, anew=True)
            case Stage.LIMITED if self._observed.is_far and self._is_outage:
                self._hold(now)
                return max(rate, self._before_outage)
            case Stage.LIMITED | Stage.LOAD if load > max(self._very_clearly * error, _MUCH):
                if self._failing.is_known and not self._is_fresh(now):
                    return self._cut_suddenly(rate, answer.pace, load, now)
        return rate

    def _notice_load(self, rate: float, answer: Answer, load: float, *, is_much: bool) -> float:
        """Ends growth if there is load. Returns the pace."""
        now = answer.now
        if self._is_surely_load and (is_much or answer.is_used_up):
            self.stage, self._is_assumed, self._since = Stage.LOAD, True, now
            self.floor = _FLOOR * rate
            return rate
        if not is_much:
            return rate
        if self._is_late:
            return self._lower(rate, answer, load)
        self._hold(now)
        # The last growth was too much, but no task falls below the pace that all began with.
        return min(rate, max(rate / 2, self._start))

    @property
    def _is_surely_load(self) -> bool:
        """Whether refusals are load where answers are late, as nothing had failed for a while before."""
        was_clean = self._clean_requests >= _CLEAN_TIMES * self._requests
        return self._is_late and was_clean and not self._failing.is_known

    def _follow_floor(self, answer: Answer) -> None:
        """Learns from requests that were sent before load was assumed how little is too little."""
        accepted, seconds = answer.entries - answer.lost, answer.entries / answer.pace
        self._let_through.add(accepted, seconds, answer.now, math.inf)
        if self._let_through.values > _REQUESTS:
            self.floor = _FLOOR * self._let_through.share

    @property
    def _is_outage(self) -> bool:
        """Whether nothing is accepted at a lower pace either, and that is not chance."""
        return self._cruise.share == 1.0 and self._cruise.values >= _REQUESTS

    @property
    def _very_clearly(self) -> float:
        # While it is uncertain what fails there are more answers, and so more chances to err.
        return _VERY_CLEARLY if self.stage is Stage.LOAD else _VERY_CLEARLY + 1

    def _decide_at_once(self, rate: float, now: float) -> float:
        """Ends holding if it is known well enough how much is load. Returns the pace."""
        if not self._cruise.values or self._failing.load(self._cruise) > _OUTAGE:
            return rate
        if self._failing.error_of_load(self._cruise) > _KNOWN_AT_ONCE:
            return rate
        if self._failing.load(self._cruise) > _MUCH / 2:
            return self._limit(rate, now)
        self.stage, self._cut = Stage.GROWING, None  # no further than before: it was a short look
        return rate

    def _cut_suddenly(self, rate: float, pace: float, load: float, now: float) -> float:
        refused, error = self._window, self._failing.error_of_load(self._window)
        if self.stage is Stage.LOAD:
            self._hold(now, anew=True)
        if refused.share > _OUTAGE:
            self._hold(now)
            return rate
        if self._cut is None or self._cut.is_sure:
            self._cut = Cut(rate, refused)
        self._cut.is_final = True
        if not self._observed.is_far:
            self._before_outage = rate
        rate = min(rate, pace * (1 - load) * with_care(load, error))
        self._begin_anew(now)
        self._observed = ObservedLoad(is_far=True)
        return rate

    def _lower(self, rate: float, answer: Answer, load: float) -> float:
        """Lowers the pace to what is accepted. Returns it."""
        self._hold(answer.now)
        self.stage = Stage.LOWERED
        accepted, least = answer.pace * (1 - load), min(rate, _DEEPEST * self._start)
        self._lowered = LoweredPace(
            rate, min(rate, _MARGIN * accepted), self._failing, answer.now, least=least
        )
        self._lowered.add(answer, self._latency)
        return self._lowered.pace

    def _end_lowered(self, lowered: LoweredPace, now: float) -> float:
        """Decides by what was shown at the lowered pace. Returns the pace."""
        self._lowered = None
        if self._is_first_hold:
            self._failing.learn(lowered.shown, lowered.refused)
        self._begin_anew(now)
        cut = lowered.cut()
        if not lowered.was_outage and cut.load(self._failing.measured) > _MUCH / 2:
            self.stage, self._cut = Stage.LIMITED, cut
            return self._let_through_of(cut)
        self.stage = Stage.GROWING
        self._after_growth(lowered.before, 0.0, now)
        return lowered.before

    def _hold(self, now: float, *, anew: bool = False) -> None:
        """Holds the pace; `anew`: what was known of failures may be out of date."""
        if anew:
            self._failing = FailingShare()
        self.stage, self._cut = Stage.HOLDING, None
        self._dips_held, self._first_depth = 0, None
        self._is_first_hold = not self._failing.is_known
        self._has_met_limit = self._has_met_limit or self._failing.is_known
        self._dip = DecayingSum()
        self._begin_anew(now)
        self._since = now

    def _begin_anew(self, now: float) -> None:
        """What was sent at another pace does not count any more."""
        self._cut_at = now
        self._cruise, self._window = DecayingSum(), DecayingSum()
        self._observed = ObservedLoad()

    # --- after a dip ----------------------------------------------------------------------------------

    def _end_dip(self, rate: float, now: float) -> float:
        """Learns from the last dip, and decides. Returns the pace."""
        dip, cruise = self._dip, self._cruise
        self._dip = DecayingSum()
        if self.stage is not Stage.HOLDING:
            self._cruise = DecayingSum()
        if cruise.values < _REQUESTS or cruise.whole < _ENTRIES:
            return rate
        if dip.share > _OUTAGE and 1 - dip.share < _HELPS * (1 - cruise.share):
            self._hold(now)
            return rate
        if self._was_load(dip, cruise):
            is_held = self.stage is Stage.HOLDING
            self._hold(now)
            return rate * self._depth if is_held else rate  # as much was accepted in the dip
        self._failing.learn(dip, cruise)
        self.floor, self._is_assumed = 0.0, False
        if self.stage is Stage.HOLDING:
            return self._after_hold(rate, now)
        if self.stage is Stage.GROWING:
            self._after_growth(rate, self._failing.load(cruise), now)
        elif self.stage is Stage.LIMITED and self._failing.is_nothing:
            self.stage, self._confirmed = Stage.LOAD, rate
        elif self.stage is Stage.LIMITED or self._failing.share > _SOMETHING:
            self.stage = Stage.LIMITED
            rate = self._undone(rate, now)
            if self.stage is Stage.LIMITED:
                rate = self._follow(rate, cruise, now)
        else:
            self._confirmed = rate
        return rate

    def _was_load(self, dip: DecayingSum, cruise: DecayingSum) -> bool:
        """Whether the dip was not deep enough, and shows load."""
        if self.stage is Stage.HOLDING:
            is_shallow = self._depth > _TOO_SHALLOW * (1 - cruise.share)
            return is_shallow and dip.share > max(_LITTLE, self._failing.share)
        return self.stage is Stage.GROWING and self._failing.is_exceeded_by(dip)

    def _after_hold(self, rate: float, now: float) -> float:
        load, error = self._failing.load(self._cruise), self._failing.error_of_load(self._cruise)
        self._dips_held += 1
        if not self._is_first_hold:
            return self._limit(rate, now)
        is_little = load + _QUITE_CLEARLY * error <= _MUCH
        if self._dips_held == 1 and not (is_little and self._failing.load(self._before_dip) <= _MUCH / 2):
            self._cruise = DecayingSum()  # at first the service may have had tokens left over
            self._first_depth = self._depth
            return rate
        if load > _MUCH:
            return self._limit(rate, now)
        self.stage, self._cut = Stage.GROWING, None
        self._after_growth(rate, load, now)
        return rate

    def _after_growth(self, rate: float, load: float, now: float) -> None:
        if load > _MUCH:
            self._hold(now)
        elif self._has_limit:
            self.stage = Stage.LIMITED
        elif load < _MUCH / 2:
            self._safe = rate

    def _limit(self, rate: float, now: float) -> float:
        """Ends holding. Returns the pace that is let through."""
        self.stage = Stage.LIMITED
        self._cut = Cut(rate, copy(self._cruise), self._first_depth)
        if self._failing.load(self._cruise) <= _LITTLE:
            return rate
        self._begin_anew(now)
        return self._let_through_of(self._cut)

    def _is_fresh(self, now: float) -> bool:
        """Whether the last cut was so lately that the pace stays: others may still have to cut theirs."""
        return now < self._cut_at + _FRESH_FOR

    def _let_through_of(self, cut: Cut) -> float:
        """The pace after a cut, by what is known now."""
        depth = max(_DEEPEST_IF_LIMITED, _MARGIN / (1 + self._failing.error))
        return cut.pace(self._failing, min(_SHALLOWEST, depth))

    def _undone(self, rate: float, now: float) -> float:
        """The pace before the last cut, if that was for no load, as is known now."""
        cut = self._cut
        if cut is None or cut.is_sure:
            return rate
        is_long_ago = now > self._cut_at + _CYCLES_UNDONE * self._dips.cycle
        cut.is_sure = is_long_ago or self._failing.error < _QUITE_WELL / 2
        if is_long_ago or cut.load(self._failing.measured) > _LITTLE:
            return rate
        self._cut = None
        self.stage, self._safe = Stage.GROWING, cut.before
        return max(rate, cut.before)

    def _follow(self, rate: float, cruise: DecayingSum, now: float) -> float:
        cut = self._cut
        if self._is_fresh(now):
            return rate if cut is None or cut.is_final else self._let_through_of(cut)
        if cut:
            cut.is_final = True
        observed, failing = self._observed, self._failing
        observed.add(failing.load(cruise), failing.error_of_load(cruise), failing.error)
        load, error = observed.load, observed.error
        if load > max(2 * error, _TOO_MUCH):
            # The tasks that see most are those that chance has shown most: each acts on a part of it.
            part = load / (1 + (error / _HALF_IS_CHANCE) ** 2)
            self._begin_anew(now)
            return rate * (1 - part) * with_care(load, error)
        if load + observed.doubt * error < _TOO_MUCH and load < 2 * error:
            more = observed.next_step() - 1
            grown = rate + more * max(rate, self._start / 10)
        else:
            if load > 2 * error:
                observed.is_far = False
            follows = _FOLLOWS / (1 + (error / _HALF_AS_FAST) ** 2)
            grown = rate * (1 - follows * (load - _AIM))
        # If something else limits what is sent, that little is refused says nothing about the pace.
        return grown if self._pushed.share > _MOSTLY else rate
