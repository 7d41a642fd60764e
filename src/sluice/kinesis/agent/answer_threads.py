"""Threads that answer requests, as many as are needed and no more than a limit."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

__all__ = ["AnswerThreads"]

_IDLE_TIMEOUT: Final = 10.0
"""Seconds."""

RequestT = TypeVar("RequestT")


class AnswerThreads(Generic[RequestT]):
    """Calls a function with each request, several of them side by side. Thread-safe.

    Requests beyond the limit wait for a thread, in order; so do those for which the system has no thread.

    Args:
        answer: may block. It must not raise.
        limit: threads at a time.
        idle_timeout: seconds without work after which a thread ends.
    """

    def __init__(
        self, answer: Callable[[RequestT], None], limit: int, *, idle_timeout: float = _IDLE_TIMEOUT
    ) -> None:
        self._answer = answer
        self._limit = limit
        self._idle_timeout = idle_timeout
        self._waiting: deque[RequestT] = deque()
        self._changed = threading.Condition()
        self._count = 0
        self._free = 0  # threads that wait for a request

    def submit(self, request: RequestT) -> bool:
        """Returns False where no thread can be had: the request will not be answered."""
        with self._changed:
            self._waiting.append(request)
            if self._free >= len(self._waiting):
                self._changed.notify()
                return True
            if self._count < self._limit:
                try:
                    threading.Thread(target=self._run, name="sluice-answer", daemon=True).start()
                except RuntimeError:  # the system allows no more
                    if self._count == 0:
                        self._waiting.remove(request)
                        return False
                else:
                    self._count += 1
            return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._free += 1
                has_work = self._changed.wait_for(lambda: bool(self._waiting), self._idle_timeout)
                self._free -= 1
                if not has_work:
                    self._count -= 1
                    return
                request = self._waiting.popleft()
            self._answer(request)
