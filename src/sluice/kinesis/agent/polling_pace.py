"""How often an agent reads one shard.

Kinesis allows 5 reads a second of each shard, and 2 MiB, to all that poll it together. An agent takes four of
the five and leaves one to the planner, to a task that reads by itself, or to another application. When the
service refuses a read, the agent reads half as often, and gets faster again slowly, so that refusals are
rare.

A shard without records is read as rarely as the planner would. And an agent with many shards reads each more
rarely than it is allowed to: a call takes about a millisecond of CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

__all__ = ["PollingPace"]

_SHORTEST: Final = 0.25
"""Seconds from the answer to a read to the next read."""
_LONGEST: Final = 2.0
"""The same for a shard that refuses most reads."""
_FASTER: Final = 0.97
"""Factor of the pause with every read that is answered, after one was refused."""
_IDLE_AFTER: Final = 30.0
"""Seconds without a record after which the pauses grow."""
_IDLE_GROWTH: Final = 1.1
"""Factor of the pause with every read that brings no record then."""
_LONGEST_IDLE: Final = 1.0
"""Seconds to which the pauses grow."""
_SPREAD: Final = 0.1
"""Share by which a pause is longer, at random and at most: shards should not be read in step."""
_READS: Final = 200.0
"""Reads a second that one agent makes of all its shards together, at most."""


class PollingPace:
    """Says when a shard may be read next. Used by one thread.

    Args:
        interval: the shortest pause that the user wants (seconds).
        shards: how many shards the agent reads now.
        jitter: gives a number in [0, 1).
    """

    def __init__(self, interval: float, shards: Callable[[], int], jitter: Callable[[], float]) -> None:
        self._shortest = max(interval, _SHORTEST)
        self._shards = shards
        self._jitter = jitter
        self._refused_pause = self._idle_pause = self._shortest
        self._record_at: float | None = None
        self._next_read_at = -math.inf

    def wait(self, now: float) -> float:
        """Seconds until the next read, at `now` (monotonic seconds)."""
        return max(0.0, self._next_read_at - now)

    def record_page(self, now: float, *, has_records: bool, cost: float) -> None:
        """A read was answered.

        Args:
            cost: seconds after which the shard may be read again, see `page_cost`.
        """
        self._refused_pause = max(self._shortest, self._refused_pause * _FASTER)
        if has_records or self._record_at is None:
            self._record_at, self._idle_pause = now, self._shortest
        elif now - self._record_at >= _IDLE_AFTER:
            longest = max(self._shortest, _LONGEST_IDLE)
            self._idle_pause = min(longest, self._idle_pause * _IDLE_GROWTH)
        self._next_read_at = now + max(self._pause(), cost)

    def record_refusal(self, now: float) -> None:
        """The service has refused a read because of load."""
        self._refused_pause = min(max(self._pause() * 2, self._shortest), max(self._shortest, _LONGEST))
        self._next_read_at = now + self._pause()

    def delay(self, now: float, seconds: float) -> None:
        """The next read is at least `seconds` away."""
        self._next_read_at = max(self._next_read_at, now + seconds)

    def _pause(self) -> float:
        pause = max(self._refused_pause, self._idle_pause, self._shards() / _READS)
        return pause * (1 + self._jitter() * _SPREAD)
