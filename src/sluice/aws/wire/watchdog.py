"""Ends waits that last too long.

A socket's read timeout starts anew with every byte, so it never ends a wait in which bytes trickle in; and
the thread that waits cannot check a clock meanwhile. So another thread does.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final

__all__ = ["Watchdog", "shared_watchdog"]

_INTERVAL: Final = 1.0
"""Seconds between two checks. A wait may be ended this much late."""
_IDLE_ROUNDS: Final = 30
"""Checks in a row that find no wait, after which the thread ends."""


class Watchdog:
    """One thread for any number of waits. It starts with the first wait.

    Args:
        clock: monotonic seconds, as of the deadlines.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._armed: dict[int, tuple[float, Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None

    def arm(self, waiter: object, deadline: float, give_up: Callable[[], None]) -> None:
        """A wait begins: `give_up` is called from another thread when the clock has passed `deadline`.

        Args:
            waiter: stands for the wait. It has one deadline at a time: a second call replaces the first.
        """
        with self._lock:
            self._armed[id(waiter)] = deadline, give_up
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sluice-watchdog", daemon=True)
                self._thread.start()

    def disarm(self, waiter: object) -> None:
        """The wait has ended in time. May be called for a waiter that has no deadline."""
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
    """The watchdog of this process. A forked child gets its own watchdog, because threads do not survive a
    fork.
    """
    return _watchdogs.setdefault(os.getpid(), Watchdog())
