"""The sources of docs/custom-sources.md, as they are printed: in Spark, on S3, before a Kafka broker."""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from value_source import ValueSource

import sluice
from integration.support.drivers import Driver, Line, Outcome, started_drivers
from integration.support.kafka import Topic, kafka
from integration.support.replay_driver import HALF, WRITTEN, DriverPlan
from integration.support.servers import Server
from integration.support.source_driver import FILE_ROWS, MODULES
from integration.support.spark import SPARK_VERSION
from sluice.source import Limits, PositionLog, Split, SplitId, StreamLog, ValueRecord
from sluice.testing import QueryRunner, Subject, check_history

DRIVER = "integration.support.source_driver"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "custom-sources.md"
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
TITLES = {
    "file_source": "Reads Parquet files and JSON lines below a directory, or an s3:// prefix.",
    "kafka_source": "Reads topics of Kafka.",
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Saves the modules as the page says."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    directory = tmp_path / MODULES
    directory.mkdir()
    for name, title in TITLES.items():
        (code,) = [block for block in blocks if block.startswith(f'"""{title}"""')]
        (directory / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(directory)
    yield directory
    for name in TITLES:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with kafka() as servers:
        yield servers


@pytest.fixture
def topic(broker: str) -> Iterator[Topic]:
    made = Topic(broker)
    yield made
    made.close()
    gc.collect()  # what the client leaves open


def write_file(directory: Path, number: int) -> list[Line]:
    """Moves a whole file into a directory. Returns its rows as the driver writes them."""
    ids = range(number * FILE_ROWS, (number + 1) * FILE_ROWS)
    file = directory / f"{number:03}.jsonl"
    whole = "".join(json.dumps({"id": n, "name": f"name {n}"}) + "\n" for n in ids)
    file.with_name("_unfinished").write_text(whole)
    file.with_name("_unfinished").rename(file)
    return [(str(number), str(n), 0, f"name {n}".encode().hex()) for n in ids]


def kafka_query(broker: str, topic: Topic, **options: str) -> QueryRunner:
    source = importlib.import_module("kafka_source").KafkaSource
    given = {"bootstrapServers": broker, "topics": topic.name, "startingPosition": "EARLIEST", **options}
    return QueryRunner(source, given)


def offsets(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return sorted((row["partition"], row["offset"]) for row in rows)


@pytest.mark.usefixtures("modules")
def test_kafka_is_read_exactly(broker: str, topic: Topic) -> None:
    """Through limits, crashes, restarts and runs with Trigger.AvailableNow."""
    history = [
        ("put", 300),
        ("batch", Limits(records=40), True),
        ("put", 20),
        ("available", Limits(records=150)),
        ("put", 5),
        ("restart",),
        ("batch", None, False),
        ("put", 1),
    ]
    subject = Subject(
        importlib.import_module("kafka_source").KafkaSource,
        {"bootstrapServers": broker, "topics": topic.name, "startingPosition": "EARLIEST"},
        topic.put,
        expected=lambda: topic.put_so_far,
        identity=lambda row: (row["partition"], row["offset"]),
        split=lambda row: row["partition"],
        position=lambda row: row["offset"],
    )
    check_history(subject, history)


@pytest.mark.usefixtures("modules")
def test_kafka_is_read_from_a_time(broker: str, topic: Topic) -> None:
    """And up to a time, in a batch read."""
    topic.put(10)
    with kafka_query(broker, topic) as query:
        first = query.read_all()
    middle = max(row["timestamp"] for row in first)
    while True:  # the next records have a later millisecond
        topic.put(1)
        with kafka_query(broker, topic) as query:
            rows = query.read_all()
        if max(row["timestamp"] for row in rows) > middle:
            break
    later = min(row["timestamp"] for row in rows if row["timestamp"] > middle).isoformat()
    with kafka_query(broker, topic, startingPosition="AT_TIMESTAMP", startingTimestamp=later) as query:
        assert offsets(query.read_all()) == offsets([r for r in rows if r["timestamp"].isoformat() >= later])
    with kafka_query(broker, topic, endingTimestamp=later) as query:
        assert offsets(query.read_all()) == offsets([r for r in rows if r["timestamp"].isoformat() < later])


@pytest.mark.usefixtures("modules")
def test_files_are_read_from_s3(moto: Server) -> None:
    """By the same code."""
    client: Any = boto3.client(
        "s3",
        endpoint_url=moto.endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",  # noqa: S106 - emulators take anything
    )
    client.create_bucket(Bucket="lake-of-files")
    client.put_object(Bucket="lake-of-files", Key="events/1.jsonl", Body=b'{"id": 1}\n{"id": 2}\n')
    address = moto.endpoint.removeprefix("http://")
    path = f"s3://test:test@lake-of-files/events?scheme=http&endpoint_override={address}&region=us-east-1"
    source = importlib.import_module("file_source").FileSource
    with QueryRunner(source, {"path": path, "splitDiscoveryInterval": "1ms"}) as query:
        assert query.run_batch() == [{"id": 1}, {"id": 2}]
        client.put_object(Bucket="lake-of-files", Key="events/2.jsonl", Body=b'{"id": 3}\n')
        assert query.run_until(3)[2:] == [{"id": 3}]


def test_files_in_spark(spark: SparkSession, modules: Path, tmp_path: Path, checkpoint: str) -> None:
    """A batch read, and a stream that takes what is available in batches of limited size: from PySpark 4.2 on
    in one run, before in as many runs as there are batches.
    """
    code = importlib.import_module("file_source")
    cloudpickle.register_pickle_by_value(code)  # type: ignore[no-untyped-call]  # as in a notebook: the workers cannot import it
    spark.dataSource.register(sluice.data_source(code.FileSource))
    lake = tmp_path / "lake"
    lake.mkdir()
    for number in range(3):
        write_file(lake, number)
    assert spark.read.format("files").load(str(lake)).count() == 3 * FILE_ROWS
    found: list[int] = []

    def run_available() -> list[int]:
        """One run, and the sizes of the batches of all runs."""
        query = (
            spark.readStream.format("files")
            .option("maxBytesPerTrigger", "1")
            .load(str(lake))
            .writeStream.foreachBatch(lambda frame, _: found.append(frame.count()))
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return found

    if SPARK_VERSION >= (4, 2):
        assert run_available() == [FILE_ROWS] * 3
    else:
        assert [len(run_available()) for _ in range(3)] == [1, 2, 3]
        assert found == [FILE_ROWS] * 3
    cloudpickle.unregister_pickle_by_value(code)  # type: ignore[no-untyped-call]
    del modules


class Numbers(PositionLog):
    """Four splits of a hundred numbers. It breaks if two threads call it at a time, or one when it is closed.

    Each leaves a file behind, which tells whether it was closed.
    """

    def __init__(self, directory: Path) -> None:
        self.file = directory / f"{os.getpid()} {id(self)} open"
        self.file.touch()
        self.turn = threading.Lock()

    def list_splits(self, stream: str) -> Sequence[Split]:
        return [Split(SplitId(stream, str(number))) for number in range(4)]

    def bounds(self, _: SplitId) -> tuple[int, int]:
        if not (self.file.exists() and self.turn.acquire(blocking=False)):
            raise RuntimeError(f"{threading.current_thread().name} is not alone: {self.file}")
        time.sleep(0.002)  # the others would come in between
        self.turn.release()
        return 0, 100

    def read(self, split: SplitId, number: int, limit: int) -> tuple[Sequence[Any], int]:
        end = min(self.bounds(split)[1], number + limit)
        return [ValueRecord(str(n), 1, n) for n in range(number, end)], end

    def close(self) -> None:
        self.file.rename(self.file.with_name(self.file.name.replace("open", "closed")))


class NumbersSource(ValueSource):
    """Opens one of `Numbers` for each task."""

    name = "four-numbers"
    LOG = Numbers
    page_limit = 30

    def open_task(self, pause: Callable[[float], None]) -> StreamLog:
        return self.create_log(pause)


def test_one_log_serves_a_task_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Of four splits in two tasks, a thread at a time. Each log is closed."""
    NumbersSource.store = tmp_path
    for module in (sys.modules[__name__], sys.modules[ValueSource.__module__]):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    spark.dataSource.register(sluice.data_source(NumbersSource))
    reader = spark.read.format("four-numbers").options(splitsPerTask="2")
    rows = sorted((row.split, row.value) for row in reader.load().collect())
    assert rows == [(str(split), number) for split in range(4) for number in range(100)]
    assert sorted(file.name.rpartition(" ")[2] for file in tmp_path.iterdir()) == ["closed"] * 3
    for module in (sys.modules[__name__], sys.modules[ValueSource.__module__]):
        cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


@pytest.mark.soak(seconds=100)
@pytest.mark.parametrize("name", ["files", "kafka-like"])
def test_a_killed_driver_reads_the_same_batches_again(
    name: str, modules: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """As for Kinesis: the same rows for the same batch id, in the same order in each split, and all batches
    together hold every record exactly once.
    """
    put, expected, options = _producer(name, tmp_path, request)
    put()
    plan = DriverPlan(0, "", name, str(tmp_path), options)
    plan.output.mkdir()
    with started_drivers() as drivers:
        for attempt, moment in enumerate([(1, HALF), (2, WRITTEN)]):
            driver = Driver(
                replace(plan, attempt=attempt, stop_at=moment), "integration.support.source_driver"
            )
            drivers.append(driver)
            driver.wait_for(f"reached {moment[1]} of batch ")
            driver.kill()
            put()  # a batch that is logged must not take in what comes later
        last = Driver(replace(plan, attempt=2), DRIVER)
        drivers.append(last)
        last.wait_until(lambda: len(Outcome.of(plan.output).rows) >= len(expected()), "all that was put")
        last.end()
    outcome = Outcome.of(plan.output)
    outcome.check_replays()
    assert Counter(outcome.rows) == Counter(expected())
    assert len(outcome.replayed()) >= 2
    del modules


def _producer(
    name: str, directory: Path, request: pytest.FixtureRequest
) -> tuple[Callable[[], None], Callable[[], list[Line]], dict[str, str]]:
    """What puts some more records, what gives all lines so far, and the options of the source."""
    if name == "files":
        lake = directory / "lake"
        lake.mkdir()
        lines: list[Line] = []
        numbers = itertools.count()

        def put_files() -> None:
            for number in itertools.islice(numbers, 8):
                lines.extend(write_file(lake, number))

        size = str(3 * FILE_ROWS * len('{"id": 1000, "name": "name 1000"}'))
        return put_files, lambda: lines, {"path": str(lake), "maxBytesPerTrigger": size}
    broker, topic = request.getfixturevalue("broker"), request.getfixturevalue("topic")
    expected = lambda: [  # noqa: E731 - next to its like
        (str(partition), str(offset), 0, f"record {number}".encode().hex())
        for number, (partition, offset) in enumerate(topic.put_so_far)
    ]
    given = {"bootstrapServers": broker, "topics": topic.name, "startingPosition": "EARLIEST"}
    return lambda: topic.put(1500), expected, {**given, "maxRecordsPerTrigger": "600", "splitsPerTask": "1"}
