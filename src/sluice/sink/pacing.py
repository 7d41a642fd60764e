"""How fast to send: entries a second, learnt from what a destination accepts.

A limit on what is in flight paces a destination that answers slowly. It cannot pace one that answers in
milliseconds: with 500 entries in flight and answers after 10 ms, 50,000 a second are sent, 1,000 are
taken, and no limit of more than 10 would change that. So the rate itself is learnt, by these rules:

- *Slow start.* The pace doubles with every fifth of a second's worth of entries that are accepted, as long as
  it is what holds the sender back, until the first refusal.
- *Measuring between refusals.* A service that meters allows a burst: what it takes before it first refuses
  says little about its rate. But when it refuses, its allowance is used up; so what it accepts between
  two refusals, divided by the time, is its rate, without the burst.
- *Hold and probe.* After such a measurement the pace is a little below the rate, and grows by a few per cent
  a second until the next one. When nothing was refused for long, capacity has grown: slow start again.
- *Small requests.* A request holds what is due in a tenth of a second, not a full batch: fewer entries
  meet an empty allowance.
- *One wave, one piece of news.* Refusals of requests that were on their way already when the pace was
  lowered say nothing new, and a refusal in a hundred is noise.

With a destination that refuses more than that whatever the pace, this slows down needlessly, as Flink's
strategy does; `rateLimiting=none` is for such.

Sources: TCP's slow start and congestion avoidance (RFC 5681); BBR, which measures the rate of delivery
instead of counting losses (Cardwell and others, ACM Queue 14(5), 2016); the rate measured by clients in
the AWS SDKs' adaptive retry mode (botocore's ``retries/adaptive.py``).
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["PacingRate"]

# Seconds in which the pace doubles, in slow start.
_DOUBLING: Final = 0.2
# By what the first refusal of a slow start divides the pace: the burst had let it run far ahead of the rate.
_FIRST_CUT: Final = 8.0
# The part of a measured rate that is the next pace, and by which part of itself it then grows a second.
_MARGIN: Final = 0.95
_PROBE: Final = 0.05
# Seconds without a refusal, while the pace was all that held back, after which capacity must have grown.
_CALM: Final = 6.0
# A measurement takes at least this long (seconds), the longer one while few entries are refused.
_SHORT_WINDOW: Final = 0.4
_WINDOW: Final = 1.5
# The older half of a measurement that has taken this long is forgotten (seconds).
_LONG_WINDOW: Final = 10.0
# Refused of what was sent in a window: from which part on it is news, and bad news.
_NOISE: Final = 0.01
_MANY: Final = 0.2
# Seconds by which a request may be late and the time be made up for.
_SLACK: Final = 0.1
# One that is so late, with nothing in flight, found the sender idle; unless the last answer was a refusal:
# then there was something to send again, and the writer paused.
_IDLE: Final = 0.25
# What a request may hold: so many seconds' worth.
_REQUEST: Final = 0.1


class PacingRate:
    """A rate that is learnt. Told the time with every call; instants and durations are seconds.

    Args:
        start: entries a second to begin with.
    """

    def __init__(self, start: float) -> None:
        self.rate = max(1.0, start)
        self._floor = max(1.0, start / 100)
        self._next = -math.inf  # when the next request is due
        self._doubling = True
        self._cut = False  # in this slow start
        self._calm_since = math.inf
        self._window_start = math.inf
        self._accepted = 0.0
        self._refused = 0.0
        self._in_flight = 0
        self._retrier = False
        self._held_back = 0  # of those, entries that nothing but the pace had held back
        self._echoes = 0  # of those, entries that were on their way when the pace was last lowered

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
            self._held_back += count
        elif late > _IDLE and not self._in_flight and not self._retrier:
            # Idle: the destination's allowance has filled up meanwhile, and the time does not count.
            self._window_start = min(self._window_start + late, now)
            self._calm_since = now
        self._next = max(self._next, now - _SLACK) + count / self.rate
        self._in_flight += count

    def answered(self, accepted: int, refused: int, now: float) -> None:
        """A request came back, with so many entries accepted and refused."""
        count = accepted + refused
        self._in_flight = max(0, self._in_flight - count)
        held_back, self._held_back = min(count, self._held_back), max(0, self._held_back - count)
        echo, self._echoes = self._echoes > 0, max(0, self._echoes - count)
        self._accepted += accepted
        self._retrier = refused > 0
        if now - self._window_start > _LONG_WINDOW:
            self._window_start = now - (now - self._window_start) / 2
            self._accepted /= 2
            self._refused /= 2
        if refused:
            if not echo:
                self._refused += refused
                self._lower(now)
        elif held_back:
            self._grow(held_back / self.rate, now)

    def forget_in_flight(self) -> None:
        """What is on its way will never be answered."""
        self._in_flight = self._held_back = self._echoes = 0
        self._retrier = False

    def _grow(self, seconds: float, now: float) -> None:
        """By what was accepted: where answers are slow in coming, growth waits for them."""
        if not self._doubling and now - self._calm_since > _CALM:
            self._doubling, self._cut = True, False
        self.rate *= 2 ** (seconds / _DOUBLING) if self._doubling else 1 + _PROBE * seconds

    def _lower(self, now: float) -> None:
        elapsed = now - self._window_start
        share = self._refused / (self._accepted + self._refused)
        if self._doubling and not self._cut:
            self._cut = True
            self.rate /= _FIRST_CUT
        elif share <= _NOISE or elapsed < (_SHORT_WINDOW if share > _MANY else _WINDOW):
            return
        elif self._accepted:
            # After idleness a saved-up burst may be in it: never a reason to go faster.
            self.rate = min(self.rate, _MARGIN * self._accepted / elapsed)
            self._doubling = False
        else:
            # Too much for it at any pace of this order, or out of order: start again from below.
            self.rate /= 2
            self._doubling = self._cut = True
        self.rate = max(self._floor, self.rate)
        self._echoes = self._in_flight
        self._calm_since = self._window_start = now
        self._accepted = self._refused = 0.0
