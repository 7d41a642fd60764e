"""How the time of a batch grows with its shards and tasks, and memory with the backlog.

The server has prepared answers. The same number of records is divided among more and more shards, and then
among more and more tasks. Memory is the peak of a Python worker, while one task reads larger and larger
backlogs from 16 shards side by side.

    python -m integration.benchmarks.growth
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from integration.benchmarks import server
from integration.benchmarks.backlog import STREAM, backlog
from integration.benchmarks.versus import write_table
from integration.support.kinesis import REGION
from integration.support.spark import spark_session

RECORDS = 204_800
SHARDS = (1, 8, 64, 512)
PER_TASK = (64, 16, 4, 1)
BACKLOGS = (1, 4, 16)
BACKLOG_PAGE = 1_000  # records of 1 KiB
TURNS = 3


def main() -> int:
    lines = [f"{'backlog':>12} {'MB':>7} {'worker, MiB':>12} {'driver, MiB':>12}"]
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        spark = stack.enter_context(spark_session(directory / "spark", {"spark.log.level": "ERROR"}))
        # This comes first, because a process reports its peak since its start.
        for factor in BACKLOGS:
            with server.serving(backlog, 16, 5 * factor, BACKLOG_PAGE, 1024) as at:
                _read(spark, at, 16)
            records = 16 * BACKLOG_PAGE * 5 * factor
            workers, driver = _peak("pyspark.daemon"), _peak("integration.benchmarks.growth")
            lines.append(f"{records:>12,} {records * 1024 / 1e6:>7,.0f} {workers:>12,.0f} {driver:>12,.0f}")
        lines += ["", f"{RECORDS:,} records of 100 B; 'the first' is the first line of each part"]
        lines.append(
            f"{'shards':>7} {'tasks':>6} {'s a batch':>10} {'us a record':>12}"
            "  times the first (lowest-highest)"
        )
        first: float | None = None
        for shards in SHARDS:
            pages = max(1, 20 // shards)
            with server.serving(backlog, shards, pages, RECORDS // shards // pages, 100) as at:
                times = _batch(spark, at, 16)
            first = first or statistics.median(times)
            lines.append(_row(shards, -(-shards // 16), times, first))
        first = None
        with server.serving(backlog, 64, 1, RECORDS // 64, 100) as at:
            for per_task in PER_TASK:
                times = _batch(spark, at, per_task)
                first = first or statistics.median(times)
                lines.append(_row(64, 64 // per_task, times, first))
    write_table("growth", lines)
    return 0


def _row(shards: int, tasks: int, times: list[float], first: float) -> str:
    seconds = statistics.median(times)
    spread = f"({min(times) / first:.2f}-{max(times) / first:.2f})"
    return (
        f"{shards:>7} {tasks:>6} {seconds:>10.2f} {seconds / RECORDS * 1e6:>12.2f}"
        f"  {seconds / first:.2f}  {spread}"
    )


def _batch(spark: SparkSession, endpoint: str, per_task: int) -> list[float]:
    times = []
    for _ in range(TURNS + 1):
        start = time.perf_counter()
        _read(spark, endpoint, per_task)
        times.append(time.perf_counter() - start)
    return times[1:]  # the first one starts workers


def _read(spark: SparkSession, endpoint: str, per_task: int) -> None:
    frame = (
        spark.read.format("kinesis-efo")
        .options(streamName=STREAM, startingPosition="TRIM_HORIZON", endpointUrl=endpoint, region=REGION)
        .options(getRecordsInterval="0", shardsPerTask=str(per_task))
        .load()
    )
    frame.write.format("noop").mode("overwrite").save()


def _peak(name: str) -> float:
    """The peak memory (MiB) of a process of this user with `name` in its command line."""
    most = 0.0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if name in (process / "cmdline").read_text():
                status = (process / "status").read_text()
                peak = next((line for line in status.splitlines() if line.startswith("VmHWM")), "VmHWM: 0 kB")
                most = max(most, int(peak.split()[1]) / 1024)
    return most


if __name__ == "__main__":
    sys.exit(main())
