"""The main job: rows from one Kinesis stream through Spark into another one, compared record by record."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from integration.support.kinesis import REGION, Stored, Streams
from integration.support.queries import publisher_options

SHARDS = 3
COUNT = 2000  # four puts' worth
ARRIVAL = 300.0

BOTH = pytest.mark.usefixtures("publisher")


def rows(count: int, start: int = 0) -> list[tuple[str, bytes]]:
    """(partition key, JSON) as a producer puts them."""
    return [
        (f"user-{number % 97}", json.dumps({"id": number, "amount": number * 7}).encode())
        for number in range(start, start + count)
    ]


def expected(put: Iterable[tuple[str, bytes]]) -> Counter[tuple[str, int, int]]:
    """What `doubled` makes of rows put: key, id and twice the amount."""
    values = [(key, json.loads(data)) for key, data in put]
    return Counter((key, value["id"], 2 * value["amount"]) for key, value in values)


def found(streams: Streams, stream: str) -> Counter[tuple[str, int, int]]:
    """The same of what is in `stream`."""
    values = [(record.partition_key, json.loads(record.data)) for record in streams.read(stream)]
    return Counter((key, value["id"], value["double"]) for key, value in values)


def doubled(source: DataFrame) -> DataFrame:
    """The transformation of these tests, in the sink's columns."""
    value = f.from_json(f.col("data").cast("string"), "id long, amount long")
    parsed = source.select("partitionKey", value.alias("value")).select("partitionKey", "value.*")
    out = f.struct("id", (f.col("amount") * 2).alias("double"))
    return parsed.select(f.to_json(out).alias("data"), "partitionKey")


def connection(streams: Streams) -> dict[str, str]:
    return {"endpointUrl": streams.endpoint, "region": REGION}


def read_stream(spark: SparkSession, streams: Streams, stream: str, **options: str) -> DataFrame:
    return (
        spark.readStream.format("kinesis-efo")
        .options(streamName=stream, startingPosition="TRIM_HORIZON", **connection(streams))
        .options(**publisher_options(), **options)
        .load()
    )


def run_available(frame: DataFrame, streams: Streams, stream: str, checkpoint: str) -> StreamingQuery:
    """Writes what there is, and ends."""
    query = (
        frame.writeStream.format("async-sink")
        .options(destination="kinesis", streamName=stream, **connection(streams))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


@BOTH
def test_what_is_in_the_stream_comes_out_once(spark: SparkSession, streams: Streams, checkpoint: str) -> None:
    """Available records go through, each once; a second run from the checkpoint takes only new ones."""
    source, target = streams.create(SHARDS), streams.create(2)
    first = rows(COUNT)
    streams.put(source, first)
    frame = doubled(read_stream(spark, streams, source))

    query = run_available(frame, streams, target, checkpoint)
    assert found(streams, target) == expected(first)
    # As docs/operate.md has it, on every version of Spark.
    assert sum(progress["sink"]["numOutputRows"] for progress in query.recentProgress) == COUNT

    second = rows(COUNT // 2, start=COUNT)
    streams.put(source, second)
    run_available(frame, streams, target, checkpoint)
    assert found(streams, target) == expected(first + second)


@BOTH
def test_what_arrives_while_it_runs_comes_out_once(
    spark: SparkSession, streams: Streams, checkpoint: str
) -> None:
    """A query with a trigger passes on records that are put while it runs, over several batches."""
    source, target = streams.create(SHARDS), streams.create(2)
    query = (
        doubled(read_stream(spark, streams, source))
        .writeStream.format("async-sink")
        .options(destination="kinesis", streamName=target, **connection(streams))
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    put: list[tuple[str, bytes]] = []
    for number in range(5):
        put += (part := rows(200, start=200 * number))
        streams.put(source, part)
        wait_for_rows(query, len(put))
    query.stop()

    assert found(streams, target) == expected(put)


@BOTH
def test_a_batch_read_and_a_batch_write(spark: SparkSession, streams: Streams) -> None:
    """The same formats serve ``spark.read`` and ``df.write``."""
    source, target = streams.create(SHARDS), streams.create(2)
    put = rows(COUNT)
    streams.put(source, put)

    frame = (
        spark.read.format("kinesis-efo")
        .options(streamName=source, startingPosition="TRIM_HORIZON", **connection(streams))
        .options(**publisher_options())
        .load()
    )
    (
        doubled(frame)
        .write.format("async-sink")
        .mode("append")
        .options(destination="kinesis", streamName=target, **connection(streams))
        .save()
    )

    assert found(streams, target) == expected(put)


@BOTH
def test_the_columns_of_the_source(spark: SparkSession, streams: Streams) -> None:
    """Every column holds what the service says of the record."""
    source = streams.create(SHARDS)
    put = rows(100)
    streams.put(source, put)
    before = time.time()

    frame = (
        spark.read.format("kinesis-efo")
        .options(streamName=source, startingPosition="TRIM_HORIZON", **connection(streams))
        .options(**publisher_options())
        .load()
    )
    read: list[Row] = frame.collect()

    assert frame.schema.simpleString() == (
        "struct<data:binary,partitionKey:string,sequenceNumber:string,subSequenceNumber:bigint,"
        "approximateArrivalTimestamp:timestamp,streamName:string,shardId:string>"
    )
    stored = streams.read(source)
    assert sorted(
        (row.shardId, int(row.sequenceNumber), row.partitionKey, bytes(row.data)) for row in read
    ) == sorted(stored)
    assert {(row.streamName, row.subSequenceNumber) for row in read} == {(source, 0)}
    assert all(abs(row.approximateArrivalTimestamp.timestamp() - before) < ARRIVAL for row in read)


@BOTH
def test_records_of_a_shard_come_in_order(spark: SparkSession, streams: Streams) -> None:
    """Within a shard, rows have rising sequence numbers, as the stream has them."""
    source = streams.create(2)
    streams.put(source, rows(COUNT))

    frame = (
        spark.read.format("kinesis-efo")
        .options(streamName=source, startingPosition="TRIM_HORIZON", **connection(streams))
        .options(**publisher_options())
        .load()
    )
    by_shard: dict[str, list[int]] = {}
    for row in frame.select("shardId", "sequenceNumber").collect():
        by_shard.setdefault(row.shardId, []).append(int(row.sequenceNumber))

    assert len(by_shard) == 2
    assert all(numbers == sorted(numbers) for numbers in by_shard.values())


@pytest.mark.parametrize("shards_per_task", ["1", "8"])
def test_an_aggregation_over_windows(
    spark: SparkSession, streams: Streams, checkpoint: str, shards_per_task: str
) -> None:
    """Totals of windows that the watermark has passed are written once, and right."""
    source, target = streams.create(SHARDS), streams.create(1)
    put = [(key, window_row(number)) for number, (key, _) in enumerate(rows(COUNT))]
    streams.put(source, put)
    value = f.from_json(f.col("data").cast("string"), "at long")
    frame = read_stream(spark, streams, source, shardsPerTask=shards_per_task)
    totals = (
        frame.select(f.timestamp_seconds(value["at"]).alias("at"))
        .withWatermark("at", "10 seconds")
        .groupBy(f.window("at", "1 minute"))
        .agg(f.count("*").alias("n"))
        .select(f.unix_seconds("window.start").alias("start"), "n")
        .select(f.to_json(f.struct("start", "n")).alias("data"))
    )
    run_available(totals, streams, target, checkpoint)
    # One mark moves the watermark past the windows; the batch after it writes them. Before PySpark 4.2 a
    # run is one batch.
    for _ in range(2):
        streams.put(source, [("mark", window_row(1_000_000))])
        run_available(totals, streams, target, checkpoint)

    written = Counter((total["start"], total["n"]) for total in map(json_of, streams.read(target)))
    starts = Counter(json.loads(data)["at"] // 60 * 60 for _, data in put)
    assert written == Counter(starts.items())


def window_row(number: int) -> bytes:
    """Four rows a second from 2026-01-01 on."""
    return json.dumps({"at": 1_767_225_600 + number // 4}).encode()


def json_of(record: Stored) -> dict[str, int]:
    value: dict[str, int] = json.loads(record.data)
    return value


def wait_for_rows(query: StreamingQuery, count: int) -> None:
    """Returns when the query has read `count` rows; raises what it has failed with."""
    batches: dict[int, int] = {}
    end = time.monotonic() + ARRIVAL
    while sum(batches.values()) < count:
        if error := query.exception():
            raise error
        for report in query.recentProgress:
            batches[report.batchId] = max(report.numInputRows, batches.get(report.batchId, 0))
        if time.monotonic() > end:
            raise TimeoutError(f"{sum(batches.values())} of {count} rows after {ARRIVAL:g} s")
        time.sleep(0.1)
