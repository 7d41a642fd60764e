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

Without refusals the rate grows, up to the first of them by doubling, as long as answers come. Later it grows
when there have been several refused requests fewer than the share lets expect, at first evenly: by a part of
the rate at which that began, and of a rate that is the same for all tasks. Tasks do not notice at the same
time that there is more to have. Of rates that double, the one that began a second earlier would be twice as
high in the end. What is not answered yet limits all growth, so the rate swings little where answers are late.

Only entries that reached the destination's limit say something about it: one that failed for another reason
is neither refused nor let through. Requests are small and at irregular distances: fewer entries find the
allowance used up, and no task is always the first to find it refilled.

Refusals without a reason: see `sluice.sink.failing_share`.

Sources: AIMD, and a balance of increase and decrease as a target of refusals (Kelly, Maulloo, Tan: Rate
control for communication networks, 1998); slow start, and half of the rate after it (RFC 5681); the rate of
delivery as the measure (BBR: Cardwell and others, ACM Queue 14(5), 2016); growth that does not depend on the
own rate is what makes rates equal (Chiu, Jain: Analysis of the increase and decrease algorithms for
congestion avoidance, 1989); growth that is flat near the last refusal and steep later (CUBIC: RFC 9438).
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from typing import Final

from sluice.sink.decaying import DecayingSum
from sluice.sink.failing_share import FailingShare

__all__ = ["PacingRate"]

# The lowest rate (entries a second).
_LEAST: Final = 1.0
# The share of entries that may be refused for load is this one for a slow task. For one at the other rate it
# is half of that, and for a fast one the number of entries a second is the same whatever the rate is: this is
# what makes fast tasks slow down and slow ones speed up.
_MOST_SHARE: Final = 0.04
_HALF_SHARE_AT: Final = 150.0
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
# The rate grows by at most this part of itself in a second.
_GROWTH: Final = 2.5
# Until the first refusal it may double while answers come, for so long (seconds); then grow by this part.
_START: Final = 5.0
_LATE_START: Final = 0.25
# It grows after this many refused requests fewer than expected. Each time as many as the other number are
# missed, it may grow by its own amount more while an answer comes, but not by more than the last number.
_PATIENCE: Final = 2.5
_STEP: Final = 2.0
_MOST_STEPS: Final = 3.0
# How many refused requests are expected a second, at least and at most, whatever is known: fewer would
# be waited for too long, and more than these are seen together. With dips, which leave tokens over that hide
# load for a while, at most the other number.
_EXPECTED: Final = (0.25, 2.0)
_EXPECTED_UNTOLD: Final = (0.0, 1.0)
# A request that is sent late may make up for this much time (seconds).
_SLACK: Final = 0.1
# A request holds the entries of this time (seconds), or more if more than this part of the requests that may
# be in flight would be. Distances differ by this part of themselves.
_REQUEST: Final = 0.025
_IN_FLIGHT: Final = 0.8
_IRREGULARITY: Final = 0.6
# The time constant if refusals have no reason, at least (seconds): their number varies more.
_TIME_UNTOLD: Final = 0.5
# Requests whose pace is remembered; more than are ever in flight.
_REMEMBERED: Final = 256


class PacingRate:
    """A rate that is learnt. Every call is told the time; instants and durations are seconds.

    Args:
        start: entries a second to begin with.
        max_requests: that may be in flight.
        jitter: returns a random number in [0, 1).
        wall_offset: added to an instant, gives the time of the wall clock: see `FailingShare`.

    Attributes:
        rate: entries a second.
    """

    def __init__(
        self,
        start: float,
        *,
        max_requests: int = 50,
        jitter: Callable[[], float] = random.random,
        wall_offset: float = 0.0,
    ) -> None:
        self.rate = max(_LEAST, start)
        self._requests_aimed_at = max(1.0, _IN_FLIGHT * max_requests)
        self._jitter = jitter
        self._next = -math.inf  # when the next request is due
        self._paces: deque[tuple[float, float, float]] = deque(maxlen=_REMEMBERED)  # sent at; rate; its depth
        self._first_sent_at: float | None = None
        self._latency: float | None = None  # seconds until an answer; None before the first one
        self._refused_at = -math.inf  # when the last request was sent that was refused too much
        self._missed = math.inf  # refused requests that were to be expected since then
        self._refused_part = 0.0  # of a request, if any of it is refused
        self._refused_requests = 0  # since the start, or since it grew
        self._calm_rate = self.rate  # when it began to grow, at first as a new task
        self._excess = DecayingSum()  # refused beyond what fails anyway, lately
        self._failing = FailingShare(wall_offset)
        self._delayed = 0  # entries in flight that only this rate had delayed
        self._limited_at = -math.inf  # when an answer last came to what this rate had delayed
        self._mean: float | None = None  # of the rates of the tasks that share the destination

    @property
    def max_request(self) -> int:
        """Entries that one request should hold at most."""
        return max(1, math.ceil(self.rate * self._interval))

    @property
    def in_flight(self) -> int:
        """Entries that must be allowed in flight for the rate to be reached, twice over."""
        return math.ceil(2 * self.rate * self._expected_latency) + 4 * self.max_request

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
        depth = self._failing.depth(now, self._latency or 0.0)
        self._paces.append((now, self.rate, depth))
        pace = self.rate * depth
        distance = count / pace * (1 + _IRREGULARITY * (self._jitter() - 0.5))
        self._next = max(self._next, now - _SLACK) + distance

    def answered(  # noqa: PLR0913 - an answer, and when
        self, count: int, throttled: int, untold: int, sent_at: float, now: float, *, otherwise: int = 0
    ) -> None:
        """A request ended.

        Args:
            count: its entries.
            throttled: those that were refused for load.
            untold: those that were refused without a reason.
            sent_at: when it was sent.
            now: the time.
            otherwise: those that failed for another reason.
        """
        delayed, self._delayed = min(count, self._delayed), max(0, self._delayed - count)
        if delayed:
            self._limited_at = now
        took = max(0.0, now - sent_at)
        self._latency = took if self._latency is None else self._latency + (took - self._latency) * 0.1
        reached = count - otherwise
        if not reached:
            return
        pace, depth = self._sent_with(sent_at)
        if reached > throttled:
            self._learn_failing(untold, reached - throttled, pace=pace, depth=depth, at=sent_at, now=now)
        if depth < 1.0:
            return  # less was sent than the rate allows: that only tells of failures
        # The part that was refused for load, of what does not fail anyway.
        refused = 1 - (count - throttled - untold) / count / (1 - self._failing.share)
        if throttled and self._missed == math.inf:
            # The last doubling was too much, but no task falls below the rate that all began with. Refusals
            # without a reason may be no load.
            self.rate = max(min(self.rate, self._calm_rate), self.rate / 2)
        is_too_much = self._notice(refused, count, reached, pace=pace, at=sent_at, now=now)
        target = pace * (1 - refused) / (1 - self._share * reached / count)
        duration = count / pace  # the request stands for the time in which as many entries are sent
        if self._missed < math.inf and (target < self.rate or delayed):
            drawn = self.rate + (target - self.rate) * min(1.0, duration / self._time_constant)
            floor = min(self.rate, self._failing.floor) if untold else _LEAST
            self.rate = max(_LEAST, floor, drawn)
        if delayed and not is_too_much:
            grown = min(self.rate + self._growth(pace, now) * duration, (1 + _MOST_STEPS) * pace)
            self.rate = max(self.rate, grown)

    def forget_in_flight(self) -> None:
        """The requests in flight will never be answered."""
        self._delayed = 0

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

    def _sent_with(self, sent_at: float) -> tuple[float, float]:
        """The rate when a request was sent, and its depth; the oldest that is known if that was long ago."""
        for at, pace, depth in reversed(self._paces):
            if at <= sent_at:
                return pace, depth
        return self._paces[0][1:] if self._paces else (self.rate, 1.0)

    @property
    def _expected_latency(self) -> float:
        if self._latency is not None:
            return self._latency
        # Before the first answer: as long again as it has taken already.
        return 0.0 if self._first_sent_at is None else 2 * (self._paces[-1][0] - self._first_sent_at)

    @property
    def _interval(self) -> float:
        """Seconds from a request to the next."""
        return max(_REQUEST, self._expected_latency / self._requests_aimed_at)

    @property
    def _time_constant(self) -> float:
        many = min(_MANY, _FIRST + self._refused_requests)
        requests = max(_FEW, many * self._refused_part)
        least = _TIME_UNTOLD if self._failing.share else 0.0
        return max(least, requests * max(_REQUEST, 1 / self.rate))

    @property
    def _share(self) -> float:
        """The share of entries that may be refused for load."""
        share = _MOST_SHARE * _HALF_SHARE_AT / ((self._mean or self.rate) + _HALF_SHARE_AT)
        if self._mean is None:
            return share
        ratio = min(_MOST_RATIO, max(_LEAST_RATIO, self._mean / self.rate))
        return min(_MOST_SHARE_BELOW, share * ratio**_FAIRNESS)

    def _learn_failing(  # noqa: PLR0913 - an answer, and when
        self, untold: int, count: int, *, pace: float, depth: float, at: float, now: float
    ) -> None:
        before = self._failing.share
        if self._failing.answered(untold, count, pace, at, now, depth=depth) and (
            self._failing.share and not before
        ):
            # It was no load that ended the growth.
            self._missed, self._excess = 2 * _PATIENCE, DecayingSum()

    def _notice(  # noqa: PLR0913 - an answer, and when
        self, refused: float, count: int, reached: int, *, pace: float, at: float, now: float
    ) -> bool:
        """Counts the refused requests, or those that were to be expected; whether this is one."""
        self._excess.add(refused * count, count, now, 3 * _TIME_UNTOLD)
        is_sure = not self._failing.share or self._excess.share > 2 * math.sqrt(self._excess.variance)
        if refused > 0 and is_sure:
            self._refused_at = max(self._refused_at, at)
            part = refused * count / reached
            self._refused_part += (part - self._refused_part) / (8 if self._refused_part else 1)
            self._refused_requests += 1
            self._missed = 0.0
            return True
        if at > self._refused_at:
            bounds = _EXPECTED_UNTOLD if self._failing.is_active else _EXPECTED
            least, most = (each * count / pace for each in bounds)
            expected = self._share * reached / max(1.0, self._refused_part * count)
            self._missed += min(max(expected, min(least, _MOST_SHARE * reached)), most)
        return False

    def _growth(self, pace: float, now: float) -> float:
        """Entries a second by which the rate grows in a second, as long as nothing is refused."""
        lag = self._expected_latency + self._interval  # until growth shows in answers
        if self._first_sent_at is None or self._missed == math.inf:
            is_new = now - (self._first_sent_at or now) < _START
            return pace * min(_GROWTH, (1.0 if is_new else _LATE_START) / lag)
        steps = (self._missed - _PATIENCE) / _STEP
        if steps <= 0:
            self._calm_rate = self.rate
            return 0.0
        if steps > 1:
            self._refused_requests = 0  # what was averaged over is out of date
        even = min(1.0, steps) * (self._calm_rate + _HALF_SHARE_AT / 10)
        late = min(1.0, steps / 3 - 1) * pace
        return min(_GROWTH * max(even, late), pace * min(_MOST_STEPS, steps) / lag)
