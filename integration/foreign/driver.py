"""A driver that takes the course: ``python -m integration.foreign.driver <JSON>``.

It runs one query until enough batches are committed, or the source is read to its end, stops it and says
``done``. It ends when standard input closes, be it that its parent said so or that its parent is dead, and
when the query fails.
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

from integration.foreign.rows import PER_BATCH, awkward
from integration.foreign.targets import TARGETS
from integration.support.spark import spark_session


@dataclass(frozen=True)
class ForeignPlan:
    attempt: int  # counts the drivers
    directory: str  # of Spark and the checkpoint
    target: str  # one of `TARGETS`, which shapes the rows
    source: dict[str, str]  # options of the source `kinesis-efo`; empty: the rows are made by Spark
    options: dict[str, str]  # of the sink, and its `format`
    batches: int  # the query is stopped when so many are committed

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def checkpoint(self) -> Path:
        """Of the query."""
        return Path(self.directory, "checkpoint")

    @property
    def committed(self) -> int:
        """How many batches Spark has committed."""
        names = [each.name for each in self.checkpoint.glob("commits/*")]
        return max((int(name) for name in names if name.isdecimal()), default=-1) + 1


def main() -> None:
    plan = ForeignPlan(**json.loads(sys.argv[1]))
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    with spark_session(Path(plan.directory, f"spark-{plan.attempt}")) as spark:
        options = dict(plan.options)
        query = (
            TARGETS[plan.target]
            .shape(_read(spark, plan))
            .writeStream.format(options.pop("format", "async-sink"))
            .options(**options)
            .option("checkpointLocation", str(plan.checkpoint))
            .start()
        )
        if plan.source:
            query.processAllAvailable()
        while not plan.source and query.isActive and plan.committed < plan.batches:
            time.sleep(0.05)
        query.stop()
        if error := query.exception():
            raise error
        print("done", flush=True)


def _read(spark: SparkSession, plan: ForeignPlan) -> DataFrame:
    if plan.source:
        return spark.readStream.format("kinesis-efo").options(**plan.source).load()
    numbers = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=PER_BATCH, numPartitions=4)
    return awkward(numbers.load())


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
