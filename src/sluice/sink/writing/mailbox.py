"""Which thread owns the state of a sink's writer, and how the other threads reach the owner.

The state has one owner at a time, so it needs no locks. The owner is the task's thread while it writes or
flushes. In between, while the task's thread waits for more rows, the background flusher becomes the owner
whenever something is due: an answer, a batch that has waited long enough, a retry, a timeout. Request threads
are never the owner: they post their answers.
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

# How often a clock other than the real one is read: waiting on a condition does not follow it (seconds).
_OTHER_CLOCK_INTERVAL: Final = 0.01
_LONGEST_WAIT: Final = 3600.0


class Mailbox(Generic[MessageT]):
    """Hands the ownership of a state from thread to thread, and messages to its owner.

    Args:
        clock: monotonic seconds, the clock of every `wake_at`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        lock = threading.Lock()
        # Two conditions on one lock, so that an event wakes only the thread it concerns: waking up for
        # nothing costs as much as waking up for work.
        self._task_thread = threading.Condition(lock)  # in `acquire`, or in `wait` as the owner
        self._flusher = threading.Condition(lock)  # in `acquire_when_due`
        self._messages: deque[MessageT] = deque()
        self._owned = False
        self._closed = False
        self._wake_at = math.inf

    def post(self, message: MessageT) -> None:
        """Leaves a message. Called by any thread; does not wait for the owner."""
        with self._task_thread:
            self._messages.append(message)
            (self._task_thread if self._owned else self._flusher).notify()

    def acquire(self) -> None:
        """Makes the task's thread the owner, as soon as the background flusher has released the state."""
        with self._task_thread:
            while self._owned:
                self._task_thread.wait()
            self._owned = True

    def release(self, wake_at: float) -> None:
        """Called by the owner: gives up ownership until `wake_at`, or until a message comes."""
        with self._task_thread:
            self._owned = False
            self._wake_at = wake_at
            self._task_thread.notify()
            self._flusher.notify()

    def collect(self) -> list[MessageT]:
        """Called by the owner: takes all messages posted so far."""
        with self._task_thread:
            messages = list(self._messages)
            self._messages.clear()
            return messages

    def wait(self, wake_at: float) -> None:
        """Called by the task's thread as the owner: waits for a message or until `wake_at`, or less long."""
        with self._task_thread:
            if not self._messages:
                self._sleep(self._task_thread, wake_at)

    def acquire_when_due(self) -> bool:
        """Makes the background flusher the owner, if there is no owner and there is something to do.

        Returns:
            True as the owner; False, without ownership, when the mailbox is closed.
        """
        with self._flusher:
            while not self._closed:
                if self._owned:
                    self._flusher.wait()
                elif self._messages or self._clock() >= self._wake_at:
                    self._owned = True
                    return True
                else:
                    self._sleep(self._flusher, self._wake_at)
            return False

    def close(self) -> None:
        """Ends `acquire_when_due`."""
        with self._flusher:
            self._closed = True
            self._flusher.notify()

    def _sleep(self, condition: threading.Condition, wake_at: float) -> None:
        timeout = min(wake_at - self._clock(), _LONGEST_WAIT)
        if self._clock is not time.monotonic:
            timeout = min(timeout, _OTHER_CLOCK_INTERVAL)
        if timeout > 0:
            condition.wait(timeout)
