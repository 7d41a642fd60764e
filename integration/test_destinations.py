"""Real Spark writes to Firehose, DynamoDB and SQS as an emulator has them; everything is read back."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import boto3
import pytest
from boto3.dynamodb.types import TypeDeserializer
from botocore.config import Config
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from integration.support.kinesis import REGION
from integration.support.servers import Server

COUNT = 1500
FILES = 3

Plain = dict[str, Any]


def client(moto: Server, service: str) -> Any:
    """Plain boto3, and none of the library's code."""
    session: Any = boto3.session.Session()
    return session.client(
        service,
        endpoint_url=moto.endpoint,
        region_name=REGION,
        aws_access_key_id="test",
        aws_secret_access_key="test",  # noqa: S106 - emulators take anything
        config=Config(retries={"total_max_attempts": 5}),
    )


def fresh(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def connection(moto: Server) -> dict[str, str]:
    return {"endpointUrl": moto.endpoint, "region": REGION}


def write(frame: DataFrame, moto: Server, **options: str) -> None:
    frame.write.format("async-sink").mode("append").options(**connection(moto), **options).save()


class StreamWriter(Protocol):
    def __call__(self, frame: DataFrame, moto: Server, **options: str) -> StreamingQuery: ...


@pytest.fixture
def write_stream(spark: SparkSession, tmp_path: Path, checkpoint: str) -> StreamWriter:
    """Writes a frame through a streaming query of one batch for each of `FILES` files."""

    def run(frame: DataFrame, moto: Server, **options: str) -> StreamingQuery:
        directory = str(tmp_path / "rows")
        frame.repartition(FILES).write.mode("append").parquet(directory)
        stream = spark.readStream.schema(frame.schema).option("maxFilesPerTrigger", 1).parquet(directory)
        query = (
            stream.writeStream.format("async-sink")
            .options(**connection(moto), **options)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    return run


# --- Firehose -----------------------------------------------------------------------------------------


@pytest.fixture
def delivery(moto: Server) -> tuple[str, Callable[[], list[str]]]:
    """The name of a delivery stream, and what reads the lines that it has delivered."""
    bucket, name = fresh("bucket"), fresh("delivery")
    s3 = client(moto, "s3")
    s3.create_bucket(Bucket=bucket)
    client(moto, "firehose").create_delivery_stream(
        DeliveryStreamName=name,
        ExtendedS3DestinationConfiguration={
            "RoleARN": "arn:aws:iam::123456789012:role/any",
            "BucketARN": f"arn:aws:s3:::{bucket}",
        },
    )

    def lines() -> list[str]:
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        keys = [each["Key"] for page in pages for each in page.get("Contents", [])]
        files = [s3.get_object(Bucket=bucket, Key=key)["Body"].read().decode() for key in keys]
        return sorted(line for file in files for line in file.splitlines())

    return name, lines


def test_a_stream_to_firehose(
    spark: SparkSession,
    moto: Server,
    delivery: tuple[str, Callable[[], list[str]]],
    write_stream: StreamWriter,
) -> None:
    """Over several batches, and a second run takes only new rows."""
    name, lines = delivery
    options = {"destination": "firehose", "deliveryStream": name}
    text = "concat(id, '\\n') AS data"

    write_stream(spark.range(COUNT).selectExpr(text), moto, **options)
    assert lines() == sorted(map(str, range(COUNT)))
    write_stream(spark.range(COUNT, 2 * COUNT).selectExpr(text), moto, **options)
    assert lines() == sorted(map(str, range(2 * COUNT)))


# --- SQS ----------------------------------------------------------------------------------------------


def create_queue(moto: Server, *, fifo: bool = False) -> str:
    name = fresh("queue") + (".fifo" if fifo else "")
    attributes = {"FifoQueue": "true"} if fifo else {}
    url: str = client(moto, "sqs").create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    return url


def receive_all(moto: Server, url: str) -> list[Plain]:
    sqs = client(moto, "sqs")
    found: list[Plain] = []
    while messages := sqs.receive_message(
        QueueUrl=url,
        MaxNumberOfMessages=10,
        AttributeNames=["All"],
        MessageAttributeNames=["All"],
        WaitTimeSeconds=0,
    ).get("Messages"):
        found += messages
        sqs.delete_message_batch(
            QueueUrl=url,
            Entries=[
                {"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(messages)
            ],
        )
    return found


def test_a_batch_to_a_standard_queue(spark: SparkSession, moto: Server) -> None:
    """Every row is a message, with its attributes; none is there twice."""
    url = create_queue(moto)
    frame = spark.range(200).selectExpr(
        "concat('€ ', id) AS body",
        "map('kind', 'row', 'number', cast(id AS string)) AS attributes",
        "cast(0 AS int) AS delaySeconds",
    )

    write(frame, moto, destination="sqs", queueUrl=url)

    messages = receive_all(moto, url)
    found = {
        message["Body"]: {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}
        for message in messages
    }
    assert len(messages) == 200
    assert found == {f"€ {n}": {"kind": "row", "number": str(n)} for n in range(200)}


def by_group(messages: Sequence[Plain]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        groups[message["Attributes"]["MessageGroupId"]].append(int(message["Body"]))
    return dict(groups)


def test_a_stream_to_a_fifo_queue(spark: SparkSession, moto: Server, write_stream: StreamWriter) -> None:
    """Each group comes in the order of its rows within a task, each message once."""
    url = create_queue(moto, fifo=True)
    frame = spark.range(0, 126, 1, 2).selectExpr(
        "cast(id AS string) AS body",
        "concat('group-', id % 7) AS messageGroupId",
        "cast(id AS string) AS messageDeduplicationId",
    )
    ordered = frame.repartition(2, "messageGroupId").sortWithinPartitions(
        "messageGroupId", f.col("body").cast("int")
    )
    options = {"destination": "sqs", "queueUrl": url}
    expected = {f"group-{group}": list(range(group, 126, 7)) for group in range(7)}

    write(ordered, moto, **options)
    write_stream(frame, moto, **options)

    assert by_group(receive_all(moto, url)) == expected


# --- DynamoDB -----------------------------------------------------------------------------------------


def create_table(moto: Server, **keys: str) -> str:
    """A table whose key has these attributes, of these types (``S``, ``N``, ``B``)."""
    name = fresh("table")
    client(moto, "dynamodb").create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[
            {"AttributeName": key, "KeyType": kind}
            for key, kind in zip(keys, ("HASH", "RANGE"), strict=False)
        ],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": kind} for key, kind in keys.items()],
    )
    return name


def scan(moto: Server, table: str) -> list[Plain]:
    """All items, as the SDK reads them."""
    pages = client(moto, "dynamodb").get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
    read = TypeDeserializer().deserialize
    return [{name: read(value) for name, value in item.items()} for page in pages for item in page["Items"]]


def test_types_of_spark_in_a_table(spark: SparkSession, moto: Server) -> None:
    """As in the documentation's table, in any time zone of the session, and null if there is none."""
    table = create_table(moto, id="S")
    frame = spark.sql(
        """
        SELECT 'a' AS id, cast(1.5 AS float) AS f, cast(0.1 AS double) AS d, tinyint(-7) AS i,
            cast('99999999999999999999999999999999999999' AS decimal(38, 0)) AS wide,
            X'00FF' AS bytes, DATE'2026-11-21' AS day, TIMESTAMP'2026-11-21 12:00:00+02:00' AS at,
            TIMESTAMP_NTZ'2026-11-21 12:00:00.5' AS ntz, true AS ok, cast(NULL AS string) AS nothing,
            array(1, NULL) AS list, map('k', cast(NULL AS int), 'l', 2) AS map,
            named_struct('x', named_struct('y', array(1.25)), 'gone', cast(NULL AS int)) AS nested
        """
    )

    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        write(frame, moto, destination="dynamodb", tableName=table)
        write(
            frame.selectExpr("struct(*) AS item").withColumn(
                "item", f.col("item").withField("id", f.lit("b"))
            ),
            moto,
            destination="dynamodb",
            tableName=table,
        )
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")

    wanted = {
        "f": Decimal("1.5"),
        "d": Decimal("0.1"),
        "i": -7,
        "wide": Decimal("9" * 38),
        "bytes": b"\x00\xff",
        "day": date(2026, 11, 21).isoformat(),
        "at": datetime(2026, 11, 21, 10, tzinfo=timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "ntz": "2026-11-21T12:00:00.500000",
        "ok": True,
        "list": [1, None],
        "map": {"k": None, "l": 2},
        "nested": {"x": {"y": [Decimal("1.25")]}},
    }
    found = {item.pop("id"): item for item in scan(moto, table)}
    assert found == {"a": wanted, "b": wanted}


def test_sets_updates_and_conditions(spark: SparkSession, moto: Server, write_stream: StreamWriter) -> None:
    """Rows set their columns in items that are older, also when a batch is written again."""
    table = create_table(moto, id="S")
    options = {"destination": "dynamodb", "tableName": table, "keyColumns": "id"}
    first = spark.sql(
        """
        SELECT * FROM VALUES ('a', 1, 'x', array('p', 'q', 'p'), array(1.5, 2.0), array(X'00')),
            ('b', 5, 'y', array(), array(3.0), NULL) AS rows(id, version, name, ss, ns, bs)
        """
    )
    write(first, moto, **options, setColumns="ss,ns,bs")
    wanted = {
        "a": {"version": 1, "name": "x", "ss": {"p", "q"}, "ns": {Decimal("1.5"), 2}, "bs": {b"\x00"}},
        "b": {"version": 5, "name": "y", "ns": {3}},
    }
    assert {item.pop("id"): item for item in scan(moto, table)} == wanted

    newer = spark.sql(
        """
        SELECT * FROM VALUES ('a', 2, array('r'), 7), ('b', 4, array('r'), 8), ('c', 1, NULL, 9)
            AS rows(id, version, ss, extra)
        """
    )
    options |= {
        "setColumns": "ss",
        "writeMode": "update",
        "condition": "attribute_not_exists(id) OR #version < :version",
    }
    for _ in range(2):
        write(newer.coalesce(1), moto, **options)
    wanted["a"] |= {"version": 2, "ss": {"r"}, "extra": 7}
    wanted["c"] = {"version": 1, "extra": 9}
    assert {item.pop("id"): item for item in scan(moto, table)} == wanted

    del options["setColumns"]
    rows = spark.range(300).selectExpr("concat('k', id % 50) AS id", "int(id) AS version", "id AS n")
    # The emulator sets all tables back where a transaction is cancelled, so it takes one at a time.
    write_stream(rows.coalesce(1), moto, **options, maxInFlightRequests="1")
    found = {item["id"]: item for item in scan(moto, table)}
    assert {found[f"k{n}"]["version"] for n in range(50)} == set(range(250, 300))


def test_a_stream_of_changes_to_a_table(
    spark: SparkSession, moto: Server, write_stream: StreamWriter
) -> None:
    """Puts and deletes, of many rows of a key and over several batches, leave what its last row says."""
    table = create_table(moto, id="N", kind="S")
    options = {
        "destination": "dynamodb",
        "tableName": table,
        "keyColumns": "id, kind",
        "operationColumn": "op",
    }
    rows = "id % 100 AS id", "'x' AS kind", "id AS version"
    changes = spark.range(0, 1000, 1, 1).selectExpr(*rows, "if(id % 3 = 0, 'DELETE', 'PUT') AS op")

    write(changes.coalesce(1), moto, **options)
    last = {n % 100: n for n in range(1000)}
    wanted = {key: n for key, n in last.items() if n % 3}
    assert {int(item["id"]): int(item["version"]) for item in scan(moto, table)} == wanted

    for start in (1000, 1050):
        write_stream(
            spark.range(start, start + 50).selectExpr(*rows, "if(id % 2 = 0, 'DELETE', 'PUT') AS op"),
            moto,
            **options,
        )
    assert {int(item["id"]): int(item["version"]) for item in scan(moto, table)} == {
        n % 100: n for n in range(1000, 1100) if n % 2
    }


# --- in bad weather -----------------------------------------------------------------------------------


# --- what is not there --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "columns", "message"),
    [
        ({"destination": "firehose", "deliveryStream": "nowhere"}, "'a' AS data", "firehose|nowhere"),
        ({"destination": "dynamodb", "tableName": "nowhere"}, "'a' AS id", "ResourceNotFound"),
        ({"destination": "sqs", "queueUrl": "http://127.0.0.1/1/nowhere"}, "'a' AS body", "NonExistentQueue"),
        ({"destination": "sqs", "queueUrl": "http://127.0.0.1/1/nowhere"}, "'a' AS text", "column 'body'"),
        ({"destination": "dynamodb", "tableName": "nowhere", "keyColumns": "id"}, "'a' AS x", "keyColumns"),
        ({"destination": "firehose", "deliveryStream": "nowhere"}, "1 AS data", "column 'data' is int"),
    ],
)
def test_a_missing_target(
    spark: SparkSession, moto: Server, options: dict[str, str], columns: str, message: str
) -> None:
    """A missing target or column fails the query at once, by name."""
    with pytest.raises(PySparkException, match=message):
        write(spark.range(1).selectExpr(columns), moto, **options)
