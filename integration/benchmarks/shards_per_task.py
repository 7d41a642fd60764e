"""The time of a micro-batch near the tip, and of a backlog, by ``shardsPerTask``: where its default is from.

The embedded Kinesis, and the server of the backlog, run on the same cores: read the figures as ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from integration.benchmarks import server
from integration.benchmarks.backlog import STREAM, backlog
from integration.support import servers
from integration.support.kinesis import REGION, Streams
from integration.support.spark import spark_session

RECORDS_PER_SHARD = 20
BACKLOG = 192_000  # records
PAGE = 1_000
TURNS = 3
WARM_UP = 2
LIMIT = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=32)
    parser.add_argument("--shards-per-task", default="2,8,16,32", help="comma-separated (default 2,8,16,32)")
    parser.add_argument("--batches", type=int, default=10, help="near the tip; 0: only the backlog")
    arguments = parser.parse_args()
    medians: dict[int, float] = {}
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        spark = stack.enter_context(spark_session(directory / "spark", {"spark.log.level": "ERROR"}))
        counts = list(map(int, arguments.shards_per_task.split(",")))
        read_backlog(spark, arguments.shards, counts)
        if not arguments.batches:
            return 0
        streams = Streams(stack.enter_context(servers.ministack()).endpoint)
        stream = streams.create(arguments.shards)
        for count in counts:
            times = measure(spark, streams, stream, arguments, count)
            medians[count] = statistics.median(times)
            tasks = -(-arguments.shards // count)
            spread = f"{min(times):.0f} to {max(times):.0f}"
            print(
                f"{arguments.shards} shards, shardsPerTask {count:3d}: {tasks:3d} tasks, "
                f"{medians[count]:6.0f} ms a batch ({spread}, {len(times)} batches), "
                f"{medians[count] / min(medians.values()):.2f} x the best so far",
                flush=True,
            )
    return 0


def read_backlog(spark: SparkSession, shards: int, counts: Sequence[int]) -> None:
    """Prints the time to read the same backlog, with each of `counts` and with the default, in turns."""
    times: dict[int | None, list[float]] = {count: [] for count in (*counts, None)}
    with server.serving(backlog, shards, BACKLOG // shards // PAGE, PAGE, 1024) as endpoint:
        for turn in range(TURNS + 1):
            for count, taken in times.items():
                given = {} if count is None else {"shardsPerTask": str(count)}
                start = time.perf_counter()
                (
                    spark.read.format("kinesis-efo")
                    .options(streamName=STREAM, startingPosition="TRIM_HORIZON", endpointUrl=endpoint)
                    .options(region=REGION, getRecordsInterval="0", **given)
                    .load()
                    .write.format("noop")
                    .mode("overwrite")
                    .save()
                )
                if turn:  # the first one starts workers
                    taken.append(time.perf_counter() - start)
    for count, taken in times.items():
        what = "default" if count is None else f"shardsPerTask {count}"
        print(
            f"{shards} shards, backlog of {BACKLOG:,} records of 1 KiB, {what}: "
            f"{statistics.median(taken):.2f} s ({min(taken):.2f} to {max(taken):.2f})",
            flush=True,
        )


def measure(
    spark: SparkSession, streams: Streams, stream: str, arguments: argparse.Namespace, shards_per_task: int
) -> list[float]:
    """The time (ms) of each batch that had rows, without its planning."""
    frame = (
        spark.readStream.format("kinesis-efo")
        .options(streamName=stream, endpointUrl=streams.endpoint, region=REGION)
        .option("shardsPerTask", str(shards_per_task))
        .load()
    )
    query = frame.writeStream.format("noop").start()
    try:
        while not query.recentProgress:
            time.sleep(0.1)
        times: list[float] = []
        deadline = time.monotonic() + LIMIT
        while len(times) < WARM_UP + arguments.batches and time.monotonic() < deadline:
            records = arguments.shards * RECORDS_PER_SHARD
            streams.put(stream, [(f"key-{len(times)}-{index}", b"x" * 200) for index in range(records)])
            time.sleep(1.0)
            progress = [p for p in query.recentProgress if p["numInputRows"]]
            times = [float(p["durationMs"]["addBatch"]) for p in progress]
    finally:
        query.stop()
    return times[WARM_UP:] or [LIMIT * 1000]


if __name__ == "__main__":
    sys.exit(main())
