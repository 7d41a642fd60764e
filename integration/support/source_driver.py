"""A whole driver that reads one of the sources of docs/custom-sources.md, for tests that kill it:
``python source_driver.py <JSON>``. It behaves as ``replay_driver.py`` does.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import sluice
from integration.support.replay_driver import DriverPlan, run_query
from integration.support.spark import spark_session

SOURCES = {"files": "file_source:FileSource", "kafka-like": "kafka_source:KafkaSource"}
"""By the name of the format, which is the stream of a plan."""
MODULES = "modules"
"""The directory, below that of a plan, in which the page's modules are."""
FILE_ROWS = 200
"""Rows of a file; their ids say which file it is."""


def frame(spark: SparkSession, plan: DriverPlan) -> DataFrame:
    """The rows as `Writer` takes them: split, position, 0, data."""
    rows = spark.readStream.format(plan.stream).options(**plan.options).load()
    if plan.stream == "files":
        return rows.selectExpr(
            f"cast(id div {FILE_ROWS} as string) as shardId",
            "cast(id as string) as sequenceNumber",
            "0 as subSequenceNumber",
            "cast(name as binary) as data",
        )
    return rows.selectExpr(
        "cast(partition as string) as shardId",
        "cast(offset as string) as sequenceNumber",
        "0 as subSequenceNumber",
        "value as data",
    )


def main() -> None:
    plan = DriverPlan.from_json(sys.argv[1])
    directory = Path(plan.directory)
    modules = str(directory / MODULES)
    sys.path.insert(0, modules)
    os.environ["PYTHONPATH"] = os.pathsep.join([modules, os.environ.get("PYTHONPATH", "")])  # of the workers
    with spark_session(directory / "spark") as spark:
        spark.dataSource.register(sluice.data_source(SOURCES[plan.stream], name=plan.stream))
        run_query(plan, frame(spark, plan))


if __name__ == "__main__":
    main()
