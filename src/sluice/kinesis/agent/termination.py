"""When the agent on the driver host ends, and whether the query was stopped then.

It ends when its link closes. A stop may signal all processes of a query at once, as a service manager does to
end a control group. If the agent died of that signal, the consumer would stay registered. So SIGTERM ends the
agent only if its link is still open 10 s later: then the signal was meant for the agent alone. It ignores
SIGINT and SIGHUP, which are for the application that a user runs in a terminal.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any, Final

from sluice.kinesis.shared.launch import HELD_SIGNALS, STOP

__all__ = ["GRACE", "Termination"]

GRACE: Final = 10.0
"""Seconds from SIGTERM to the end of an agent whose link stays open."""
_CRASH_PATIENCE: Final = 60.0
"""Seconds in which a planning process has to end once it has closed the link."""


class Termination:
    """Tells whether the agent was asked to end, and for what reason.

    Args:
        stop_descriptor: the pipe into which the planning process writes when the query is stopped.
        clock: monotonic seconds.
        is_planner_alive: whether the planning process still runs.
        check_every: seconds between two checks of the clock.
    """

    def __init__(
        self,
        stop_descriptor: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_planner_alive: Callable[[], bool] = lambda: True,
        check_every: float = 1.0,
    ) -> None:
        self._is_planner_alive = is_planner_alive
        self._stop_descriptor = stop_descriptor
        self._clock = clock
        self._check_every = check_every
        self._asked_at: float | None = None

    def handle_signals(self) -> None:
        """Makes this process handle signals as described above. To be called in the main thread."""
        signal.signal(signal.SIGTERM, self._handle_sigterm)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_SIGNALS)

    @property
    def is_due(self) -> bool:
        """Whether the agent was sent SIGTERM 10 s ago or earlier."""
        return self._asked_at is not None and self._clock() - self._asked_at >= GRACE

    def wait_for_reason(self) -> bool:
        """Blocks until the reason for the closed link is known, or until `is_due`.

        The planning process writes into the pipe before it ends, and its end closes the pipe. If the agent
        has closed the link itself, the planning process may be frozen.

        Returns:
            Whether the query was stopped.
        """
        poll = select.poll()
        poll.register(self._stop_descriptor, select.POLLIN)
        while not poll.poll(self._check_every * 1000):
            if self.is_due:
                return False
        return os.read(self._stop_descriptor, 1) == STOP

    def wait_for_crash(self) -> bool:
        """Blocks until the planning process has ended, for at most 60 s.

        Returns:
            Whether it has ended. Otherwise it still runs, and has closed the link to replace this agent.
        """
        end = self._clock() + _CRASH_PATIENCE
        while self._is_planner_alive():
            if self.is_due or self._clock() >= end:
                return False
            time.sleep(self._check_every)
        return True

    def _handle_sigterm(self, number: int, frame: Any) -> None:
        # Takes no lock and starts no thread: the main thread may hold a lock that this needs.
        del number, frame
        if self._asked_at is None:
            self._asked_at = self._clock()
