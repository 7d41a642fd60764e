"""How soon one split may be read again: Kinesis counts the calls and the bytes of all polling consumers."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from sluice.source.logs.page_cost import page_cost
from sluice.source.logs.stream_log import Page

__all__ = ["ReadPace"]

_WINDOW: Final = 1.01
"""Seconds: a little more than the one over which Kinesis counts calls."""


class ReadPace:
    """The reads of one split by this process. Times are monotonic seconds. Used by one thread at a time.

    Args:
        most_calls: the largest number of calls in a second that is ever asked about.
    """

    def __init__(self, most_calls: int) -> None:
        self._answered_at: deque[float] = deque(maxlen=most_calls)
        self._paid_at = -math.inf  # when the pages so far would have come at 2 MiB/s
        self._open_at = -math.inf  # when their bytes do not make the service refuse reads any more

    def is_forgettable(self, now: float) -> bool:
        """Whether no read so far makes another one wait."""
        return now >= self._open_at and (not self._answered_at or now >= self._answered_at[-1] + _WINDOW)

    def wait_for_calls(self, now: float, calls: int) -> float:
        """Seconds until the split may be read, if it may be `calls` times in any second."""
        if len(self._answered_at) < calls:
            return 0.0
        return max(0.0, self._answered_at[-calls] + _WINDOW - now)

    def wait_for_bytes(self, now: float) -> float:
        """Seconds until what was read so far does not make the service refuse a read."""
        return max(0.0, self._open_at - now)

    def record_read(self, page: Page | None, now: float) -> None:
        """A read was answered: with a page, or (None) with an error.

        The service has counted it by now, however long it took to get there. A page of more than 2 MiB is
        paid for in full before the next; others may run ahead by a second.
        """
        self._answered_at.append(now)
        cost = 0.0 if page is None else page_cost(page)
        if cost:
            self._paid_at = max(self._paid_at, now) + cost
            self._open_at = now + cost if cost > 1.0 else self._paid_at + _WINDOW - 2.0
