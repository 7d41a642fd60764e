"""A query that is watched, and a stranger who uses up the reads of one of its shards."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from botocore.exceptions import ClientError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.support.kinesis import REGION
from integration.support.model_streams import ModelStreams
from integration.support.queries import read_stream
from sluice.metrics import SluiceListener

NAME = "orders"


@contextlib.contextmanager
def listening(spark: SparkSession, listener: SluiceListener) -> Iterator[SluiceListener]:
    """The listener hears of the session's queries within the block."""
    spark.streams.addListener(listener)
    try:
        yield listener
    finally:
        spark.streams.removeListener(listener)
        listener.close()


@contextlib.contextmanager
def copying_query(
    spark: SparkSession, service: ModelStreams, source: str, sink: str, checkpoint: Path, **options: str
) -> Iterator[StreamingQuery]:
    """Reads one stream and writes another, each half a second."""
    writer = read_stream(spark, service.endpoint, source, **options).select("data").writeStream
    query = (
        writer.format("async-sink")
        .queryName(NAME)
        .options(destination="kinesis", streamName=sink, region=REGION, endpointUrl=service.endpoint)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="500 milliseconds")
        .start()
    )
    try:
        yield query
    finally:
        query.stop()


class Stranger:
    """Polls one shard as fast as it is answered, within the ``with`` block."""

    def __init__(self, service: ModelStreams, stream: str, shard: str) -> None:
        self._client = service.client
        self._asked = {"StreamName": stream, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        iterator = self._client.get_shard_iterator(**self._asked)["ShardIterator"]  # type: ignore[arg-type]
        while not self._ends.is_set():
            with contextlib.suppress(ClientError):  # it is refused itself
                self._client.get_records(ShardIterator=iterator, Limit=1)
            time.sleep(0.01)
