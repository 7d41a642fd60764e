"""What a task has sent lately: when, how much, and at which pace. See `sluice.sink.pacing`."""

from __future__ import annotations

import bisect
from collections import deque
from typing import Final, NamedTuple

__all__ = ["Sent", "SentRequests"]

# Of fewer requests the pace is not known: it would depend on where they happen to lie.
_FEWEST: Final = 12


class Sent(NamedTuple):
    """A request that was sent.

    Attributes:
        at: when (seconds of a monotonic clock).
        pace: the one then (entries a second).
        depth: the part of the pace that was sent: less than 1 in a dip.
        before: entries that had been sent before it.
    """

    at: float
    pace: float
    depth: float
    before: int


class SentRequests:
    """The last requests of a task.

    Args:
        most: as many are remembered.
    """

    def __init__(self, most: int) -> None:
        self._requests: deque[Sent] = deque(maxlen=most)
        self._entries = 0

    def add(self, count: int, at: float, pace: float, depth: float) -> None:
        """`count` entries are sent at `at`, not before those that were added before."""
        self._requests.append(Sent(at, pace, depth, self._entries))
        self._entries += count

    @property
    def last(self) -> Sent | None:
        """The request that was sent last."""
        return self._requests[-1] if self._requests else None

    def sent_at(self, at: float) -> Sent | None:
        """The last request that was sent by then; the oldest that is known if that was long ago."""
        if not self._requests:
            return None
        return self._requests[max(0, bisect.bisect_right(self._requests, at, key=_at) - 1)]

    def pace_around(self, at: float, seconds: float, now: float) -> float | None:
        """Entries a second that were sent from `seconds` before `at` until as much after it, or until `now`.

        None if fewer than `_FEWEST` requests are known in that time, or what was sent in it may be forgotten.
        """
        first = bisect.bisect_left(self._requests, at - seconds, key=_at)
        after = bisect.bisect_right(self._requests, at + seconds, key=_at)
        if after - first < _FEWEST or (first == 0 and self._requests[0].before):
            return None
        end = self._entries if after == len(self._requests) else self._requests[after].before
        return (end - self._requests[first].before) / (min(at + seconds, now) - at + seconds)


def _at(sent: Sent) -> float:
    return sent.at
