"""A driver that writes a stream of files through the asynchronous sink, for tests that kill it.

``python sink_driver.py <JSON>`` says ``ready`` when Spark is up and begins when it is sent a line. Sent the
line ``end``, it waits until all files are written and stops the query; sent ``stop``, it stops the query at
once. Then it says ``done``. It ends when standard input closes, be it that its parent said so or that its
parent is dead, and when the query fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

from integration.support.spark import spark_session


@dataclass(frozen=True)
class SinkDriverPlan:
    """What a driver does; a file of the source is an epoch, which two tasks write."""

    attempt: int
    directory: str  # of Spark, the checkpoint and the source
    column: str  # of the sink, which takes JSON
    options: dict[str, str]  # of the sink

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def source(self) -> Path:
        return Path(self.directory, "source")

    @property
    def checkpoint(self) -> Path:
        return Path(self.directory, "checkpoint")


def main() -> None:
    plan = SinkDriverPlan(**json.loads(sys.argv[1]))
    settings = {"spark.master": "local[2,4]"}  # a task that fails is tried again
    with spark_session(Path(plan.directory, f"spark-{plan.attempt}"), settings) as spark:
        spark.range(2).repartition(2).count()  # the slow steps of a first run
        print("ready", flush=True)
        if not sys.stdin.readline():
            return
        query = (
            spark.readStream.schema("id BIGINT")
            .option("maxFilesPerTrigger", 1)
            .json(str(plan.source))
            .repartition(2)
            .selectExpr(f"to_json(struct(id)) AS {plan.column}")
            .writeStream.format("async-sink")
            .options(**plan.options)
            .option("checkpointLocation", str(plan.checkpoint))
            .trigger(processingTime="50 milliseconds")
            .start()
        )
        closed = threading.Event()
        threading.Thread(target=_obey, args=(query, closed), daemon=True).start()
        query.awaitTermination()
        print("done", flush=True)
        closed.wait()


def _obey(query: StreamingQuery, closed: threading.Event) -> None:
    for line in sys.stdin:
        if line == "end\n":
            query.processAllAvailable()
        query.stop()
    closed.set()
    with contextlib.suppress(Exception):  # it has ended, or the JVM has
        query.stop()
    threading.Event().wait(120)  # ends by itself in less
    os._exit(1)


if __name__ == "__main__":
    main()
