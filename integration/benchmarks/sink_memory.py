"""Resident memory of a sink while millions of records pass through a slow destination.

    python -m integration.benchmarks.sink_memory

The destination takes 5 ms a request and refuses one record in a thousand. The options bound the memory,
however many records pass. Only samples after a warm-up count.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from integration.support.chart import Line, Panel, draw
from sluice.sink import (
    AsyncSinkConfig,
    AsyncSinkWriter,
    Destination,
    ElementConverter,
    NoRateLimitingStrategy,
    SubmitResult,
)

MIB = 1024 * 1024
BATCH = 10_000
SIZE = 200  # bytes of a record
WARM = 0.1  # the share of the records that is the warm-up


class Converter(ElementConverter[bytes]):
    def open(self, schema: Any, _: object = None) -> None:
        pass

    def convert(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        for start in range(0, batch.num_rows, 1000):
            yield from batch.column(0).slice(start, 1000).to_pylist()


class Slow(Destination[bytes]):
    """A destination that is slower than the writer and refuses some records."""

    def __init__(self, latency: float) -> None:
        self._latency = latency
        self._lock = threading.Lock()
        self.accepted = 0

    def create_converter(self) -> Converter:
        return Converter()

    def size_in_bytes(self, entry: bytes) -> int:
        return len(entry)

    def submit(self, entries: Sequence[bytes]) -> SubmitResult[bytes]:
        time.sleep(self._latency)
        with self._lock:
            refuses = self.accepted % 1000 < len(entries)
            self.accepted += len(entries) - refuses
        return SubmitResult(entries[:1] if refuses else ())

    def is_fatal(self, error: Exception) -> bool:  # noqa: ARG002
        return True


def resident() -> float:
    """The resident memory of this process (MiB). Linux only."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / MIB


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.sink_memory", description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--latency", type=float, default=0.005, help="seconds a request (default 0.005)")
    arguments = parser.parse_args()
    destination = Slow(arguments.latency)
    config = AsyncSinkConfig(
        max_batch_size=500,
        max_batch_size_in_bytes=5 * MIB,
        max_record_size_in_bytes=MIB,
        max_in_flight_requests=8,
        max_buffered_requests=10_000,
        max_time_in_buffer=5.0,
        request_timeout=600.0,
        max_retry_duration=900.0,
    )
    # All values differ, so that no two records share memory.
    template = [(f"{n:08}" * (SIZE // 8)).encode() for n in range(BATCH)]
    started = time.monotonic()
    samples: list[tuple[float, int, float]] = []
    writer = AsyncSinkWriter(destination, config, NoRateLimitingStrategy())
    with contextlib.closing(writer):
        for start in range(0, arguments.records, BATCH):
            count = min(BATCH, arguments.records - start)
            writer.write(pa.record_batch({"data": pa.array(template[:count], pa.binary())}))
            samples.append((time.monotonic() - started, start + count, resident()))
        writer.flush()
    took = time.monotonic() - started
    figures = writer.figures
    print(f"{'records':>12}{'seconds':>10}{'resident MiB':>14}")
    step = max(1, len(samples) // 10)
    for at, records, memory in samples[step - 1 :: step]:
        print(f"{records:>12,}{at:>10.1f}{memory:>14.1f}")
    warm = [sample for sample in samples if sample[1] >= WARM * arguments.records]
    held = [sample[2] for sample in warm]
    low, high, tenth = min(held), max(held), max(1, len(held) // 10)
    growth = sum(held[-tenth:]) / tenth - sum(held[:tenth]) / tenth
    print(f"{figures.records:,} acknowledged in {took:.1f} s, {figures.records / took:,.0f}/s, ", end="")
    print(f"{figures.retries:,} sent again")
    print(f"once warm: {low:.1f} to {high:.1f} MiB, max-min {high - low:.1f} MiB, ", end="")
    print(f"last tenth above first tenth: {growth:+.1f} MiB")
    panel = Panel("resident memory, MiB", [Line("resident", [(at, held) for at, _, held in samples])])
    print(f"picture: {draw('sink_memory', [panel])}")
    flat = growth < 10.0 and figures.records == arguments.records
    print("memory is flat" if flat else "memory grows, or records are missing")
    return 0 if flat else 1


if __name__ == "__main__":
    raise SystemExit(main())
