"""Where the time of a sink's task goes: CPU of its pieces, each alone, and of a task without Spark.

A piece alone runs on one thread, again and again on the same data, and its best run counts. What a task takes
beyond the sum of its pieces goes into handing over between threads, and into memory that is not in a cache.

    python -m integration.benchmarks.sink_pieces
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from integration.benchmarks import server
from integration.benchmarks.backlog import STREAM
from integration.benchmarks.sink_speed import KEYS, RECORDS, prepare
from integration.benchmarks.versus import write_table
from integration.support.kinesis import REGION
from integration.support.spark import prepare_environment
from sluice.aws.wire.responses import read_put_records
from sluice.destinations import read_sink
from sluice.sink import NoRateLimitingStrategy, SubmitResult
from sluice.sink.contracts import Origin
from sluice.sink.setup import AsyncSinkSetup
from sluice.sink.task import write_rows
from sluice.sink.writing.scheduler import SinkScheduler

ROWS: Final = 10_000  # of a record batch, as Spark makes them
REQUEST: Final = 500
RUNS: Final = 15
SCHEMA: Final = StructType([StructField("data", BinaryType()), StructField("partitionKey", StringType())])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.sink_pieces", description=__doc__)
    parser.add_argument("--turns", type=int, default=5, help="tasks for each size (default 5)")
    arguments = parser.parse_args()
    prepare_environment()
    columns: dict[int, dict[str, float]] = {}
    with server.serving(prepare) as endpoint:
        for size, count in RECORDS.items():
            columns[size] = _pieces(endpoint, size) | _task(endpoint, size, count // 2, arguments.turns)
    lines = [f"{'us a record':<52}" + "".join(f"{size:>9} B" for size in columns)]
    lines += [
        f"{name:<52}" + "".join(f"{each[name]:>11.2f}" for each in columns.values())
        for name in next(iter(columns.values()))
    ]
    write_table("sink_pieces", lines)
    return 0


def _rows(size: int) -> pa.RecordBatch:
    keys = [str(n % KEYS) for n in range(ROWS)]
    return pa.record_batch([pa.array([b"x" * size] * ROWS), pa.array(keys)], names=["data", "partitionKey"])


def _setup(endpoint: str) -> AsyncSinkSetup:
    options = {"destination": "kinesis", "streamName": STREAM, "endpointUrl": endpoint, "region": REGION}
    setup = read_sink({**options, "rateLimiting": "none"})
    assert isinstance(setup, AsyncSinkSetup)
    return setup


def _pieces(endpoint: str, size: int) -> dict[str, float]:
    """CPU of each piece, in microseconds a record."""
    setup, batch = _setup(endpoint), _rows(size)
    destination: Any = setup.destination
    converter = destination.create_converter()
    entries = list(converter.convert(batch))
    sizes = list(map(destination.size_in_bytes, entries))
    request, one = entries[:REQUEST], entries[:1]
    write = msgspec.json.Encoder().encode
    body = write({"StreamName": STREAM, "Records": request})
    answer = {"status_code": 200, "headers": {}, "body": prepare()["PutRecords"](body)}
    outcomes = (read_put_records(answer) or {})["Records"]

    def schedule() -> None:
        scheduler = SinkScheduler[Any](
            setup.config,
            NoRateLimitingStrategy(),
            name="bench",
            is_throttling=setup.destination.is_throttling,
        )
        for start in range(0, ROWS, REQUEST):
            chunk = slice(start, start + REQUEST)
            scheduler.add(entries[chunk], sizes[chunk], 0.0)
            for sent in scheduler.advance(0.0):
                list(sent.entries)
                scheduler.complete(sent.number, SubmitResult(), 0.0)

    def read() -> None:
        read_put_records(answer)
        destination._call.result_in_order(request, outcomes)

    for _ in range(3):
        destination.submit(one)
    found = {
        "rows to entries": _cpu(lambda: list(converter.convert(batch)), ROWS),
        "sizes": _cpu(lambda: list(map(destination.size_in_bytes, entries)), ROWS),
        "buffering, scheduling": _cpu(schedule, ROWS),
        "body of the request": _cpu(lambda: write({"StreamName": STREAM, "Records": request}), REQUEST),
        "its SHA-256, for the signature": _cpu(lambda: hashlib.sha256(body).hexdigest(), REQUEST),
        "a call of one record: SDK, signature, HTTP": _cpu(lambda: destination.submit(one), REQUEST),
        "moving the bytes of 500": _cpu(
            lambda: server.bare_call(endpoint, "PutRecords", [body] * 20), 20 * REQUEST
        ),
        "reading the answer to 500": _cpu(read, REQUEST),
    }
    return {**found, "sum": sum(found.values())}


def _cpu(run: Callable[[], object], records: int) -> float:
    best = float("inf")
    for _ in range(RUNS):
        start = time.process_time()
        for _ in range(max(1, ROWS // records)):
            run()
        best = min(best, (time.process_time() - start) / max(1, ROWS // records))
    return best / records * 1e6


def _task(endpoint: str, size: int, count: int, turns: int) -> dict[str, float]:
    """CPU and wall time of a task without Spark, in microseconds a record."""
    batch, origin = _rows(size), Origin("kinesis")
    seconds: list[tuple[float, float]] = []
    for _ in range(turns + 1):
        setup = _setup(endpoint)
        start, cpu = time.perf_counter(), time.process_time()
        write_rows(setup, SCHEMA, origin, [batch] * (count // ROWS), write_id=None)
        seconds.append((time.process_time() - cpu, time.perf_counter() - start))
    records = count // ROWS * ROWS
    names = ("a task of as many: CPU", "a task of as many: wall time")
    medians = (statistics.median(each) / records * 1e6 for each in zip(*seconds[1:], strict=True))
    return dict(zip(names, medians, strict=True))


if __name__ == "__main__":
    sys.exit(main())
