"""Runs queries on the source and keeps the rows of each of their batches, for tests to compare."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from integration.support.queries import WAIT, wait_until


class Row(NamedTuple):
    """A row that the source gave, and the batch it came in."""

    batch: int
    shard: str
    sequence_number: int
    data: bytes


class Recorder:
    """Takes the batches of one query after another, all from one checkpoint.

    A batch that comes again must hold the same rows, shard by shard in the same order.
    """

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        # called with the id of each batch before its rows are read; may wait, or raise to make the
        # application fail in the middle of it
        self.intervene: Callable[[int], None] = lambda _batch: None
        self._batches: dict[int, list[Row]] = {}
        self._tasks: dict[int, dict[str, set[int]]] = {}
        self._lock = threading.Lock()

    @property
    def rows(self) -> list[Row]:
        """All rows, batch by batch, task by task, in the order in which they came."""
        with self._lock:
            return [row for _, rows in sorted(self._batches.items()) for row in rows]

    @property
    def batches(self) -> dict[int, list[Row]]:
        with self._lock:
            return {batch: rows for batch, rows in self._batches.items() if rows}

    def tasks(self, batch: int, shard: str) -> set[int]:
        """The numbers of the tasks that gave the rows of a shard when a batch came last."""
        with self._lock:
            return self._tasks[batch].get(shard, set())

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
        if not query.awaitTermination(int(WAIT)):
            query.stop()
            raise TimeoutError(f"what is available was not read in {WAIT:g} s")

    def wait_for(self, query: StreamingQuery, count: int) -> None:
        """Returns when `count` rows have come in all; raises what `query` has failed with."""
        self._wait_until(query, lambda: len(self.rows) >= count, f"{count} rows")

    def wait_for_data(self, query: StreamingQuery, data: Iterable[bytes]) -> None:
        """Returns when all of `data` have come; raises what `query` has failed with."""
        wanted = set(data)
        self._wait_until(query, lambda: wanted <= {row.data for row in self.rows}, f"{len(wanted)} records")

    def _wait_until(self, query: StreamingQuery, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            if error := query.exception():
                raise error
            return condition()

        wait_until(holds, what)

    def _writer(self, frame: DataFrame) -> DataStreamWriter:
        return frame.writeStream.foreachBatch(self._take).option("checkpointLocation", self.checkpoint)

    def _take(self, frame: DataFrame, batch: int) -> None:
        self.intervene(batch)
        found = frame.select(
            "shardId", "sequenceNumber", "data", f.spark_partition_id().alias("task")
        ).collect()
        rows = [Row(batch, row.shardId, int(row.sequenceNumber), bytes(row.data)) for row in found]
        tasks: dict[str, set[int]] = {}
        for row in found:
            tasks.setdefault(row.shardId, set()).add(row.task)
        with self._lock:
            self._tasks[batch] = tasks
            before = self._batches.get(batch)
            if before is not None and sorted(before, key=_shard) != sorted(rows, key=_shard):
                raise AssertionError(f"batch {batch} came again with other rows")
            self._batches[batch] = rows


def _shard(row: Row) -> str:
    return row.shard
