"""Starts the agent beside the driver, and another one when it has died."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from sluice.kinesis.fanout.driver.agent_process import RunningAgent
from sluice.kinesis.fanout.protocol import ToAgent, encode

__all__ = ["RESTART_PAUSE", "AgentSupervisor"]

RESTART_PAUSE: Final = 2.0
"""Seconds from the start of an agent to the start of the next one, where the first one dies."""


class AgentSupervisor:
    """At most one agent at a time. Not thread-safe, except `tell_stop`: the caller holds a lock.

    Args:
        launch: starts an agent.
        clock: monotonic seconds.
    """

    def __init__(self, launch: Callable[[], RunningAgent], clock: Callable[[], float]) -> None:
        self._launch = launch
        self._clock = clock
        self._agent: RunningAgent | None = None
        self._next_start = 0.0

    @property
    def is_running(self) -> bool:
        return self._agent is not None

    def start(self) -> RunningAgent | None:
        """Starts an agent. Returns None where one runs, or the last one was started a moment ago."""
        now = self._clock()
        if self._agent is not None or now < self._next_start:
            return None
        self._next_start = now + RESTART_PAUSE
        self._agent = self._launch()
        return self._agent

    def send(self, message: ToAgent) -> None:
        """Sends a message, if an agent runs. The next agent is sent everything anew."""
        if self._agent is not None:
            with contextlib.suppress(OSError):  # it has died, which the thread that receives from it notices
                self._agent.channel.send(encode(message))

    def forget(self, agent: RunningAgent) -> bool:
        """`agent` has died. Returns False where it was closed before."""
        if agent is not self._agent:
            return False
        self._agent = None
        return True

    def tell_stop(self) -> None:
        """See `RunningAgent.tell_stop`."""
        agent = self._agent
        if agent is not None:
            agent.tell_stop()

    def close(self) -> None:
        """Closes the link, at which the agent ends."""
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.close()
