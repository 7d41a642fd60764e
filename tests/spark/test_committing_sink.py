"""Spark's writer interfaces in front of a two-phase destination, without a Spark session."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StringType, StructField, StructType

from sluice.errors import OptionError
from sluice.sink import Epoch, Origin, SinkProgress
from sluice.spark import sink_writer
from sluice.spark.sink import AsyncSinkDataSource

SCHEMA = StructType([StructField("data", StringType())])
CALLS: list[tuple[str, Any]] = []
TOLD: list[SinkProgress] = []


class Writer:
    """Notes its calls."""

    bytes = 42

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.rows: list[str] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.column(0).to_pylist()

    def prepare_commit(self) -> Sequence[Any]:
        CALLS.append(("prepare", self.rows))
        return [{"rows": self.rows, "attempt": self.origin.attempt}]

    def abort(self) -> None:
        CALLS.append(("abort task", self.rows))

    def close(self) -> None:
        CALLS.append(("close", self.rows))


class TwoPhase:
    OPTIONS: ClassVar[Any] = ()
    name = "two-phase"

    @classmethod
    def from_options(cls, values: Any, connection: Any) -> TwoPhase:  # noqa: ARG003
        return cls()

    def create_writer(self, schema: Any, origin: Origin) -> Writer:
        if schema.fields[0].dataType.simpleString() != "string":
            raise OptionError("column 'data' is no string")
        return Writer(origin)

    def create_committer(self, epoch: Epoch) -> Any:
        def commit(committables: Sequence[Any]) -> Sequence[Any]:
            CALLS.append(("commit", (epoch, list(committables))))
            return ()

        def abort(committables: Sequence[Any]) -> None:
            CALLS.append(("abort", (epoch, list(committables))))

        return SimpleNamespace(commit=commit, abort=abort)


@pytest.fixture(autouse=True)
def _empty() -> None:
    CALLS.clear()
    TOLD.clear()


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls are those of a task of a streaming query."""
    properties = {
        "streaming.sql.batchId": "7",
        "sql.streaming.queryId": "q",
        "spark.jobGroup.id": "r",
        "spark.speculation": "true",
    }
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
    """Committables with query and run: Spark's call of commit has the batch id only."""
    writer = travelled(source().streamWriter(SCHEMA, False))
    message = travelled(writer.write(batches("a", "b")))

    result = message.result
    assert result.origin == Origin("two-phase", query="q", run="r", batch=7, partition=3, attempt=12)
    assert (result.figures.records, result.figures.bytes) == (2, 42)
    assert not message.may_write_twice  # Spark passes on what one run of each task has left
    assert result.committables == ({"rows": ["a", "b"], "attempt": 12},)
    assert [call for call, _ in CALLS] == ["close", "prepare", "close"]

    travelled(writer).commit([message, message], batchId=7)
    assert CALLS[-1] == ("commit", (Epoch("q", "r", 7), list(result.committables) * 2))
    (told,) = TOLD
    assert (told.outcome, told.batch_id, told.records, told.limit) == ("committed", 7, 4, None)


def test_a_task_that_fails_aborts() -> None:
    """What Spark's own side raises is raised."""
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
    """Spark passes None for tasks that failed; if all have, the driver does not know the epoch."""
    writer: Any = source().streamWriter(SCHEMA, False)
    message = writer.write(batches("a"))
    writer.abort([None, message, None], batchId=7)
    aborted = CALLS[-1]
    writer.abort([None, None], batchId=8)

    assert aborted == ("abort", (Epoch("q", "r", 7), list(message.result.committables)))
    assert CALLS[-1] is aborted
    assert [(told.outcome, told.failed_tasks) for told in TOLD] == [("aborted", 2), ("aborted", 2)]


def test_a_batch_write_has_its_own_id() -> None:
    """The same in all its tasks and on the driver; another write has another one."""
    epochs = []
    for _ in range(2):
        writer: Any = travelled(source().writer(SCHEMA, False))
        messages = [travelled(writer).write(batches("a")) for _ in range(2)]
        travelled(writer).commit(messages)
        epochs.append(CALLS[-1][1][0])
        assert {message.result.origin.run for message in messages} == {epochs[-1].run}

    assert [(epoch.query, epoch.batch) for epoch in epochs] == [(None, None)] * 2
    assert epochs[0].run != epochs[1].run


@pytest.mark.usefixtures("streaming")
def test_a_batch_write_in_foreach_batch_is_a_separate_one() -> None:
    """Spark tells its tasks the query and micro-batch around it, which may have several writes."""
    writers: list[Any] = [source().writer(SCHEMA, False) for _ in range(2)]
    messages = [writer.write(batches("a")) for writer in writers]
    for writer, message in zip(writers, messages, strict=True):
        writer.commit([message])
    epochs = [what[0] for call, what in CALLS if call == "commit"]

    assert [(epoch.query, epoch.batch) for epoch in epochs] == [(None, None)] * 2
    origins = [message.result.origin for message in messages]
    assert [origin.run for origin in origins] == [epoch.run for epoch in epochs]
    assert [origin.query for origin in origins] == [None, None]
    assert origins[0].run != origins[1].run
