"""`tokenBucketScope=query` in real Spark: the tasks of a query keep to one rate, wherever they run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.support.cluster import standalone_cluster
from integration.support.fan_out import is_alive
from integration.support.queries import wait_until
from integration.support.query_servers import query_servers
from integration.support.sink_destinations import requests_noted
from integration.support.spark import JVM_OPTIONS, Sessions

DESTINATION = "integration.support.sink_destinations:Metered"
DELAY = 1.0
"""Seconds that a request may take from the strategy to its destination, on a busy machine."""
ROW = "x" * 20


@pytest.fixture(autouse=True)
def servers_end_with_the_spark_context(spark_sessions: Sessions) -> Iterator[None]:
    yield
    spark_sessions.stop()
    wait_until(lambda: not query_servers(), "the servers to end")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "destination"
    made.mkdir()
    return made


def options(directory: Path, rate: int, burst: int, **more: str) -> dict[str, str]:
    return {
        "destination": DESTINATION,
        "directory": str(directory),
        "rateLimiting": "token-bucket",
        "tokenBucketScope": "query",
        "tokenBucketRate": str(rate),
        "tokenBucketBurst": str(burst),
        "maxTimeInBuffer": "50ms",
        **more,
    }


def rows(spark: SparkSession, count: int, partitions: int) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr(f"'{ROW}' AS value")


def check_rate(noted: Sequence[tuple[float, float]], rate: float, burst: float) -> None:
    """No window has more than the rate and a burst; requests may come later than they were sent."""
    assert noted
    for first, (begin, _) in enumerate(noted):
        total = 0.0
        for at, tokens in noted[first:]:
            total += tokens
            assert total <= rate * (at - begin + DELAY) + burst, (at - begin, total)


def test_a_stream(
    make_spark: Callable[..., SparkSession], directory: Path, tmp_path: Path, checkpoint: str
) -> None:
    """The rate holds from one micro-batch to the next, with one server."""
    spark = make_spark(master="local[4]")
    rate, burst = 200, 50
    source = tmp_path / "source"
    source.mkdir()

    def add(count: int) -> None:
        for _ in range(4):
            hidden = source / "_unfinished"  # Spark reads a file once, be it half written
            hidden.write_text(f"{ROW}\n" * (count // 4))
            hidden.rename(source / f"{len(list(source.iterdir()))}.txt")

    def stored() -> int:
        return sum(entries for _, entries, _ in requests_noted(directory))

    def start() -> Any:
        return (
            spark.readStream.text(str(source))
            .repartition(4)
            .writeStream.format("async-sink")
            .options(**options(directory, rate, burst, maxRetryDuration="10s"))
            .option("checkpointLocation", checkpoint)
            .start()
        )

    add(600)
    query = start()
    wait_until(lambda: stored() == 600, "the first rows")
    (first,) = query_servers()
    add(1200)
    wait_until(lambda: stored() >= 900, "some more rows")
    assert query_servers() == [first]
    os.kill(first, signal.SIGKILL)
    time.sleep(2.0)  # for requests in flight
    sent = stored()
    wait_until(query.exception, "the query to fail")
    assert "tokenBucketAddress" in str(query.exception())
    assert stored() == sent < 1800
    query = start()
    query.processAllAvailable()
    assert stored() >= 1800
    assert len([each for each in query_servers() if is_alive(each)]) == 1
    query.stop()

    check_rate([(at, entries) for at, entries, _ in requests_noted(directory)], rate, burst)


def test_a_query_whose_server_cannot_start(make_spark: Callable[..., SparkSession], directory: Path) -> None:
    """It fails at its start, and says why."""
    spark = make_spark(master="local[4]")
    write = rows(spark, 10, 2).write.format("async-sink").mode("append")
    write.options(**options(directory, 10, 10, tokenBucketAddress="192.0.2.1"))
    with pytest.raises(Exception, match=r"tokenBucketAddress must be an address of the driver host"):
        write.save()
    assert not requests_noted(directory)


def test_all_writes_of_foreach_batch_have_one_server(
    make_spark: Callable[..., SparkSession], directory: Path, tmp_path: Path, checkpoint: str
) -> None:
    """Each write finds the server of the one before. It ends with the Spark context."""
    spark = make_spark(master="local[4]")
    source = tmp_path / "source"
    source.mkdir()
    servers: list[list[int]] = []

    def write(batch: DataFrame, _: int) -> None:
        for _ in range(2):
            sink = batch.repartition(2).write.format("async-sink").mode("append")
            sink.options(**options(directory, 1000, 100)).save()
            time.sleep(1.5)  # a server asks itself twice a second whether it may end
            servers.append(query_servers())

    query = (
        spark.readStream.text(str(source))
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    for number in range(2):
        hidden = source / "_unfinished"
        hidden.write_text(f"{ROW}\n" * 10)
        hidden.rename(source / f"{number}.txt")
        query.processAllAvailable()
    query.stop()
    assert len(servers) == 4
    assert len(servers[0]) == 1
    assert all(each == servers[0] for each in servers)


@pytest.fixture
def cluster(spark_sessions: Sessions) -> Iterator[str]:
    with standalone_cluster() as master:
        yield master
        spark_sessions.stop()  # before the cluster goes


def test_executors_of_two_hosts(
    make_spark: Callable[..., SparkSession], cluster: str, directory: Path
) -> None:
    """Eight tasks, two at a time on each host: one rate for all of them."""
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": os.environ[JVM_OPTIONS],
    }
    spark = make_spark(settings, master=cluster)
    rate, burst = 300, 50
    given = options(directory, rate, burst)
    rows(spark, 2400, 8).write.format("async-sink").options(**given).mode("append").save()

    noted = requests_noted(directory)
    assert sum(entries for _, entries, _ in noted) == 2400
    check_rate([(at, entries) for at, entries, _ in noted], rate, burst)
    seconds = noted[-1][0] - noted[0][0]
    print(f"\n2 hosts, 8 tasks: {(2400 - burst) / seconds:.0f} of {rate} records a second")
