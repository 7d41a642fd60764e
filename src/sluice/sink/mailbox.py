"""Who may touch the machine, and the mailbox where everybody else leaves word.

A sink's state is owned by one thread at a time, so it needs no locks. That is the task's thread while
it writes or flushes. While it is away, blocked in whatever brings its rows, a background flusher sits in,
so that what is due (a batch that has waited long enough, a retry, a timeout) happens all the same.
Request threads never sit at the desk: they only post.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

__all__ = ["Mailbox"]

MessageT = TypeVar("MessageT")

# A clock other than the real one moves by its own rules: look at it this often (seconds).
_FOREIGN_CLOCK_SLICE: Final = 0.01
_LONGEST_WAIT: Final = 3600.0


class Mailbox(Generic[MessageT]):
    """A seat for one, and a mailbox for all.

    One thread enters, and may wait in the seat; one other may watch and take it meanwhile.

    Args:
        clock: monotonic seconds, by which `wake_at` is meant.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        lock = threading.Lock()
        # Two, so that what concerns the one does not wake the other: a thread that wakes up to find that
        # there is nothing to do costs as much as one that has.
        self._visitor = threading.Condition(lock)  # whoever calls `enter`; in `wait` while seated
        self._watcher = threading.Condition(lock)  # whoever calls `watch`
        self._messages: deque[MessageT] = deque()
        self._taken = False
        self._closed = False
        self._wake_at = math.inf

    def post(self, message: MessageT) -> None:
        """Leaves a message. From any thread; never blocks for long."""
        with self._visitor:
            self._messages.append(message)
            (self._visitor if self._taken else self._watcher).notify()

    def enter(self) -> None:
        """Takes the seat; waits for whoever has it, which is never long."""
        with self._visitor:
            while self._taken:
                self._visitor.wait()
            self._taken = True

    def leave(self, wake_at: float) -> None:
        """Gives the seat up. At `wake_at`, or when a message comes, somebody has to look again."""
        with self._visitor:
            self._taken = False
            self._wake_at = wake_at
            self._visitor.notify()
            self._watcher.notify()

    def collect(self) -> list[MessageT]:
        """All messages so far. For whoever has the seat."""
        with self._visitor:
            messages = list(self._messages)
            self._messages.clear()
            return messages

    def wait(self, wake_at: float) -> None:
        """Waits for a message or until `wake_at`. For the visitor, seated; may return early."""
        with self._visitor:
            if not self._messages:
                self._sleep(self._visitor, wake_at)

    def watch(self) -> bool:
        """Waits until nobody is at the desk though there is something to do, and takes the seat.

        Returns:
            False, without the seat, when the desk is closed.
        """
        with self._watcher:
            while not self._closed:
                if self._taken:
                    self._watcher.wait()
                elif self._messages or self._clock() >= self._wake_at:
                    self._taken = True
                    return True
                else:
                    self._sleep(self._watcher, self._wake_at)
            return False

    def close(self) -> None:
        """Ends `watch`."""
        with self._watcher:
            self._closed = True
            self._watcher.notify()

    def _sleep(self, until: threading.Condition, wake_at: float) -> None:
        timeout = min(wake_at - self._clock(), _LONGEST_WAIT)
        if self._clock is not time.monotonic:
            timeout = min(timeout, _FOREIGN_CLOCK_SLICE)
        if timeout > 0:
            until.wait(timeout)
