"""How fast to send: entries a second, learnt from what a destination refuses for load, and from nothing else.

A limit on what is in flight slows sending down to the pace of a destination that answers slowly. It cannot do
so for one that answers in milliseconds: with 500 entries in flight and answers after 10 ms, 50,000 a second
are sent. If 1,000 of them are accepted, only a limit of 10 would change that. So the rate itself is learnt:

- *Slow start.* The rate doubles with every fifth of a second's worth of answered entries, until a tenth of
  the entries is refused for load.
- *A small share of refusals.* From then on the rate grows by a little with every entry that is let through,
  and falls by more with every one that is refused for load. The two balance where one to three in a hundred
  are refused: then the destination takes all that it can.
- *Fairness.* That share is smaller where the rate is larger. All tasks of a destination see the same share of
  refusals, so the fast ones slow down and the slow ones speed up.
- *A floor.* What the destination lets through a second is what it can take: the rate never falls below that,
  however many refusals are still on their way from a time when it was higher. What fails for another reason
  was let through.
- *Probing.* After seconds without a refusal capacity must have grown. Then the rate grows faster, and fastest
  once it is so much higher that a burst cannot be the reason.
- *Small requests*, at irregular distances: fewer entries find the allowance used up, and no task is always
  the first to find it refilled.

Refusals without a reason: see `sluice.sink.failing_share`.

Sources: AIMD, and a balance of increase and decrease as a target of refusals (Kelly, Maulloo, Tan: Rate
control for communication networks, 1998); slow start (RFC 5681); growth away from the last known limit
(CUBIC, RFC 9438); the rate of delivery as a measure (BBR: Cardwell and others, ACM Queue 14(5), 2016).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Final

from sluice.sink.decaying import DecayingSum
from sluice.sink.failing_share import FailingShare

__all__ = ["PacingRate"]

# The lowest rate (entries a second).
_LEAST: Final = 1.0
# Slow start: the rate doubles in this time (seconds).
_DOUBLING: Final = 0.2
# From this share of refusals on, the destination is overloaded; slow start ends.
_OVERLOAD: Final = 0.1
_FLOOD: Final = 0.5
# Time constants by which refusals lower the rate (seconds): beyond the shares above, otherwise, and where
# they have no reason. Otherwise also so many times the latency: what is seen late must be followed slowly.
_FALL_IN_FLOOD: Final = 0.05
_FALL_IN_OVERLOAD: Final = 0.2
_FALL: Final = 0.6
_FALL_UNTOLD: Final = 1.0
_FALL_BY_LATENCY: Final = 3.0
# The share of refusals at which a rate stays: this for 1,000 entries a second, by the square root more for a
# lower rate, up to this many times as much.
_SHARE: Final = 0.012
_SHARE_AT: Final = 1000.0
_MOST_SHARES: Final = 2.0
# Where the rate is low, times are as long as it takes to send so many entries.
_FEW: Final = 20.0
# What is let through is measured for this long, and for no less than that (seconds).
_WINDOW: Final = 1.0
_SHORTEST_WINDOW: Final = 0.5
# After this long (seconds), and a time in which this many refusals would be expected, probing begins.
_CALM: Final = 2.0
_EXPECTED: Final = 3.0
# By which part of itself the rate grows a second when it probes (less if answers are late, or if some
# refusals have no reason), and beyond so many times the last known capacity.
_PROBING: Final = 0.1
_PROBING_UNTOLD: Final = 0.05
_PROBING_BY_LATENCY: Final = 5.0
_BEYOND: Final = 1.3
_GROWTH_BEYOND: Final = 0.5
# Below this part of the known capacity the rate returns to it.
_BELOW: Final = 0.97
# While it is not clear whether refusals are load, the rate keeps this part of itself for so long (seconds).
_KEPT: Final = 0.5
_KEPT_FOR: Final = 2.0
# If less than this fails whatever the pace, all refusals without a reason are for load.
_NONE: Final = 0.01
# What is let through is measured in so few requests that it may seem more than it is: otherwise than in an
# overload, this part of it is the floor.
_MARGIN: Final = 0.92
# The rate after an overload that was found by a dip, as a part of what is accepted.
_BELOW_ACCEPTED: Final = 0.9
# A request that is sent late may make up for this much time (seconds).
_SLACK: Final = 0.1
# A request holds at most the entries of this time (seconds).
_REQUEST: Final = 0.05


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
        self._in_slow_start = True
        self._latency = 0.0
        self._known = math.inf  # what the destination lets through, as it was when it last refused
        self._refused_at = -math.inf  # when the last of the refused requests was sent
        self._refused = DecayingSum()  # for load, of all entries
        self._let_through = DecayingSum()
        self._failing = FailingShare(wall_offset)
        self._dips = 0
        self._before_dip = 0.0  # the rate at the last but one
        self._kept = 0.0
        self._kept_since = -math.inf
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
        if now - self._next <= _SLACK:
            self._delayed += count
        pace = self.rate * self._failing.depth(now)
        self._next = max(self._next, now - _SLACK) + count / pace * (0.5 + self._jitter())

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
        self._failing.answered(untold, count - throttled, sent_at, now)
        through = count - throttled - untold
        if self._failing.share < _NONE:
            throttled, untold = throttled + untold, 0
        few = _FEW / self.rate
        self._refused.add(throttled, count, now, max(_SHORTEST_WINDOW, few))
        self._let_through.add(0, through, now, max(_WINDOW, few / 2))
        is_measured = self._let_through.time > _SHORTEST_WINDOW
        overloaded = self._refused.share > _OVERLOAD
        if throttled and is_measured:
            self._refuse(throttled, sent_at, overloaded=overloaded)
        if untold and is_measured:
            overloaded |= self._doubt(count, sent_at, now)
        if not self._in_slow_start:
            self._failing.settled(now)
        if through and delayed and not overloaded:
            self.rate *= math.exp(min(1.0, self._growth(sent_at) * count / self.rate))
        self.rate = max(_LEAST, self.rate)

    def forget_in_flight(self) -> None:
        """The requests in flight will never be answered."""
        self._delayed = 0

    # --- falling --------------------------------------------------------------------------------------

    @property
    def _capacity(self) -> float:
        """Entries a second that the destination lets through, with those that fail whatever the pace."""
        return self._let_through.per_second / (1 - self._failing.share)

    def _refuse(self, throttled: int, sent_at: float, *, overloaded: bool) -> None:
        """Entries were refused for load."""
        fall = max(_FALL, _FEW / self.rate, _FALL_BY_LATENCY * self._latency)
        if overloaded:
            fall = _FALL_IN_FLOOD if self._refused.share > _FLOOD else _FALL_IN_OVERLOAD
        floor = self._capacity * (1.0 if overloaded else _MARGIN)
        self._lower(throttled / self.rate / fall, floor, sent_at, overloaded=overloaded)
        if overloaded:
            # If next to nothing is accepted, the service is down, and slow start finds its rate afterwards.
            self._in_slow_start = self._capacity < _LEAST

    def _doubt(self, count: int, sent_at: float, now: float) -> bool:
        """Entries were refused without a reason. Returns whether that is an overload."""
        failing = self._failing
        if self._dips != failing.dips:
            self._dips = failing.dips
            if failing.did_not_help:  # it was no load
                self.rate = max(self.rate, self._before_dip)
                self._known = max(self._known, self.rate)
            self._before_dip = self.rate
        if now > self._kept_since + _KEPT_FOR:
            self._kept_since, self._kept = now, self.rate * _KEPT
        if failing.is_saturated:
            failing.lowered()
            self.rate = self._known = self._kept = max(
                _LEAST, min(self.rate, _BELOW_ACCEPTED * self._capacity)
            )
            return True
        excess = failing.excess
        overloaded = excess > _OVERLOAD
        if excess:
            floor = max(self._capacity, self._kept)
            self._lower(excess * count / self.rate / _FALL_UNTOLD, floor, sent_at, overloaded=overloaded)
        if overloaded:
            self._in_slow_start = False
        return overloaded

    def _lower(self, by: float, floor: float, sent_at: float, *, overloaded: bool) -> None:
        """Lowers the rate by the factor ``exp(-by)``, at most by half, and not below `floor`."""
        self._refused_at = max(self._refused_at, sent_at)
        self.rate = max(self.rate * max(0.5, math.exp(-by)), min(self.rate, floor))
        self._known = max(floor, _LEAST) if overloaded else min(self._known, self.rate)

    # --- growing --------------------------------------------------------------------------------------

    def _growth(self, sent_at: float) -> float:
        """By which part of itself the rate grows a second, after a request that was sent at this time."""
        if self._in_slow_start:
            return math.log(2) / _DOUBLING
        share = _SHARE * min(_MOST_SHARES, math.sqrt(_SHARE_AT / self.rate))
        slowest = share / max(_FALL, _FEW / self.rate, _FALL_BY_LATENCY * self._latency)
        if self.rate < self._known * _BELOW:
            # That nothing is refused below the known capacity says nothing about a larger one.
            self._refused_at = max(self._refused_at, sent_at + self._latency)
            return slowest + math.log(self._known / self.rate) if self._known < math.inf else slowest
        calm = sent_at - self._refused_at - _CALM - min(_CALM, _EXPECTED / share / self.rate)
        if calm <= 0:
            return slowest
        if self.rate >= _BEYOND * self._known:
            return _GROWTH_BEYOND
        probing = _PROBING_UNTOLD if self._failing.share >= _NONE else _PROBING
        return max(slowest, probing / (1 + _PROBING_BY_LATENCY * self._latency))
