"""The speed of writing: the sink against ``foreachPartition`` with the SDK's ``put_records``.

One task writes to a server that accepts everything.

    python -m integration.benchmarks.sink_speed
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from integration.benchmarks import server
from integration.benchmarks.backlog import STREAM
from integration.benchmarks.plain import put_rows
from integration.benchmarks.versus import TITLES, compare, rows, write_table
from integration.support.kinesis import REGION
from integration.support.spark import spark_session

OURS, BY_HAND, BARE = "async-sink", "foreachPartition", "bare client"
GOALS = {100: 5.0, 1024: 3.0}  # times the rate of `foreachPartition`, by bytes of a record
RECORDS = {100: 1_000_000, 1024: 250_000}  # enough for some seconds, so that starting the job hardly counts
KEYS = 1000


def prepare() -> server.Operations:
    """Accepts all records of every request."""

    @functools.cache
    def accepted(count: int) -> bytes:
        results = [
            {"SequenceNumber": server.sequence_number(n), "ShardId": "shardId-0"} for n in range(count)
        ]
        return json.dumps({"FailedRecordCount": 0, "Records": results}).encode()

    @server.takes_bytes
    def put_records(body: bytes) -> bytes:
        return accepted(body.count(b'"PartitionKey"'))

    return {"PutRecords": put_records}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.sink_speed", description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    lines = [f"{TITLES}   the sink, times it (lowest-highest)"]
    met = True
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        spark = stack.enter_context(spark_session(directory / "spark", {"spark.log.level": "ERROR"}))
        endpoint = stack.enter_context(server.serving(prepare))
        for size, count in RECORDS.items():
            rates = compare(_ways(spark, endpoint, size, count), arguments.turns)
            lines += rows(size, rates, OURS)
            met = rates[OURS].against(rates[BY_HAND])[0] >= GOALS[size] and met
    lines.append(f"goals ({GOALS} times foreachPartition): {'met' if met else 'NOT met'}")
    write_table("sink_speed", lines)
    return 0 if met else 1


def _ways(spark: SparkSession, endpoint: str, size: int, count: int) -> dict[str, Callable[[], int]]:
    frame = spark.range(0, count, 1, 1).select(
        f.lit(b"x" * size).alias("data"), (f.col("id") % KEYS).cast("string").alias("partitionKey")
    )
    record = {"Data": "eHh4" * (size // 3), "PartitionKey": "100"}
    body = json.dumps({"Records": [record] * 500, "StreamName": STREAM}).encode()

    def bare() -> int:
        server.bare_call(endpoint, "PutRecords", [body] * (count // 500))
        return count

    return {
        OURS: functools.partial(_write, frame, endpoint, count),
        BY_HAND: functools.partial(_by_hand, frame, endpoint, count),
        BARE: bare,
    }


def _write(frame: DataFrame, endpoint: str, count: int) -> int:
    options = {"destination": "kinesis", "streamName": STREAM, "endpointUrl": endpoint, "region": REGION}
    # Rate limiting would slow the sink down; the server refuses nothing.
    frame.write.format("async-sink").mode("append").options(**options, rateLimiting="none").save()
    return count


def _by_hand(frame: DataFrame, endpoint: str, count: int) -> int:
    frame.foreachPartition(functools.partial(put_rows, endpoint=endpoint, stream=STREAM))
    return count


if __name__ == "__main__":
    sys.exit(main())
