"""How fast to send: entries a second, learnt from what a destination accepts.

A limit on what is in flight slows sending down to the pace of a destination that answers slowly. It cannot do
so for one that answers in milliseconds: with 500 entries in flight and answers after 10 ms, 50,000 a second
are sent. If 1,000 of them are accepted, only a limit of 10 would change that. So the rate itself is learnt:

- *Slow start.* The rate doubles with every fifth of a second's worth of entries that are accepted, as long as
  the rate is what delays requests, until the first refusal.
- *Measuring between refusals.* A service that meters allows a burst, so what it accepts before it first
  refuses says little about its rate. When it refuses, its allowance is used up: what it then accepts until
  the next refusal, divided by the time, is its rate without the burst.
- *Hold and probe.* After such a measurement the rate is set a little below the measured one, and grows by a
  few per cent a second until the next refusal. After several seconds without a refusal, capacity must have
  grown: slow start again.
- *Small requests.* A request holds what is due in a tenth of a second, not a full batch, so that fewer
  entries find the allowance used up.
- *Stale refusals.* Refusals of requests that were in flight when the rate was lowered say nothing new, and
  one refusal in a hundred is noise.

A destination that refuses more than that at any rate is slowed down needlessly, as by Flink's strategy; use
`rateLimiting=none` for it.

Sources: TCP's slow start and congestion avoidance (RFC 5681); BBR, which measures the rate of delivery
instead of counting losses (Cardwell and others, ACM Queue 14(5), 2016); the rate measured by clients in
the AWS SDKs' adaptive retry mode (botocore's ``retries/adaptive.py``).
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["PacingRate"]

# Slow start: the rate doubles in this time (seconds).
_DOUBLING_TIME: Final = 0.2
# The first refusal of a slow start divides the rate by this: the burst let it grow far beyond the service's.
_FIRST_CUT: Final = 8.0
# The new rate as a part of a measured one, and the part of itself by which it then grows a second.
_MARGIN: Final = 0.95
_GROWTH: Final = 0.05
# After this long (seconds) without a refusal slow start begins again, if only the rate delays requests.
_CALM: Final = 6.0
# The shortest measurement (seconds): if many entries are refused, and otherwise.
_SHORT_WINDOW: Final = 0.4
_WINDOW: Final = 1.5
# A measurement that takes longer drops its older half (seconds).
_LONG_WINDOW: Final = 10.0
# The part of the entries in a window that were refused: up to the first it is noise, from the second on many.
_NOISE: Final = 0.01
_MANY: Final = 0.2
# A request that is sent late may make up for this much time (seconds).
_SLACK: Final = 0.1
# A request that is later than this (seconds), with nothing in flight, ends a time without anything to send.
# Not if the last answer was a refusal: then the writer had entries to send again, and paused.
_IDLE: Final = 0.25
# A request holds at most the entries of this time (seconds).
_REQUEST: Final = 0.1


class PacingRate:
    """A rate that is learnt. Every call is told the time; instants and durations are seconds.

    Args:
        start: entries a second to begin with.
    """

    def __init__(self, start: float) -> None:
        self.rate = max(1.0, start)
        self._floor = max(1.0, start / 100)
        self._next = -math.inf  # when the next request is due
        self._in_slow_start = True
        self._has_cut = False  # the rate, once, in this slow start
        self._calm_since = math.inf
        self._window_start = math.inf
        self._accepted = 0.0
        self._refused = 0.0
        self._in_flight = 0
        self._refused_last = False
        self._delayed = 0  # entries in flight that only this rate had delayed
        self._stale = 0  # entries in flight that were sent before the rate was last lowered

    @property
    def max_request(self) -> int:
        """Entries that one request should hold at most."""
        return max(1, math.ceil(self.rate * _REQUEST))

    def wait(self, now: float) -> float:
        """Seconds until the next request is due; 0 when it is."""
        return max(0.0, self._next - now)

    def sent(self, count: int, now: float) -> None:
        """`count` entries were sent."""
        late = now - self._next
        if late <= _SLACK:
            self._delayed += count
        elif late > _IDLE and not self._in_flight and not self._refused_last:
            # There was nothing to send: the destination's allowance has filled up; the time is not counted.
            self._window_start = min(self._window_start + late, now)
            self._calm_since = now
        self._next = max(self._next, now - _SLACK) + count / self.rate
        self._in_flight += count

    def answered(self, accepted: int, refused: int, now: float) -> None:
        """A request ended, with so many of its entries accepted and refused."""
        count = accepted + refused
        self._in_flight = max(0, self._in_flight - count)
        delayed, self._delayed = min(count, self._delayed), max(0, self._delayed - count)
        is_stale, self._stale = self._stale > 0, max(0, self._stale - count)
        self._accepted += accepted
        self._refused_last = refused > 0
        if now - self._window_start > _LONG_WINDOW:
            self._window_start = now - (now - self._window_start) / 2
            self._accepted /= 2
            self._refused /= 2
        if refused:
            if not is_stale:
                self._refused += refused
                self._lower(now)
        elif delayed:
            self._grow(delayed / self.rate, now)

    def forget_in_flight(self) -> None:
        """The requests in flight will never be answered."""
        self._in_flight = self._delayed = self._stale = 0
        self._refused_last = False

    def _grow(self, seconds: float, now: float) -> None:
        """Grows by `seconds` worth of accepted entries; so growth waits for answers that are slow."""
        if not self._in_slow_start and now - self._calm_since > _CALM:
            self._in_slow_start, self._has_cut = True, False
        self.rate *= 2 ** (seconds / _DOUBLING_TIME) if self._in_slow_start else 1 + _GROWTH * seconds

    def _lower(self, now: float) -> None:
        elapsed = now - self._window_start
        share = self._refused / (self._accepted + self._refused)
        if self._in_slow_start and not self._has_cut:
            self._has_cut = True
            self.rate /= _FIRST_CUT
        elif share <= _NOISE or elapsed < (_SHORT_WINDOW if share > _MANY else _WINDOW):
            return
        elif self._accepted:
            # After a time without requests the measurement may hold a burst, so it never raises the rate.
            self.rate = min(self.rate, _MARGIN * self._accepted / elapsed)
            self._in_slow_start = False
        else:
            # Nothing was accepted: the rate is far too high, or the service is down. Start again from below.
            self.rate /= 2
            self._in_slow_start = self._has_cut = True
        self.rate = max(self._floor, self.rate)
        self._stale = self._in_flight
        self._calm_since = self._window_start = now
        self._accepted = self._refused = 0.0
