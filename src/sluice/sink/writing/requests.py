"""Where requests run: on threads, or on an event loop if `submit` is a coroutine function."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

from sluice.sink.user_code.loading import destination_name

__all__ = ["RequestLoop", "RequestThreads", "close_destination"]

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")
T = TypeVar("T")

_log = logging.getLogger(__name__)

# How long the end of requests that were cancelled, and of the destination, is waited for (seconds).
_PATIENCE: Final = 10.0
_THREAD: Final = "sluice-sink-request-loop"


class RequestThreads(Generic[JobT, ResultT]):
    """Runs every job at once, on a free thread or on a new one. The caller bounds the number of jobs.

    The threads are daemons, unlike threads of `concurrent.futures`: a request that hangs must not keep the
    process from ending.

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


class RequestLoop(Generic[JobT, ResultT]):
    """As `RequestThreads`, but runs jobs as tasks of one event loop, on one daemon thread.

    Args:
        work: does a job; must not raise.
        report: called on the loop's thread with what `work` returned.
        name: the destination's, for messages.
        patience: seconds that jobs that were cancelled, and what `end` calls, are waited for.
    """

    def __init__(
        self,
        work: Callable[[JobT], Awaitable[ResultT]],
        report: Callable[[ResultT], None],
        *,
        name: str,
        patience: float = _PATIENCE,
    ) -> None:
        self._work = work
        self._report = report
        self._name = name
        self._patience = patience
        # By the identity of the job, which its task keeps alive. The loop itself keeps no task alive.
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, job: JobT) -> None:
        """Starts a job. Called by one thread at a time.

        Raises:
            RuntimeError: no thread can be started.
        """
        self._started().call_soon_threadsafe(self._begin, job)

    def cancel(self, job: JobT) -> None:
        """Cancels a job if it is running. What `work` returns then is reported as always."""
        loop = self._started()
        # One step later than `_begin` at the earliest: a task that is cancelled before its first step never
        # runs, and would report nothing.
        loop.call_soon_threadsafe(loop.call_soon, self._cancel, job)

    def close(self, patience: float) -> int:
        """Waits for the jobs that are running, and then cancels them. The loop runs until `end`.

        Args:
            patience: how long jobs are waited for, in seconds.

        Returns:
            How many were cancelled, or could not be.
        """
        if self._loop is None:
            return 0
        cancelled = self._on_the_loop("requests have", self._settle(patience), patience + self._patience)
        return len(self._tasks) if cancelled is None else cancelled

    def end(self, last: Callable[[], Awaitable[None] | None] | None = None) -> None:
        """Ends the thread.

        Args:
            last: is called on the loop before, and awaited if it is a coroutine function; None for nothing.

        Raises:
            Exception: of `last`.
        """
        if self._loop is None and last is None:
            return
        loop = self._started()
        try:
            if last is not None:
                self._on_the_loop("the destination's close has", _call(last), self._patience)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            if self._thread is not None:
                self._thread.join(self._patience)

    def _on_the_loop(self, what: str, coroutine: Coroutine[Any, Any, T], patience: float) -> T | None:
        """What `coroutine` returns or raises; None if it does not end within `patience` seconds.

        `what` begins the log's sentence.
        """
        future = asyncio.run_coroutine_threadsafe(coroutine, self._started())
        # Not by the timeout of `result`: since Python 3.11 a TimeoutError of the coroutine looks the same.
        done, _ = concurrent.futures.wait((future,), patience)
        if not done:
            _log.warning(
                "%s: %s not ended within %g s; the thread %s is left behind",
                self._name,
                what,
                patience,
                _THREAD,
            )
            return None
        return future.result()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._serve, args=(loop,), name=_THREAD, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                loop.close()
                raise
            self._loop, self._thread = loop, thread
        return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(self._cancel_the_rest())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    async def _cancel_the_rest(self) -> None:
        """Cancels what the destination has begun by itself and left running, as `asyncio.run` does.

        Jobs that are left were cancelled before, and have not ended: for them, all patience is used up.
        """
        rest = asyncio.all_tasks() - {*self._tasks.values()} - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=0.0 if self._tasks else self._patience)

    def _begin(self, job: JobT) -> None:
        task = self._tasks[id(job)] = asyncio.ensure_future(self._do(job))
        task.add_done_callback(lambda _: self._tasks.pop(id(job)))

    def _cancel(self, job: JobT) -> None:
        if id(job) in self._tasks:
            self._tasks[id(job)].cancel()

    async def _do(self, job: JobT) -> None:
        self._report(await self._work(job))

    async def _settle(self, patience: float) -> int:
        running = list(self._tasks.values())
        if not running:
            return 0
        _, late = await asyncio.wait(running, timeout=patience)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return len(late)


def close_destination(destination: Any) -> None:
    """Closes a destination that has run no request on a loop, and waits for what its `close` returns."""
    found = destination.close() if hasattr(destination, "close") else None
    if inspect.isawaitable(found):
        loop: RequestLoop[Any, Any] = RequestLoop(_call, lambda _: None, name=destination_name(destination))
        loop.end(lambda: found)


async def _call(last: Callable[[], Awaitable[None] | None]) -> None:
    found = last()
    if inspect.isawaitable(found):
        await found
