"""How fast to send: entries a second, learnt from what a destination refuses for load, and from nothing else.

A limit on what is in flight slows sending down to the pace of a destination that answers slowly. It cannot do
so for one that answers in milliseconds: with 500 entries in flight and answers after 10 ms, 50,000 a second
are sent. If 1,000 of them are accepted, only a limit of 10 would change that. So the rate itself is learnt.

One rule: every answer draws the rate towards ``pace * (1 - refused) / (1 - share)``, where `pace` is the rate
at which its request was sent, `refused` the part of it that was refused for load, and `share` the small part
that may be refused. ``pace * (1 - refused)`` is what the destination lets through, so:

- The rate settles where that small share is refused: the destination takes all that it can, and has no tokens
  left over that would hide an overload for a while.
- The rate does not fall below what is let through. Refusals that come late, from a time when the rate was
  higher, say the same as those that come at once; latency does not make the rate swing.
- The share is smaller where the rate is higher. All tasks of a destination see the same refusals, so fast
  tasks slow down and slow ones speed up.

The rate settles slowly, so that chance does not drive tasks apart: as many refused requests as it averages
over decide how far their shares differ.

Without refusals the rate grows, up to the first of them by doubling. Later it grows when there have been
several refused requests fewer than the share lets expect, at first evenly: by a part of the rate at which
that began, and of a rate that is the same for all tasks. Tasks do not notice at the same time that there is
more to have. Of rates that double, the one that began a second earlier would be twice as high in the end.

Where answers are late, too much is sent for a while whenever the rate grows past the limit, and the faster
it grew, the sooner it is known. So a new task grows fast even before it is answered, and the limit is known
within seconds. Then the task pauses for a moment, as what is in flight is more than the destination takes.
From then on what is not answered yet limits growth: little at first, as a short silence may be chance.

A rate that has grown far ends in refusals of all that it sent meanwhile. The answers to that measure the
limit well, and they keep coming for as long as an answer takes. What counts is the pace at which requests
came, and this is known the less exactly the more the times of answers differ. A request that is accepted as a
whole counts too: it took the tokens that others did not find. Not counted are those that were sent before the
limit was met, or soon after the cut: they used tokens that were left over.

Only entries that reached the destination's limit say something about it: one that failed for another reason
is neither refused nor let through. Requests are small and at irregular distances: fewer entries find the
allowance used up, and no task is always the first to find it refilled.

A few refused entries of a request do not end the growth of a new task: a service may refuse single ones
whatever the rate is, and past the limit there are soon many. A cut may have been for a refusal by chance,
too. The next few answers show it, and then it is taken back. It was no chance if many entries of a request
were refused, and not all: were such cuts taken back by some tasks and not by others, as each sees a few
answers only, one would be twice as fast as the others for minutes.

Refusals without a reason: see `sluice.sink.untold_pace`. Those for load that come whatever the rate is: see
`sluice.sink.noncongestive`.

Sources: AIMD, and a balance of increase and decrease as a target of refusals (Kelly, Maulloo, Tan: Rate
control for communication networks, 1998); slow start, and half of the rate after it (RFC 5681); the rate of
delivery as the measure (BBR: Cardwell and others, ACM Queue 14(5), 2016); growth that does not depend on the
own rate is what makes rates equal (Chiu, Jain: Analysis of the increase and decrease algorithms for
congestion avoidance, 1989); growth that is flat near the last refusal and steep later (CUBIC: RFC 9438).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sluice.sink.noncongestive import NonCongestiveRefusals
from sluice.sink.paced_answer import Answer
from sluice.sink.sent_requests import SentRequests
from sluice.sink.untold_pace import Stage, UntoldPace

__all__ = ["PacingRate"]

# The lowest rate (entries a second).
_LEAST: Final = 1.0
# The share of entries that may be refused for load is this one for a slow task. For one at the other rate it
# is half of that, and for a fast one the number of entries a second is the same whatever the rate is: this is
# what makes fast tasks slow down and slow ones speed up.
_MOST_SHARE: Final = 0.04
_HALF_SHARE_AT: Final = 150.0
# The share is not less than this one, or a fast task would hear too seldom of the limit. Where answers are so
# late that requests are far apart, still fewer are refused: there it is at least that part of the other one
# by which requests are further apart than usual.
_LEAST_SHARE: Final = 0.005
_LATE_SHARE: Final = 0.02
# The time constant of the rate is the time of this many requests if they are refused as a whole; a part of
# them if only a part of each is refused, because fewer entries are lost together then. Shares of tasks vary
# by one through the root of twice this number. It begins with the second number, and becomes longer with each
# refused request; and is never less than the last.
_MANY: Final = 36
_FIRST: Final = 14
_FEW: Final = 4.0
# For a task that knows the mean rate of all: that share grows by this power of the mean over its own rate,
# between these bounds of that ratio, up to this share.
_FAIRNESS: Final = 6
_LEAST_RATIO: Final = 0.67
_MOST_RATIO: Final = 1.17
_MOST_SHARE_BELOW: Final = 0.06
# Seconds for which a task counts as limited by the destination after it was.
_LIMITED_FOR: Final = 1.0
# With each answer the rate grows by at most this many times itself in a second.
_GROWTH: Final = 2.5
# Until the first refusal it may double while answers come, for so long (seconds); then grow by this part.
_START: Final = 5.0
_LATE_START: Final = 0.25
# The limit is found when so many of the first answers have many refused entries, from the first that has on.
# If it is fewer, that was chance. What was sent before it and accepted says nothing.
_FIRST_REFUSALS: Final = 3
_FIRST_ANSWERS: Final = 5
# If there is no answer after so many seconds, a new task grows by the second number times itself in a second;
# and more than answers let it as long as they are to requests at less than this part of the rate.
_LATE: Final = 0.15
_UNANSWERED: Final = 1.6
_OUT_OF_DATE: Final = 0.35
# It grows after this many refused requests fewer than expected, slowly at first, and faster with each step of
# as many as the second number. After n steps it may be above the rate that was answered by half of n * n
# times that rate, at most by the third number times. It has grown far after the last number of steps.
_PATIENCE: Final = 3.0
_STEP: Final = 2.0
_MOST_STEPS: Final = 3.0
_FAR: Final = 2.0
# There are no dips while so many refused requests fail to come.
_FAIL_TO_COME: Final = 1.0
# When it was refused after that, some requests that are accepted as a whole say nothing: they used tokens
# that were left over. These are the ones that were sent earlier than so many seconds after the request that
# met the limit (if answers come sooner, few are sent between that and the cut, and what chance shows in them
# would make tasks differ); and after the cut, for this part of the time of an answer.
_LEFT_OVER_BEFORE: Final = 0.15
_LEFT_OVER_FOR: Final = 0.7
# When a rate that has grown far is refused, nothing is sent for this part of the time of an answer, and for
# so many seconds at most: more is in flight than the destination takes.
_DRAIN: Final = 0.25
_LONGEST_DRAIN: Final = 1.0
# What was sent before that refusal came together with what was sent earlier and later by up to so many mean
# deviations of the time of an answer.
_DEVIATIONS: Final = 2.5
# How many refused requests are expected a second, at least and at most, whatever is known: fewer would
# be waited for too long, and more than these are seen together. So are those within twice the time of an
# answer, but for the last number of them: of late answers, silence is often chance.
_EXPECTED: Final = (0.4, 2.0)
_TOGETHER: Final = (0.5, 1.0)
# A request that is sent late may make up for this much time (seconds).
_SLACK: Final = 0.1
# A request holds the entries of this time (seconds), or more if more than this part of the requests that may
# be in flight would be. Distances differ by this part of themselves.
_REQUEST: Final = 0.025
_IN_FLIGHT: Final = 0.8
# Where refusals have no reason a request holds this part of that, or the second one while it is not well
# known what fails: it may fail by requests, and the more of them there are, the better it is known.
_SMALL: Final = 1 / 2
_SMALL_IF_UNCERTAIN: Final = 1 / 8
_SMALL_IF_HELD: Final = 1 / 2
_IRREGULARITY: Final = 0.6
# Of so many requests the pace is remembered, or of this many times as many as may be in flight.
_REMEMBERED: Final = 256
_IN_FLIGHT_TIMES: Final = 4
# An answer that took more than this many times as long as usual, and this many seconds, counts as that long.
_MUCH_LONGER: Final = (4.0, 1.0)
# The highest rate.
_MOST: Final = 1e9


@dataclass
class _Cut:
    """The rate was cut, maybe for a refusal that was chance.

    Attributes:
        rate, missed: of the task before that.
        sent_at: when the request was sent that was refused.
        answers: whether each was refused, from that one on.
    """

    rate: float
    missed: float
    sent_at: float
    answers: list[bool] = field(default_factory=lambda: [True])


class PacingRate:
    """A rate that is learnt. Every call is told the time; instants and durations are seconds.

    Args:
        start: entries a second to begin with.
        max_requests: that may be in flight.
        max_entries: that may be in flight.
        jitter: returns a random number in [0, 1).
        wall_offset: what has to be added to an instant for the time of the wall clock: see `Dips`.

    Attributes:
        rate: entries a second.
    """

    def __init__(
        self,
        start: float,
        *,
        max_requests: int = 50,
        max_entries: float = math.inf,
        jitter: Callable[[], float] = random.random,
        wall_offset: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.rate = max(_LEAST, start)
        self._requests_aimed_at = max(1.0, _IN_FLIGHT * max_requests)
        self._max_entries = max_entries
        self._jitter = jitter
        self._next = -math.inf  # when the next request is due
        self._sent = SentRequests(max(_REMEMBERED, _IN_FLIGHT_TIMES * max_requests))
        self._first_sent_at: float | None = None
        self._delayed_for = 0.0  # seconds in which this rate has limited what is sent
        self._latency: float | None = None  # seconds until an answer; None before the first one
        self._deviation = 0.0  # of that, on average (seconds)
        self._answered_pace = 0.0  # of the last request that was answered
        self._refused_at = -math.inf  # when the last request was sent that was refused too much
        self._missed = math.inf  # refused requests that were to be expected since then
        self._refused_part = 0.0  # of a request, if any of it is refused
        self._refused_requests = 0  # since the start, or since it grew
        self._calm_rate = self.rate  # when it began to grow, at first as a new task
        self._limit_met_at = -math.inf  # when the request was sent that was refused after it had grown far
        self._cut_at = -math.inf  # when that was known
        self._cut_from = 0.0  # the rate then, until something is answered that was sent later
        self._untold = UntoldPace(self.rate, wall_offset)
        self._noncongestive = NonCongestiveRefusals(wall_offset)
        self._cut: _Cut | None = None  # the last one, until it is known whether it was for load
        self._depth = 1.0  # of the rate, at which the last request was sent
        self._delayed = 0  # entries in flight that only this rate had delayed
        self._limited_at = -math.inf  # when an answer last came to what this rate had delayed
        self._mean: float | None = None  # of the rates of the tasks that share the destination

    def max_request(self, now: float) -> int:
        """Entries that a request should hold at most if it is sent now."""
        # The first one of a dip is as small as the others: a large one would be refused for load, and nothing
        # that is refused in a dip counts as load.
        return self._entries_at(self._depth_at(now))

    def _entries_at(self, depth: float) -> int:
        return max(1, math.ceil(self.rate * depth * self._interval))

    def _depth_at(self, now: float) -> float:
        depth = self._untold.depth(now, self._latency or 0.0, self.rate)
        if not self._is_told or self._missed == math.inf:
            return depth
        if self._missed <= _FAIL_TO_COME:
            depth = self._noncongestive.depth(now, self._latency or 0.0, self.rate)
        return depth if depth < 1.0 else self._noncongestive.gain(now, self._latency or 0.0)

    @property
    def in_flight(self) -> int:
        """Entries that must be allowed in flight for the rate to be reached, twice over."""
        # What was sent before the rate fell must not hold up what is sent at the new one: refusals tell what
        # is let through only if requests are sent at the rate.
        rate = max(self.rate, self._cut_from)
        return math.ceil(2 * rate * self._expected_latency) + 4 * self._entries_at(self._depth)

    def wait(self, now: float) -> float:
        """Seconds until the next request is due; 0 when it is."""
        return max(0.0, self._next - now)

    def sent(self, count: int, now: float) -> None:
        """`count` entries were sent."""
        if self._first_sent_at is None:
            self._first_sent_at = now
        if now - self._next <= _SLACK:
            self._delayed += count
        elif self._missed < math.inf:
            self._missed = 0.0  # after a pause the destination has tokens left over
        self._depth = depth = self._depth_at(now)
        self._sent.add(count, now, self.rate, depth)
        pace = self.rate * depth
        if self._is_unanswered(now):
            self.rate += _UNANSWERED * count
        distance = count / pace * (1 + _IRREGULARITY * (self._jitter() - 0.5))
        self._next = max(self._next, now - _SLACK) + distance

    def answered(  # noqa: PLR0913 - an answer, and when
        self,
        count: int,
        throttled: int,
        untold: int,
        sent_at: float,
        now: float,
        *,
        otherwise: int = 0,
        took: float | None = None,
    ) -> None:
        """A request ended.

        Args:
            count: its entries.
            throttled: those that were refused for load.
            untold: those that were refused without a reason.
            sent_at: when it was sent.
            now: the time.
            otherwise: those that failed for another reason.
            took: seconds until it was answered, if the answer has lain here since then.
        """
        delayed, self._delayed = min(count, self._delayed), max(0, self._delayed - count)
        if delayed:
            self._limited_at = now
        latency = self._follow_latency(max(0.0, now - sent_at if took is None else took))
        sent = self._sent.sent_at(sent_at)
        pace, depth = (self.rate, 1.0) if sent is None else (sent.pace, sent.depth)
        self._answered_pace = pace
        reached = count - otherwise
        if not reached:
            return
        if delayed:
            self._delayed_for += count / pace
        if self._untold.stage is Stage.LOWERED:
            pace = self._pace_around(pace, sent_at, now)
        answer = Answer(untold, throttled, reached, pace, depth, sent_at, now)
        self._follow_untold(answer, was_delayed=delayed > 0)
        if depth < 1.0 and self._is_told:
            self._noncongestive.answered_in_dip(answer.lost / reached, sent_at)
        if depth > 1.0 and self._is_told and delayed:
            self._noncongestive.answered_in_probe(answer.lost / reached, sent_at)
        if depth == 1.0 and not self._untold.is_in_charge:
            self._follow_load(answer, count, latency, was_delayed=delayed > 0)

    def _follow_load(self, answer: Answer, count: int, latency: float, *, was_delayed: bool) -> None:
        """Does what follows from what was refused for load, or was not."""
        pace, now, refused = answer.pace, answer.now, answer.lost / count
        is_at_new_rate = answer.at >= self._cut_at + _LEFT_OVER_FOR * latency
        if is_at_new_rate:
            self._noncongestive.answered(answer.lost / answer.entries, pace, answer.at, now)
        if self._is_told and self._missed < math.inf:
            self._missed += self._noncongestive.evidence(answer.at)
        if self._cut is not None and (answer.lost or answer.at > self._cut.sent_at):
            self._check_limit(self._cut, answer)
        # Until the limit is known, only many refused entries say something about it.
        tells = self._missed < math.inf or answer.has_many
        if answer.lost and tells:
            self._end_growth(answer)
        if answer.at > self._cut_at:
            self._cut_from = 0.0
        is_too_much = tells and self._notice(answer, count)
        duration = count / pace  # the request stands for the time in which as many entries are sent
        target = self._target(refused, answer.entries / count, self._pace_of_arrival(pace, answer.at, now))
        if answer.lost or is_at_new_rate or self._has_met_limit(answer.at):
            self._draw_to(target, duration, now, was_delayed=was_delayed)
        if was_delayed and not is_too_much and self._is_reachable:
            most = pace * (1 + min(_MOST_STEPS, self._steps**2 / 2))
            self.rate = max(self.rate, min(self.rate + self._growth(pace) * duration, most))

    def _has_met_limit(self, sent_at: float) -> bool:
        """Whether a request was sent past the limit, before it was known that there is one."""
        # Answers take different times: of two requests the one that was sent later may come first.
        margin = max(_LEFT_OVER_BEFORE, self._deviation)
        return self._limit_met_at + margin <= sent_at < self._cut_at

    def _draw_to(self, target: float, duration: float, now: float, *, was_delayed: bool) -> None:
        """Draws the rate towards the one that an answer tells of, unless the limit is not known yet."""
        if self._missed == math.inf or not (target < self.rate or was_delayed):
            return
        drawn = self.rate + (target - self.rate) * min(1.0, duration / self._time_constant)
        self.rate = max(_LEAST, min(self.rate, self._floor), drawn)
        if self._is_told:
            self._noncongestive.follow(self.rate, duration, now)

    @property
    def _is_told(self) -> bool:
        """Whether every refusal has had a reason lately."""
        return self._untold.stage is Stage.NONE

    @property
    def _noncongestive_share(self) -> float:
        return self._noncongestive.share if self._is_told else 0.0

    @property
    def _floor(self) -> float:
        return self._noncongestive.floor if self._is_told else self._untold.floor

    def _target(self, refused: float, reached: float, pace: float) -> float:
        """The rate at which as much is refused as may be, by a request that was sent at `pace`.

        `refused` is the part of it that was refused for load, and `reached` the one that did not fail.
        """
        for_load = refused - self._noncongestive_share * reached
        target = pace * (1 - for_load) / (1 - self._share * reached)
        # Only what is refused says that the rate is too high.
        return max(target, self.rate) if refused <= 0 and self._is_told else target

    def _check_limit(self, cut: _Cut, answer: Answer) -> None:
        """Finds out whether the rate was cut at its limit. If that was chance, growth goes on."""
        cut.answers.append(answer.has_many)
        is_limit = answer.is_used_up or sum(cut.answers) >= _FIRST_REFUSALS
        if not is_limit and len(cut.answers) < _FIRST_ANSWERS:
            return
        self._cut = None
        if is_limit:
            self._missed = 0.0
        else:
            self.rate, self._missed = max(self.rate, cut.rate), cut.missed
            self._cut_at, self._cut_from, self._next = -math.inf, 0.0, min(self._next, answer.now)

    def _follow_latency(self, took: float) -> float:
        usual = took if self._latency is None else self._latency
        times, more = _MUCH_LONGER
        longer = min(took, times * usual + more) - usual
        self._latency = usual + longer * 0.1
        self._deviation += (abs(longer) - self._deviation) * 0.1
        return self._latency

    def _follow_untold(self, answer: Answer, *, was_delayed: bool) -> None:
        """Does what follows from refusals without a reason."""
        is_pace = was_delayed and self._is_reachable
        growth = self._growth_at_start(answer.pace) if is_pace else 0.0
        has_limit = self._missed < math.inf
        rate = self._untold.answered(answer, rate=self.rate, growth=growth, has_limit=has_limit)
        self.rate = min(_MOST, max(_LEAST, rate))
        stage = self._untold.stage
        if self._untold.is_in_charge:
            self._cut = None
        if stage is Stage.GROWING:
            self._missed = math.inf
        elif self._missed == math.inf and self._untold.is_in_charge:
            self._missed = 0.0

    def forget_in_flight(self) -> None:
        """The requests in flight will never be answered."""
        self._delayed = 0
        if self._latency is None:
            self._first_sent_at = None  # or the time until the next request would count as waiting

    def is_limited(self, now: float) -> bool:
        """Whether the destination limits the rate: it has refused something, and there is more to send."""
        return self._missed < math.inf and now - self._limited_at < _LIMITED_FOR

    def share_with(self, mean: float | None) -> None:
        """Sets the mean rate of the tasks that share the destination, this one among them; None: unknown.

        The rate itself does not change. But a task above the mean puts up with fewer refusals, and one below
        with more. As all of them see the same share of refusals, their rates get closer. Where they do not
        see the same, because the keys of one are refused and those of others are not, each keeps what it is
        let through.
        """
        self._mean = mean

    def _pace_of_arrival(self, pace: float, sent_at: float, now: float) -> float:
        """The pace at which a request came to the destination, which is not known exactly.

        Before a cut the rate was high, and after it little is sent: requests from just before it meet fewer
        others than their own pace says.
        """
        return pace if sent_at > self._cut_at else min(pace, self._pace_around(pace, sent_at, now))

    def _pace_around(self, pace: float, sent_at: float, now: float) -> float:
        if not self._deviation:
            return pace
        around = self._sent.pace_around(sent_at, _DEVIATIONS * self._deviation, now)
        return pace if around is None else around

    @property
    def _expected_latency(self) -> float:
        if self._latency is not None:
            return self._latency
        if self._first_sent_at is None or self._sent.last is None:
            return 0.0
        return 2 * (self._sent.last.at - self._first_sent_at)  # as long again as it has taken already

    def _is_unanswered(self, now: float) -> bool:
        """Whether answers to a new task are so late that it grows meanwhile."""
        is_new = self._missed == math.inf and self._is_told
        is_late = self._first_sent_at is not None and _LATE < now - self._first_sent_at < _START
        is_out_of_date = self._answered_pace < _OUT_OF_DATE * self.rate
        return is_new and is_late and is_out_of_date and self._is_reachable

    @property
    def _is_reachable(self) -> bool:
        """Whether what may be in flight lets a higher rate be reached."""
        return self.rate * self._expected_latency < self._max_entries

    @property
    def _steps(self) -> float:
        """How often as many refused requests as `_STEP` were missed."""
        return max(0.0, (self._missed - _PATIENCE) / _STEP)

    @property
    def _interval(self) -> float:
        """Seconds from a request to the next."""
        least = _REQUEST
        if self._untold.is_in_charge:
            least *= _SMALL_IF_UNCERTAIN if self._untold.is_uncertain else _SMALL
        elif self._is_told and self._noncongestive.is_uncertain:
            least *= _SMALL_IF_HELD
        return max(least, self._expected_latency / self._requests_aimed_at)

    @property
    def _time_constant(self) -> float:
        many = min(_MANY, _FIRST + self._refused_requests)
        requests = max(_FEW, many * self._refused_part)
        return requests * max(_REQUEST, 1 / self.rate)

    @property
    def _share(self) -> float:
        """The share of entries that may be refused for load."""
        share = _MOST_SHARE * _HALF_SHARE_AT / ((self._mean or self.rate) + _HALF_SHARE_AT)
        share = max(share, _LEAST_SHARE, _LATE_SHARE * (1 - _REQUEST / self._interval))
        if self._mean is None:
            return share
        ratio = min(_MOST_RATIO, max(_LEAST_RATIO, self._mean / self.rate))
        return min(_MOST_SHARE_BELOW, share * ratio**_FAIRNESS)

    def _notice(self, answer: Answer, count: int) -> bool:
        """Counts the refused requests, or those that were to be expected; whether this is one."""
        reached, at = answer.entries, answer.at
        expected = self._share * reached / max(1.0, self._refused_part * count)
        # If refusals come whatever the rate is, some come while it grows. Else they end its growth.
        if 0 < self._steps < math.inf and (not answer.lost or self._noncongestive.is_known):
            self._noncongestive.grew(answer.lost / reached, expected, answer.now)
        if answer.lost:
            self._refused_at = max(self._refused_at, at)
            part = answer.lost / reached
            self._refused_part += (part - self._refused_part) / (8 if self._refused_part else 1)
            self._refused_requests += 1
            self._expect_anew()
            return True
        if at > self._refused_at:
            duration = count / answer.pace
            least, most = _EXPECTED
            together, fewest = _TOGETHER
            most = max(fewest, together / max(self._expected_latency, together / most))
            least = min(least * duration, _MOST_SHARE * reached)
            self._missed += min(max(expected, least), most * duration)
        return False

    def _expect_anew(self) -> None:
        """A request was refused: those that failed to come before say less, or nothing."""
        share = self._noncongestive_share
        if self._missed == math.inf or not self._noncongestive.matters or not self._is_told:
            self._missed = 0.0
            return
        # Refusals come whatever the rate is. By a sequential test, one of them takes back as much as it is
        # more likely if there is load.
        self._missed = max(0.0, self._missed - math.log(1 + max(self._share, share) / share))
        self._refused_at = -math.inf

    def _end_growth(self, answer: Answer) -> None:
        """A request was refused for load."""
        now = answer.now
        may_be_chance = self._missed == math.inf or (self._steps > _FAR and self._noncongestive.is_known)
        if may_be_chance and self._cut is None and self._is_told and not answer.is_used_up:
            self._cut = _Cut(self.rate, self._missed, answer.at)
        if self._steps > _FAR:
            is_again = answer.at < self._cut_at
            self._limit_met_at = min(self._limit_met_at, answer.at) if is_again else answer.at
            self._cut_at, self._cut_from = now, self.rate
            self._next = max(self._next, now + min(_LONGEST_DRAIN, _DRAIN * self._expected_latency))
        if self._missed == math.inf:
            if self._is_told:
                self._noncongestive.limit_found(now)
            # The last growth was too much, but no task falls below the rate that all began with.
            self.rate = max(min(self.rate, self._calm_rate), min(self.rate, answer.pace) / 2)

    def _growth_at_start(self, pace: float) -> float:
        """By which the rate grows in a second, until the first refusal."""
        is_new = self._delayed_for < _START
        lag = self._expected_latency + self._interval  # until growth shows in answers
        return pace * min(_GROWTH, (1.0 if is_new else _LATE_START) / lag)

    def _growth(self, pace: float) -> float:
        """Entries a second by which the rate grows in a second, as long as nothing is refused."""
        lag = self._expected_latency + self._interval  # until growth shows in answers
        if self._first_sent_at is None or self._missed == math.inf:
            return self._growth_at_start(pace)
        steps = self._steps
        if steps <= 0:
            self._calm_rate = self.rate
            return 0.0
        if steps > 1:
            self._refused_requests = 0  # what was averaged over is out of date
        # At first slowly: if it was chance, little is lost.
        even = min(1.0, steps * steps / _MOST_STEPS) * (self._calm_rate + _HALF_SHARE_AT / 10)
        late = min(1.0, steps / 3 - 1) * pace
        return min(_GROWTH * max(even, late), pace * min(_MOST_STEPS, steps) / lag)
