"""What a task does with its rows, and what it tells the driver."""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType
from sink_fakes import (
    FakeConverter,
    FakeDestination,
    Outcome,
    RefusedError,
    async_setup,
    config,
    rows,
)

from sluice.errors import OptionError, ServiceError, SluiceError
from sluice.retry import Retrier
from sluice.sink import (
    AIMDScalingStrategy,
    CommittingDestination,
    Origin,
    PacedRateLimitingStrategy,
    SubmitResult,
)
from sluice.sink.committing.epoch_end import TaskResult
from sluice.sink.setup import CommittingSinkSetup
from sluice.sink.task import check_columns, write_rows

ORIGIN = Origin("fake", query="q", run="r", batch=7, partition=3, attempt=12)
SCHEMA: Any = object()


class Spool:
    """A sink writer that notes its calls."""

    def __init__(self, calls: list[tuple[str, list[str]]], origin: Origin) -> None:
        self.calls = calls
        self.origin = origin
        self.rows: list[str] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.column(0).to_pylist()
        if "bad" in self.rows:
            raise ServiceError("a bad row")

    def prepare_commit(self) -> Sequence[Any]:
        self.calls.append(("prepare", self.rows))
        return [(self.rows, self.origin)]

    def abort(self) -> None:
        self.calls.append(("abort", self.rows))
        if "worse" in self.rows:
            raise ServiceError("no abort either")

    def close(self) -> None:
        self.calls.append(("close", self.rows))
        if "open" in self.rows:
            raise ServiceError("still open")

    def figures(self) -> dict[str, float]:
        return {"longest_max": max(map(len, self.rows), default=0)}


class TwoPhase(CommittingDestination[Any]):
    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []

    def create_writer(self, schema: Any, origin: Origin) -> Any:  # noqa: ARG002 - the contract's
        return Spool(self.calls, origin)


def prepare(
    destination: TwoPhase, batches: Iterable[pa.RecordBatch], *, write_id: str | None = None
) -> TaskResult:
    setup = CommittingSinkSetup(destination=destination)
    return write_rows(setup, SCHEMA, ORIGIN, batches, write_id=write_id)


class Away(TwoPhase):
    """A two-phase destination whose service is away for a while: `call` fails until then."""

    def __init__(self, call: str, seconds: float, error: SluiceError) -> None:
        super().__init__()
        self.call, self.seconds, self.error = call, seconds, error
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def fail(self, call: str) -> None:
        if call == self.call and self.now < self.seconds:
            raise self.error

    def create_writer(self, schema: Any, origin: Origin) -> Any:  # noqa: ARG002 - the contract's
        self.fail("create")
        outer = self

        class Writer(Spool):
            def write(self, batch: pa.RecordBatch) -> None:
                outer.fail("write")
                super().write(batch)

            def prepare_commit(self) -> Sequence[Any]:
                outer.fail("prepare")
                return super().prepare_commit()

        return Writer(self.calls, origin)

    def run(self) -> TaskResult:
        setup = CommittingSinkSetup(destination=self, max_retry_duration=900.0)
        retrier = Retrier(self.sleep, lambda: 0.5, lambda: self.now)
        return write_rows(setup, SCHEMA, ORIGIN, each_in_a_batch("a", "b"), write_id=None, retrier=retrier)


@pytest.mark.parametrize("call", ["create", "write", "prepare"])
@pytest.mark.parametrize("seconds", [7.0, 60.0, 800.0])
def test_an_outage_ends_no_task_of_a_two_phase_destination(
    call: str, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Each row is written once; the log says when the outage begins and when it ends."""
    destination = Away(call, seconds, ServiceError("away", retryable=True))
    result = destination.run()

    assert result.committables == ((["a", "b"], ORIGIN),)
    assert destination.now >= seconds
    began, ended = [each.message for each in caplog.records if each.name == "sluice.retry"]
    assert began == "retrying for up to 900 s: away"
    assert ended.startswith("succeeded after ")


def test_an_outage_that_does_not_end_fails_the_task() -> None:
    destination = Away("write", math.inf, ServiceError("away", retryable=True))
    with pytest.raises(ServiceError, match="away"):
        destination.run()

    assert 900 <= destination.now < 906
    assert [call for call, _ in destination.calls] == ["abort", "close"]


def test_what_is_wrong_for_good_fails_the_task_at_once() -> None:
    destination = Away("write", math.inf, ServiceError("denied"))
    with pytest.raises(ServiceError, match="denied"):
        destination.run()

    assert destination.now == 0


def each_in_a_batch(*values: str) -> Iterator[pa.RecordBatch]:
    for value in values:
        yield rows([value])


def test_rows_are_acknowledged_when_the_task_is_done() -> None:
    """The result has the task and its figures, and travels to the driver as plain data."""
    destination = FakeDestination(lambda n, entries: SubmitResult(entries[:1] if n == 0 else []))
    result = write_rows(async_setup(destination), SCHEMA, ORIGIN, [rows("abc"), rows("d")], write_id=None)

    assert sorted(destination.stored) == list("abcd")
    assert destination.converter.schema is SCHEMA
    assert destination.converter.opened == 1
    assert destination.closed == 1
    assert (result.figures.records, result.figures.refused, result.origin) == (4, 1, ORIGIN)
    assert pickle.loads(pickle.dumps(result)) == result


def test_an_error_ends_the_task_and_closes_the_writer() -> None:
    """The error is the destination's own."""
    destination = FakeDestination(lambda _, __: RefusedError("denied", fatal=True))
    with pytest.raises(RefusedError, match="denied"):
        write_rows(async_setup(destination), SCHEMA, ORIGIN, [rows("a")], write_id=None)

    assert destination.closed == 1


def test_what_is_learnt_holds_in_the_next_task_of_the_same_sink() -> None:
    """The rate that refusals lowered, for the same key; no limit is higher than what may be in flight."""

    def strategy() -> PacedRateLimitingStrategy:
        return PacedRateLimitingStrategy(
            max_in_flight_requests=1,
            max_batch_size=10,
            scaling_strategy=AIMDScalingStrategy(increase_rate=1, rate_threshold=10),
        )

    def refuse_at_first(number: int, entries: Sequence[str]) -> Outcome:
        return SubmitResult(entries, {"Throttled": len(entries)}) if number < 3 else SubmitResult()

    refusing: Any = FakeDestination(refuse_at_first)
    refusing.is_throttling = lambda _: True
    changes: dict[str, Any] = {"create_strategy": strategy, "strategy_cache_key": object()}
    first = async_setup(refusing, **changes)
    results = [
        write_rows(first, SCHEMA, ORIGIN, [rows("a" * 10)], write_id=None),
        write_rows(async_setup(**changes), SCHEMA, ORIGIN, [], write_id=None),
        write_rows(async_setup(config=config(max_batch_size=5)), SCHEMA, ORIGIN, [], write_id=None),
    ]

    rates = [result.rate for result in results]
    # Each strategy starts with 1,000 a second, and only a rate that was kept is the same in both.
    assert rates[0] is not None
    assert 0 < rates[0] < 1000
    assert rates[1:] == [rates[0], None]
    assert [result.limit for result in results] == [10, 10, 5]


def test_committables_reach_the_driver() -> None:
    """With figures; a writer without bytes has written none that are known."""
    destination = TwoPhase()
    result = prepare(destination, each_in_a_batch("a", "b"))

    assert result.committables == ((["a", "b"], ORIGIN),)
    assert (result.figures.records, result.figures.bytes, result.limit) == (2, 0, None)
    assert result.figures.destination == {"longest_max": 1}
    assert [call for call, _ in destination.calls] == ["prepare", "close"]


class Careless(TwoPhase):
    """Its writers prepare the entries that the test sets."""

    def __init__(self, prepared: Any) -> None:
        super().__init__()
        self.prepared = prepared

    def create_writer(self, schema: Any, origin: Origin) -> Any:
        writer = super().create_writer(schema, origin)
        writer.prepare_commit = lambda: self.prepared
        return writer


@pytest.mark.parametrize("prepared", [None, "/lake/part-0", b"part", {"path": "/lake/part-0"}, 5])
def test_committables_that_are_no_sequence_are_refused(prepared: Any) -> None:
    """Of a text, each character would be one. What was written is removed."""
    destination = Careless(prepared)
    kind = "None" if prepared is None else f"a value of type {type(prepared).__name__}"
    with pytest.raises(
        SluiceError, match=f"fake: prepare_commit returned {kind}: allowed is a sequence, such as a list"
    ):
        prepare(destination, each_in_a_batch("a"))

    assert [call for call, _ in destination.calls] == ["abort", "close"]


def test_a_batch_write_is_a_separate_epoch() -> None:
    """In foreachBatch Spark tells the task the micro-batch around it, which may have several writes."""
    result = prepare(TwoPhase(), [], write_id="w")

    assert result.origin == Origin("fake", run="w", partition=3, attempt=12)


@pytest.mark.parametrize("values", [("a", "bad"), ("worse", "bad")])
def test_a_task_that_fails_aborts(values: tuple[str, ...]) -> None:
    """Its own error is what Spark hears, also if the abort fails."""
    destination = TwoPhase()
    with pytest.raises(ServiceError, match="a bad row"):
        prepare(destination, each_in_a_batch(*values))

    assert [call for call, _ in destination.calls] == ["abort", "close"]


def test_what_was_prepared_is_removed_if_the_writer_cannot_be_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The task fails, so nobody commits it."""
    destination = TwoPhase()
    with pytest.raises(ServiceError, match="still open"):
        prepare(destination, [rows(["open"])])
    assert [call for call, _ in destination.calls] == ["prepare", "close", "abort"]
    assert caplog.text == ""

    with pytest.raises(ServiceError, match="still open"):
        prepare(destination, [rows(["open", "worse"])])
    assert "what this failed task has written could not be removed" in caplog.text


def test_rows_that_cannot_be_read_abort_the_task() -> None:
    """For any error of Spark's own side."""

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield rows("a")
        raise KeyboardInterrupt

    destination = TwoPhase()
    with pytest.raises(KeyboardInterrupt):
        prepare(destination, interrupted())

    assert [call for call, _ in destination.calls] == ["abort", "close"]


def test_columns_are_checked_without_writing() -> None:
    """By the converter, or by a writer that is closed at once."""
    fake, two_phase = FakeDestination(), TwoPhase()
    check_columns(async_setup(fake), SCHEMA, ORIGIN)
    check_columns(CommittingSinkSetup(destination=two_phase), SCHEMA, ORIGIN)

    assert fake.converter.schema is SCHEMA
    assert (fake.requests, fake.closed) == ([], 1)
    assert two_phase.calls == [("close", [])]


async def asynchronous(*_: Any) -> None: ...


class Awaiting:
    """What a plain method returns that calls an `async def`, such as one under a decorator."""

    def __await__(self) -> Iterator[Any]:
        yield


def not_run(*_: Any) -> Any:
    return asynchronous()


def generator(*_: Any) -> Any:
    yield


@pytest.mark.parametrize("function", [not_run, lambda *_: Awaiting(), lambda *_: generator()])
@pytest.mark.parametrize(
    ("method", "calls"), [("write", ["abort", "close"]), ("close", ["prepare", "abort"])]
)
def test_a_writer_that_returns_what_nobody_waits_for_fails_the_task(
    method: str, calls: list[str], function: Any
) -> None:
    """None of it has run: the task would succeed without its rows."""

    class Wrong(TwoPhase):
        def create_writer(self, schema: Any, origin: Origin) -> Any:  # noqa: ARG002 - the contract's
            wrong = type("Wrong", (Spool,), {method: lambda *_: function()})
            return wrong(self.calls, origin)

    destination = Wrong()
    with pytest.raises(SluiceError, match=r"^Wrong\..* returned a .*, so none of it has run"):
        prepare(destination, each_in_a_batch("a"))

    assert [call for call, _ in destination.calls] == calls


def fail(*_: Any) -> Any:
    raise OSError("no writer")


@pytest.mark.parametrize(
    "change", [{"create_strategy": fail}, {"create_converter": fail}, {"dead_letters": fail}]
)
def test_a_task_that_gets_no_writer_closes_its_destination(change: dict[str, Any]) -> None:
    """Spark tries the task again in the same Python worker, with another destination."""
    destination = FakeDestination()
    with pytest.raises(OSError, match="no writer"):
        write_rows(async_setup(destination, **change), SCHEMA, ORIGIN, [rows("a")], write_id=None)

    assert destination.closed == 1


# --- columns that would not be written ------------------------------------------------------------------


class Selective(FakeConverter):
    """Takes two columns, and leaves a third out."""

    known_columns = ("data", "partitionKey")
    ignored_columns = ("shardId",)

    def open(self, schema: Any, _: object = None) -> None:
        if "data" not in map(str.lower, schema.names):
            raise OptionError("column 'data' is required")


def refusal(*columns: str, **changes: Any) -> str:
    """What is wrong with these columns; empty if nothing is."""
    destination = FakeDestination()
    destination.converter = Selective()
    schema = StructType([StructField(name, StringType()) for name in columns])
    try:
        check_columns(async_setup(destination, **changes), schema, ORIGIN)
    except OptionError as error:
        return str(error)
    finally:
        assert destination.closed == 1
    return ""


def test_a_column_that_would_not_be_written_is_refused() -> None:
    """With the nearest name, and the names there are; names have no case, and a third is left out."""
    assert refusal("data", "partition_key") == (
        "FakeDestination: column 'partition_key' would not be written: did you mean 'partitionKey'? "
        "(written columns: data and partitionKey; set 'unknownColumns' to ignore to leave others out)"
    )
    assert refusal("DATA", "PartitionKey", "shardid") == ""


def test_unknown_columns_are_left_out_on_request() -> None:
    """What else is wrong is said all the same."""
    assert refusal("data", "partition_key", ignores_unknown_columns=True) == ""
    assert refusal("dta", ignores_unknown_columns=True) == "column 'data' is required"


def test_a_writer_may_say_which_columns_it_takes() -> None:
    """The same for two-phase destinations; the writer is closed."""

    class Narrow(TwoPhase):
        def create_writer(self, schema: Any, origin: Origin) -> Any:
            made = super().create_writer(schema, origin)
            made.known_columns = "text"  # a tuple of one name, without its comma
            return made

    destination = Narrow()
    schema = StructType([StructField("test", StringType())])
    with pytest.raises(OptionError, match=r"Narrow: column 'test' .*: did you mean 'text'"):
        check_columns(CommittingSinkSetup(destination=destination), schema, ORIGIN)

    assert destination.calls == [("close", [])]


def test_a_task_that_fails_says_what_it_has_done(caplog: pytest.LogCaptureFixture) -> None:
    """In the log of its worker: its figures do not reach the driver, and say most of what went wrong."""

    def refuse_then_deny(number: int, entries: Sequence[str]) -> Outcome:
        if number:
            return RefusedError("denied", fatal=True)
        return SubmitResult(entries[:4], {"Throttled": 3, "Internal": 1})

    with caplog.at_level(logging.WARNING), pytest.raises(RefusedError):
        write_rows(
            async_setup(FakeDestination(refuse_then_deny)),
            SCHEMA,
            ORIGIN,
            [rows("abcdefghij")],
            write_id=None,
        )

    assert "batch 7, partition 3, attempt 12: this task fails with RefusedError; until then " in caplog.text
    assert "records=6 " in caplog.text
    assert "refused_by_code.Internal=1 refused_by_code.RefusedError=4 refused_by_code.Throttled=3" in (
        caplog.text
    )
