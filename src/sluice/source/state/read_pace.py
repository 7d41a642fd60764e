"""The planner's read pace of one split, and how long its reads have been unanswered."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from sluice.source.logs.stream_log import Page

__all__ = ["ReadPace"]

_WINDOW: Final = 1.01
"""Slightly more than the one second over which Kinesis counts calls."""
_RETRY_PAUSE: Final = 2.0
"""Seconds until a split is read again after a read was throttled or failed."""
_ALLOWANCE: Final = 1.0
"""Seconds by which pages of up to 2 MiB may run ahead of Kinesis' limit."""


class ReadPace:
    """Part of a `SplitState`. Used by one thread at a time; all times are monotonic seconds.

    Reads are answered, throttled, or fail. A split that the service does not know is missing.

    Attributes:
        next_read_at: when the planner reads the split again, unless a batch waits for the split.
        unanswered_since: when the first read after the last answer was throttled or failed; None: none
            was.
        failing_since: the same for failed reads; None after a throttled read.
    """

    def __init__(self) -> None:
        self.next_read_at = -math.inf
        self.unanswered_since: float | None = None
        self.failing_since: float | None = None
        self._is_missing = False
        self._counted_at: deque[float] = deque()  # the calls of the last second
        self._open_at = -math.inf  # when the service accepts a read again, by the bytes read so far

    def wait(self, now: float, calls: int, *, for_bytes: bool) -> float:
        """Returns the seconds until the split may be read.

        Args:
            calls: maximum calls in any second.
            for_bytes: also wait until the bytes read so far no longer cause a refusal.
        """
        may_read_at = self._open_at if for_bytes else now
        if calls <= len(self._counted_at):
            may_read_at = max(may_read_at, self._counted_at[-calls] + _WINDOW)
        return max(0.0, may_read_at - now)

    def record_call(self, page: Page | None, now: float) -> None:
        """Records that a read was answered: with a page, or (None) with an error.

        The service has counted the call by now. After a page of more than 2 MiB, the next read waits
        until the page no longer counts.
        """
        while self._counted_at and self._counted_at[0] + _WINDOW < now:
            self._counted_at.popleft()
        self._counted_at.append(now)
        cost = 0.0 if page is None else page.cost
        self._open_at = now + cost if cost > 1.0 else max(self._open_at, now - _ALLOWANCE) + cost

    def schedule(self, next_read_at: float) -> None:
        """Sets the next read. After an unanswered read it only moves it later."""
        is_answered = self.unanswered_since is None
        self.next_read_at = next_read_at if is_answered else max(self.next_read_at, next_read_at)

    def mark_answered(self) -> None:
        """Records that a read has succeeded, or that a subscription reports on the split."""
        self.unanswered_since = self.failing_since = None
        self._is_missing = False

    def mark_unanswered(self, now: float, patience: float, *, throttled: bool, missing: bool = False) -> None:
        """Records that a read was throttled, which is no failure, or failed and may succeed later.

        Args:
            patience: after a pause this long, a failure counts as the first, because nothing was tried
                in between.
        """
        if self.unanswered_since is None:
            self.unanswered_since = now
        if throttled:
            self.failing_since = None
        elif self.failing_since is None or now - self.next_read_at > patience:
            self.failing_since = now
        self._is_missing = missing
        self.next_read_at = now + _RETRY_PAUSE

    def take_missing(self) -> bool:
        """Whether the split is missing. Returns True once, because splits are then listed again."""
        was_missing, self._is_missing = self._is_missing, False
        return was_missing
