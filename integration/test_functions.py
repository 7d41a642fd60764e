"""The column functions in Spark, in Python and SQL, and what docs/recipes.md shows."""

from __future__ import annotations

import base64
import gzip
import json
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import boto3
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sluice
from integration.support.jars import jars
from integration.support.kinesis import REGION, Streams
from integration.support.pages import printed, run
from integration.support.servers import Server
from integration.support.spark import SPARK_VERSION
from sluice.functions import (
    cloudwatch_logs,
    decompress,
    dynamodb_json,
    schema_registry_header,
    to_dynamodb_json,
)

EVENT = {"id": "7", "timestamp": 1432826855123, "message": "hello"}
ENVELOPE = json.dumps(
    {
        "messageType": "DATA_MESSAGE",
        "owner": "111111111111",
        "logGroup": "group",
        "logStream": "stream",
        "subscriptionFilters": ["filter"],
        "logEvents": [EVENT, EVENT],
    }
).encode()
SCHEMA = UUID("b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63")
# The newest that Maven Central has for a version of Spark, or for one before it.
AVRO = {(4, 0): "4.0.2", (4, 1): "4.1.1"}.get((SPARK_VERSION[0], SPARK_VERSION[1]), "4.2.0")


@pytest.fixture(scope="module")
def values() -> list[tuple[bytes | None, bytes | None, str | None]]:
    packed, header = gzip.compress(ENVELOPE), b"\x03\x05" + SCHEMA.bytes + zlib.compress(b"payload")
    return [(packed, header, '{"a":{"N":"1.50"}}'), (None, None, None), (b"bad", b"none", "bad")] * 500


@pytest.fixture
def frame(spark: SparkSession, values: list[Any]) -> DataFrame:
    return spark.createDataFrame(values, "packed binary, header binary, item string").repartition(2)


EXPECTED = {
    (ENVELOPE.decode(), 2, "7", "2015-05-28 15:27:35.123", "glue", str(SCHEMA), "payload", '{"a":1.50}'),
    (None, None, None, None, None, None, None, None),
    ("bad", None, None, None, None, None, "none", None),
}
RESULTS = (
    "string(packed)",
    "size(logs)",
    "element_at(logs, -1).id",
    "string(element_at(logs, -1).timestamp)",
    "header.registry",
    "header.schemaId",
    "string(header.payload)",
    "plain",
)


def test_functions_of_python(frame: DataFrame) -> None:
    """Nulls stay null, bad values become null where it is asked for."""
    made = frame.select(
        decompress("packed").alias("packed"),
        cloudwatch_logs(sf.col("packed"), errors="null").alias("logs"),
        schema_registry_header("header").alias("header"),
        dynamodb_json("item", errors="null").alias("plain"),
    )
    rows = made.selectExpr(*RESULTS).collect()
    assert (len(rows), {tuple(row) for row in rows}) == (1500, EXPECTED)
    back = frame.where("item <> 'bad'").select(to_dynamodb_json(dynamodb_json("item"))).distinct().collect()
    assert [row[0] for row in back] == ['{"a":{"N":"1.50"}}']


def test_functions_of_sql(spark: SparkSession, frame: DataFrame) -> None:
    """Settings by position and by name."""
    sluice.register(spark)
    frame.createOrReplaceTempView("values_of_sql")
    made = spark.sql("""
        SELECT sluice_decompress(packed) AS packed, sluice_cloudwatch_logs(packed, 'null') AS logs,
            sluice_schema_registry_header(header) AS header,
            sluice_dynamodb_json(item, errors => 'null') AS plain
        FROM values_of_sql""")
    assert {tuple(row) for row in made.selectExpr(*RESULTS).collect()} == EXPECTED
    documents = spark.sql(
        "SELECT sluice_to_dynamodb_json('[1.50, null]'), sluice_decompress(null, 'gzip', 'null')"
    )
    assert [tuple(row) for row in documents.collect()] == [('{"L":[{"N":"1.50"},{"NULL":true}]}', None)]


def test_errors_say_what_is_wrong(spark: SparkSession, frame: DataFrame) -> None:
    """In one sentence, with the name of the function."""
    sluice.register(spark)
    frame.createOrReplaceTempView("wrong_values")
    with pytest.raises(PySparkException, match="decompress: a value is not gzip, or is damaged"):
        frame.select(decompress("packed", codec="gzip")).collect()
    with pytest.raises(PySparkException, match=r"decompress: codec is 'gz': allowed are auto, gzip"):
        spark.sql("SELECT sluice_decompress(packed, 'gz') FROM wrong_values").collect()
    with pytest.raises(PySparkException, match=r"decompress: the column is string: allowed is binary"):
        spark.sql("SELECT sluice_decompress(item) FROM wrong_values").collect()


@pytest.mark.parametrize("aggregate", ["false", "true"])
@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_compressed_rows_are_read_again(
    spark: SparkSession, streams: Streams, aggregate: str, codec: str
) -> None:
    """From the sink through a stream to the source."""
    stream, place = streams.create(2), {"endpointUrl": streams.endpoint, "region": REGION}
    rows = spark.range(200).selectExpr("repeat(string(id), 50) AS data", "string(id) AS partitionKey")
    writer = rows.write.format("async-sink").mode("append").options(**place, streamName=stream)
    writer.options(destination="kinesis", compression=codec, aggregate=aggregate).save()
    reader = spark.read.format("kinesis-efo").options(**place, streamName=stream)
    read = reader.option("startingPosition", "TRIM_HORIZON").load()
    found = {bytes(row[0]).decode() for row in read.select(decompress("data")).collect()}
    assert found == {str(number) * 50 for number in range(200)}


def test_the_page_works_as_printed(streams: Streams, tmp_path: Path) -> None:
    """The first example of the functions, in a fresh Python."""
    first, *blocks = printed("docs/recipes.md")
    (example,) = (block for block in blocks if "cloudwatch_logs" in block)
    program = first + example
    there = Streams(streams.endpoint, region="eu-west-1")
    there.put(there.create(1, name="logs"), [("key", gzip.compress(ENVELOPE))])
    shown = run(program, tmp_path, streams.endpoint, TZ="UTC")
    (line, again) = (line for line in shown.splitlines() if "hello" in line)
    assert line == again
    assert datetime.fromisoformat(line.split("|")[2]) == datetime(2015, 5, 28, 15, 27, 35, 123000)  # noqa: DTZ001


# --- schema registries ----------------------------------------------------------------------------------

ORDER_1 = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
ORDER_2 = {**ORDER_1, "fields": [*ORDER_1["fields"], {"name": "total", "type": "double"}]}
PROTO = descriptor_pb2.FileDescriptorProto(name="order.proto", syntax="proto3")
MESSAGE = PROTO.message_type.add(name="Order")
MESSAGE.field.add(name="id", number=1, type=9, label=1)  # string, optional
MESSAGE.field.add(name="total", number=2, type=1, label=1)  # double


@contextmanager
def confluent(schemas: dict[int, dict[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """The API of Confluent's registry: the address, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            found = re.fullmatch(r"/schemas/ids/(\d+)\?format=serialized", self.path)
            assert found is not None
            body = json.dumps(schemas[int(found[1])]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def avro(name: str, total: float | None = None) -> bytes:
    """An order, by https://avro.apache.org/docs/1.12.0/specification/#binary-encoding."""
    return bytes([2 * len(name)]) + name.encode() + (b"" if total is None else struct.pack("<d", total))


def of_glue(schema_id: str, payload: bytes, *, packed: bool = False) -> bytes:
    start = b"\x03\x05" if packed else b"\x03\x00"
    return start + UUID(schema_id).bytes + (zlib.compress(payload) if packed else payload)


def of_confluent(schema_id: int, payload: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + payload


def recipe() -> tuple[str, str]:
    """The program of the recipe, and what makes descriptors."""
    first, second = (
        block for block in printed("docs/recipes.md") if "_of(registry" in block or "Descr" in block
    )
    return first, second


def test_the_recipe_for_registries_works_as_printed(moto: Server, streams: Streams, tmp_path: Path) -> None:
    """Avro of two versions and JSON, of both registries; each schema is asked for once."""
    glue = boto3.client("glue", endpoint_url=moto.endpoint, region_name="eu-west-1")
    glue.create_registry(RegistryName="orders")
    registry = {"RegistryId": {"RegistryName": "orders"}, "Compatibility": "NONE"}
    first = glue.create_schema(
        **registry, SchemaName="avro", DataFormat="AVRO", SchemaDefinition=json.dumps(ORDER_1)
    )["SchemaVersionId"]
    second = glue.register_schema_version(
        SchemaId={"SchemaName": "avro", "RegistryName": "orders"}, SchemaDefinition=json.dumps(ORDER_2)
    )["SchemaVersionId"]
    as_json = glue.create_schema(
        **registry,
        SchemaName="json",
        DataFormat="JSON",
        SchemaDefinition='{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}',
    )["SchemaVersionId"]
    records = [
        of_glue(first, avro("a")),
        of_glue(second, avro("b", 2.5), packed=True),
        of_glue(second, avro("c", 3.5)),
        of_glue(as_json, b'{"id": "d", "total": 4.5}'),
        of_confluent(1, avro("e", 5.5)),
        of_confluent(1, avro("f", 6.5)),
        of_confluent(2, b'{"id": "g", "total": 7.5}'),
        b"no header",
    ]
    there = Streams(streams.endpoint, region="eu-west-1")
    there.put(there.create(1, name="orders"), [("key", record) for record in records])
    program = printed("docs/recipes.md")[0] + recipe()[0]
    schemas = {1: {"schema": json.dumps(ORDER_2)}, 2: {"schema": "{}", "schemaType": "JSON"}}
    with confluent(schemas) as (address, asked):
        replaced = {
            "https://registry.example": address,
            "/data/": f"{tmp_path}/",
            '"eu-west-1")\n    .load()': '"eu-west-1").option("startingPosition", "TRIM_HORIZON").load()',
            ".start()": ".trigger(availableNow=True).start().awaitTermination()",
        }
        for printed_text, text in replaced.items():
            assert printed_text in program
            program = program.replace(printed_text, text)
        found = run(
            f"{program}\nprint(spark.read.parquet('{tmp_path}/orders').toJSON().collect())",
            tmp_path,
            streams.endpoint,
            AWS_ENDPOINT_URL_GLUE=moto.endpoint,
            PYSPARK_SUBMIT_ARGS=f"--jars {_avro_jar()} pyspark-shell",
        )
    rows = sorted((row["id"], row["total"]) for row in map(json.loads, eval(found.splitlines()[-1])))  # noqa: S307
    assert rows == [("a", 0.0), *((name, 2.5 + n) for n, name in enumerate("bcdefg"))]
    assert sorted(asked) == ["/schemas/ids/1?format=serialized", "/schemas/ids/2?format=serialized"]


def _avro_jar() -> str:
    (jar,) = jars(f"org.apache.spark:spark-avro_2.13:{AVRO}").glob("spark-avro*.jar")
    return str(jar)


def test_the_descriptors_of_the_recipe_decode_protobuf() -> None:
    """With the message behind the index. Spark's own package is not needed to see that."""
    names: dict[str, Any] = {"base64": base64}
    exec(recipe()[1], names)  # noqa: S102 - the documentation
    made = names["descriptors"](base64.b64encode(PROTO.SerializeToString()).decode())
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(made).file:
        pool.AddSerializedFile(file.SerializeToString())
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("Order"))
    read: Any = order.FromString(b"\x00\x0a\x01h\x11"[1:] + struct.pack("<d", 8.5))
    assert (read.id, read.total) == ("h", 8.5)
