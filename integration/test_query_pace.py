"""`aimdScope=query` in real Spark: the tasks of a query compare their paces, and go on without the server."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.support.kinesis import REGION
from integration.support.model_streams import ModelStreams
from integration.support.queries import wait_until
from integration.support.query_servers import Listener, query_servers

METERED = "integration.support.sink_destinations:Metered"
TASKS = 4
CAPACITY = 100
"""Records a second that the stream takes. The tasks begin with more."""
ROWS = 5 * CAPACITY
"""Of a batch, which takes some seconds."""
WORDS = 10
"""A task is told the mean, and tells its pace again when it was: ten means of two tasks or more are that."""


class Orders:
    """Text files that a query reads."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.put: list[str] = []

    def add(self, count: int) -> None:
        rows = [f"order {number}" for number in range(len(self.put), len(self.put) + count)]
        self.put += rows
        unfinished = self.directory / f".{len(self.put)}"  # Spark reads no hidden files
        unfinished.write_text("".join(f"{row}\n" for row in rows))
        unfinished.rename(self.directory / f"{len(self.put)}.txt")


def written(service: ModelStreams, stream: str) -> set[str]:
    return {record.data.decode() for record in service.model.oracle.records(stream)}


def check_exchange(server: int, query: StreamingQuery, keep_busy: Callable[[], object]) -> None:
    """Returns when tasks have told their paces through a server, and have been told what they make of it.

    Args:
        keep_busy: adds rows where none are left. A slow machine may have heard little before a batch ends.
    """
    with contextlib.closing(Listener(server, str(query.id))) as listener:

        def has_heard() -> object:
            keep_busy()
            return len({each.rate for each in listener.listen()}) >= WORDS or query.exception()

        wait_until(has_heard, "tasks to compare their paces")
        assert query.exception() is None
        assert all(each.tasks <= TASKS and each.rate > 0 for each in listener.listen())


def test_tasks_compare_their_paces(
    make_spark: Callable[..., SparkSession], service: ModelStreams, tmp_path: Path, checkpoint: str
) -> None:
    """The server goes away in the middle of a batch: the batch goes on, and the next one has another server.
    No row is lost, and nothing is left when the Spark context ends.
    """
    spark = make_spark(master=f"local[{TASKS}]")
    service.change_laws(write_records=CAPACITY)
    stream = service.create(1)
    orders = Orders(tmp_path / "orders")
    orders.add(ROWS)
    query = (
        spark.readStream.text(str(orders.directory))
        .repartition(TASKS)
        .selectExpr("CAST(value AS BINARY) AS data", "value AS partitionKey")
        .writeStream.format("async-sink")
        .options(destination="kinesis", region=REGION, endpointUrl=service.endpoint, streamName=stream)
        .options(aimdScope="query", checkpointLocation=checkpoint)
        .start()
    )

    def keep_busy() -> None:
        if len(written(service, stream)) == len(orders.put):
            orders.add(ROWS)

    wait_until(lambda: written(service, stream) or query.exception(), "the first rows")
    [first] = query_servers(bucket=False)
    check_exchange(first, query, keep_busy)
    os.kill(first, signal.SIGKILL)
    before = len(orders.put)
    orders.add(ROWS)
    wait_until(lambda: len(written(service, stream)) > before or query.exception(), "the next batch")
    [second] = query_servers(bucket=False)
    check_exchange(second, query, keep_busy)
    wait_until(lambda: written(service, stream) == set(orders.put) or query.exception(), "all rows")
    query.processAllAvailable()  # raises what it has failed with
    query.stop()
    spark.stop()
    wait_until(lambda: not query_servers(bucket=False), "the server to end")


BUCKET = {"rateLimiting": "token-bucket", "tokenBucketRate": "1000", "tokenBucketBurst": "100"}


@pytest.mark.parametrize(
    ("options", "is_bucket"),
    [({"aimdScope": "query"}, False), ({"tokenBucketScope": "query", **BUCKET}, True)],
    ids=["pace", "bucket"],
)
def test_all_writes_of_foreach_batch_have_one_server(
    make_spark: Callable[..., SparkSession],
    tmp_path: Path,
    checkpoint: str,
    options: dict[str, str],
    *,
    is_bucket: bool,
) -> None:
    """Each write finds the server of the one before. It ends with the Spark context."""
    spark = make_spark(master="local[4]")
    stored = tmp_path / "stored"
    stored.mkdir()
    orders = Orders(tmp_path / "orders")
    servers: list[list[int]] = []

    def write(rows: DataFrame, _: int) -> None:
        for _ in range(2):
            sink = rows.repartition(2).write.format("async-sink").mode("append").options(**options)
            sink.options(destination=METERED, directory=str(stored)).save()
            time.sleep(1.5)  # a server asks itself twice a second whether it may end
            servers.append(query_servers(bucket=is_bucket))

    query = (
        spark.readStream.text(str(orders.directory))
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    for _ in range(2):
        orders.add(10)
        query.processAllAvailable()
    query.stop()
    assert len(servers) == 4
    assert len(servers[0]) == 1
    assert all(each == servers[0] for each in servers)
    spark.stop()
    wait_until(lambda: not query_servers(bucket=is_bucket), "the server to end")
