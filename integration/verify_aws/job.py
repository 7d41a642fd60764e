"""One query in a separate driver: ``python -m integration.verify_aws.job <JSON>``.

It prints ``ready`` when Spark is up and starts when it reads a line. A batch write prints ``done`` when it
has succeeded; a streaming query runs until standard input closes.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from integration.support.spark import spark_session

RANGE = "range"


@dataclass(frozen=True)
class Job:
    attempt: int  # counts the drivers of one directory
    directory: str  # of Spark, the checkpoint and the log
    source: str  # a format, or `RANGE` for the numbers from 0 to ``source_options["end"]``
    source_options: dict[str, str]
    sink: str
    sink_options: dict[str, str]
    # SQL expressions over the source, which the sink gets
    columns: list[str] = field(default_factory=lambda: ["*"])
    streaming: bool = False  # whether the query is a streaming one

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    with spark_session(Path(job.directory, f"spark-{job.attempt}"), emulated=False) as spark:
        print("ready", flush=True)
        if not sys.stdin.readline():
            return
        rows = _rows(spark, job).selectExpr(*job.columns)
        if not job.streaming:
            rows.write.format(job.sink).options(**job.sink_options).mode("append").save()
            print("done", flush=True)
            sys.stdin.readline()
            return
        checkpoint = str(Path(job.directory, "checkpoint"))
        writer = rows.writeStream.format(job.sink).options(**job.sink_options)
        query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="1 second").start()
        sys.stdin.readline()
        query.stop()  # raises what the query has failed with


def _rows(spark: SparkSession, job: Job) -> DataFrame:
    if job.source == RANGE:
        return spark.range(0, int(job.source_options["end"]), numPartitions=2)
    reader = spark.readStream if job.streaming else spark.read
    return reader.format(job.source).options(**job.source_options).load()


if __name__ == "__main__":
    main()
