"""Runs queries on the source and keeps the rows of each of their batches, for tests to compare."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.support.kinesis import REGION

__all__ = ["ARRIVAL", "Recorder", "Row", "read_stream", "wait_until"]

ARRIVAL = 60.0  # seconds that rows, or a failure, may take


class Row(NamedTuple):
    """A row that the source gave, and the batch it came in."""

    batch: int
    shard: str
    sequence_number: int
    data: bytes


def read_stream(spark: SparkSession, endpoint: str, stream: str, **options: str) -> DataFrame:
    """The stream from its horizon on; `options` may say otherwise."""
    connection = {"endpointUrl": endpoint, "region": REGION, "streamName": stream}
    everything = {"startingPosition": "TRIM_HORIZON", **connection, **options}
    return spark.readStream.format("kinesis-efo").options(**everything).load()


def wait_until(holds: Callable[[], bool], what: str, query: StreamingQuery | None = None) -> None:
    """Returns when `holds` does; raises what `query` has failed with, or that it took too long."""
    end = time.monotonic() + ARRIVAL
    while not holds():
        if query is not None and (error := query.exception()):
            raise error
        if time.monotonic() > end:
            raise TimeoutError(f"not within {ARRIVAL:g} s: {what}")
        time.sleep(0.05)


class Recorder:
    """Takes the batches of one query after another, all from one checkpoint.

    A batch that comes again must hold the same rows, shard by shard in the same order.

    Attributes:
        intervene: called with the id of each batch before its rows are read; may wait, or raise to
            make the application fail in the middle of it.
    """

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        self.intervene: Callable[[int], None] = lambda _batch: None
        self._batches: dict[int, list[Row]] = {}
        self._lock = threading.Lock()

    @property
    def rows(self) -> list[Row]:
        """All rows, batch by batch, in the order of their shards."""
        with self._lock:
            return [row for _, rows in sorted(self._batches.items()) for row in rows]

    @property
    def batches(self) -> dict[int, list[Row]]:
        with self._lock:
            return {batch: rows for batch, rows in self._batches.items() if rows}

    def found(self) -> Counter[tuple[str, int, bytes]]:
        return Counter((row.shard, row.sequence_number, row.data) for row in self.rows)

    def data(self) -> list[bytes]:
        """What the rows hold, sorted."""
        return sorted(row.data for row in self.rows)

    def start(self, frame: DataFrame) -> StreamingQuery:
        """Starts a query that runs until it is stopped or fails."""
        return self._writer(frame).trigger(processingTime="100 milliseconds").start()

    def run_available(self, frame: DataFrame) -> None:
        """Takes what there is; raises what the query fails with."""
        query = self._writer(frame).trigger(availableNow=True).start()
        if not query.awaitTermination(int(ARRIVAL)):
            query.stop()
            raise TimeoutError(f"what is available was not read in {ARRIVAL:g} s")

    def wait_for(self, query: StreamingQuery, count: int) -> None:
        """Returns when `count` rows have come in all."""
        wait_until(lambda: len(self.rows) >= count, f"{count} rows", query)

    def wait_for_data(self, query: StreamingQuery, data: Iterable[bytes]) -> None:
        """Returns when all of `data` have come."""
        wanted = set(data)
        wait_until(lambda: wanted <= {row.data for row in self.rows}, "all that was put", query)

    def _writer(self, frame: DataFrame):  # type: ignore[no-untyped-def]  # noqa: ANN202 - see pyspark
        return frame.writeStream.foreachBatch(self._take).option("checkpointLocation", self.checkpoint)

    def _take(self, frame: DataFrame, batch: int) -> None:
        self.intervene(batch)
        columns = frame.select("shardId", "sequenceNumber", "data")
        rows = [
            Row(batch, row.shardId, int(row.sequenceNumber), bytes(row.data)) for row in columns.collect()
        ]
        with self._lock:
            before = self._batches.get(batch)
            if before is not None and sorted(before, key=_shard) != sorted(rows, key=_shard):
                raise AssertionError(f"batch {batch} came again with other rows")
            self._batches[batch] = rows


def _shard(row: Row) -> str:
    return row.shard
