"""The CPU of reading: of Spark's JVM and of Python workers, and of the pieces of a task.

Two tables. The first one is of runs in Spark that take turns. A row of it is the difference between a long
run and a short one, so starting and planning are not in it (by hand they are: that is a short run alone).
The second one is of a task's pieces in this process, without Spark. Each piece has what came before it done
for it; `into a socket` is all of a task, written as Spark's workers write it, to a process that throws it
away. These two vary by up to a half from process to process: where the C library gives the memory of each
page back to the kernel, as it rarely does in Spark's workers, a thousand page faults bring it again.

    python -m integration.benchmarks.source_cpu
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from integration.benchmarks import server
from integration.benchmarks.backlog import STREAM, backlog, read_options
from integration.benchmarks.cpu import Cpu, spark_cpu
from integration.benchmarks.plain import READY_BYTES, SHARD, PlainSource, ReadySource
from integration.benchmarks.versus import session_with, write_table
from integration.support.spark import prepare_environment
from sluice.aws.calling.clients import client_for
from sluice.aws.wire.cbor import encode
from sluice.aws.wire.pages import find_many
from sluice.aws.wire.record_bounds import RecordBounds
from sluice.aws.wire.record_columns import RecordColumns
from sluice.kinesis.log.record_batches import to_record_batches
from sluice.kinesis.options.config import source_config_from_options
from sluice.kinesis.source import KinesisSource
from sluice.source.contracts import ReadTask
from sluice.source.model.offsets import HORIZON, Closed, SplitRange
from sluice.source.model.splits import SplitId

T = TypeVar("T")
OURS, BY_HAND, READY = "sluice", "by hand", "ready batches"
MICROS = 1e6
BUFFER = 65_536  # bytes, of Spark's workers
_DISCARD = "/bin/cat"


class Load(NamedTuple):
    """Closed shards; each has `pages` of `records` of `size` bytes in a long run, and `few` in a short."""

    size: int
    shards: int
    records: int
    pages: int
    few: int

    @property
    def more(self) -> int:
        """Records of the long run that the short one does not have."""
        return self.shards * self.records * (self.pages - self.few)

    def __str__(self) -> str:
        return f"{self.size} B, {self.shards} shard{'s' * (self.shards > 1)}"


LOADS = (
    Load(100, 1, 10_000, 60, 8),
    Load(1024, 1, 7_000, 36, 6),
    Load(1024, 4, 7_000, 12, 2),
    Load(10_240, 1, 700, 50, 8),
    Load(102_400, 1, 100, 40, 8),
)


class Cost(NamedTuple):
    """What a run took, or a record: seconds, and CPU."""

    seconds: float
    cpu: Cpu

    def of(self, records: int) -> Cost:
        """The part of one of so many records."""
        return Cost(self.seconds / records, Cpu(*(each / records for each in self.cpu)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.source_cpu", description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--size", type=int, action="append", help="bytes of a record (default all)")
    parser.add_argument("--way", choices=(OURS, BY_HAND, READY), action="append", help="(default all)")
    parser.add_argument("--no-spark", action="store_true", help="the second table only")
    arguments = parser.parse_args()
    loads = [load for load in LOADS if load.size in (arguments.size or [each.size for each in LOADS])]
    prepare_environment()
    tables = [pieces_table(loads, arguments.turns)]
    if not arguments.no_spark:
        tables.insert(0, spark_table(loads, arguments.turns, arguments.way or (OURS, BY_HAND, READY)))
    write_table("source_cpu", [line for table in tables for line in table])
    return 0


# --- in Spark -----------------------------------------------------------------------------------------


def spark_table(loads: Sequence[Load], turns: int, ways: Sequence[str]) -> list[str]:
    """CPU seconds for a million records."""
    kinds = "".join(f"{kind:>9}" for kind in Cpu._fields)
    titles = f"{'records/s':>10} {kinds} {'all':>8} {'times':>6}"
    lines = [f"{'CPU s a million, in Spark':<25} {'way':<14} {titles}"]
    print(lines[0], flush=True)
    with session_with(PlainSource, ReadySource) as spark:
        for load in loads:
            costs: dict[str, list[Cost]] = {way: [] for way in ways}
            with serving_both(load) as endpoints:
                for turn in range(turns + 1):
                    for way in ways:
                        cost = _cost_of_a_record(_runs(spark, endpoints, load, way), load, way)
                        costs[way] += [cost] if turn else []
            middle = {way: _middle(each) for way, each in costs.items()}
            for way, cost in middle.items():
                shown = "".join(f"{MICROS * each:>9.2f}" for each in cost.cpu)
                times = sum(cost.cpu) / sum(middle[ways[0]].cpu)
                lines.append(
                    f"{load!s:<25} {way:<14} {1 / cost.seconds:>10,.0f} {shown} "
                    f"{MICROS * sum(cost.cpu):>8.2f} {times:>6.2f}"
                )
                print(lines[-1], flush=True)
    return lines


@contextlib.contextmanager
def serving_both(load: Load) -> Iterator[tuple[str, str]]:
    """Servers with the backlogs of the short run and the long one."""
    with (
        server.serving(backlog, load.shards, load.few, load.records, load.size) as few,
        server.serving(backlog, load.shards, load.pages, load.records, load.size) as many,
    ):
        yield few, many


def _runs(
    spark: SparkSession, endpoints: tuple[str, str], load: Load, way: str
) -> Iterator[Callable[[], None]]:
    for endpoint, pages in zip(endpoints, (load.few, load.pages), strict=True):
        options = read_options(endpoint)
        if way == READY:
            count = min(load.records, READY_BYTES // load.size)
            batches = load.shards * load.records * pages // count
            options = {"size": str(load.size), "rows": str(count), "batches": str(batches)}
        if way == BY_HAND:
            options["shards"] = str(load.shards)
        name = {OURS: "kinesis-efo", BY_HAND: "plain-kinesis", READY: "ready-batches"}[way]
        yield partial(_drain, spark.read.format(name).options(**options).load())


def _drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _cost_of_a_record(runs: Iterator[Callable[[], None]], load: Load, way: str) -> Cost:
    """By the records that only the long run has. By hand it is a whole short run."""
    few = _cost(next(runs))
    if way == BY_HAND:
        return few.of(load.shards * load.records * load.few)
    all_ = _cost(next(runs))
    return Cost(all_.seconds - few.seconds, all_.cpu.less(few.cpu)).of(load.more)


def _cost(run: Callable[[], None]) -> Cost:
    before, began = spark_cpu(), time.perf_counter()
    run()
    return Cost(time.perf_counter() - began, spark_cpu().less(before))


def _middle(costs: Sequence[Cost]) -> Cost:
    columns = zip(*(cost.cpu for cost in costs), strict=True)
    return Cost(
        statistics.median(cost.seconds for cost in costs), Cpu(*(statistics.median(each) for each in columns))
    )


# --- the pieces of a task -----------------------------------------------------------------------------


class Taken(NamedTuple):
    """Seconds of a piece: on the clock, and of this process' CPU."""

    seconds: float
    cpu: float


def pieces_table(loads: Sequence[Load], turns: int) -> list[str]:
    """Microseconds of a record: CPU, and on the clock."""
    gc.collect()
    gc.freeze()  # as Spark's workers do after their first task
    lines = [f"{'a record, without Spark':<26} {'piece':<28} {'µs CPU':>8} {'µs':>8}"]
    for load in loads:
        if load.shards > 1:
            continue
        taken: dict[str, list[Taken]] = {}
        with server.serving(backlog, 1, load.few, load.records, load.size) as endpoint:
            pieces = _pieces(endpoint, load)
            for turn in range(turns + 1):
                for piece, run in pieces.items():
                    found = _take(run)
                    taken.setdefault(piece, []).extend([found] if turn else [])
        records = load.records * load.few
        for piece, each in taken.items():
            shown = (MICROS * statistics.median(values) / records for values in zip(*each, strict=True))
            seconds, cpu = shown
            lines.append(f"{load!s:<26} {piece:<28} {cpu:>8.3f} {seconds:>8.3f}")
            print(lines[-1], flush=True)
    return lines


def _take(run: Callable[[], object]) -> Taken:
    run()  # after another piece, its memory is cold
    began, cpu = time.perf_counter(), time.process_time()
    run()
    return Taken(time.perf_counter() - began, time.process_time() - cpu)


def _pieces(endpoint: str, load: Load) -> Mapping[str, Callable[[], object]]:
    config = source_config_from_options(read_options(endpoint))
    client = client_for(replace(config.connection, keeps_pages=True), "kinesis")
    source = KinesisSource(config)
    split_range = SplitRange(SplitId(STREAM, SHARD), HORIZON, Closed())
    iterators = [str(number) for number in range(load.few)]
    # One page again and again: with many of them at hand, a task would work in cold memory.
    bodies: list[bytes] = [client.get_records(ShardIterator="0", Limit=10_000)["Body"]] * load.few
    requests = [_request(each) for each in iterators]
    bounds = [_bounds(bodies[0])] * load.few
    pages = [_columns(bounds[0])] * load.few

    def read() -> Iterator[pa.RecordBatch]:
        return source.read_task(ReadTask((split_range,)))

    return {
        "receiving, nothing else": lambda: server.bare_call(
            endpoint, "GetRecords", requests, content_type=server.CBOR
        ),
        "receiving by the SDK": lambda: _each(
            iterators, lambda each: client.get_records(ShardIterator=each, Limit=10_000)
        ),
        "bounds": lambda: _each(bodies, _bounds),
        "columns": lambda: _each(bounds, _columns),
        "record batches": lambda: _each(
            pages, lambda page: list(to_record_batches([(split_range, page)], unpack=True))
        ),
        "all of a task": lambda: sum(batch.num_rows for batch in read()),
        "all of it, into a socket": lambda: _write(read()),
    }


def _each(items: Iterable[T], piece: Callable[[T], object]) -> None:
    """One after the other, as tasks do: nothing is kept."""
    for item in items:
        piece(item)


def _request(iterator: str) -> bytes:
    return encode({"ShardIterator": iterator, "Limit": 10_000})


def _bounds(body: bytes) -> RecordBounds:
    found = RecordBounds.of_array(body, body.index(b"Records") + len(b"Records"), find_many)
    assert found is not None
    return found[0]


def _columns(bounds: RecordBounds) -> RecordColumns:
    found = RecordColumns.of_page(bounds)
    assert found is not None
    return found


def _write(batches: Iterator[pa.RecordBatch]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen([_DISCARD], stdin=theirs.fileno(), stdout=subprocess.DEVNULL):
        theirs.close()
        with os.fdopen(os.dup(ours.fileno()), "wb", BUFFER) as file:
            writer: Any = None
            for batch in batches:
                writer = writer or pa.RecordBatchStreamWriter(file, batch.schema)
                writer.write_batch(batch)
            writer.close()
        ours.close()


if __name__ == "__main__":
    sys.exit(main())
