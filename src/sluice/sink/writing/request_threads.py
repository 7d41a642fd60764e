"""The threads on which requests run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

__all__ = ["RequestThreads"]

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")


class RequestThreads(Generic[JobT, ResultT]):
    """Runs every job at once, on a free thread or on a new one.

    The caller bounds the number of jobs. The threads are daemons, unlike those of `concurrent.futures`, so
    that a request that hangs cannot keep the process from ending.

    Args:
        work: does a job; must not raise.
        report: called on the same thread with what `work` returned. The thread counts as free by then.
    """

    def __init__(self, work: Callable[[JobT], ResultT], report: Callable[[ResultT], None]) -> None:
        self._work = work
        self._report = report
        self._jobs: SimpleQueue[JobT | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._busy = 0
        self._threads: list[threading.Thread] = []

    def run(self, job: JobT) -> None:
        """Starts a job. Called by one thread at a time.

        Raises:
            RuntimeError: no thread can be started.
        """
        with self._lock:
            self._busy += 1
            missing = self._busy > len(self._threads)
        if missing:
            thread = threading.Thread(
                target=self._serve, name=f"sluice-sink-request-{len(self._threads)}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        self._jobs.put(job)

    def cancel(self, job: JobT) -> None:
        """A thread cannot be interrupted: the job runs until it ends."""

    def close(self, patience: float) -> int:
        """Ends the threads; a busy one ends when its job does.

        Args:
            patience: how long busy threads are waited for, in seconds.

        Returns:
            How many of them are still busy.
        """
        for _ in self._threads:
            self._jobs.put(None)
        give_up_at = time.monotonic() + patience
        with self._lock:
            busy = self._busy
        for thread in self._threads:
            thread.join(max(0.0, give_up_at - time.monotonic()) if busy else None)
        return sum(thread.is_alive() for thread in self._threads)

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            result = self._work(job)
            with self._lock:
                self._busy -= 1
            self._report(result)
            del job, result  # a free thread must not keep a whole batch alive
