"""Whether the service answers the reads of a split, and when the planner may read it again."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["ReadHealth"]

_FAILURE_MEMORY = 30.0
"""Seconds after which a failed read does not count any more, if none was tried since."""


@dataclass(slots=True)
class ReadHealth:
    """How the planner's reads of one split fare. Held by its `SplitState`. All times are monotonic seconds.

    The split is one of

    - *answering*: `failing_since` is None;
    - *throttled*: not read before `next_read_at`, and `failing_since` is kept;
    - *failing*: not read before `next_read_at`; the planner fails the query if that lasts too long;
    - *missing* (`is_missing`): failing, because the service says that there is no such split.

    Attributes:
        next_read_at: the split must not be read before.
        failing_since: when the first of the reads that keep failing failed; None: they do not fail.
        failed_at: when the last of them failed.
        unanswered_since: when the first read after the last answer failed, or was throttled; None: the last
            read was answered.
        is_missing: the service says that there is no such split.
    """

    next_read_at: float = -math.inf
    failing_since: float | None = None
    failed_at: float = -math.inf
    unanswered_since: float | None = None
    is_missing: bool = False

    def is_unanswered_for(self, seconds: float, now: float) -> bool:
        """Whether reads have got no answer for at least `seconds`."""
        return self.unanswered_since is not None and now - self.unanswered_since >= seconds

    def schedule(self, next_read_at: float) -> None:
        """Caller: a probe that has read the split for this trigger. Affects: `next_read_at`."""
        self.next_read_at = next_read_at

    def mark_answered(self) -> None:
        """Caller: the planner, when a read has succeeded; the state, when a subscription tells of the split.
        Affects: `failing_since`, `unanswered_since`, `is_missing`.
        """
        self.failing_since = self.unanswered_since = None
        self.is_missing = False

    def mark_throttled(self, now: float, next_read_at: float) -> None:
        """Caller: the planner, when a read was throttled. Affects: `next_read_at`, `is_missing`,
        `unanswered_since`.
        """
        self._mark_unanswered(now)
        self.is_missing = False
        self.next_read_at = next_read_at

    def mark_failed(
        self, now: float, next_read_at: float, *, is_missing: bool, begun_at: float | None = None
    ) -> float:
        """Caller: the planner, when a read has failed and may succeed later. Affects: all.

        Args:
            begun_at: when the read was begun; None: just now.

        Returns:
            For how long reads have failed, one after the other (seconds). A failure long after the one
            before it begins anew: nothing was tried in between.
        """
        begun_at = now if begun_at is None else begun_at
        if self.failing_since is None or begun_at - self.failed_at > _FAILURE_MEMORY:
            self.failing_since = now
        self._mark_unanswered(now)
        self.failed_at = now
        self.next_read_at = next_read_at
        self.is_missing = is_missing
        return now - self.failing_since

    def forget_missing(self) -> None:
        """Caller: the enumerator, which will list splits again. Affects: `is_missing`."""
        self.is_missing = False

    def _mark_unanswered(self, now: float) -> None:
        if self.unanswered_since is None:
            self.unanswered_since = now
