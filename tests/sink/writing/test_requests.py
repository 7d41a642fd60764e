"""Destinations whose `submit` is a coroutine function: the same limits, timeouts and back-pressure."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from sink_fakes import FakeConverter, FakeDestination, RefusedError, config, fast_clock, rows

from sluice.errors import ServiceError, SluiceError
from sluice.sink import AsyncSinkWriter, Destination, NoRateLimitingStrategy, SubmitResult
from sluice.sink.writing.requests import RequestLoop

PATIENCE = 120.0
Respond = Callable[[int, Sequence[str]], Any]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + PATIENCE
    while set(threading.enumerate()) - before:
        assert time.monotonic() < deadline, "threads are left behind"


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.001)


class AsyncDestination(Destination[str]):
    """Entries are strings. `respond` gives a result, an exception, or a coroutine to wait for."""

    name = "asynchronous"

    def __init__(self, respond: Respond = lambda *_: SubmitResult()) -> None:
        self._respond = respond
        self.stored: list[str] = []
        self.requests = 0
        self.running = 0
        self.most_running = 0
        self.threads: set[int] = set()
        self.cancelled = 0
        self.closed_on: list[int] = []

    def create_converter(self) -> FakeConverter:
        return FakeConverter()

    def size_in_bytes(self, entry: str) -> int:
        return len(entry)

    async def submit(self, entries: Sequence[str]) -> Any:
        self.threads.add(threading.get_ident())
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        number, self.requests = self.requests, self.requests + 1
        try:
            found = self._respond(number, entries)
            if asyncio.iscoroutine(found):
                found = await found
            if isinstance(found, BaseException):
                raise found
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        if isinstance(found, SubmitResult):
            self.stored += [entry for entry in entries if entry not in found.failed]
        return found

    def is_fatal(self, error: Exception) -> bool:
        return getattr(error, "fatal", False)

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed_on.append(threading.get_ident())


FAST = fast_clock(100)


def writer_of(destination: Any, *, clock: Callable[[], float] = FAST, **changes: Any) -> AsyncSinkWriter[str]:
    patient = {"request_timeout": 1e9, "max_retry_duration": 1e9}
    return AsyncSinkWriter(destination, config(**(patient | changes)), NoRateLimitingStrategy(), clock=clock)


def write(destination: AsyncDestination, count: int, **changes: Any) -> AsyncSinkWriter[str]:
    writer = writer_of(destination, **changes)
    try:
        writer.write(rows(str(n) for n in range(count)))
        writer.flush()
    finally:
        writer.close()
    return writer


def later(result: Any = None) -> Respond:
    async def respond() -> Any:
        await asyncio.sleep(0.001)
        return result or SubmitResult()

    return lambda *_: respond()


def test_all_requests_run_on_one_thread() -> None:
    """As many at a time as are allowed; the destination is closed there, too."""
    destination = AsyncDestination(later())
    writer = write(destination, 95, max_in_flight_requests=4)

    assert sorted(map(int, destination.stored)) == list(range(95))
    assert writer.figures.records == 95
    assert destination.most_running == 4
    assert len(destination.threads) == 1
    assert destination.closed_on == list(destination.threads)


@pytest.mark.parametrize(
    ("found", "message"),
    [(RefusedError("never", fatal=True), "never"), (None, "submit returned no SubmitResult")],
)
def test_a_fatal_error_fails_the_task(found: Any, message: str) -> None:
    """Also a mistake of the program."""
    destination = AsyncDestination(lambda *_: found)
    with pytest.raises(Exception, match=message):
        write(destination, 1)

    assert len(destination.closed_on) == 1


def test_a_request_whose_work_is_cancelled_is_sent_again() -> None:
    """`is_fatal` judges that like any other error; only the writer itself cancels for good."""

    async def cancelled_inside() -> None:
        inner = asyncio.ensure_future(asyncio.sleep(PATIENCE))
        inner.cancel()
        await inner

    destination = AsyncDestination(lambda number, _: cancelled_inside() if number == 0 else SubmitResult())
    writer = write(destination, 1)
    assert destination.stored == ["0"]
    assert writer.figures.refused_by_code == {"CancelledError": 1}

    unforgiving = AsyncDestination(lambda *_: cancelled_inside())
    unforgiving.is_fatal = lambda error: isinstance(error, ServiceError)  # type: ignore[method-assign]
    with pytest.raises(ServiceError, match="asynchronous: the request was cancelled before it had an answer"):
        write(unforgiving, 1)


def test_a_plain_function_that_returns_an_awaitable_is_a_mistake() -> None:
    """The error says what to do."""
    asynchronous = AsyncDestination()
    destination = FakeDestination()

    def submit(entries: Sequence[str]) -> Any:
        return asynchronous.submit(entries)

    destination.submit = submit  # type: ignore[method-assign]
    writer = writer_of(destination)
    writer.write(rows("a"))
    with pytest.raises(TypeError, match="submit returned an awaitable; make it `async def submit`"):
        writer.flush()
    writer.close()


def test_a_request_that_hangs_is_sent_again() -> None:
    """And is cancelled by then: it does not run any more when the epoch ends."""

    def respond(number: int, _: Sequence[str]) -> Any:
        return asyncio.Event().wait() if number == 0 else SubmitResult()

    destination = AsyncDestination(respond)
    writer = write(destination, 1, request_timeout=10.0)

    assert destination.stored == ["0"]
    assert writer.figures.timeouts == 1
    assert destination.cancelled == 1


def test_an_answer_that_comes_in_time_is_waited_for() -> None:
    """A request that is cut off may still be executed, after requests of the next attempt."""
    destination = AsyncDestination(later())
    writer = writer_of(destination)
    writer.write(rows(str(n) for n in range(10)))
    eventually(
        lambda: destination.running > 0 or len(destination.stored) > 0
    )  # a request that has not begun is not sent
    writer.close()

    assert len(destination.stored) == 10
    assert destination.cancelled == 0


def test_closing_cancels_what_is_running() -> None:
    """Nothing of a failed attempt is left that could write over the next one."""
    destination = AsyncDestination(lambda *_: asyncio.Event().wait())
    writer = writer_of(destination, clock=time.monotonic, max_in_flight_requests=3, request_timeout=0.2)
    writer.write(rows(str(n) for n in range(30)))
    eventually(lambda: destination.running == 3)
    writer.close()

    assert (destination.running, destination.cancelled) == (0, 3)
    assert len(destination.closed_on) == 1
    with pytest.raises(SluiceError, match="the writer is closed"):
        writer.flush()


@pytest.mark.parametrize("kind", [OSError, TimeoutError, asyncio.TimeoutError])
def test_an_error_of_close_is_raised(kind: type[Exception]) -> None:
    """That includes a timeout that `close` raises itself; the thread ends."""
    loop: RequestLoop[int, int] = RequestLoop(lambda _: asyncio.sleep(0, 1), lambda _: None, name="fake")

    async def fail() -> None:
        await asyncio.sleep(0)
        raise kind("cannot close")

    with pytest.raises(kind, match="cannot close"):
        loop.end(fail)


def test_what_does_not_end_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """A job that blocks the loop's thread must not hold the task; the log says so, and how long it waited."""
    held = threading.Event()

    async def block(_: int) -> int:
        held.wait(PATIENCE)
        return await asyncio.sleep(0, 1)

    loop = RequestLoop(block, lambda _: None, name="fake", patience=0.01)
    loop.run(1)
    assert loop.close(0.04) == 1
    loop.end()
    held.set()

    assert "fake: requests have not ended within 0.05 s" in caplog.text


def test_what_a_destination_leaves_running_is_cancelled() -> None:
    """On the loop, which is still there then: it may have connections to close."""
    ended: list[str] = []

    async def refresh() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append(threading.current_thread().name)

    class Refreshing(AsyncDestination):
        async def submit(self, entries: Sequence[str]) -> Any:
            self.refreshing = asyncio.create_task(refresh())
            await asyncio.sleep(0)
            return await super().submit(entries)

    write(Refreshing(), 1)

    assert ended == ["sluice-sink-request-loop"]
