"""How fast to send: entries a second, learnt from what a destination refuses for load, and from nothing else.

A limit on what is in flight slows sending down to the pace of a destination that answers slowly. It cannot do
so for one that answers in milliseconds: with 500 entries in flight and answers after 10 ms, 50,000 a second
are sent. If 1,000 of them are accepted, only a limit of 10 would change that. So the rate itself is learnt.

One rule: every answer draws the rate towards ``pace * (1 - refused) / (1 - share)``, where `pace` is the rate
at which its request was sent, `refused` the part of it that was refused for load, and `share` the small part
that may be refused. ``pace * (1 - refused)`` is what the destination lets through, so:

- The rate settles where that small share is refused: the destination takes all that it can.
- The rate does not fall below what is let through. Refusals that come late, from a time when the rate was
  higher, say the same as those that come at once; latency does not make the rate swing.
- The share is smaller where the rate is higher. All tasks of a destination see the same refusals, so fast
  tasks slow down and slow ones speed up.

Without refusals the rate grows: at first, before any were seen, it doubles in a quarter of a second. Later,
after seconds of calm, it grows by an amount that doubles in about half a second; the amount is much the same
for all tasks, so that they share what is new. An entry that failed for another reason was let through.

Requests are small and at irregular distances: fewer entries find the allowance used up, and no task is always
the first to find it refilled.

Refusals without a reason: see `sluice.sink.failing_share`.

Sources: AIMD, and a balance of increase and decrease as a target of refusals (Kelly, Maulloo, Tan: Rate
control for communication networks, 1998); slow start (RFC 5681); the rate of delivery as the measure (BBR:
Cardwell and others, ACM Queue 14(5), 2016).
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
# The time constant of the rate (seconds), or the time of this many entries if that is longer.
_TIME: Final = 0.5
_FEW: Final = 20.0
# The time constant if more than this share is surely refused for load (seconds): a burst let the rate grow
# far beyond the service's.
_OVERLOAD: Final = 0.1
_TIME_IN_OVERLOAD: Final = 0.25
# The first refusal divides the rate by this: what is sent until more is known would be refused as well.
_FIRST_CUT: Final = 8.0
# The share of entries that may be refused for load: so many a second, as a part of the rate; and its bounds.
# The lower bound is higher while some refusals have no reason: that share is known less exactly.
_REFUSED_A_SECOND: Final = 6.0
_MOST_SHARE: Final = 0.04
_LEAST_SHARE: Final = 0.004
_LEAST_SHARE_UNTOLD: Final = 0.02
# How fast the rate may double (seconds): before the first refusal, and later. And by how much it may grow
# until the answers to what was sent meanwhile are there.
_FIRST_DOUBLING: Final = 0.25
_DOUBLING: Final = 0.7
_MOST_GROWTH: Final = 4.0
# After this long (seconds) without more refusals than usual, capacity may have grown: the rate grows by one
# entry a second and this part of itself, an amount that doubles in this time (seconds). If answers are late,
# few such steps fit into ten seconds, so both depend on the latency.
_CALM: Final = 2.0
_STEP: Final = 0.02
_STEP_BY_LATENCY: Final = 0.05
_MOST_STEP: Final = 0.1
_STEP_DOUBLING: Final = 0.6
_STEP_DOUBLING_BY_LATENCY: Final = 0.5
# A request that is sent late may make up for this much time (seconds).
_SLACK: Final = 0.1
# A request holds at most the entries of this time (seconds), and distances differ by this part of themselves.
_REQUEST: Final = 0.05
_IRREGULARITY: Final = 0.6
# Requests whose pace is remembered; more than are ever in flight.
_REMEMBERED: Final = 256


class PacingRate:
    """A rate that is learnt. Every call is told the time; instants and durations are seconds.

    Args:
        start: entries a second to begin with.
        jitter: returns a random number in [0, 1).
        wall_offset: added to an instant, gives the time of the wall clock: see `FailingShare`.

    Attributes:
        rate: entries a second.
    """

    def __init__(
        self, start: float, *, jitter: Callable[[], float] = random.random, wall_offset: float = 0.0
    ) -> None:
        self.rate = max(_LEAST, start)
        self._jitter = jitter
        self._next = -math.inf  # when the next request is due
        self._paces: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)  # by when a request was sent
        self._latency = 0.0
        self._refused = DecayingSum()  # for load, of all entries, lately
        self._refused_at: float | None = None  # when the last request was sent that was refused too much
        self._failing = FailingShare(wall_offset)
        self._delayed = 0  # entries in flight that only this rate had delayed

    @property
    def max_request(self) -> int:
        """Entries that one request should hold at most."""
        return max(1, math.ceil(self.rate * _REQUEST))

    @property
    def in_flight(self) -> int:
        """Entries that must be allowed in flight for the rate to be reached, twice over."""
        return math.ceil(2 * self.rate * (self._latency + _REQUEST)) + 2 * self.max_request

    def wait(self, now: float) -> float:
        """Seconds until the next request is due; 0 when it is."""
        return max(0.0, self._next - now)

    def sent(self, count: int, now: float) -> None:
        """`count` entries were sent."""
        late = now - self._next
        if late <= _SLACK:
            self._delayed += count
        elif self._refused_at is not None and late < math.inf:
            self._refused_at += late  # there was nothing to send: that is no calm
        self._paces.append((now, self.rate))
        pace = self.rate * self._failing.depth(now)
        distance = count / pace * (1 + _IRREGULARITY * (self._jitter() - 0.5))
        self._next = max(self._next, now - _SLACK) + distance

    def answered(self, count: int, throttled: int, untold: int, sent_at: float, now: float) -> None:
        """A request ended.

        Args:
            count: its entries.
            throttled: those that were refused for load.
            untold: those that were refused without a reason.
            sent_at: when it was sent.
            now: the time.
        """
        delayed, self._delayed = min(count, self._delayed), max(0, self._delayed - count)
        took = max(0.0, now - sent_at)
        self._latency += (took - self._latency) * 0.1 if self._latency else took
        pace = self._pace_at(sent_at)
        restored = self._failing.answered(untold, count - throttled, pace, sent_at, now)
        if restored:
            self.rate = max(self.rate, restored)
            self._refused_at = sent_at - _CALM
        if self._failing.depth(sent_at) < 1.0:
            return  # less was sent than the rate allows: that only tells of failures
        # Of the entries that do not fail anyway, the part that was let through.
        through = (count - throttled - untold) / (1 - self._failing.share) / count
        had_refused = self._refused_at is not None
        self._notice(1 - through, count, throttled + untold, sent_at, now)
        if throttled and not had_refused and self._refused_at is not None:
            self.rate /= _FIRST_CUT  # not for refusals without a reason: they may be no load
        overloaded = throttled and self._refused.share > _OVERLOAD
        time = max(_TIME_IN_OVERLOAD if overloaded else _TIME, _FEW / self.rate)
        target = pace * through / (1 - self._share) + self._growth(pace, sent_at, time)
        if target < self.rate or delayed:
            # The request stands for the time in which as many entries are sent.
            self.rate += (target - self.rate) * min(1.0, count / pace / time)
        self.rate = max(_LEAST, self.rate)

    def forget_in_flight(self) -> None:
        """The requests in flight will never be answered."""
        self._delayed = 0

    def _pace_at(self, sent_at: float) -> float:
        """The rate when a request was sent; the oldest that is known if that was long ago."""
        for at, pace in reversed(self._paces):
            if at <= sent_at:
                return pace
        return self._paces[0][1] if self._paces else self.rate

    @property
    def _share(self) -> float:
        """The share of entries that may be refused for load."""
        least = _LEAST_SHARE_UNTOLD if self._failing.share else _LEAST_SHARE
        return min(_MOST_SHARE, max(least, _REFUSED_A_SECOND / self.rate))

    def _notice(self, share: float, count: int, refused: int, sent_at: float, now: float) -> None:
        """Remembers when more was refused for load than by chance."""
        self._refused.add(share * count, count, now, max(_TIME, 2 * _FEW / self.rate))
        doubt = 2 * math.sqrt(self._refused.variance) if self._failing.share else 0.0
        if refused and self._refused.share > self._share / 2 + doubt:
            self._refused_at = sent_at if self._refused_at is None else max(self._refused_at, sent_at)

    def _growth(self, pace: float, sent_at: float, time: float) -> float:
        """Entries a second by which the rate may exceed what is let through, so that it grows."""
        lag = time + self._latency  # until growth shows in answers
        doubling = _FIRST_DOUBLING if self._refused_at is None else _DOUBLING
        most = pace * (min(_MOST_GROWTH, 2 ** (lag / doubling)) - 1)
        if self._refused_at is None:
            return most
        calm = sent_at - self._refused_at - _CALM
        if calm <= 0:
            return 0.0
        step = 1 + pace * min(_MOST_STEP, _STEP + _STEP_BY_LATENCY * self._latency)
        doubling = _STEP_DOUBLING + _STEP_DOUBLING_BY_LATENCY * self._latency
        return min(most, step * 2 ** min(calm / doubling, 64) * math.log(2) * lag / doubling)
