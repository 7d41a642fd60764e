"""The latency of polling near the tip, from a record's arrival to its row in foreachBatch, without an agent
and with one, under the service's limits of reads.

The server makes records at a steady rate in each shard, and refuses reads beyond 5 a second and shard. Its
records tell when they arrived. `reads` is how many reads of a shard were answered, a second; `most` is the
most in any second, refused ones included; `CPU` is that of Spark's JVM and all Python processes, in cores.

    python -m integration.benchmarks.polling_latency
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from integration.benchmarks import server
from integration.benchmarks.backlog import STREAM, summary
from integration.benchmarks.versus import write_table
from integration.support.queries import read_stream
from integration.support.spark import spark_session

SHARDS = (1, 16, 64)
GOALS = {1: 0.4, 16: 0.5, 64: 0.8}  # p50 with an agent
GOAL, LATE_GOAL, READS_GOAL = 0.8, 1.5, 2.5  # p50, p95 and reads a second and shard without one
RATE = 200.0
SIZE = 100
READS = 5
WARM_UP = 10.0
START_LIMIT = 60.0
MODES = {"polling": "none", "agent": "driver"}
NUMBER_WIDTH = 20
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    shards: int
    rate: float  # records a second of a shard
    size: int  # bytes of a record


def serve(load: Load, journal: str) -> server.Operations:
    """Answers as Kinesis does, with its limit of reads, and writes each read to the journal."""
    started = time.time()
    data = base64.b64encode(b"x" * load.size).decode()
    record = (
        '{"SequenceNumber":"%0NUMBERd","ApproximateArrivalTimestamp":%.3f,"Data":"DATA","PartitionKey":"key"}'
    )
    record = record.replace("NUMBER", str(NUMBER_WIDTH)).replace("DATA", data)
    width = 2**128 // load.shards
    listed = [
        {
            "ShardId": f"shardId-{index:012d}",
            "HashKeyRange": {
                "StartingHashKey": str(index * width),
                "EndingHashKey": str((index + 1) * width - 1),
            },
            "SequenceNumberRange": {"StartingSequenceNumber": "1"},
        }
        for index in range(load.shards)
    ]
    lines = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    times: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=READS))

    def there(now: float) -> int:
        """How many records there are: each is there from its arrival on."""
        return int((now - started) * load.rate) + 1

    def get_iterator(request: dict[str, Any]) -> dict[str, str]:
        kind, place = request["ShardIteratorType"], 0
        if kind == "AT_TIMESTAMP":
            place = min(there(time.time()), max(0, -int((started - request["Timestamp"]) * load.rate // 1)))
        elif kind == "LATEST":
            place = there(time.time())
        elif kind != "TRIM_HORIZON":
            place = int(request["StartingSequenceNumber"]) - (kind == "AT_SEQUENCE_NUMBER")
        return {"ShardIterator": f"{request['ShardId']} {place}"}

    def get_records(request: dict[str, Any]) -> Any:
        shard, place = request["ShardIterator"].split()
        now, read_at = time.time(), times[shard]
        is_refused = len(read_at) == READS and now - read_at[0] < 1.0
        os.write(lines, f"{now} {shard} {int(is_refused)}\n".encode())
        if is_refused:
            return server.Refusal("ProvisionedThroughputExceededException")
        read_at.append(now)
        begin, newest = int(place), there(now)
        end = min(newest, begin + min(request.get("Limit", 10_000), 7_000))
        records = ",".join(record % (index + 1, started + index / load.rate) for index in range(begin, end))
        behind = 0 if end == newest else max(1, int((now - started - end / load.rate) * 1000))
        tail = {"NextShardIterator": f"{shard} {end}", "MillisBehindLatest": behind}
        return f'{{"Records":[{records}],{json.dumps(tail)[1:]}'.encode()

    return {
        "DescribeStreamSummary": lambda _: summary(started - 3600),
        "ListShards": lambda _: {"Shards": listed},
        "GetShardIterator": get_iterator,
        "GetRecords": get_records,
    }


class Arrivals:
    """For each batch, when its rows came, and how old they were."""

    def __init__(self) -> None:
        self.batches: list[tuple[float, list[float]]] = []

    def __call__(self, frame: DataFrame, _batch: int) -> None:
        column = frame.selectExpr("unix_micros(approximateArrivalTimestamp) AS at").toArrow().column("at")
        now = time.time()
        self.batches.append((now, [now - at / 1e6 for at in column.to_pylist()]))

    def ages(self, start: float) -> list[float]:
        return sorted(itertools.chain.from_iterable(ages for at, ages in list(self.batches) if at >= start))


@dataclass(frozen=True)
class Measured:
    ages: Sequence[float]
    batches: float
    reads: float
    most: int
    refused: int
    cpu: float

    def quantile(self, part: float) -> float:
        return self.ages[min(len(self.ages) - 1, int(len(self.ages) * part))]


def measure(
    spark: SparkSession, load: Load, options: dict[str, str], arguments: argparse.Namespace, directory: Path
) -> Measured:
    """Runs a query, and measures it for some seconds after it has warmed up."""
    seconds: float = arguments.seconds
    journal = directory / "journal"
    with server.serving(serve, load, str(journal)) as endpoint:
        arrivals = Arrivals()
        frame = read_stream(spark, endpoint, STREAM, **{"startingPosition": "LATEST", **options})
        writer = frame.writeStream.foreachBatch(arrivals)
        writer = writer.trigger(processingTime=f"{int(1000 * arguments.trigger)} milliseconds")
        query = writer.option("checkpointLocation", str(directory / "checkpoint")).start()
        try:
            limit = time.monotonic() + START_LIMIT
            while not arrivals.batches:
                if (error := query.exception()) is not None:
                    raise error
                if time.monotonic() > limit:
                    raise TimeoutError("no row comes")
                time.sleep(0.1)
            time.sleep(WARM_UP)
            start, cpu = time.time(), cpu_seconds()
            time.sleep(seconds)
            used, end = cpu_seconds() - cpu, time.time()
        finally:
            query.stop()
    reads = [line.split() for line in journal.read_text().splitlines()]
    shown = [(float(at), shard, refused == "1") for at, shard, refused in reads if start <= float(at) < end]
    answered = sum(not refused for _, _, refused in shown)
    return Measured(
        arrivals.ages(start),
        sum(at >= start for at, _ in arrivals.batches) / seconds,
        answered / seconds / load.shards,
        most_in_a_second(shown),
        len(shown) - answered,
        used / seconds,
    )


def most_in_a_second(reads: Sequence[tuple[float, str, bool]]) -> int:
    recent: defaultdict[str, deque[float]] = defaultdict(deque)
    most: Counter[str] = Counter()
    for at, shard, _ in sorted(reads):
        times = recent[shard]
        times.append(at)
        while times[0] <= at - 1.0:
            times.popleft()
        most[shard] = max(most[shard], len(times))
    return max(most.values(), default=0)


def cpu_seconds() -> float:
    """Of this process' children and theirs: the JVM and Python. The benchmark's server is left out."""
    parents: dict[int, int] = {}
    times: dict[int, float] = {}
    servers: set[int] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            process = int(stat.parent.name)
            parents[process] = int(fields[1])
            times[process] = sum(map(int, fields[11:15])) / TICK
            if b"multiprocessing" in (stat.parent / "cmdline").read_bytes():
                servers.add(process)

    def is_ours(process: int) -> bool:
        while process in parents and process not in servers:
            if (process := parents[process]) == os.getpid():
                return True
        return False

    return sum(each for process, each in times.items() if is_ours(process))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m integration.benchmarks.polling_latency", description=__doc__
    )
    parser.add_argument("--shards", type=int, action="append", help=f"(default {SHARDS})")
    parser.add_argument("--rate", type=float, default=RATE, help="records a second of a shard")
    parser.add_argument("--size", type=int, default=SIZE, help="bytes of a record")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--trigger", type=float, default=0.0, help="seconds between triggers (default: none)")
    parser.add_argument("--mode", choices=MODES, action="append", help="(default all)")
    arguments = parser.parse_args()
    titles = ("p50 ms", "p95 ms", "p99 ms", "batches/s", "reads", "most", "refused", "CPU", "rows")
    lines = [f"{'shards':>6} {'':<8}" + "".join(f"{title:>10}" for title in titles)]
    print(lines[0], flush=True)
    is_met = True
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        spark = stack.enter_context(spark_session(directory / "spark", {"spark.log.level": "ERROR"}))
        for number, shards in enumerate(arguments.shards or SHARDS):
            for mode in arguments.mode or MODES:
                load = Load(shards, arguments.rate, arguments.size)
                own = directory / f"{number}-{mode}"
                own.mkdir()
                found = measure(spark, load, {"agent": MODES[mode]}, arguments, own)
                cells = [f"{1000 * found.quantile(part):,.0f}" for part in (0.5, 0.95, 0.99)]
                cells += [f"{found.batches:.1f}", f"{found.reads:.2f}", str(found.most), str(found.refused)]
                cells += [f"{found.cpu:.2f}", f"{len(found.ages):,}"]
                lines.append(f"{shards:>6} {mode:<8}" + "".join(f"{cell:>10}" for cell in cells))
                print(lines[-1], flush=True)
                if mode == "agent":
                    is_met = is_met and found.quantile(0.5) <= GOALS.get(shards, GOAL) and found.most <= READS
                else:
                    is_met = is_met and found.quantile(0.5) <= GOAL and found.quantile(0.95) <= LATE_GOAL
                    is_met = is_met and found.reads <= READS_GOAL * 1.02
    goals = f"with an agent p50 {GOALS} s; without p50 {GOAL}, p95 {LATE_GOAL} s, {READS_GOAL} reads a second"
    lines.append(f"goals ({goals}): {'met' if is_met else 'NOT met'}")
    print(lines[-1])
    write_table("polling_latency", lines)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
