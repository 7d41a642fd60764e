"""Spark's writer interfaces, without a Spark session: what a task does, what a commit says."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceArrowWriter, DataSourceStreamWriter
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from sluice.errors import OptionError
from sluice.sink import SinkLimits, SinkProgress, SubmitResult
from sluice.sink.strategy_cache import strategy_cache
from sluice.spark.sink import AsyncSinkDataSource
from sluice.spark.sink_writer import CommitMessage

SCHEMA = StructType([StructField("data", StringType())])


class Converter:
    def open(self, schema: Any) -> None:
        if schema.fields[0].dataType.simpleString() != "string":
            raise OptionError("column 'data' is no string")

    def convert(self, batch: pa.RecordBatch) -> Iterator[str]:
        yield from batch.column(0).to_pylist()


class Collecting:
    """A destination that keeps what it gets, and refuses its first request once when told so."""

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
            return SubmitResult(entries[:refused])
        self.stored.extend(entries)
        return SubmitResult()

    def is_fatal(self, error: Exception) -> bool:  # noqa: ARG002
        return True

    def close(self) -> None:
        pass


OPTIONS = {"destination": f"{__name__}:Collecting", "rateLimiting": "aimd"}


@pytest.fixture(autouse=True)
def _empty() -> None:
    Collecting.stored.clear()
    Collecting.refusals.clear()
    strategy_cache._resting.clear()


def source(**options: str) -> AsyncSinkDataSource:
    return AsyncSinkDataSource(CaseInsensitiveDict(OPTIONS | options))


def batches(*counts: int) -> Iterator[pa.RecordBatch]:
    for count in counts:
        yield pa.record_batch([pa.array([str(n) for n in range(count)])], names=["data"])


def message(**changes: Any) -> CommitMessage:
    values: dict[str, Any] = {
        "destination": "kinesis stream 'x'",
        "query": "q",
        "partition": 0,
        "records": 10,
        "bytes": 100,
        "requests": 2,
        "retries": 1,
        "refused": 1,
        "timeouts": 0,
        "dead_letters": 0,
        "duration": 0.5,
        "limit": 40,
    }
    return CommitMessage(**(values | changes))


def test_the_format_is_known_by_its_name() -> None:
    """As users write it."""
    assert AsyncSinkDataSource.name() == "async-sink"


@pytest.mark.parametrize("streaming", [True, False])
def test_a_task_writes_all_of_its_rows(*, streaming: bool) -> None:
    """What write returns speaks for every row, and travels as plain numbers."""
    made = source().streamWriter(SCHEMA, False) if streaming else source().writer(SCHEMA, False)
    writer = pickle.loads(pickle.dumps(made))
    Collecting.refusals.append(3)
    written = pickle.loads(pickle.dumps(writer.write(batches(25, 0, 5))))

    assert len(Collecting.stored) == 30
    assert (written.records, written.bytes, written.refused, written.retries) == (30, 45, 3, 3)
    assert written.requests >= 4
    assert written.destination == "collecting"
    assert written.query is None


def test_spark_gives_arrow_to_both_writers() -> None:
    """The classes are those by which the installed PySpark tells who takes Arrow."""
    import pyspark.sql.datasource as spark  # noqa: PLC0415

    arrow = getattr(spark, "DataSourceStreamArrowWriter", DataSourceArrowWriter)

    assert isinstance(source().streamWriter(SCHEMA, False), arrow)
    assert isinstance(source().streamWriter(SCHEMA, False), DataSourceStreamWriter)
    assert isinstance(source().writer(SCHEMA, False), DataSourceArrowWriter)


def test_a_task_without_rows_is_done_at_once() -> None:
    """Empty partitions are common."""
    assert source().writer(SCHEMA, False).write(batches()).records == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("streaming", [True, False])
def test_overwriting_is_refused(*, streaming: bool) -> None:
    """A stream of records cannot be emptied first."""
    make = source().streamWriter if streaming else source().writer
    with pytest.raises(OptionError, match="cannot be overwritten: use save mode 'append'"):
        make(schema=SCHEMA, overwrite=True)


def test_columns_are_checked_before_anything_runs() -> None:
    """Where the query starts, not in a task."""
    with pytest.raises(OptionError, match="no string"):
        source().streamWriter(StructType([StructField("data", IntegerType())]), False)


def test_options_are_checked_before_anything_runs() -> None:
    """Likewise."""
    with pytest.raises(OptionError, match="'maxBatchSize' is '11'"):
        source(maxBatchSize="11").writer(SCHEMA, False)


def test_dead_letters_are_on_disk_when_a_task_is_done(tmp_path: Path) -> None:
    """oversizedRecords=deadLetter: they count in what write returns, and lie below the path."""
    options = {"deadLetterPath": str(tmp_path), "oversizedRecords": "deadLetter", "maxRecordSizeInBytes": "1"}
    writer: Any = source(**options).streamWriter(SCHEMA, False)
    written = writer.write(batches(12))
    (file,) = tmp_path.rglob("*.jsonl")
    letters = [json.loads(line) for line in file.read_text().splitlines()]

    assert (written.records, written.dead_letters) == (10, 2)
    assert [base64.b64decode(letter["data"]) for letter in letters] == [b"10", b"11"]
    assert letters[0]["destination"] == "collecting"


def test_an_error_of_a_task_reaches_spark() -> None:
    """And leaves no writer behind."""
    with pytest.raises(AttributeError):
        source().writer(SCHEMA, False).write(iter([None]))  # type: ignore[list-item]


def test_what_is_learnt_survives_an_epoch() -> None:
    """The limit that a refusal lowered holds in the next epoch of the same worker."""
    Collecting.refusals.append(1)
    options = {"maxInFlightRequests": "1", "aimdIncrease": "1"}
    first: Any = source(**options).streamWriter(SCHEMA, False).write(batches(10))
    second: Any = source(**options).streamWriter(SCHEMA, False).write(batches())
    other: Any = source(maxInFlightRequests="2").streamWriter(SCHEMA, False).write(batches())

    # 10 to start with, halved by the refusal, one more after the retry.
    assert (first.limit, second.limit) == (6, 6)
    assert other.limit == 20


def test_a_commit_logs_one_line_of_sums(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Batch id and figures of all tasks, as name=value."""
    writer = source().streamWriter(SCHEMA, False)
    with caplog.at_level(logging.INFO, logger="sluice.sink"):
        writer.commit([message(), message(records=5, duration=2.0, limit=30), None], batchId=7)

    (record,) = caplog.records
    text = record.getMessage()
    assert text == (
        "committed destination=\"kinesis stream 'x'\" query_id=q batch_id=7 tasks=2 failed_tasks=1 "
        "records=15 bytes=200 requests=4 retries=2 refused=2 timeouts=0 dead_letters=0 duration=2.0 limit=30"
    )


TOLD: list[SinkProgress] = []


def broken(_: SinkProgress) -> None:
    raise OSError("no room for figures")


def test_a_listener_is_told_of_every_commit_and_abort() -> None:
    """progressListener: the same figures as the line, as an object and as JSON."""
    TOLD.clear()
    writer = source(progressListener=f"{__name__}:TOLD.append").streamWriter(SCHEMA, False)
    writer.commit([message(rate=100.5), message(records=5, rate=50.0)], batchId=7)
    writer.abort([None], batchId=8)
    first, second = TOLD

    assert (first.outcome, first.batch_id, first.query_id, first.records) == ("committed", 7, "q", 15)
    assert json.loads(first.json)["rate"] == 150.5
    assert (second.outcome, second.batch_id, second.tasks, second.failed_tasks) == ("aborted", 8, 0, 1)


def test_a_listener_that_fails_does_not_fail_the_commit(caplog: pytest.LogCaptureFixture) -> None:
    """What was written is written; the mistake is logged with its traceback."""
    source(progressListener=f"{__name__}:broken").streamWriter(SCHEMA, False).commit([message()], batchId=7)

    assert "'progressListener' names has failed" in caplog.text
    assert "no room for figures" in caplog.text


@pytest.mark.parametrize(
    ("name", "message"), [("no.such:x", "cannot be loaded"), ("sys:maxsize", "cannot be called")]
)
def test_a_listener_that_is_none_is_refused(name: str, message: str) -> None:
    """Before anything runs."""
    with pytest.raises(OptionError, match=f"'progressListener' is '{name}': it {message}"):
        source(progressListener=name).streamWriter(SCHEMA, False)


def test_an_abort_is_logged_even_without_messages(caplog: pytest.LogCaptureFixture) -> None:
    """Spark passes None for tasks that failed."""
    with caplog.at_level(logging.INFO, logger="sluice.sink"):
        source().streamWriter(SCHEMA, False).abort([None], batchId=3)
        source().writer(SCHEMA, False).abort([None])

    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "aborted batch_id=3 tasks=0 failed_tasks=1" in caplog.text


def test_a_batch_commit_has_no_batch_id(caplog: pytest.LogCaptureFixture) -> None:
    """There are no epochs in a batch query."""
    with caplog.at_level(logging.INFO, logger="sluice.sink"):
        source().writer(SCHEMA, False).commit([message(query=None)])

    assert "batch_id" not in caplog.text
    assert "query_id" not in caplog.text


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
