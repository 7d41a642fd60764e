"""Spark's writer interfaces in front of an asynchronous destination, without a Spark session."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceArrowWriter, DataSourceStreamWriter
from pyspark.sql.types import (
    ArrayType,
    MapType,
    StringType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from sluice.channels.channel import Address
from sluice.errors import OptionError
from sluice.sink import SinkFigures, SinkLimits, SinkProgress, SubmitResult
from sluice.sink.setup import strategy_cache
from sluice.spark import sink_writer
from sluice.spark.sink import AsyncSinkDataSource
from sluice.spark_settings import SparkSettings

SCHEMA = StructType([StructField("data", StringType())])


def string_columns(names: str) -> StructType:
    """A schema of columns of strings."""
    return StructType([StructField(name, StringType()) for name in names.split()])


class Converter:
    def open(self, schema: Any) -> None:
        if schema.fields[0].dataType.simpleString() != "string":
            raise OptionError("column 'data' is no string")

    def convert(self, batch: pa.RecordBatch) -> Iterator[str]:
        yield from batch.column(0).to_pylist()


class Collecting:
    """A destination that keeps what it gets, and refuses the first entries of a request on demand."""

    OPTIONS: ClassVar[Any] = ()
    LIMITS: ClassVar[SinkLimits] = SinkLimits(
        max_batch_size=10, max_batch_size_in_bytes=1000, max_record_size_in_bytes=100
    )
    stored: ClassVar[list[str]] = []
    refusals: ClassVar[list[int]] = []
    name = "collecting"

    @classmethod
    def from_options(cls, values: Any, connection: Any) -> Collecting:  # noqa: ARG003
        return cls()

    def create_converter(self) -> Converter:
        return Converter()

    def size_in_bytes(self, entry: str) -> int:
        return len(entry)

    def submit(self, entries: Sequence[str]) -> SubmitResult[str]:
        if self.refusals:
            refused = self.refusals.pop()
            self.stored.extend(entries[refused:])
            return SubmitResult(entries[:refused], {"Throttled": refused})
        self.stored.extend(entries)
        return SubmitResult()

    def is_fatal(self, error: Exception) -> bool:  # noqa: ARG002
        return True

    def figures(self) -> dict[str, float]:
        return {"kept": len(self.stored), "largest_max": 7}

    def close(self) -> None:
        pass


class Telling(Collecting):
    """Says why it refuses."""

    def is_throttling(self, code: str) -> bool:
        return code == "Throttled"


OPTIONS = {"destination": f"{__name__}:Collecting", "rateLimiting": "aimd"}


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_writer, "find_or_start", lambda *_: None)  # no processes
    Collecting.stored.clear()
    Collecting.refusals.clear()
    strategy_cache._strategies.clear()


def source(**options: str) -> AsyncSinkDataSource:
    return AsyncSinkDataSource(CaseInsensitiveDict(OPTIONS | options))


def batches(*counts: int) -> Iterator[pa.RecordBatch]:
    for count in counts:
        yield pa.record_batch([pa.array([str(n) for n in range(count)])], names=["data"])


def figures(message: Any) -> SinkFigures:
    made: SinkFigures = message.result.figures
    return made


@pytest.mark.parametrize("streaming", [True, False])
def test_a_task_writes_all_of_its_rows(*, streaming: bool) -> None:
    """What write returns says what became of every row, and is pickled as plain data."""
    made = source().streamWriter(SCHEMA, False) if streaming else source().writer(SCHEMA, False)
    writer = pickle.loads(pickle.dumps(made))
    Collecting.refusals.append(3)
    written = pickle.loads(pickle.dumps(writer.write(batches(25, 0, 5))))

    assert len(Collecting.stored) == 30
    done = figures(written)
    assert (done.records, done.bytes, done.refused, done.retries) == (30, 45, 3, 3)
    assert done.requests >= 4
    assert (written.result.origin.destination, written.result.origin.query) == ("collecting", None)


def test_spark_gives_arrow_to_both_writers() -> None:
    """They inherit from the classes by which the installed PySpark recognises writers that take Arrow."""
    import pyspark.sql.datasource as spark  # noqa: PLC0415

    arrow = getattr(spark, "DataSourceStreamArrowWriter", DataSourceArrowWriter)

    assert isinstance(source().streamWriter(SCHEMA, False), arrow)
    assert isinstance(source().streamWriter(SCHEMA, False), DataSourceStreamWriter)
    assert isinstance(source().writer(SCHEMA, False), DataSourceArrowWriter)


@pytest.mark.parametrize("streaming", [True, False])
def test_overwriting_is_refused(*, streaming: bool) -> None:
    """A stream of records cannot be emptied first."""
    make = source().streamWriter if streaming else source().writer
    with pytest.raises(OptionError, match=r"cannot be overwritten: use \.mode\('append'\)") as caught:
        make(schema=SCHEMA, overwrite=True)

    assert "outputMode('append') in a streaming query" in str(caught.value)
    assert "update" not in str(caught.value)  # Spark refuses it


BUILT_IN: dict[str, tuple[dict[str, str], str]] = {
    "kinesis": ({"streamName": "s"}, "data partition_key"),
    "kinesis, aggregated": (
        {"destination": "kinesis", "streamName": "s", "aggregate": "true"},
        "data explicit_hash_key",
    ),
    "firehose": ({"deliveryStream": "s"}, "data id"),
    "sqs": ({"queueUrl": "https://sqs.eu-west-1.amazonaws.com/1/q"}, "body groupId"),
}


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("streaming", [True, False])
def test_a_column_that_would_be_dropped_is_refused(name: str, *, streaming: bool) -> None:
    """By every destination that does not write all columns, unless an option makes it ignore them."""
    options, columns = BUILT_IN[name]
    schema = string_columns(columns)
    unknown = schema.names[1]

    def make(**more: str) -> Any:
        made = AsyncSinkDataSource(
            CaseInsensitiveDict({"destination": name, "region": "eu-west-1"} | options | more)
        )
        return made.streamWriter(schema, False) if streaming else made.writer(schema, False)

    with pytest.raises(OptionError, match=f"column '{unknown}' would not be written"):
        make()
    make(unknownColumns="ignore")


@pytest.mark.parametrize("streaming", [False, True])
def test_a_column_that_spark_cannot_give_to_python_is_refused(*, streaming: bool) -> None:
    """Else the task fails with `KeyError: 21`, also where the column is to be ignored."""
    unreadable = [
        StructField("age", YearMonthIntervalType()),
        StructField("m", YearMonthIntervalType(1, 1)),
        StructField("l", ArrayType(YearMonthIntervalType())),
        StructField("s", StructType([StructField("in", MapType(StringType(), YearMonthIntervalType()))])),
    ]
    schema = StructType([*SCHEMA.fields, *unreadable])
    made = source(unknownColumns="ignore")
    message = (
        "async-sink: column 'age' is interval year to month; column 'm' is interval month; "
        "column 'l' is array<interval year to month>; "
        "column 's' is struct<in:map<string,interval year to month>>: Spark cannot give intervals "
        "of months to Python"
    )
    with pytest.raises(OptionError, match=message):
        (made.streamWriter if streaming else made.writer)(schema, overwrite=False)


def test_dead_letters_are_on_disk_when_a_task_is_done(tmp_path: Path) -> None:
    """oversizedRecords=deadLetter: they count in what write returns, and lie below the path."""
    options = {"deadLetterPath": str(tmp_path), "oversizedRecords": "deadLetter", "maxRecordSizeInBytes": "1"}
    writer: Any = source(**options).streamWriter(SCHEMA, False)
    written = figures(writer.write(batches(12)))
    (file,) = tmp_path.rglob("*.jsonl")
    letters = [json.loads(line) for line in file.read_text().splitlines()]

    assert (written.records, written.dead_letters) == (10, 2)
    assert [base64.b64decode(letter["data"]) for letter in letters] == [b"10", b"11"]
    assert letters[0]["destination"] == "collecting"


@pytest.mark.parametrize("below", ["", "letters", "of/orders"])
def test_dead_letters_that_cannot_be_written_keep_the_query_from_starting(tmp_path: Path, below: str) -> None:
    """The first dead letter may come after days."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match=r"option 'deadLetterPath' is '.*file.*': dead letters cannot be"):
        source(deadLetterPath=str(tmp_path / "file" / below)).streamWriter(SCHEMA, False)


def test_what_is_learnt_survives_an_epoch() -> None:
    """The rate that refusals for load lowered holds in the next epoch of the same worker."""
    Collecting.refusals += [8, 4, 2]  # fewer requests than three may be refused by chance
    options = {"destination": f"{__name__}:Telling", "maxInFlightRequests": "1", "aimdIncrease": "1"}
    first: Any = source(**options).streamWriter(SCHEMA, False).write(batches(10))
    second: Any = source(**options).streamWriter(SCHEMA, False).write(batches())
    other: Any = source(**options | {"maxInFlightRequests": "2"}).streamWriter(SCHEMA, False).write(batches())

    assert first.result.rate < 1000  # entries a second to start with
    assert second.result.rate == first.result.rate
    assert other.result.rate == 1000


TOLD: list[SinkProgress] = []


def test_commits_and_aborts_are_reported() -> None:
    """The figures of all tasks, and Spark's batch id; Spark passes None for a task that failed."""
    TOLD.clear()
    options = {"progressListener": f"{__name__}:TOLD.append"}
    stream: Any = source(**options).streamWriter(SCHEMA, False)
    batch: Any = source(**options).writer(SCHEMA, False)
    messages = [stream.write(batches(10)), stream.write(batches(5)), None]
    stream.commit(messages, batchId=7)
    stream.abort([None], batchId=8)
    batch.commit(messages)
    batch.abort([None])

    assert [(told.outcome, told.batch_id, told.records, told.failed_tasks) for told in TOLD] == [
        ("committed", 7, 15, 1),
        ("aborted", 8, 0, 1),
        ("committed", None, 15, 1),
        ("aborted", None, 0, 1),
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no.such:x", "cannot be loaded"),
        ("sys:maxsize", "cannot be called"),
        ("asyncio:sleep", "is async def, and would not run"),
        ("ast:walk", "is a generator, and would not run"),
    ],
)
def test_a_listener_that_is_none_is_refused(name: str, message: str) -> None:
    """Before anything runs."""
    with pytest.raises(OptionError, match=f"'progressListener' is '{name}': it {message}"):
        source(progressListener=name).streamWriter(SCHEMA, False)


def test_tasks_do_not_need_the_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is called on the driver's machine, and its module may be there only."""
    on_the_driver: Any = ModuleType("on_the_driver")
    on_the_driver.told = []
    monkeypatch.setitem(sys.modules, "on_the_driver", on_the_driver)
    writer: Any = source(progressListener="on_the_driver:told.append").streamWriter(SCHEMA, False)

    monkeypatch.setitem(sys.modules, "on_the_driver", None)  # cannot be imported in the task
    message = pickle.loads(pickle.dumps(writer)).write(batches(3))
    monkeypatch.setitem(sys.modules, "on_the_driver", on_the_driver)
    writer.commit([message], batchId=7)

    assert [told.records for told in on_the_driver.told] == [3]


def test_the_shim_is_light_and_has_nothing_but_the_source() -> None:
    """Spark imports it to learn the name: neither the SDK nor Arrow may come with it."""
    code = (
        "import sys, pyspark_async_sink as shim\n"
        "assert [n for n in vars(shim) if n.startswith('D')] == ['DefaultSource']\n"
        "assert shim.DefaultSource.name() == 'async-sink'\n"
        "assert not {'boto3', 'botocore', 'sluice.sink', 'sluice.kinesis'} & set(sys.modules), sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_shim_that_cannot_load_does_without_its_format() -> None:
    """An import error in it would make every automatically registered format disappear."""
    code = (
        "import sys, warnings\n"
        "sys.modules['sluice.spark.sink'] = None\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import pyspark_async_sink as shim\n"
        "assert not hasattr(shim, 'DefaultSource')\n"
        "assert 'async-sink is not available' in str(caught[0].message)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_server_of_a_shared_bucket_starts_with_the_first_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the writer is sent to them, once. Spark also makes writers to commit with, which need none."""
    started: list[object] = []
    address = Address("127.0.0.1", 9, b"secret", b"start")

    def start(host: str) -> Address:
        started.append(host)
        return address

    monkeypatch.setattr(sink_writer, "find_or_start", start)
    options = {
        **OPTIONS,
        "rateLimiting": "token-bucket",
        "tokenBucketRate": "5",
        "tokenBucketBurst": "3",
        "tokenBucketScope": "QUERY",
    }
    for kind in (sink_writer.StreamSinkWriter, sink_writer.BatchSinkWriter):
        writer = kind(options, SCHEMA, overwrite=False)
        assert not started
        copies = [pickle.loads(pickle.dumps(writer)) for _ in range(2)]
        assert started == ["127.0.0.1"]
        assert [copy._query_server for copy in copies] == [address, address]
        assert b"secret" not in repr(vars(copies[0])).encode()
        started.clear()


def test_a_bucket_that_workers_cannot_reach_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there certainly are other hosts."""
    bucket = {"rateLimiting": "token-bucket", "tokenBucketRate": "5", "tokenBucketBurst": "3"}
    given = {**OPTIONS, **bucket, "tokenBucketScope": "query"}
    for settings in (SparkSettings("local[4]"), SparkSettings()):
        monkeypatch.setattr(sink_writer, "find_spark_settings", lambda settings=settings: settings)
        sink_writer.StreamSinkWriter(given, SCHEMA, overwrite=False)
    cluster = SparkSettings("spark://10.0.0.1:7077", "driver", "10.0.0.5")
    monkeypatch.setattr(sink_writer, "find_spark_settings", lambda: cluster)
    with pytest.raises(
        OptionError, match=r"'tokenBucketAddress' is '127\.0\.0\.1': tasks of other hosts cannot"
    ):
        sink_writer.StreamSinkWriter(given, SCHEMA, overwrite=False)
    reachable = {**given, "tokenBucketAddress": "10.0.0.5"}
    sink_writer.StreamSinkWriter(reachable, SCHEMA, overwrite=False)


# --- speculation ------------------------------------------------------------------------------------------


class FakeTask:
    """A task that Spark tells its settings."""

    told: ClassVar[dict[str, str]] = {}

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802 - Spark's name
        return self.told.get(key)

    def partitionId(self) -> int:  # noqa: N802
        return 0

    def taskAttemptId(self) -> int:  # noqa: N802
        return 0


@pytest.mark.parametrize("speculation", ["true", "false", None])
def test_speculation_is_warned_of_where_rows_may_be_written_twice(
    speculation: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with the first epoch: only tasks know the setting."""
    sink_writer._warn_of_speculation.cache_clear()
    monkeypatch.setattr(TaskContext, "get", FakeTask)
    monkeypatch.setattr(FakeTask, "told", {} if speculation is None else {"spark.speculation": speculation})
    writer: Any = source().streamWriter(SCHEMA, overwrite=False)
    with caplog.at_level(logging.WARNING):
        for batch in range(3):
            message = pickle.loads(pickle.dumps(writer.write(batches(2))))
            writer.commit([message, message, None], batch)

    warned = [record for record in caplog.records if "speculation is on" in record.getMessage()]
    assert len(warned) == (speculation == "true")
