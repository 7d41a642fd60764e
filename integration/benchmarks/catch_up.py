"""How long a backlog takes that was resharded again and again, in batches and in seconds.

A stream goes from 4 shards to 8 and back, ten generations of shards in all, with ten minutes between them. A
query that starts then has to read parents before their children. The ratio compares it with a query that
reads the same records from 4 shards which were never resharded. The server is the strict model of the
service; runs of empty pages are short, see ``backlog_under_laws``.

    python -m integration.benchmarks.catch_up
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame

from integration.benchmarks.backlog_under_laws import read_through, warm_up
from integration.benchmarks.versus import write_table
from integration.model import Laws
from integration.model.process import running
from integration.model.steering import Steering
from integration.support.queries import PUBLISHERS, read_stream
from integration.support.spark import spark_session

SHARDS = (4, 8)
PAUSE = 600.0
SIZE = 1024
AT_ONCE = 500
TITLES = (
    f"{'publisher':<10} {'generations':>11} {'shards':>7} {'batches':>8} {'seconds':>8}  times one generation"
)


class Result(NamedTuple):
    """Batches with rows, and seconds from the start of the query to its last row."""

    batches: int
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.catch_up", description=__doc__)
    parser.add_argument("--generations", type=int, default=10)
    parser.add_argument("--records", type=int, default=20_000, help="in all (default 20000)")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    lines = [f"{arguments.records:,} records of {SIZE} B", TITLES]
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        spark = stack.enter_context(spark_session(directory / "spark", {"spark.log.level": "ERROR"}))
        service = stack.enter_context(running(Laws(empty_pages=1)))
        warm_up(spark, service, directory / "warm")
        shards = {
            generations: fill(service, f"s{generations}", generations, arguments.records)
            for generations in (1, arguments.generations)
        }
        for publisher, options in PUBLISHERS.items():
            results: dict[int, list[Result]] = {generations: [] for generations in shards}
            for turn in range(arguments.turns):
                for generations, found in results.items():
                    checkpoint = directory / f"{publisher}-{generations}-{turn}"
                    frame = read_stream(spark, service.endpoint, f"s{generations}", **options)
                    found.append(read(frame, arguments.records, checkpoint))
            for generations, found in results.items():
                lines.append(row(publisher, generations, shards[generations], found, results[1]))
                print(lines[-1], flush=True)
    write_table("catch_up", lines)
    return 0


def fill(service: Steering, stream: str, generations: int, records: int) -> int:
    """Puts as many records into each generation of shards. Returns how many shards there are in all."""
    service.create(stream, SHARDS[0])
    total = SHARDS[0]
    for generation in range(generations):
        if generation:
            open_shards = SHARDS[generation % 2]
            service.do("scale", stream=stream, shards=open_shards)
            total += open_shards
        left = records // generations
        while left > 0:
            count = min(left, AT_ONCE)
            service.put(stream, [(f"key-{left - number}", bytes(SIZE)) for number in range(count)])
            left -= count
        service.do("clock", advance=PAUSE)
    return total


def read(frame: DataFrame, records: int, checkpoint: Path) -> Result:
    """Reads a backlog with a query of its own."""
    seen, seconds = read_through(frame, records, checkpoint, 600)
    if seen.records != records:
        raise RuntimeError(f"{seen.records} records instead of {records}")
    return Result(seen.batches, seconds)


def row(publisher: str, generations: int, shards: int, results: list[Result], ones: list[Result]) -> str:
    seconds = statistics.median(each.seconds for each in results)
    ratios = [each.seconds / one.seconds for each, one in zip(results, ones, strict=True)]
    batches = "-".join(str(count) for count in sorted({each.batches for each in results}))
    return (
        f"{publisher:<10} {generations:>11} {shards:>7} {batches:>8} {seconds:>8.1f}  "
        f"{statistics.median(ratios):.2f}  ({min(ratios):.2f}-{max(ratios):.2f})"
    )


if __name__ == "__main__":
    sys.exit(main())
