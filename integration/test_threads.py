"""Queries that a program starts in separate threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import sluice


class Accepting(BaseHTTPRequestHandler):
    """Accepts every request."""

    def do_POST(self) -> None:  # a name of the standard library
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def write_batch(spark: SparkSession, url: str, _checkpoint: str) -> None:
    rows = spark.range(3).selectExpr("cast(id AS string) AS body")
    sink = rows.write.format("async-sink").mode("append").option("destination", "http")
    sink.option("url", url).save()


def write_stream(spark: SparkSession, url: str, checkpoint: str) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("cast(value AS string) AS body")
    sink = rows.writeStream.format("async-sink").option("destination", "http").option("url", url)
    sink.option("checkpointLocation", checkpoint).start().stop()


@pytest.mark.parametrize("write", [write_batch, write_stream])
def test_a_thread_that_registers_the_formats_writes(
    spark: SparkSession, checkpoint: str, write: Callable[[SparkSession, str, str], None]
) -> None:
    """Spark looks for a sink in the active session, which a thread of the program does not have."""
    server = HTTPServer(("127.0.0.1", 0), Accepting)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def work() -> None:
        sluice.register(spark)
        write(spark, f"http://127.0.0.1:{server.server_port}", checkpoint)

    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(work).result(timeout=120)
    finally:
        server.shutdown()
        server.server_close()


def test_a_query_that_registers_the_formats_in_each_batch_has_one_listener(
    spark: SparkSession, checkpoint: str
) -> None:
    """Each batch has another object for the query's session."""
    sessions: list[Any] = []
    listeners: list[int] = []

    def handle(batch: DataFrame, _number: int) -> None:
        session: Any = batch.sparkSession
        sluice.register(session)
        sessions.append(session)
        listeners.append(len(session._jsparkSession.streams().listListeners()))

    rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    query = rows.writeStream.foreachBatch(handle).option("checkpointLocation", checkpoint).start()
    while len(listeners) < 4:
        assert not query.awaitTermination(1)
    query.stop()

    assert set(listeners) == {1}
    assert len({*map(id, sessions)}) > 1
