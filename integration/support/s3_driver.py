"""A driver that writes a stream of files to S3, for tests that kill it: ``python s3_driver.py <JSON>``.

It says ``ready`` when Spark is up, begins when it is sent a line, runs until there is no file left and says
``done``. It ends when standard input closes, be it that its parent said so or that its parent is dead.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from integration.support.spark import spark_session


@dataclass(frozen=True)
class S3DriverPlan:
    """What a driver does; a file of the source is an epoch."""

    attempt: int
    directory: str  # of Spark, the checkpoint and the source
    options: dict[str, str]  # of the sink

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def source(self) -> Path:
        return Path(self.directory, "source")


def main() -> None:
    plan = S3DriverPlan(**json.loads(sys.argv[1]))
    directory = Path(plan.directory)
    with spark_session(directory / f"spark-{plan.attempt}") as spark:
        spark.range(2).repartition(2).count()  # the slow steps of a first run
        print("ready", flush=True)
        if not sys.stdin.readline():
            return
        closed = threading.Event()
        threading.Thread(target=_wait_for_end, args=(closed,), daemon=True).start()
        query = (
            spark.readStream.schema("id BIGINT")
            .option("maxFilesPerTrigger", 1)
            .json(str(plan.source))
            .repartition(2)
            .selectExpr("id", "id % 3 AS part")
            .writeStream.format("async-sink")
            .options(**plan.options)
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        print("done", flush=True)
        closed.wait()


def _wait_for_end(closed: threading.Event) -> None:
    sys.stdin.read()
    if not closed.is_set():
        closed.set()
        threading.Event().wait(120)  # ends by itself in less
        os._exit(1)


if __name__ == "__main__":
    main()
