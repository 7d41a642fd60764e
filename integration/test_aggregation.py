"""aggregate=true through real Spark into emulators, and out again: every row once, in far fewer records."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from aws_kinesis_agg.deaggregator import iter_deaggregate_records
from pyspark.sql import DataFrame, SparkSession

from integration.support.kinesis import REGION, Streams

ROWS = 6000
KEYS = 40
SHARDS = 3


@pytest.fixture(params=["ministack", "kinesis-local"])
def some_streams(request: pytest.FixtureRequest) -> Streams:
    """Two emulators, of which one knows how to reshard."""
    found: Streams = request.getfixturevalue(
        "streams" if request.param == "ministack" else "resharding_streams"
    )
    return found


def frame(spark: SparkSession, start: int = 0) -> DataFrame:
    """Rows of some 100 bytes; each key belongs to one task, in order."""
    rows = spark.range(start, start + ROWS, 1, 1)
    return (
        rows.selectExpr("id", f"concat('key-', id % {KEYS}) AS partitionKey")
        .repartition(2, "partitionKey")
        .sortWithinPartitions("id")
        .selectExpr("rpad(cast(id AS string), 100, ' ') AS data", "partitionKey")
    )


def connection(streams: Streams) -> dict[str, str]:
    return {"endpointUrl": streams.endpoint, "region": REGION}


def write(rows: DataFrame, streams: Streams, stream: str, **options: str) -> None:
    (
        rows.write.format("async-sink")
        .mode("append")
        .options(destination="kinesis", streamName=stream, aggregate="true", **connection(streams), **options)
        .save()
    )


def read(spark: SparkSession, streams: Streams, stream: str) -> dict[str, list[int]]:
    """What the source makes of it: the number of every row, by key, in the order of sequence numbers."""
    rows = (
        spark.read.format("kinesis-efo")
        .options(
            streamName=stream, startingPosition="TRIM_HORIZON", deaggregate="true", **connection(streams)
        )
        .load()
        .collect()
    )
    found: dict[str, list[int]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (int(row.sequenceNumber), row.subSequenceNumber)):
        found[row.partitionKey].append(int(row.data))
    return dict(found)


def expected(rows: int = ROWS) -> dict[str, list[int]]:
    return {f"key-{key}": list(range(key, rows, KEYS)) for key in range(KEYS)}


def test_rows_come_back_once_and_in_order(spark: SparkSession, some_streams: Streams) -> None:
    """From our source, and from the vendor's library; a record holds hundreds of rows."""
    stream = some_streams.create(SHARDS)
    write(frame(spark), some_streams, stream)

    assert read(spark, some_streams, stream) == expected()
    stored = some_streams.read(stream)
    assert len(stored) <= ROWS // 100
    raw: list[dict[str, Any]] = [
        {
            "SequenceNumber": str(record.sequence_number),
            "PartitionKey": record.partition_key,
            "ApproximateArrivalTimestamp": 0,
            "Data": record.data,
        }
        for record in stored
    ]
    assert len(list(iter_deaggregate_records(raw, data_format="Boto3"))) == ROWS
    print(f"\n{ROWS} rows in {len(stored)} records of {SHARDS} shards")
