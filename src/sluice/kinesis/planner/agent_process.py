"""The agent on the driver host as a child process, and how each notices that the other has ended."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from sluice.channels.channel import Channel
from sluice.channels.processes import child_environment
from sluice.kinesis.shared.launch import HELD_SIGNALS, STOP, AgentSetup, agent_command

__all__ = ["AgentProcess", "StopSignals", "is_alive"]


class AgentProcess:
    """An agent process on the driver host.

    The process runs in its own session, so that no signal to this process' group reaches it. A signal to each
    process of the application does reach it; see `sluice.kinesis.agent.termination`.

    Raises:
        OSError: the process can't be started.

    Attributes:
        channel: the connection of the link to the agent. The agent ends when it closes.
        pid: its process id, for the log.
    """

    def __init__(self, setup: AgentSetup) -> None:
        ours, theirs = socket.socketpair()
        stop_read, stop_write = os.pipe()
        self._stop: int | None = stop_write
        self.channel = Channel(ours)
        # Until the agent handles signals, a signal to all processes must not end it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_SIGNALS)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                agent_command(theirs.fileno(), stop_read, os.getpid()),
                pass_fds=(theirs.fileno(), stop_read),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env=child_environment(),
            )
        except BaseException:
            self.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
            os.close(stop_read)
        self.pid = self._process.pid
        with contextlib.suppress(OSError):  # it has died, and the receiving thread notices that
            self.channel.send(pickle.dumps(setup))

    def tell_stop(self) -> bool:
        """Informs the agent that the query is being stopped, so that it deregisters consumers before it ends.

        Takes no lock: signal handlers call it.

        Returns:
            Whether an agent is running.
        """
        with contextlib.suppress(OSError):  # it has died
            return self._stop is not None and os.write(self._stop, STOP) > 0
        return False

    def close(self) -> None:
        """Closes the link."""
        self.channel.close()
        descriptor, self._stop = self._stop, None
        if descriptor is not None:
            os.close(descriptor)

    def end(self, patience: float) -> int:
        """Closes the link, and kills the agent if it has not ended in `patience` seconds.

        SIGKILL also ends a stopped process.

        Returns:
            Its exit code.
        """
        self.close()
        try:
            return self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


_CHECKS: Final = 40
_CHECK_INTERVAL: Final = 0.05
"""Seconds."""


def is_alive(
    parent: int,
    *,
    getppid: Callable[[], int] = os.getppid,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Whether our parent process still runs, after it has closed its connection to us.

    A process that dies closes its connections a moment before its children get another parent. So this
    checks for 2 s whether our parent changes.

    Args:
        parent: our parent's process id when we started.
    """
    for _ in range(_CHECKS):
        if getppid() != parent:
            return False
        sleep(_CHECK_INTERVAL)
    return True


_STOP_SIGNALS: Final = ("SIGTERM", "SIGINT", "SIGHUP")
"""Spark stops its Python processes by SIGTERM, or by SIGHUP to those that its worker daemon has forked. A
terminal or a service manager that ends the application may send these to each of its processes.
"""


class StopSignals:
    """Runs a function before a signal ends this process."""

    def __init__(self) -> None:
        self._holding: set[int] = set()  # threads that are inside `held`
        self._pending: list[int] = []

    def handle(self, tell: Callable[[], None]) -> None:
        """From now on, if a signal asks this process to end, calls `tell` first, and then lets it end as
        before. Ignored signals stay ignored. Does nothing outside the main thread, where Python does not
        allow signal handlers.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (getattr(signal, name) for name in _STOP_SIGNALS):
            previous = signal.getsignal(number)
            if previous is not signal.SIG_IGN:
                self._handle(number, signal.SIG_DFL if previous is None else previous, tell)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A signal ends the process only behind the ``with`` block: what the block learns must be passed on
        first.
        """
        self._holding.add(threading.get_ident())
        try:
            yield
        finally:
            self._let_go()

    def sleep(self, seconds: float) -> None:
        """Sleeps. A signal ends the process meanwhile, also inside `held`."""
        is_held = threading.get_ident() in self._holding
        self._let_go()
        time.sleep(seconds)
        if is_held:
            self._holding.add(threading.get_ident())

    def _let_go(self) -> None:
        self._holding.discard(threading.get_ident())
        if self._pending and not self._holding:
            os.kill(os.getpid(), self._pending[0])

    def _handle(self, number: int, previous: Any, tell: Callable[[], None]) -> None:
        def handle(number: int, frame: Any) -> None:
            del frame
            self._pending.append(number)  # first, as another thread may let go now
            if self._holding:
                return
            # Spark may send its signal twice. The second must not end the process before `tell` has returned.
            tell()
            signal.signal(number, previous)
            os.kill(os.getpid(), number)

        signal.signal(number, handle)
