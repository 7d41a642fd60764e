"""Where the time goes between a query's start and its first row, piece by piece.

A run of what is available, and a batch read, of a backlog in open shards whose records arrived evenly, as
fast as a shard takes them: up to now (`live`), or up to a second, minute, hour or day ago (where the newest
record has to be searched for); and of shards with a few old records (`few`). The server notes when it is
called:

- `start`: from the query's start to the first call: Spark's planning process, and what it imports;
- `discovery`: calls about the stream, until the first about a shard;
- `probing`: until the planner's last call;
- `tasks`: from there to the first call of a task: Spark logs the batch, starts tasks, and they import;
- `reading`: from there to the end.

`above` is what of the whole is neither reading nor there in the same query of a source with one row, whose
Python reader does nothing.

    python -m integration.benchmarks.first_row
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from integration.benchmarks import server
from integration.benchmarks.backlog import STREAM, summary
from integration.benchmarks.versus import write_table
from integration.support.queries import await_end, read, read_stream
from integration.support.spark import spark_session

QUERIES = ("batch", "available")
SHARDS = (1, 4, 16, 64)
RATE = 1_000  # records a second of a shard
SIZE = 1024
PAUSES = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0}
GOAL = 1.0  # seconds above reading
PLANNING_GOAL = 1.2  # seconds of `probing`, after a pause
PIECES = ("start", "discovery", "probing", "tasks", "reading")
NUMBER_WIDTH = 20
PAGE_BYTES = 7_000 * 1024
_FROM_START = "TRIM_HORIZON"


@dataclass(frozen=True)
class Shape:
    records: int  # how many; records of a producer that continues are added
    age: float | None  # how old the newest is (seconds) when the server starts; None: the producer continues
    size: int  # bytes of a record

    def first_arrival(self, started: float) -> float:
        return started - (self.age or 0.0) - self.records / RATE

    def count(self, started: float, now: float) -> int:
        """How many records there are at `now`."""
        return self.records if self.age is not None else int((now - self.first_arrival(started)) * RATE)


def serve(shape: Shape, shards: int, journal: str) -> server.Operations:
    """Answers as Kinesis does, without limits, and writes each call to the journal."""
    started = time.time()
    first = shape.first_arrival(started)
    data = base64.b64encode(b"x" * shape.size).decode()
    record = (
        '{"SequenceNumber":"%0NUMBERd","ApproximateArrivalTimestamp":%.3f,"Data":"DATA","PartitionKey":"key"}'
    )
    record = record.replace("NUMBER", str(NUMBER_WIDTH)).replace("DATA", data)
    width = 2**128 // shards
    listed = [
        {
            "ShardId": f"shardId-{index:012d}",
            "HashKeyRange": {
                "StartingHashKey": str(index * width),
                "EndingHashKey": str((index + 1) * width - 1),
            },
            "SequenceNumberRange": {"StartingSequenceNumber": "1"},
        }
        for index in range(shards)
    ]
    lines = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(*what: object) -> None:
        os.write(lines, (json.dumps([time.time(), *what]) + "\n").encode())

    def describe(_: Any) -> Any:
        note("DescribeStreamSummary")
        return summary(first - 3600)

    def list_shards(_: Any) -> Any:
        note("ListShards")
        return {"Shards": listed}

    def get_iterator(request: dict[str, Any]) -> dict[str, str]:
        shard, kind = request["ShardId"], request["ShardIteratorType"]
        note("GetShardIterator", shard, kind)
        place = 0
        if kind == "AT_TIMESTAMP":
            there = shape.count(started, time.time())
            place = min(there, max(0, -int((first - request["Timestamp"]) * RATE // 1)))
        elif kind != _FROM_START:
            place = int(request["StartingSequenceNumber"]) - (kind == "AT_SEQUENCE_NUMBER")
        return {"ShardIterator": f"{shard} {place}"}

    def get_records(request: dict[str, Any]) -> bytes:
        shard, place = request["ShardIterator"].split()
        note("GetRecords", shard)
        begin, now = int(place), time.time()
        there = shape.count(started, now)
        end = min(there, begin + min(request.get("Limit", 10_000), PAGE_BYTES // shape.size))
        records = ",".join(record % (index + 1, first + index / RATE) for index in range(begin, end))
        behind = 0 if end == there else max(1, int((now - first - end / RATE) * 1000))
        tail = {"NextShardIterator": f"{shard} {end}", "MillisBehindLatest": behind}
        return f'{{"Records":[{records}],{json.dumps(tail)[1:]}'.encode()

    return {
        "DescribeStreamSummary": describe,
        "ListShards": list_shards,
        "GetShardIterator": get_iterator,
        "GetRecords": get_records,
    }


@dataclass(frozen=True)
class Run:
    pieces: Sequence[float]  # seconds, in the order of `PIECES`
    reads: int  # of the shard that the planner has read most

    @property
    def seconds(self) -> float:
        return sum(self.pieces)


def run_of(journal: Path, shards: int, began: float, ended: float) -> Run:
    """What the journal says of a query.

    The planner begins each shard with its oldest record, and the tasks do so again.
    """
    calls = [json.loads(line) for line in journal.read_text().splitlines()]
    shard_calls = [call for call in calls if call[1] in ("GetShardIterator", "GetRecords")]
    from_start = [index for index, call in enumerate(shard_calls) if call[-1] == _FROM_START]
    of_tasks = from_start[shards]
    reads = Counter(call[2] for call in shard_calls[:of_tasks] if call[1] == "GetRecords")
    times = [
        began,
        calls[0][0],
        shard_calls[0][0],
        shard_calls[of_tasks - 1][0],
        shard_calls[of_tasks][0],
        ended,
    ]
    return Run([end - begin for begin, end in itertools.pairwise(times)], max(reads.values()))


class _OneRow(DataSourceReader, DataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"at": 0}

    def latestOffset(self, *_: Any) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"at": 1}

    def partitions(self, *_: Any) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        del partition
        yield (1,)


class OneRowSource(DataSource):
    """The time that Spark takes for a query of any Python source."""

    @classmethod
    def name(cls) -> str:
        return "one-row"

    def schema(self) -> str:
        return "id int"

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        return _OneRow()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        del schema
        return _OneRow()


def drain(spark: SparkSession, endpoint: str | None, query: str, checkpoint: Path) -> tuple[float, float]:
    """Runs a query to its end; when it began and ended. Without an endpoint it is one of `OneRowSource`."""
    if query == "batch":
        frame = spark.read.format("one-row").load() if endpoint is None else read(spark, endpoint, STREAM)
        began = time.time()
        frame.write.format("noop").mode("overwrite").save()
        return began, time.time()
    if endpoint is None:
        stream = spark.readStream.format("one-row").load()
    else:
        stream = read_stream(spark, endpoint, STREAM)
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    began = time.time()
    await_end(writer.trigger(availableNow=True).start())
    return began, time.time()


class Bench:
    """Runs queries, each with a new server and checkpoint."""

    def __init__(self, spark: SparkSession, directory: Path, turns: int) -> None:
        self._spark = spark
        self._directory = directory
        directory.mkdir(exist_ok=True)
        self._turns = turns
        self._number = itertools.count()

    def seconds_of_one_row(self, query: str) -> float:
        """The median after one run to warm up."""
        times = [drain(self._spark, None, query, self._new("checkpoint")) for _ in range(self._turns + 1)]
        return statistics.median(ended - began for began, ended in times[1:])

    def run(self, query: str, shape: Shape, shards: int) -> Run:
        runs = []
        for _ in range(self._turns):
            journal = self._new("journal")
            with server.serving(serve, shape, shards, str(journal)) as endpoint:
                began, ended = drain(self._spark, endpoint, query, self._new("checkpoint"))
            runs.append(run_of(journal, shards, began, ended))
        return sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]

    def _new(self, what: str) -> Path:
        return self._directory / f"{what}-{next(self._number)}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.first_row", description=__doc__)
    parser.add_argument("--shards", type=int, action="append", help=f"(default {SHARDS})")
    parser.add_argument("--records", type=int, default=600_000, help="of all shards together")
    parser.add_argument("--query", choices=QUERIES, action="append", help="(default all)")
    parser.add_argument("--size", type=int, default=SIZE, help="of a record (bytes)")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    titles = " ".join(f"{piece:>9}" for piece in PIECES)
    lines = [f"{'backlog':<8} {'query':<10} {'shards':>6} {'seconds':>8} {'above':>6} {titles} {'reads':>6}"]
    print(lines[0], flush=True)
    is_met = True
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        spark = stack.enter_context(spark_session(directory / "spark", {"spark.log.level": "ERROR"}))
        spark.dataSource.register(OneRowSource)
        bench = Bench(spark, directory, arguments.turns)
        Bench(spark, directory / "warm-up", 1).run("available", Shape(5, 3600.0, SIZE), 1)
        for query in arguments.query or QUERIES:
            bare = bench.seconds_of_one_row(query)
            lines.append(f"{'one row':<8} {query:<10} {'':>6} {bare:>8.2f}")
            print(lines[-1], flush=True)
            for shards in arguments.shards or SHARDS:
                each = arguments.records // shards
                size = arguments.size
                shapes = {"live": Shape(each, None, size), "few": Shape(5, 3600.0, size)}
                shapes |= {pause: Shape(each, age, size) for pause, age in PAUSES.items()}
                for name, shape in shapes.items():
                    run = bench.run(query, shape, shards)
                    above = run.seconds - bare - run.pieces[-1]
                    is_met = is_met and (
                        run.pieces[PIECES.index("probing")] <= PLANNING_GOAL
                        if name in PAUSES
                        else above <= GOAL
                    )
                    pieces = " ".join(f"{piece:>9.2f}" for piece in run.pieces)
                    lines.append(
                        f"{name:<8} {query:<10} {shards:>6} {run.seconds:>8.2f} {above:>6.2f} {pieces} "
                        f"{run.reads:>6}"
                    )
                    print(lines[-1], flush=True)
    goals = f"{GOAL:g} s above reading, of live and few; {PLANNING_GOAL:g} s of probing after a pause"
    lines.append(f"goals ({goals}): {'met' if is_met else 'NOT met'}")
    print(lines[-1])
    write_table("first_row", lines)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
