"""What an attempt that fails leaves running: nothing that could write over the next attempt."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from sink_fakes import FakeDestination, ManualClock, Outcome, accept, async_setup, config, rows

from sluice.errors import ServiceError, SluiceError
from sluice.sink import AsyncSinkWriter, NoRateLimitingStrategy, Origin, SubmitResult
from sluice.sink.task import write_rows
from sluice.sink.writing.scheduler import Request

PATIENCE = 60  # seconds, until a test counts as hanging
ORIGIN = Origin("fake", query="q", run="r", batch=7, partition=3, attempt=12)


def eventually(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.001)


def store(table: dict[str, str], entries: Sequence[str]) -> SubmitResult[str]:
    table.update((entry[0], entry[2:]) for entry in entries)
    return SubmitResult()


class SlowDestination(FakeDestination):
    """Its first request takes until it is released; an entry ``key=value`` is stored in a table.

    `release_after`: seconds after which the request proceeds by itself.
    """

    def __init__(self, table: dict[str, str], release_after: float | None = None) -> None:
        super().__init__(self._slow)
        self.table = table
        self.released = threading.Event()
        self.began = threading.Event()
        self._after = release_after

    def _slow(self, number: int, entries: Sequence[str]) -> Outcome:
        if number == 0:
            self.began.set()
            self.released.wait(self._after)
        return store(self.table, entries)


def fails_after(destination: SlowDestination, *values: str) -> Iterator[pa.RecordBatch]:
    """Rows, and an error of Spark's own when they are being sent."""
    yield rows(values)
    destination.began.wait()
    raise KeyboardInterrupt


def write(destination: FakeDestination, batches: Any) -> None:
    settings = config(max_batch_size=1)
    write_rows(async_setup(destination, config=settings), object(), ORIGIN, batches, write_id=None)  # type: ignore[arg-type]


def test_a_request_of_a_failed_attempt_cannot_land_after_the_next_attempt() -> None:
    """The attempt fails when its requests have ended: the next one, which Spark starts then, comes after."""
    table: dict[str, str] = {}
    first = SlowDestination(table, release_after=0.2)
    with pytest.raises(KeyboardInterrupt):
        write(first, fails_after(first, "k=old"))
    assert (first.running, first.closed) == (0, 1)
    write(FakeDestination(lambda _, entries: store(table, entries)), [rows(["k=new"])])

    assert table == {"k": "new"}


def test_a_request_that_hangs_is_waited_for_as_long_as_a_request_may_take(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Then the log says that it may still be executed."""
    destination = SlowDestination({})
    settings = config(max_batch_size=1, request_timeout=0.05)
    # By this clock the request does not time out.
    writer = AsyncSinkWriter(destination, settings, NoRateLimitingStrategy(), clock=ManualClock())
    try:
        with caplog.at_level(logging.WARNING), closing(writer):
            writer.write(rows(["a=1", "b=2"]))
            destination.began.wait()
    finally:
        destination.released.set()

    assert "SlowDestination: 1 requests of a failed task have no answer after 0 s" in caplog.text
    assert destination.requests == [["a=1"]]


def timed_out(destination: FakeDestination, clock: ManualClock) -> AsyncSinkWriter[str]:
    """A writer with one request that has timed out and still runs; its row was accepted in another one."""
    settings = config(max_batch_size=1, request_timeout=10.0)
    writer = AsyncSinkWriter(destination, settings, NoRateLimitingStrategy(), clock=clock)
    writer.write(rows(["k=old"]))
    eventually(lambda: destination.running == 1)
    clock.now += 10.0
    eventually(lambda: writer.figures.timeouts == 1)
    clock.now += 1.0
    eventually(lambda: writer.figures.records == 1)
    return writer


def test_a_request_that_timed_out_ends_before_its_epoch() -> None:
    """It would write its old row over the one of the next epoch."""
    clock, table = ManualClock(), dict[str, str]()
    destination = SlowDestination(table)
    with closing(timed_out(destination, clock)) as writer:
        flushing = threading.Thread(target=writer.flush)
        flushing.start()
        flushing.join(0.1)
        assert flushing.is_alive()
        destination.released.set()
        flushing.join()
    assert destination.running == 0
    write(FakeDestination(lambda _, entries: store(table, entries)), [rows(["k=new"])])

    assert table == {"k": "new"}


def test_the_next_row_of_a_key_waits_for_a_request_that_timed_out() -> None:
    clock, table = ManualClock(), dict[str, str]()
    destination = SlowDestination(table)
    destination.ordering_key = lambda entry: entry[0]
    with closing(timed_out(destination, clock)) as writer:
        writer.write(rows(["k=new", "l=new"]))
        eventually(lambda: "l" in table)
        assert table == {"k": "old", "l": "new"}
        destination.released.set()
        writer.flush()

    assert table == {"k": "new", "l": "new"}


def test_an_epoch_fails_whose_request_does_not_end() -> None:
    """Twice requestTimeout after it was sent: nothing was committed, and nothing is lost."""
    clock = ManualClock()
    destination = SlowDestination({})
    writer = timed_out(destination, clock)
    clock.now += 9.0
    try:
        with pytest.raises(ServiceError, match="a request is still running 10 s after requestTimeout"):
            writer.flush()
    finally:
        destination.released.set()
        writer.close()


def test_a_closed_writer_begins_no_request() -> None:
    """Not even one that its thread has already received."""
    destination = FakeDestination(accept)
    writer = AsyncSinkWriter(destination, config(), NoRateLimitingStrategy())
    writer.close()
    submit: Any = writer._requests._work
    answer = submit(Request(0, (), 0.0))  # type: ignore[arg-type]

    assert isinstance(answer.error, SluiceError)
    assert destination.requests == []
