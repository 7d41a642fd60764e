"""Spark's writer interfaces in front of a two-phase destination, without a Spark session."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from sluice.errors import CommitError, OptionError, ServiceError
from sluice.sink import Epoch, Origin, SinkProgress
from sluice.spark import sink_writer
from sluice.spark.sink import AsyncSinkDataSource

SCHEMA = StructType([StructField("data", StringType())])
CALLS: list[tuple[str, Any]] = []
TOLD: list[SinkProgress] = []


class Writer:
    """Fails at the row ``bad``, and where it is told to."""

    bytes = 42

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.rows: list[str] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.column(0).to_pylist()
        if "bad" in self.rows:
            raise ServiceError("a bad row")

    def prepare_commit(self) -> Sequence[Any]:
        CALLS.append(("prepare", self.rows))
        return [{"rows": self.rows, "attempt": self.origin.attempt}]

    def abort(self) -> None:
        CALLS.append(("abort task", self.rows))
        if "worse" in self.rows:
            raise ServiceError("no abort either")

    def close(self) -> None:
        CALLS.append(("close", self.rows))


class TwoPhase:
    OPTIONS: ClassVar[Any] = ()
    name = "two-phase"
    refusal: ClassVar[Exception | None] = None

    @classmethod
    def from_options(cls, values: Any, connection: Any) -> TwoPhase:  # noqa: ARG003
        return cls()

    def create_writer(self, schema: Any, origin: Origin) -> Writer:
        if schema.fields[0].dataType.simpleString() != "string":
            raise OptionError("column 'data' is no string")
        return Writer(origin)

    def create_committer(self, epoch: Epoch) -> Any:
        def commit(committables: Sequence[Any]) -> Sequence[Any]:
            if self.refusal:
                raise self.refusal
            CALLS.append(("commit", (epoch, list(committables))))
            return ()

        def abort(committables: Sequence[Any]) -> None:
            CALLS.append(("abort", (epoch, list(committables))))

        return SimpleNamespace(commit=commit, abort=abort)


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    CALLS.clear()
    TOLD.clear()
    yield
    TwoPhase.refusal = None


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls are those of a task of a streaming query."""
    properties = {"streaming.sql.batchId": "7", "sql.streaming.queryId": "q", "spark.jobGroup.id": "r"}
    context = SimpleNamespace(
        getLocalProperty=properties.get, partitionId=lambda: 3, taskAttemptId=lambda: 12
    )
    monkeypatch.setattr(sink_writer, "TaskContext", SimpleNamespace(get=lambda: context))


def source(**options: str) -> AsyncSinkDataSource:
    listener = {"progressListener": f"{__name__}:TOLD.append"}
    return AsyncSinkDataSource(
        CaseInsensitiveDict({"destination": f"{__name__}:TwoPhase"} | listener | options)
    )


def batches(*rows: str) -> Iterator[pa.RecordBatch]:
    for row in rows:
        yield pa.record_batch([pa.array([row])], names=["data"])


def travelled(message: Any) -> Any:
    return pickle.loads(pickle.dumps(message))


@pytest.mark.usefixtures("streaming")
def test_what_a_task_leaves_reaches_the_driver() -> None:
    """Committables, and whose they are, since commit itself is told no more than the batch id."""
    writer = travelled(source().streamWriter(SCHEMA, False))
    message = travelled(writer.write(batches("a", "b")))

    assert (message.query, message.run, message.partition) == ("q", "r", 3)
    assert (message.records, message.bytes) == (2, 42)
    assert message.committables == ({"rows": ["a", "b"], "attempt": 12},)
    assert [call for call, _ in CALLS] == ["close", "prepare", "close"]

    travelled(writer).commit([message, message], batchId=7)
    assert CALLS[-1] == ("commit", (Epoch("q", "r", 7), list(message.committables) * 2))
    (told,) = TOLD
    assert (told.outcome, told.batch_id, told.records, told.limit) == ("committed", 7, 4, None)


@pytest.mark.parametrize("rows", [("a", "bad"), ("worse", "bad")])
def test_a_task_that_fails_aborts(rows: tuple[str, ...]) -> None:
    """And what it failed with is what Spark hears, also when the abort fails."""
    writer: Any = source().writer(SCHEMA, False)
    CALLS.clear()
    with pytest.raises(ServiceError, match="a bad row"):
        writer.write(batches(*rows))

    assert [call for call, _ in CALLS] == ["abort task", "close"]


def test_rows_that_cannot_be_read_abort_the_task() -> None:
    """Whatever Spark's own side raises."""
    writer: Any = source().writer(SCHEMA, False)
    CALLS.clear()

    def rows() -> Iterator[pa.RecordBatch]:
        yield from batches("a")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        writer.write(rows())

    assert [call for call, _ in CALLS] == ["abort task", "close"]


@pytest.mark.usefixtures("streaming")
def test_an_abort_gets_what_there_is() -> None:
    """Spark passes None for tasks that failed; where all have, nobody can say whose epoch it was."""
    writer: Any = source().streamWriter(SCHEMA, False)
    message = writer.write(batches("a"))
    writer.abort([None, message, None], batchId=7)
    aborted = CALLS[-1]
    writer.abort([None, None], batchId=8)

    assert aborted == ("abort", (Epoch("q", "r", 7), list(message.committables)))
    assert CALLS[-1] is aborted
    assert [(told.outcome, told.failed_tasks) for told in TOLD] == [("aborted", 2), ("aborted", 2)]


@pytest.mark.usefixtures("streaming")
def test_a_commit_that_fails_is_not_told_as_a_commit(caplog: pytest.LogCaptureFixture) -> None:
    """The query fails with the reason."""
    writer: Any = source().streamWriter(SCHEMA, False)
    message = writer.write(batches("a"))
    TwoPhase.refusal = ServiceError("no access")
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(CommitError, match="batch 7 could not be committed: no"),
    ):
        writer.commit([message], batchId=7)

    assert TOLD == []
    assert "committed destination" not in caplog.text


def test_a_batch_write_has_an_id_of_its_own() -> None:
    """The same in all its tasks and on the driver, another one for another write."""
    epochs = []
    for _ in range(2):
        writer: Any = travelled(source().writer(SCHEMA, False))
        messages = [travelled(writer).write(batches("a")) for _ in range(2)]
        travelled(writer).commit(messages)
        epochs.append(CALLS[-1][1][0])
        assert {message.run for message in messages} == {epochs[-1].run}

    assert [(epoch.query, epoch.batch) for epoch in epochs] == [(None, None)] * 2
    assert epochs[0].run != epochs[1].run


@pytest.mark.usefixtures("streaming")
def test_a_batch_write_in_foreach_batch_is_one_of_its_own() -> None:
    """Its tasks are told the query and batch around it, in which there may be another write."""
    writers: list[Any] = [source().writer(SCHEMA, False) for _ in range(2)]
    messages = [writer.write(batches("a")) for writer in writers]
    for writer, message in zip(writers, messages, strict=True):
        writer.commit([message])
    epochs = [what[0] for call, what in CALLS if call == "commit"]

    assert [(epoch.query, epoch.batch) for epoch in epochs] == [(None, None)] * 2
    assert [message.run for message in messages] == [epoch.run for epoch in epochs]
    assert [message.query for message in messages] == [None, None]
    assert messages[0].run != messages[1].run


def test_a_stream_without_a_query_id_is_refused() -> None:
    """After a restart nobody could tell whether the batch is there."""
    writer: Any = source().streamWriter(SCHEMA, False)
    with pytest.raises(CommitError, match="has not told its tasks which query"):
        writer.commit([writer.write(batches("a"))], batchId=7)


def test_columns_and_options_are_checked_before_anything_runs() -> None:
    """Where the query starts, and options of the async writer are refused."""
    with pytest.raises(OptionError, match="no string"):
        source().streamWriter(StructType([StructField("data", IntegerType())]), False)
    with pytest.raises(OptionError, match="'maxBatchSize' is not for destination"):
        source(maxBatchSize="5").writer(SCHEMA, False)
    with pytest.raises(OptionError, match="cannot be overwritten"):
        source().writer(SCHEMA, True)
