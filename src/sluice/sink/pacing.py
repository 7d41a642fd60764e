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

Without refusals the rate grows, by a part of the pace of what was answered: it does not grow any further
until the answers to what was sent at the higher rate are there. Before the first refusal that part is large,
and the first refusal halves the rate. Later it is next to nothing, until there have been several refused
requests fewer than the share lets expect.

Only entries that reached the destination's limit say something about it: one that failed for another reason
is neither refused nor let through. Requests are small and at irregular distances: fewer entries find the
allowance used up, and no task is always the first to find it refilled.

Refusals without a reason: see `sluice.sink.failing_share`.

Sources: AIMD, and a balance of increase and decrease as a target of refusals (Kelly, Maulloo, Tan: Rate
control for communication networks, 1998); slow start, and half of the rate after it (RFC 5681); the rate of
delivery as the measure (BBR: Cardwell and others, ACM Queue 14(5), 2016); growth that is flat near the last
refusal and steep later (CUBIC: RFC 9438).
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
# The time constant of the rate is the time of this many requests if they are refused as a whole. It is less
# as less of them is refused, because fewer then say as much; but never less than the time of a few.
_MANY: Final = 18.0
_FEW: Final = 4.0
# The time constant if refusals have no reason, at least (seconds): their number varies more.
_TIME_UNTOLD: Final = 0.5
# The share of entries that may be refused for load: so many a second, as a part of the rate; and its bounds.
_REFUSED_A_SECOND: Final = 8.0
_MOST_SHARE: Final = 0.035
_LEAST_SHARE: Final = 0.015
# For a task that knows the mean rate of all: that share grows by this power of the mean over its own rate,
# between these bounds of that ratio, up to this share.
_FAIRNESS: Final = 6
_LEAST_RATIO: Final = 0.67
_MOST_RATIO: Final = 1.17
_MOST_SHARE_BELOW: Final = 0.06
# Seconds for which a task counts as limited by the destination after it was.
_LIMITED_FOR: Final = 1.0
# The rate may grow by this part of itself in a second, and as much until answers come if that takes longer.
_GROWTH: Final = 2.2
# After this many refused requests fewer than expected growth is noticeable; it rises by their fourth power.
_PATIENCE: Final = 3.0
# A request that is sent late may make up for this much time (seconds).
_SLACK: Final = 0.1
# A request holds the entries of this time (seconds), or more if more than this part of the requests that may
# be in flight would be. Distances differ by this part of themselves.
_REQUEST: Final = 0.025
_IN_FLIGHT: Final = 0.8
_IRREGULARITY: Final = 0.6
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
        self._paces: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)  # by when a request was sent
        self._first_sent_at: float | None = None
        self._latency: float | None = None  # seconds until an answer; None before the first one
        self._refused_at = -math.inf  # when the last request was sent that was refused too much
        self._missed = math.inf  # refused requests that were to be expected since then
        self._refused_part = 0.0  # of a request, if any of it is refused
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
        self._paces.append((now, self.rate))
        pace = self.rate * self._failing.depth(now)
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
        pace = self._pace_at(sent_at)
        if reached > throttled:
            self._learn_failing(untold, reached - throttled, pace, sent_at, now)
        if self._failing.depth(sent_at) < 1.0:
            return  # less was sent than the rate allows: that only tells of failures
        # The part that was refused for load, of what does not fail anyway.
        refused = 1 - (count - throttled - untold) / count / (1 - self._failing.share)
        if throttled and self._missed == math.inf:
            self.rate /= 2  # not for refusals without a reason: they may be no load
        is_too_much = self._notice(refused, count, reached, sent_at, now)
        time = self._time_constant
        target = pace * (1 - refused) / (1 - self._share * reached / count)
        if not is_too_much:
            target += self._growth(pace, time)
        if target < self.rate or delayed:
            # The request stands for the time in which as many entries are sent.
            drawn = self.rate + (target - self.rate) * min(1.0, count / pace / time)
            floor = min(self.rate, self._failing.floor) if untold else _LEAST
            self.rate = max(_LEAST, floor, drawn)

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

    def _pace_at(self, sent_at: float) -> float:
        """The rate when a request was sent; the oldest that is known if that was long ago."""
        for at, pace in reversed(self._paces):
            if at <= sent_at:
                return pace
        return self._paces[0][1] if self._paces else self.rate

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
        requests = max(_FEW, _MANY * self._refused_part)
        least = _TIME_UNTOLD if self._failing.share else 0.0
        return max(least, requests * max(self._interval, 1 / self.rate))

    @property
    def _share(self) -> float:
        """The share of entries that may be refused for load."""
        share = min(_MOST_SHARE, max(_LEAST_SHARE, _REFUSED_A_SECOND / (self._mean or self.rate)))
        if self._mean is None:
            return share
        ratio = min(_MOST_RATIO, max(_LEAST_RATIO, self._mean / self.rate))
        return min(_MOST_SHARE_BELOW, share * ratio**_FAIRNESS)

    def _learn_failing(self, untold: int, count: int, pace: float, sent_at: float, now: float) -> None:
        before = self._failing.share
        if self._failing.answered(untold, count, pace, sent_at, now) and self._failing.share and not before:
            # It was no load that ended the growth.
            self._missed, self._excess = 2 * _PATIENCE, DecayingSum()

    def _notice(self, refused: float, count: int, reached: int, sent_at: float, now: float) -> bool:
        """Counts the refused requests, or those that were to be expected; whether this is one."""
        self._excess.add(refused * count, count, now, 3 * _TIME_UNTOLD)
        is_sure = not self._failing.share or self._excess.share > 2 * math.sqrt(self._excess.variance)
        if refused > 0 and is_sure:
            self._refused_at = max(self._refused_at, sent_at)
            part = refused * count / reached
            self._refused_part += (part - self._refused_part) / (8 if self._refused_part else 1)
            self._missed = 0.0
            return True
        if sent_at > self._refused_at:
            self._missed += self._share / max(self._refused_part, 0.5)
        return False

    def _growth(self, pace: float, time: float) -> float:
        """Entries a second by which the rate may exceed what is let through, so that it grows."""
        lag = min(1.0, time + self._expected_latency)  # until growth shows in answers
        return pace * min(_GROWTH * lag, self._share * (self._missed / _PATIENCE) ** 4)
