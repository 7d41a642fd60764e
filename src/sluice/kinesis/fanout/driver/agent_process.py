"""The agent beside the driver as a child process, and what each of the two learns of the other's end."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from sluice.kinesis.fanout.channel import Channel
from sluice.kinesis.fanout.launch import STOP, AgentSetup, agent_command, agent_environment

__all__ = ["AgentProcess", "RunningAgent", "is_alive", "on_stop"]


class RunningAgent(Protocol):
    """What the planning process needs of an agent that it has started."""

    @property
    def channel(self) -> Channel:
        """The link. The agent ends when it closes."""

    def tell_stop(self) -> None:
        """Tells the agent that the query is being stopped, so that it deregisters consumers at its end.

        Takes no lock: signal handlers call it.
        """

    def close(self) -> None:
        """Closes the link."""

    def wait(self) -> int:
        """Blocks until the agent has ended. Returns its exit code."""


class AgentProcess:
    """A `RunningAgent` in a process of its own.

    It has a session of its own, so that a signal to this process' group does not end it before it has
    deregistered what has to be deregistered.
    """

    def __init__(self, setup: AgentSetup) -> None:
        ours, theirs = socket.socketpair()
        stop_read, stop_write = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                agent_command(theirs.fileno(), stop_read),
                pass_fds=(theirs.fileno(), stop_read),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env=agent_environment(),
            )
        finally:
            theirs.close()
            os.close(stop_read)
        self._stop: int | None = stop_write
        self.pid = self._process.pid
        self.channel = Channel(ours)
        self.channel.send(pickle.dumps(setup))

    def tell_stop(self) -> None:
        """See `RunningAgent.tell_stop`."""
        if self._stop is not None:
            os.write(self._stop, STOP)

    def close(self) -> None:
        """See `RunningAgent.close`."""
        self.channel.close()
        descriptor, self._stop = self._stop, None
        if descriptor is not None:
            os.close(descriptor)

    def wait(self) -> int:
        """See `RunningAgent.wait`."""
        return self._process.wait()


_CHECKS: Final = 40
_CHECK_INTERVAL: Final = 0.05


def is_alive(
    parent: int,
    *,
    getppid: Callable[[], int] = os.getppid,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Whether the process that has started this one lives on, after it has closed its connection to us.

    A process that dies closes its connections a moment before its children get another parent. So this
    checks for 2 s whether our parent changes.

    Args:
        parent: the process id of our parent as it was at our start.
    """
    for _ in range(_CHECKS):
        if getppid() != parent:
            return False
        sleep(_CHECK_INTERVAL)
    return True


def on_stop(tell: Callable[[], None]) -> None:
    """Has `tell` called when this process gets SIGTERM, before it ends as it would have without.

    Does nothing outside the main thread, where Python does not allow signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    previous = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: Any) -> None:
        del frame
        # Spark may send its signal twice. The second one must not end the process before `tell` has returned.
        tell()
        signal.signal(number, previous if previous is not None else signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)
