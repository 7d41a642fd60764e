"""How fast Spark reads and writes records with Sluice on this machine.

The embedded Kinesis runs on the same cores and is slower than the service: read the figures as ratios,
between two versions of the code or two settings.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from integration.support import servers
from integration.support.kinesis import REGION, Streams
from integration.support.spark import spark_session

KEYS = 1000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.throughput", description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=200, help="bytes of a record (default 200)")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--shards-per-task", default="1,4,8,16", help="comma-separated (default 1,4,8,16)")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        server = stack.enter_context(servers.ministack())
        streams = Streams(server.endpoint)
        settings = {"spark.log.level": "ERROR"}
        spark = stack.enter_context(spark_session(directory / "spark", settings))
        bench = Bench(spark, streams, arguments.records, arguments.size)
        source, target = streams.create(arguments.shards), streams.create(arguments.shards)
        bench.write(source)  # not reported: the first run also starts Python workers
        bench.report("write, async-sink to kinesis", partial(bench.write, target))
        bench.read(source, "16")
        for count in arguments.shards_per_task.split(","):
            bench.report(f"read, shardsPerTask={count}", partial(bench.read, source, count))
    return 0


class Bench:
    """Batch reads and writes: the work of a micro-batch without its fixed costs."""

    def __init__(self, spark: SparkSession, streams: Streams, records: int, size: int) -> None:
        self._spark = spark
        self._connection = {"endpointUrl": streams.endpoint, "region": REGION}
        self._records = records
        self._size = size

    def write(self, stream: str) -> None:
        rows = self._spark.range(0, self._records, 1, 2).select(
            f.lit("x" * self._size).alias("data"), (f.col("id") % KEYS).cast("string").alias("partitionKey")
        )
        options = {"destination": "kinesis", "streamName": stream, **self._connection}
        rows.write.format("async-sink").mode("append").options(**options).save()

    def read(self, stream: str, shards_per_task: str) -> None:
        options = {"streamName": stream, "startingPosition": "TRIM_HORIZON", **self._connection}
        frame = (
            self._spark.read.format("kinesis-efo").options(shardsPerTask=shards_per_task, **options).load()
        )
        found = frame.agg(f.count("*"), f.sum(f.length("data"))).first()
        if found is None or tuple(found) != (self._records, self._records * self._size):
            raise RuntimeError(f"read {found} instead of {self._records} records of {self._size} bytes")

    def report(self, what: str, run: Callable[[], None]) -> None:
        start = time.perf_counter()
        run()
        seconds = time.perf_counter() - start
        megabytes = self._records * self._size / 1e6
        rate = f"{self._records / seconds:,.0f} records/s"
        print(f"{what:<32} {seconds:6.2f} s   {rate:>20}   {megabytes / seconds:6.1f} MB/s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
