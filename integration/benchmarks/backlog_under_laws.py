"""Backlogs of large records under the service's laws, by both publishers.

A shard may be read at 2 MiB a second, and a page of 10 MiB ends reads of its shard for 5 s. The ratio says
how much of the 2 MiB a second a query has made use of, from its start to its last row; 0.8 is the goal. It
has one attempt a task, so a read that failed would end it. Runs of empty pages, which cost a fifth of a
second a page whatever the records are, are short here: see --empty-pages.

    python -m integration.benchmarks.backlog_under_laws --mib 128
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from integration.benchmarks.versus import write_table
from integration.model import KIB, MIB, Laws
from integration.model.process import running
from integration.model.steering import Steering
from integration.support.queries import PUBLISHERS, read_stream, wait_until
from integration.support.spark import spark_session

SIZES = {"100 KiB": 100 * KIB, "1 MiB": MIB, "10 MiB": 10 * MIB}
PUSHED = "efo only"
WAYS = {**PUBLISHERS, PUSHED: {**PUBLISHERS["efo"], "subscribeToShardFallback": "fail"}}
"""With fan-out, batches that are planned before the first event are polled, unless that is forbidden."""
RATE = 2 * MIB
GOAL = 0.8
TITLES = f"{'record':>8} {'publisher':<9} {'MiB/s a shard':>13} {'ratio':>6} {'refused':>8} {'batches':>8}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m integration.benchmarks.backlog_under_laws", description=__doc__
    )
    parser.add_argument("--mib", type=int, default=128, help="MiB a shard (default 128)")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--size", choices=SIZES, action="append", help="of a record (default all)")
    parser.add_argument("--publisher", choices=WAYS, action="append", help="(default all)")
    parser.add_argument("--empty-pages", type=int, default=5, help="longest run of them (default 5)")
    arguments = parser.parse_args()
    laws = Laws(empty_pages=arguments.empty_pages)
    lines = [TITLES]
    met = True
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        spark = stack.enter_context(spark_session(directory / "spark", {"spark.log.level": "ERROR"}))
        for number, (size, publisher) in enumerate(
            (size, publisher) for size in arguments.size or SIZES for publisher in arguments.publisher or WAYS
        ):
            load = Load(arguments.shards, max(1, arguments.mib * MIB // SIZES[size]), SIZES[size])
            with running(laws, seed=number) as service:
                result = read(spark, service, load, WAYS[publisher], directory / f"checkpoint-{number}")
            ratio = load.bytes / result.seconds / load.shards / RATE
            met = met and ratio >= GOAL
            lines.append(
                f"{size:>8} {publisher:<9} {ratio * RATE / MIB:>13.2f} {ratio:>6.2f} {result.refused:>8} "
                f"{result.batches:>8}"
            )
            print(lines[-1], flush=True)
    lines.append(f"goal ({GOAL} of {RATE // MIB} MiB/s): {'met' if met else 'NOT met'}")
    write_table("backlog_under_laws", lines)
    return 0 if met else 1


@dataclass(frozen=True)
class Load:
    """A backlog: of each shard so many records of so many bytes."""

    shards: int
    records: int
    size: int

    @property
    def bytes(self) -> int:
        return self.shards * self.records * self.size


@dataclass(frozen=True)
class Result:
    """How long it took (seconds), reads that were refused, and batches."""

    seconds: float
    refused: int
    batches: int


def read(
    spark: SparkSession, service: Steering, load: Load, options: Mapping[str, str], checkpoint: Path
) -> Result:
    """Reads a backlog with one query."""
    warm_up(spark, service, checkpoint.with_name(checkpoint.name + "-warm"))
    service.create("s", load.shards)
    count = service.fill("s", load.records, load.size)
    frame = read_stream(spark, service.endpoint, "s", **options)
    seen, seconds = read_through(frame, count, checkpoint, 20 * load.bytes / load.shards / RATE + 300)
    if (seen.records, seen.bytes) != (count, load.bytes):
        raise RuntimeError(f"{seen.records} records of {seen.bytes} bytes instead of {count}")
    refusals = service.do("status")["refusals"]
    refused = sum(times for operation, _, times in refusals if operation == "GetRecords")
    return Result(seconds, refused, seen.batches)


def read_through(frame: DataFrame, count: int, checkpoint: Path, timeout: float) -> tuple[Seen, float]:
    """Reads `count` records with a query of its own; also gives the seconds until the last of them came."""
    seen = Seen()
    start = time.perf_counter()
    query = (
        frame.writeStream.foreachBatch(seen)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="100 milliseconds")
        .start()
    )

    def is_over() -> bool:
        if error := query.exception():
            raise error
        return seen.records >= count

    wait_until(is_over, f"{count} records", timeout=timeout)
    seconds = seen.at - start
    query.stop()
    return seen, seconds


def warm_up(spark: SparkSession, service: Steering, checkpoint: Path) -> None:
    """Starts Python workers, which takes seconds."""
    service.create("warm")
    service.put("warm", [("key", b"data")])
    query = (
        read_stream(spark, service.endpoint, "warm")
        .writeStream.foreachBatch(Seen())
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(300):
        raise TimeoutError("the first query does not end")


class Seen:
    """Counts records and their bytes, batch by batch, and knows when the last one came."""

    def __init__(self) -> None:
        self.records = self.bytes = self.batches = 0
        self.at = 0.0
        self._lock = threading.Lock()

    def __call__(self, frame: DataFrame, _batch: int) -> None:
        found = frame.agg(f.count("*"), f.sum(f.length("data"))).first()
        if found is None or not found[0]:
            return
        with self._lock:
            self.batches += 1
            self.bytes += found[1]
            self.at = time.perf_counter()
            self.records += found[0]


if __name__ == "__main__":
    sys.exit(main())
