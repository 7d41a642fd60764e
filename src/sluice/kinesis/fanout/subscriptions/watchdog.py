"""Ends waits that last too long.

A read timeout on a socket starts anew with every byte, so a connection that trickles is never late by
it; and a reader that looks at the clock between events does not get to look.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["Overseer", "Watchdog", "shared_watchdog"]

# How late it may be, and after how many rounds without anything to watch its thread ends (seconds, rounds).
_INTERVAL: Final = 1.0
_IDLE_ROUNDS: Final = 30


class Overseer(Protocol):
    """Calls back when a wait has not ended in time."""

    def arm(self, waiter: object, deadline: float, give_up: Callable[[], None]) -> None:
        """`give_up` is called, from another thread, when the clock has passed `deadline`, unless disarmed.

        A waiter has one deadline at a time.
        """

    def disarm(self, waiter: object) -> None:
        """The wait has ended."""


class Watchdog:
    """One thread that watches over any number of waits. It runs only while there are some.

    Args:
        clock: monotonic seconds, the same as that of the deadlines.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._armed: dict[int, tuple[float, Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None

    def arm(self, waiter: object, deadline: float, give_up: Callable[[], None]) -> None:
        """See `Overseer.arm`."""
        with self._lock:
            self._armed[id(waiter)] = deadline, give_up
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sluice-watchdog", daemon=True)
                self._thread.start()

    def disarm(self, waiter: object) -> None:
        """See `Overseer.disarm`."""
        with self._lock:
            self._armed.pop(id(waiter), None)

    def check(self) -> None:
        """Gives up on every wait whose deadline has passed."""
        now = self._clock()
        with self._lock:
            late = [(waiter, give_up) for waiter, (end, give_up) in self._armed.items() if end < now]
            for waiter, _ in late:
                del self._armed[waiter]
        for _, give_up in late:
            give_up()

    def _run(self) -> None:
        idle_rounds = 0
        while True:
            time.sleep(_INTERVAL)
            self.check()
            with self._lock:
                idle_rounds = 0 if self._armed else idle_rounds + 1
                if idle_rounds == _IDLE_ROUNDS:
                    self._thread = None
                    return


_watchdogs: Final[dict[int, Watchdog]] = {}


def shared_watchdog() -> Watchdog:
    """This process' watchdog; a forked child has one of its own, as threads stay behind."""
    return _watchdogs.setdefault(os.getpid(), Watchdog())
