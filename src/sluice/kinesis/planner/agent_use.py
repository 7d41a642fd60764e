"""Whether tasks ask agents for what they hold, and for how long agents are not used where none does.

A task that can't connect to an agent polls, and can't tell the driver: Spark gives a task no way to. But an
agent tells how many ranges it is asked for, and the planning process knows how many it has assigned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

__all__ = ["AgentUse"]

_PATIENCE: Final = 60.0
"""Seconds before the use of agents is judged. An agent on a worker host takes up to half a minute to
start."""
_MIN_BATCHES: Final = 3
"""Batches before it is judged."""
_MIN_RANGES: Final = 20
"""Ranges assigned to agents before the part that was asked for says anything."""
_SMALL_PART: Final = 0.75
"""If tasks ask for a smaller part of the ranges, some hosts can't connect."""
_FIRST_PAUSE: Final = 600.0
"""Seconds for which agents are not used after no task has reached one. Each pause is twice as long as the
last ..."""
_LONGEST_PAUSE: Final = 3600.0
"""... up to this."""


class AgentUse:
    """Compares what was assigned to agents with what they are asked for. Not thread-safe.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._has_warned = False
        self._next_pause = _FIRST_PAUSE
        self._resume_at: float | None = None  # the end of the pause; infinity once `begin_resume` has said so
        self.reset()

    @property
    def is_paused(self) -> bool:
        """Whether agents are not used, as no task has reached one."""
        return self._resume_at is not None

    def begin_pause(self) -> float:
        """From now on agents are not used. Returns for how many seconds."""
        pause, self._next_pause = self._next_pause, min(2 * self._next_pause, _LONGEST_PAUSE)
        self._resume_at = self._clock() + pause
        return pause

    def begin_resume(self) -> bool:
        """Whether the pause has lasted long enough; True once. It goes on until `end_pause`."""
        if self._resume_at is None or self._clock() < self._resume_at:
            return False
        self._resume_at = math.inf
        return True

    def end_pause(self) -> None:
        """Agents are used again."""
        self._resume_at = None

    def reset(self) -> None:
        """Begins anew."""
        self._since: float | None = None
        self._batches = self.assigned = self.asked = 0

    def record_asked(self, ranges: int) -> None:
        """Tasks have asked agents for `ranges` ranges."""
        self.asked += ranges

    def record_batch(self, ranges: int) -> None:
        """A batch begins; its tasks should read `ranges` ranges from agents. The batch before has ended."""
        if ranges:
            self._count_batch()
            self.assigned += ranges

    def record_awaiting_batch(self) -> None:
        """A batch begins whose tasks have no agent to ask yet, and start the agents of their hosts."""
        self._count_batch()

    def _count_batch(self) -> None:
        if self._since is None:
            self._since = self._clock()
        self._batches += 1

    @property
    def is_judged(self) -> bool:
        """Whether enough batches have ended: it is asked before the next one is recorded."""
        waited = 0.0 if self._since is None else self._clock() - self._since
        return self._batches >= _MIN_BATCHES and waited >= _PATIENCE

    @property
    def is_unused(self) -> bool:
        """Whether no task has asked for anything."""
        return self.is_judged and not self.asked

    def find_small_part(self) -> tuple[int, int] | None:
        """The ranges asked for and those assigned, if tasks ask for far from all; once until that changes.

        Call it before each batch is recorded: its tasks have not asked yet. It judges the batches since its
        last judgement.
        """
        if not self.is_judged or self.is_unused or self.assigned < _MIN_RANGES:
            return None
        found = self.asked, self.assigned
        is_small = self.asked < self.assigned * _SMALL_PART
        had_warned, self._has_warned = self._has_warned, is_small
        self.reset()
        return found if is_small and not had_warned else None
