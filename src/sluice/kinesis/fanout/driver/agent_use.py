"""Whether tasks ask agents for what they hold.

A task that can't connect to an agent polls, and can't tell the driver: Spark gives a task no way to. But an
agent tells how many ranges it is asked for, and the planning process knows how many it has assigned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["AgentUse"]

_PATIENCE: Final = 60.0
"""Seconds, and batches, that begin to read from agents before their use is judged. An agent on a worker host
takes up to half a minute to start."""
_MIN_BATCHES: Final = 3
_MIN_RANGES: Final = 20
_SMALL_PART: Final = 0.75
"""A smaller part of the ranges that is asked for means that some hosts can't connect."""


class AgentUse:
    """Compares what was assigned to agents with what they are asked for. Not thread-safe.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._has_warned = False
        self.reset()

    def reset(self) -> None:
        """Begins anew."""
        self._since: float | None = None
        self._batches = self.assigned = self.asked = 0

    def record_asked(self, ranges: int) -> None:
        """Agents have been asked for so many ranges."""
        self.asked += ranges

    def record_batch(self, ranges: int) -> None:
        """A batch begins of which tasks are to read so many ranges from agents. The one before has ended."""
        if ranges:
            self._count_batch()
            self.assigned += ranges

    def record_awaiting_batch(self) -> None:
        """A batch begins whose tasks have no agent to ask yet, and are to start those on their hosts."""
        self._count_batch()

    def _count_batch(self) -> None:
        if self._since is None:
            self._since = self._clock()
        self._batches += 1

    @property
    def is_judged(self) -> bool:
        """Whether there was enough to tell by. Of the last batch nothing may have been asked yet."""
        waited = 0.0 if self._since is None else self._clock() - self._since
        return self._batches > _MIN_BATCHES and waited >= _PATIENCE

    @property
    def is_unused(self) -> bool:
        """Whether no task has asked for anything."""
        return self.is_judged and not self.asked

    def find_small_part(self) -> tuple[int, int] | None:
        """Ranges asked for and assigned, if some are, and far from all; each time that it becomes so, once.

        Call it for each batch: what is judged is what came since the last answer.
        """
        if not self.is_judged or self.is_unused or self.assigned < _MIN_RANGES:
            return None
        found = self.asked, self.assigned
        is_small = self.asked < self.assigned * _SMALL_PART
        had_warned, self._has_warned = self._has_warned, is_small
        self.reset()
        return found if is_small and not had_warned else None
