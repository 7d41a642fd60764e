"""A driver on a separate host, which runs one query after the other: ``python cluster_driver.py <JSON>``.

It says ``ready`` when Spark is up. A line of standard input is a `QueryPlan`: it starts that query; the line
``stop`` stops it. Rows and progress go to files, each row with the time at which its batch came. It ends when
standard input closes, and when a query fails.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from integration.support.kinesis import REGION
from integration.support.queries import read_stream
from integration.support.spark import configuration, prepare_environment

ROWS = 24_000
TASKS = 6
PROGRESS = "progress.jsonl"
_SLEEP = "java_method('java.lang.Thread', 'sleep', {}L) IS NOT NULL"
_OF_ONE_HOST = ("spark.driver.bindAddress", "spark.driver.host")


@dataclass(frozen=True)
class ApplicationPlan:
    """What the driver is started with."""

    master: str
    directory: str
    settings: dict[str, str]  # Spark properties

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class QueryPlan:
    endpoint: str
    stream: str
    directory: str  # for its rows, its progress and its checkpoint
    options: dict[str, str]  # of the source
    # options of the sink, to which rows are written that Spark makes, `ROWS` a batch from `TASKS` tasks.
    # Empty: the rows of the source go to files
    sink: dict[str, str]
    millis_per_row: int = 0  # that a task takes for a row, besides

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class _Listener(StreamingQueryListener):
    """Writes down progress, with the time at which it arrives."""

    def __init__(self) -> None:
        self.file: Path | None = None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        if self.file is not None:
            with self.file.open("a") as out:
                out.write(event.progress.json.replace("\n", " ") + "\n")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass


def _start(spark: SparkSession, plan: QueryPlan) -> StreamingQuery:
    directory = Path(plan.directory)

    def write(frame: DataFrame, batch: int) -> None:
        rows = frame.select("shardId", "sequenceNumber", "data").collect()
        now = time.time()
        lines = [json.dumps([now, row.shardId, row.sequenceNumber, row.data.decode()]) for row in rows]
        unfinished = directory / f"{batch}.unfinished"
        unfinished.write_text("".join(f"{line}\n" for line in lines))
        unfinished.replace(directory / f"{batch}.rows")

    if plan.sink:
        made = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=ROWS, numPartitions=TASKS)
        rows = made.load().selectExpr(
            "concat(spark_partition_id(), ' ', value) AS data", "cast(value AS string) AS partitionKey"
        )
        options = {"region": REGION, "endpointUrl": plan.endpoint, "streamName": plan.stream, **plan.sink}
        writer = rows.writeStream.format("async-sink").options(**options)
    else:
        frame = read_stream(spark, plan.endpoint, plan.stream, **plan.options)
        if plan.millis_per_row:
            frame = frame.where(_SLEEP.format(plan.millis_per_row))
        writer = frame.writeStream.foreachBatch(write)
    started = writer.option("checkpointLocation", str(directory / "checkpoint"))
    return started.trigger(processingTime="200 milliseconds").start()


def main() -> None:
    given = ApplicationPlan(**json.loads(sys.argv[1]))
    prepare_environment()
    del os.environ["SPARK_LOCAL_IP"]  # Spark finds this host's address itself, as it does for users
    settings = {**configuration(Path(given.directory), master=given.master), **given.settings}
    builder = SparkSession.builder
    for key, value in settings.items():
        if key not in _OF_ONE_HOST or key in given.settings:
            builder = builder.config(key, value)
    spark = builder.getOrCreate()
    listener = _Listener()
    spark.streams.addListener(listener)
    print("ready", flush=True)
    query: StreamingQuery | None = None
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            if (running := query) is not None and (error := running.exception()) is not None:
                print(f"the query has failed: {error}", flush=True)
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    for line in sys.stdin:
        if query is not None:
            query.stop()
            query = None
            print("stopped", flush=True)
        if line.strip() != "stop":
            plan = QueryPlan(**json.loads(line))
            listener.file = Path(plan.directory, PROGRESS)
            query = _start(spark, plan)
            print("started", flush=True)
    ended.set()
    if query is not None:
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
