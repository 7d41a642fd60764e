"""The writer as a whole, with its threads. Docstrings name the scenarios that are Flink's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType
from sink_fakes import (
    Behaviour,
    FakeDestination,
    ManualClock,
    Outcome,
    RefusedError,
    config,
    fast_clock,
    rows,
)

from sluice.errors import InvalidRecordError, OptionError, SluiceError
from sluice.sink import (
    AsyncSinkWriter,
    DeadLetter,
    NoRateLimitingStrategy,
    RateLimitingStrategy,
    ResultInfo,
    SubmitResult,
)

# Long enough for any machine; nothing here waits for it unless it is broken.
PATIENCE = 120.0
FAST = fast_clock(100)


@contextmanager
def writing(
    destination: FakeDestination,
    *,
    strategy: RateLimitingStrategy | None = None,
    clock: Callable[[], float] = FAST,
    dead_letters: Any = None,
    **changes: Any,
) -> Iterator[AsyncSinkWriter[str]]:
    before = set(threading.enumerate())
    # An hour of the fast clock is half a minute, which a busy machine may take.
    patient = {"request_timeout": 1e9, "max_retry_duration": 1e9}
    writer = AsyncSinkWriter(
        destination,
        config(**(patient | changes)),
        strategy or NoRateLimitingStrategy(),
        clock=clock,
        dead_letters=dead_letters,
    )
    try:
        yield writer
    finally:
        writer.close()
    assert destination.closed == 1
    deadline = time.monotonic() + PATIENCE
    while set(threading.enumerate()) - before:
        assert time.monotonic() < deadline, "threads are left behind"


def background_flushers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sluice-sink-background-flusher"]


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"


def test_80_records_are_80_written() -> None:
    """Flink: 80 records are 80 written, in their order when one request is sent after the other."""
    destination = FakeDestination()
    with writing(destination) as writer:
        for start in range(0, 80, 8):
            writer.write(rows(str(n) for n in range(start, start + 8)))
        writer.flush()

    assert destination.stored == [str(n) for n in range(80)]
    assert [len(request) for request in destination.requests] == [10] * 8
    assert writer.figures.records == 80


def test_a_batch_that_waited_is_sent_without_a_new_row() -> None:
    """maxTimeInBuffer applies while the task waits for rows: the background flusher sends due entries."""
    clock = ManualClock()
    destination = FakeDestination()
    with writing(destination, clock=clock, max_time_in_buffer=5.0) as writer:
        writer.write(rows("a"))
        clock.now += 4.0
        writer.write(rows("b"))
        assert destination.requests == []
        clock.now += 1.0
        eventually(lambda: destination.stored == ["a", "b"])


def test_a_write_blocks_while_the_buffer_is_full() -> None:
    """Back-pressure: no row is converted for which there is no room."""
    gate = threading.Event()

    def gated(_: int, __: Sequence[str]) -> Outcome:
        assert gate.wait(PATIENCE)
        return SubmitResult()

    destination = FakeDestination(gated)
    with writing(destination, max_batch_size=2, max_buffered_requests=4) as writer:
        thread = threading.Thread(target=writer.write, args=(rows("abcdefghij"),))
        thread.start()
        eventually(lambda: destination.converter.converted == 6)
        # Two in flight, four buffered.
        thread.join(0.05)
        assert thread.is_alive()
        assert destination.converter.converted == 6
        gate.set()
        thread.join(PATIENCE)
        writer.flush()

    assert destination.stored == list("abcdefghij")


class NoLetters:
    """A dead letter queue that is given none."""

    def add(self, dead_letter: DeadLetter) -> None:
        raise AssertionError(dead_letter)

    def flush(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("request_bytes", [2300, 3000])
@pytest.mark.parametrize("dead_letters", [None, NoLetters()])
def test_bytes_that_wait_are_bounded_whatever_rows_become(dead_letters: Any, request_bytes: int) -> None:
    """By what the requests in flight may have, and one entry; little is converted ahead of that."""
    gate = threading.Event()
    made: list[int] = []

    def gated(_: int, __: Sequence[str]) -> Outcome:
        gate.wait(PATIENCE)
        return SubmitResult()

    def inflate(batch: Any) -> Iterator[str]:
        for value in batch.column(0).to_pylist():
            made.append(1)
            yield value * 1000

    destination = FakeDestination(gated)
    destination.converter.convert = inflate  # type: ignore[method-assign]
    many = config(
        max_batch_size=500,
        max_batch_size_in_bytes=request_bytes,
        max_record_size_in_bytes=request_bytes,
        max_in_flight_requests=2,
        max_buffered_requests=10_000,
    )
    writer = AsyncSinkWriter(
        destination, many, NoRateLimitingStrategy(), clock=ManualClock(), dead_letters=dead_letters
    )
    scheduler = writer._scheduler
    waiting: list[int] = []
    add = scheduler.add

    def watched(entries: Sequence[str], sizes: Sequence[int], now: float) -> None:
        add(entries, sizes, now)
        waiting.append(scheduler._buffer.size_in_bytes)

    scheduler.add = watched  # type: ignore[method-assign]

    def write() -> None:
        writer.write(rows("x" * 1500))
        writer.flush()

    task = threading.Thread(target=write)
    task.start()
    eventually(lambda: scheduler.in_flight == 2 and not scheduler.room)
    converted = len(made)
    gate.set()
    task.join(PATIENCE)
    writer.close()

    assert len(destination.stored) == 1500
    assert max(waiting) <= many.max_buffered_bytes + 1000
    assert converted < 60  # 12 in flight or waiting; with dead letters, a slice on top
    assert len(made) == 1500  # each row once


def test_requests_run_side_by_side() -> None:
    """As many as maxInFlightRequests at once: each of these three ends only when the others run."""
    together = threading.Barrier(3)

    def wait_for_others(_: int, __: Sequence[str]) -> Outcome:
        together.wait(PATIENCE)
        return SubmitResult()

    destination = FakeDestination(wait_for_others)
    with writing(destination, max_batch_size=1, max_in_flight_requests=3) as writer:
        writer.write(rows("abc"))
        writer.flush()

    assert destination.most_running == 3


def test_a_fatal_error_is_raised_by_the_next_write() -> None:
    """What fails in the background is raised as it was, by every call from then on."""
    destination = FakeDestination(lambda _, __: RefusedError("denied", fatal=True))
    with writing(destination, max_batch_size=1) as writer:
        writer.write(rows("a"))
        eventually(lambda: writer._scheduler.failure is not None)
        with pytest.raises(RefusedError, match="denied"):
            writer.write(rows("b"))
        with pytest.raises(RefusedError, match="denied"):
            writer.flush()

    assert destination.requests == [["a"]]


def test_a_fatal_error_is_raised_by_a_flush_that_waits() -> None:
    """A flush ends when the destination has failed for good."""
    destination = FakeDestination(lambda _, __: RefusedError("denied", fatal=True))
    with writing(destination) as writer:
        writer.write(rows("ab"))
        with pytest.raises(RefusedError, match="denied"):
            writer.flush()


def test_a_fatal_error_is_raised_by_a_write_that_waits_for_room() -> None:
    """Back-pressure ends when the destination has failed for good."""
    destination = FakeDestination(lambda _, __: RefusedError("denied", fatal=True))
    with (
        writing(destination, max_batch_size=1, max_buffered_requests=1) as writer,
        pytest.raises(RefusedError, match="denied"),
    ):
        writer.write(rows("abcdef"))


def test_an_exit_in_a_request_is_not_lost() -> None:
    """Not only exceptions: anything that ends a request thread ends the writer, and is not retried."""

    def leave(_: int, __: Sequence[str]) -> Outcome:
        raise SystemExit("out")

    with writing(FakeDestination(leave)) as writer:
        writer.write(rows("a"))
        with pytest.raises(SystemExit, match="out"):
            writer.flush()


class Broken(NoRateLimitingStrategy):
    """A strategy that raises once, at the first outcome."""

    def __init__(self) -> None:
        self.told = 0

    def register_completed_request(self, result: ResultInfo) -> None:  # noqa: ARG002 - the contract's
        self.told += 1
        if self.told == 1:
            raise RuntimeError("a broken strategy")


def refuse_all(codes: Any) -> Behaviour:
    return lambda _, entries: SubmitResult(entries, codes)


def unsure(_: int, __: Sequence[str]) -> Outcome:
    raise OSError("gone")


@pytest.mark.parametrize(
    ("behave", "strategy", "error"),
    [
        (refuse_all({}), Broken(), "a broken strategy"),
        (refuse_all({1: 1, "a": 1}), NoRateLimitingStrategy(), "allowed is a mapping of text"),
        (unsure, NoRateLimitingStrategy(), "a broken is_fatal"),
    ],
)
def test_whatever_fails_while_answers_are_handled_is_raised_by_every_call(
    behave: Behaviour, strategy: RateLimitingStrategy, error: str
) -> None:
    """An answer was lost: no later flush says that all rows are written, nor waits for the answer."""
    destination = FakeDestination(behave)
    destination.is_fatal = raising(KeyError("a broken is_fatal"))  # type: ignore[method-assign]
    with writing(destination, strategy=strategy, clock=ManualClock()) as writer:
        writer.write(rows("ab"))
        for _ in range(3):
            with pytest.raises((RuntimeError, TypeError, KeyError), match=error):
                writer.flush()


def raising(error: BaseException) -> Any:
    def call(*_: object) -> Any:
        raise error

    return call


def test_rows_that_were_not_converted_are_not_forgotten() -> None:
    """The writer fails for good: a flush after that would leave out the rows behind the bad one."""
    destination = FakeDestination()
    destination.converter.convert = raising(ZeroDivisionError("a broken converter"))  # type: ignore[method-assign]
    with writing(destination) as writer:
        with pytest.raises(ZeroDivisionError):
            writer.write(rows("ab"))
        with pytest.raises(ZeroDivisionError):
            writer.flush()


def test_closing_does_not_wait_for_a_request_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for ever: such requests end by themselves."""
    monkeypatch.setattr("sluice.sink.writing.writer._LONGEST_CLOSE", 0.0)
    gate = threading.Event()

    def gated(_: int, __: Sequence[str]) -> Outcome:
        gate.wait(PATIENCE)
        return SubmitResult()

    destination = FakeDestination(gated)
    writer = AsyncSinkWriter(destination, config(max_batch_size=1), NoRateLimitingStrategy())
    writer.write(rows("ab"))
    eventually(lambda: destination.running == 1)
    writer.close()
    writer.close()

    assert destination.closed == 1
    assert background_flushers() == []
    gate.set()
    eventually(lambda: destination.running == 0)
    with pytest.raises(SluiceError, match="closed"):
        writer.write(rows("c"))


class Unforgetting(NoRateLimitingStrategy):
    def forget_in_flight(self) -> None:
        raise RuntimeError("cannot forget")


class Unclosable:
    """A dead letter queue."""

    def add(self, dead_letter: DeadLetter) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None:
        raise OSError("cannot close")


@pytest.mark.parametrize("strategy", [NoRateLimitingStrategy(), Unforgetting()])
def test_everything_is_closed_whatever_fails(
    strategy: RateLimitingStrategy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first error is raised, others are logged, and a second call does nothing."""
    monkeypatch.setattr("sluice.sink.writing.writer._LONGEST_CLOSE", 0.0)
    gate = threading.Event()

    def gated(_: int, __: Sequence[str]) -> Outcome:
        gate.wait(PATIENCE)
        return SubmitResult()

    destination = FakeDestination(gated)
    writer = AsyncSinkWriter(destination, config(max_batch_size=1), strategy, dead_letters=Unclosable())
    writer.write(rows("a"))
    both = isinstance(strategy, Unforgetting)
    with pytest.raises((RuntimeError, OSError), match="cannot forget" if both else "cannot close"):
        writer.close()
    writer.close()
    gate.set()

    assert destination.closed == 1
    assert ("closing failed here as well" in caplog.text) == both


def test_a_record_that_is_too_large_is_named_by_size_and_limit() -> None:
    """oversizedRecords=fail: the error has size, limit and destination, and no data."""
    with (
        writing(FakeDestination(), max_record_size_in_bytes=5) as writer,
        pytest.raises(InvalidRecordError) as caught,
    ):
        writer.write(rows(["ok", "much too large"]))

    assert "14 bytes" in str(caught.value)
    assert "5 bytes (maxRecordSizeInBytes)" in str(caught.value)
    assert "FakeDestination" in str(caught.value)
    assert "much" not in str(caught.value)


@pytest.mark.parametrize("first", [rows("ab"), rows("")], ids=["rows", "no rows"])
@pytest.mark.parametrize("keeps_invalid_rows", [False, True])
def test_a_converter_that_was_not_opened_is_opened_by_the_first_rows(
    first: pa.RecordBatch, keeps_invalid_rows: bool
) -> None:
    """Once, before it converts any. `write`, `flush` and `close` are enough for a program without Spark."""
    destination = FakeDestination()
    queue = NoLetters() if keeps_invalid_rows else None
    with writing(destination, dead_letters=queue) as writer:
        assert destination.converter.opened == 0
        for batch in (first, rows("cd"), rows("ef")):
            writer.write(batch)
        writer.flush()

    assert destination.converter.opened == 1
    assert destination.converter.schema == StructType([StructField("data", StringType())])
    assert destination.stored[-4:] == list("cdef")


def test_rows_that_the_converter_does_not_take_are_refused_by_the_first_write() -> None:
    """With its own error. No later call says that all is well."""
    destination = FakeDestination()
    destination.converter.open = raising(OptionError("no column 'id'"))  # type: ignore[method-assign]
    with writing(destination) as writer:
        for _ in range(2):
            with pytest.raises(OptionError, match="no column 'id'"):
                writer.write(rows("ab"))
        with pytest.raises(OptionError, match="no column 'id'"):
            writer.flush()


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 30), max_size=6),
    st.lists(st.sampled_from(["accept", "odd", "all", "raise"]), max_size=12),
    st.integers(1, 4),
)
def test_threads_lose_nothing(batches: list[int], script: list[str], in_flight: int) -> None:
    """Through real threads, refusals and failures: each record is stored exactly once when flush returns."""

    def scripted(number: int, entries: Sequence[str]) -> Outcome:
        todo = script[number] if number < len(script) else "accept"
        if todo == "raise":
            return RefusedError()
        refused = {"accept": [], "odd": entries[1::2], "all": entries}[todo]
        return SubmitResult(refused)

    destination = FakeDestination(scripted)
    expected = []
    with writing(destination, max_batch_size=4, max_in_flight_requests=in_flight) as writer:
        for batch, count in enumerate(batches):
            values = [f"{batch}-{n}" for n in range(count)]
            expected += values
            writer.write(rows(values))
        writer.flush()
        assert sorted(destination.stored) == sorted(expected)

    assert destination.most_running <= in_flight


@pytest.mark.parametrize("own", [{"parts": 2}, OSError("no figures")])
def test_the_destinations_own_figures_are_in_those_of_the_writer(own: Any) -> None:
    """If it has any; without them, the writer's are whole all the same."""

    class Counting(FakeDestination):
        def figures(self) -> Any:
            if isinstance(own, Exception):
                raise own
            return own

    with writing(Counting()) as writer:
        writer.write(rows("abc"))
        writer.flush()
        found = writer.figures

    assert found.records == 3
    assert found.destination == ({} if isinstance(own, Exception) else own)
