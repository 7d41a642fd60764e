"""What a user would write without Sluice: the SDK's own parser, and a tuple for each row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import boto3
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from integration.support.kinesis import REGION

SCHEMA = (
    "data binary, partitionKey string, sequenceNumber string, subSequenceNumber long, "
    "approximateArrivalTimestamp timestamp, streamName string, shardId string"
)
SHARD = "shardId-000000000000"
READY_BYTES = 8 * 2**20  # of a batch of `ReadySource`


class _PlainReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._endpoint, self._stream = options["endpointurl"], options["streamname"]
        self._shards = int(options.get("shards", "1"))

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(f"shardId-{index:012d}") for index in range(self._shards)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        client = boto3.client("kinesis", endpoint_url=self._endpoint, region_name=REGION)
        iterator = client.get_shard_iterator(
            StreamName=self._stream, ShardId=partition.value, ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while iterator:
            answer = client.get_records(ShardIterator=iterator, Limit=10_000)
            for record in answer["Records"]:
                yield (
                    record["Data"],
                    record["PartitionKey"],
                    record["SequenceNumber"],
                    0,
                    record["ApproximateArrivalTimestamp"],
                    self._stream,
                    partition.value,
                )
            iterator = answer.get("NextShardIterator")


class PlainSource(DataSource):
    """Reads a stream with the SDK."""

    @classmethod
    def name(cls) -> str:
        return "plain-kinesis"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        return _PlainReader({key.lower(): value for key, value in self.options.items()})


class _ReadyReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._size, self._rows, self._batches = (int(options[key]) for key in ("size", "rows", "batches"))

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from sluice.kinesis.log.record_batches import ARROW_SCHEMA  # noqa: PLC0415 - where the task runs

        del partition
        rows = self._rows
        columns = [
            pa.array([b"x" * self._size] * rows, pa.binary()),
            pa.array(["key-000001"] * rows),
            pa.array(["4" * 56] * rows),
            pa.array([0] * rows, pa.int64()),
            pa.array([1_700_000_000_000_000] * rows, pa.timestamp("us", tz="UTC")),
            pa.array(["bench"] * rows),
            pa.array([SHARD] * rows),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)
        for _ in range(self._batches):
            yield batch


class ReadySource(DataSource):
    """Yields one record batch again and again: the most that Spark takes from Python."""

    @classmethod
    def name(cls) -> str:
        return "ready-batches"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        return _ReadyReader({key.lower(): value for key, value in self.options.items()})


def put_rows(rows: Iterable[Row], endpoint: str, stream: str) -> None:
    """For ``foreachPartition``: puts 500 records a call, and sends refused records again."""
    client = boto3.client("kinesis", endpoint_url=endpoint, region_name=REGION)
    batch: list[Any] = []

    def put() -> None:
        while batch:
            results = client.put_records(StreamName=stream, Records=batch)["Records"]
            batch[:] = [
                record for record, result in zip(batch, results, strict=True) if "ErrorCode" in result
            ]

    for row in rows:
        batch.append({"Data": row.data, "PartitionKey": row.partitionKey})
        if len(batch) == 500:
            put()
    put()
