"""Starts the agent beside the driver as a process of its own, with a link to it and a word for a stop."""

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
    """An agent that has been started, as the planning process sees it."""

    @property
    def channel(self) -> Channel:
        """The link. The agent ends when it closes."""

    def tell_stop(self) -> None:
        """What closes the link next is a stop and not a crash. Takes no lock: signal handlers call it."""

    def close(self) -> None:
        """Closes the link."""

    def wait(self) -> int:
        """Blocks until it has ended; its exit code."""


class AgentProcess:
    """A child process. It is in a session of its own: it outlives us a little, whatever ends us."""

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


_LOOKS: Final = 40
_BETWEEN_LOOKS: Final = 0.05


def is_alive(
    parent: int,
    *,
    getppid: Callable[[], int] = os.getppid,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Whether the process that has started this one, and has hung up on it, lives on.

    One that dies closes its connections a moment before its children are left to others: looks for 2 s.
    """
    for _ in range(_LOOKS):
        if getppid() != parent:
            return False
        sleep(_BETWEEN_LOOKS)
    return True


def on_stop(tell: Callable[[], None]) -> None:
    """Calls `tell` when this process is told to end (SIGTERM), right before it does.

    Does nothing outside the main thread, where Python takes no signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    previous = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: Any) -> None:
        del frame
        # Spark may send its signal twice: only when all is said may the next one kill.
        tell()
        signal.signal(number, previous if previous is not None else signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)
