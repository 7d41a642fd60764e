"""Recipes of docs/recipes.md that combine features of Spark with the connector, as printed."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from integration.support.jars import jars
from integration.support.kafka import kafka
from integration.support.kinesis import Streams
from integration.support.pages import run
from integration.support.paths import ROOT
from integration.support.queries import await_end
from integration.support.spark import SPARK_VERSION

REGION = "eu-west-1"
PAGE = (ROOT / "docs" / "recipes.md").read_text()
# The newest that Maven Central has for a version of Spark, or for one before it.
KAFKA = {(4, 0): "4.0.2", (4, 1): "4.1.1"}.get((SPARK_VERSION[0], SPARK_VERSION[1]), "4.2.0")
KAFKA_JARS = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")
# Prints what a stream holds, as JSON.
SHOW = """
import json
read = spark.read.format("kinesis-efo").option("streamName", "{stream}").option("region", "eu-west-1")
rows = read.option("startingPosition", "TRIM_HORIZON").load().selectExpr("partitionKey", "string(data)")
print(json.dumps([tuple(row) for row in rows.collect()]))
"""


def recipe(title: str) -> str:
    """The program below a heading."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return "\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))


def replaced(program: str, texts: dict[str, str]) -> str:
    for text, other in texts.items():
        assert text in program
        program = program.replace(text, other)
    return program


@pytest.fixture
def there(streams: Streams) -> Streams:
    """The streams of the region that the page names."""
    return Streams(streams.endpoint, region=REGION)


def filled(there: Streams, name: str, *records: tuple[str, bytes]) -> str:
    """A new stream of two shards whose name begins as the page has it."""
    stream = there.create(2, name=f"{name}_{uuid.uuid4().hex[:8]}")
    if records:
        there.put(stream, records)
    return stream


Play = Callable[..., dict[str, Any]]


@pytest.fixture
def play(spark: SparkSession, there: Streams, tmp_path: Path) -> Play:
    """Executes a program in a new session, reading the given stream in place of a name; returns its names."""

    def executed(program: str, given: dict[str, str]) -> dict[str, Any]:
        for name, stream in given.items():
            program = replaced(program, {f'"{name}"': f'"{stream}"'})
        option = f'.option("endpointUrl", "{there.endpoint}")'
        start = "" if "startingPosition" in program else '.option("startingPosition", "TRIM_HORIZON")'
        program = re.sub(r'\.format\("kinesis-efo"\)', lambda found: found[0] + option + start, program)
        program = re.sub(
            r"\.start\(([^)]*)\)", r".trigger(availableNow=True).start(\1).awaitTermination()", program
        )
        names: dict[str, Any] = {
            "__name__": "__main__",  # classes are pickled by value, as in a script
            "spark": spark.newSession(),
            "F": sf,
        }
        exec(program.replace("/data/", f"{tmp_path}/"), names)  # noqa: S102 - the documentation
        return names

    return executed


def rows_of(frame: DataFrame, place: Path, mode: str = "append") -> list[tuple[Any, ...]]:
    """What a streaming query gives from its checkpoint on, batch by batch."""
    found: list[tuple[Any, ...]] = []

    def take(batch: DataFrame, _: int) -> None:
        found.extend(tuple(row) for row in batch.collect())

    writer = frame.writeStream.foreachBatch(take).outputMode(mode).trigger(availableNow=True)
    await_end(writer.option("checkpointLocation", str(place / "checkpoint")).start())
    return found


def test_variant(play: Play, there: Streams, tmp_path: Path) -> None:
    """Fields of a document, the document itself, and nulls for other text and other types."""
    documents = [
        b'{"user": "ada", "items": [{"price": 1.5}], "more": {"a": [1]}}',
        b'{"user": "bob", "items": "none"}',
        b"no JSON",
    ]
    stream = filled(there, "clicks", *(("key", document) for document in documents))
    spark = play(recipe("JSON without a schema: Variant"), {"clicks": stream})["spark"]
    views = spark.read.parquet(str(tmp_path / "views")).orderBy("sequenceNumber")
    found = views.selectExpr("user", "price", "to_json(event)").collect()
    assert [tuple(row) for row in found] == [
        ("ada", 1.5, '{"items":[{"price":1.5}],"more":{"a":[1]},"user":"ada"}'),
        ("bob", None, '{"items":"none","user":"bob"}'),
        (None, None, None),
    ]


def test_duplicates(play: Play, there: Streams, tmp_path: Path) -> None:
    """In one batch, and in a later one."""
    stream = filled(there, "clicks", *[("key", b'{"id": "%d"}' % number) for number in (1, 2, 1)])
    unique = play(recipe("Drop a producer's duplicates"), {"clicks": stream})["unique"].select("id")
    assert sorted(rows_of(unique, tmp_path)) == [("1",), ("2",)]
    there.put(stream, [("other", b'{"id": "2"}'), ("key", b'{"id": "3"}')])
    assert rows_of(unique, tmp_path) == [("3",)]


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
@pytest.mark.skipif(SPARK_VERSION < (4, 1), reason="Spark 4.0 has transformWithStateInPandas alone")
def test_state(play: Play, there: Streams, tmp_path: Path) -> None:
    """In the order of the stream, within a batch and from one to the next."""
    pytest.importorskip("pandas")  # Spark asks for it
    statuses = (b"on", b"on", b"off", b"on")
    stream = filled(there, "devices", *(("a", status) for status in statuses), ("b", b"on"))
    changes = play(recipe("Keep state for each key"), {"devices": stream})["changes"]
    changes = changes.select("device", "status")
    found = rows_of(changes, tmp_path, "update")
    assert [status for device, status in found if device == "a"] == ["on", "off", "on"]
    assert [status for device, status in found if device == "b"] == ["on"]
    there.put(stream, [("a", b"on"), ("a", b"off"), ("b", b"on")])
    assert rows_of(changes, tmp_path, "update") == [("a", "off")]


@pytest.mark.skipif(SPARK_VERSION < (4, 2), reason="sources have names from Spark 4.2 on")
def test_a_stream_is_added(play: Play, streams: Streams, there: Streams, tmp_path: Path) -> None:
    """On the same checkpoint: the first stream resumes, and the second begins."""
    clicks, orders = filled(there, "clicks", ("key", b"1")), filled(streams, "orders", ("key", b"a"))
    program = recipe("Add a stream to a running query")
    (added,) = re.findall(r"^.* # added later\n", program, re.MULTILINE)
    spark = play(program.replace(added, ""), {"clicks": clicks})["spark"]
    rows = spark.read.parquet(str(tmp_path / "rows")).select("streamName", "data")
    assert [(name, bytes(data)) for name, data in rows.collect()] == [(clicks, b"1")]

    there.put(clicks, [("key", b"2")])
    spark = play(program, {"clicks": clicks, "orders": orders})["spark"]
    rows = spark.read.parquet(str(tmp_path / "rows")).select("streamName", "data")
    found = sorted((name, bytes(data)) for name, data in rows.collect())
    assert found == [(clicks, b"1"), (clicks, b"2"), (orders, b"a")]


def send(broker: str, topic: str, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
    producer: Any = KafkaProducer(bootstrap_servers=broker)
    for key, value in records:
        producer.send(topic, key=key, value=value)
    producer.close()  # when all are sent


def receive(broker: str, topic: str) -> list[tuple[bytes, bytes]]:
    consumer: Any = KafkaConsumer(
        topic, bootstrap_servers=broker, auto_offset_reset="earliest", consumer_timeout_ms=5000
    )
    found = [(record.key, record.value) for record in consumer]
    consumer.close()
    return found


@pytest.mark.soak(seconds=50)
def test_kafka_to_kinesis_and_back(there: Streams, tmp_path: Path) -> None:
    """With a broker of Kafka: keys, null keys, null values, and the order of each key."""
    orders, invoices = filled(there, "orders"), filled(there, "invoices", ("c", b"1"), ("d", b"2"))
    put = [(b"ab"[number % 2 :][:1], b"%d" % number) for number in range(100)]
    with kafka() as broker:
        send(broker, "orders", [*put, (None, b"no key"), (b"a", None)])
        texts = {
            "broker-1:9092,broker-2:9092": broker,
            '"streamName", "orders"': f'"streamName", "{orders}"',
            '"streamName", "invoices"': f'"streamName", "{invoices}"',
            "/data/": f"{tmp_path}/",
            ".start()": ".trigger(availableNow=True).start()",
            "spark.streams.awaitAnyTermination()": "there.awaitTermination()\nback.awaitTermination()",
        }
        program = PAGE.split("```python\n")[1].split("```")[0] + replaced(
            recipe("Kafka to Kinesis and back"), texts
        )
        library = jars(f"org.apache.spark:spark-sql-kafka-0-10_2.13:{KAFKA}")
        needed = ",".join(str(jar) for jar in library.glob("*.jar") if jar.name.startswith(KAFKA_JARS))
        shown = run(
            f"{program}\n{SHOW.format(stream=orders)}",
            tmp_path,
            there.endpoint,
            PYSPARK_SUBMIT_ARGS=f"--jars {needed} pyspark-shell",
        )
        received = sorted(receive(broker, "invoices"))
    assert received == [(b"c", b"1"), (b"d", b"2")]
    rows = [tuple(row) for row in json.loads(shown.splitlines()[-1])]
    assert {key: [value for k, value in rows if k == key] for key in ("a", "b")} == {
        key: [value.decode() for k, value in put if k == key.encode()] for key in ("a", "b")
    }
    ((key, value),) = (row for row in rows if row[0] not in ("a", "b"))
    assert (re.fullmatch(r"0-\d+", key) is not None, value) == (True, "no key")
