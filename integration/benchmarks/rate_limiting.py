"""The sink against a destination that admits a fixed rate, by rate-limiting strategy.

The destination limits as Kinesis does: 1,000 records a second for each shard, a burst of one second, partial
failures above that, answers after 5 to 50 ms. Each strategy writes to a destination of its own for the same
time, with the writer, threads and options that Spark's tasks use.

    python -m integration.benchmarks.rate_limiting
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from integration.support.chart import Line, Panel, draw
from sluice.destinations import read_sink
from sluice.sink import AsyncSinkWriter, SinkLimits, SubmitResult

RATE = 1000.0  # records a second and shard
INTERVAL = 0.5  # between two samples
SETTLED = 5.0  # seconds after which a strategy should have settled


class Converter:
    def open(self, schema: Any) -> None:
        pass

    def convert(self, batch: pa.RecordBatch) -> Iterator[int]:
        yield from range(batch.num_rows)


class Shards:
    """A destination with the limits of `count` shards."""

    OPTIONS: ClassVar[Any] = ()
    LIMITS: ClassVar[SinkLimits] = SinkLimits(
        max_batch_size=500,
        max_batch_size_in_bytes=10_000_000,
        max_record_size_in_bytes=1_000_000,
        aimd_decrease_factor=0.99,
    )
    count: ClassVar[int] = 1

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._random = random.Random(7)
        self._tokens = [RATE] * self.count
        self._counted = [time.monotonic()] * self.count
        self.accepted = 0
        self.refused = 0

    @classmethod
    def from_options(cls, values: Any, connection: Any) -> Shards:  # noqa: ARG003
        return cls()

    def create_converter(self) -> Converter:
        return Converter()

    def size_in_bytes(self, entry: int) -> int:  # noqa: ARG002
        return 100

    def submit(self, entries: Sequence[int]) -> SubmitResult[int]:
        time.sleep(self._random.uniform(0.0025, 0.025))
        with self._lock:
            failed = [entry for entry in entries if not self._admits()]
            self.accepted += len(entries) - len(failed)
            self.refused += len(failed)
        time.sleep(self._random.uniform(0.0025, 0.025))
        return SubmitResult(failed, {"ProvisionedThroughputExceededException": len(failed)} if failed else {})

    def _admits(self) -> bool:
        shard = self._random.randrange(self.count)
        now = time.monotonic()
        filled = self._tokens[shard] + (now - self._counted[shard]) * RATE
        self._counted[shard] = now
        self._tokens[shard] = min(RATE, filled)
        if self._tokens[shard] < 1:
            return False
        self._tokens[shard] -= 1
        return True

    def is_fatal(self, error: Exception) -> bool:  # noqa: ARG002
        return True

    def is_throttling(self, code: str) -> bool:
        return code == "ProvisionedThroughputExceededException"

    def close(self) -> None:
        pass


@dataclass
class Measured:
    """The run of one strategy. A sample: time, accepted and refused since the last sample, limit, rate."""

    name: str
    samples: list[tuple[float, int, int, float, float]] = field(default_factory=list)

    def throughput(self, start: float = 0.0) -> float:
        later = [sample for sample in self.samples if sample[0] > start]
        return sum(sample[1] for sample in later) / (len(later) * INTERVAL)

    def refusals(self, start: float = 0.0) -> float:
        later = [sample for sample in self.samples if sample[0] > start]
        refused = sum(sample[2] for sample in later)
        return refused / max(1, refused + sum(sample[1] for sample in later))

    def settled_after(self, rate: float) -> float | None:
        """Seconds after which every two seconds' throughput stays within 15 % of `rate`."""
        width = round(2.0 / INTERVAL)
        after: float | None = None
        for end in range(width, len(self.samples) + 1):
            mean = statistics.mean(sample[1] / INTERVAL for sample in self.samples[end - width : end])
            within = abs(mean / rate - 1) <= 0.15
            if not within:
                after = None
            elif after is None:
                after = self.samples[end - width][0] - INTERVAL
        return after


def measure(name: str, options: Mapping[str, str], seconds: float) -> Measured:
    """Writes for `seconds` with more to write than the destination takes."""
    setup: Any = read_sink({"destination": f"{__name__}:Shards", "rateLimiting": name, **options})
    destination: Any = setup.destination
    strategy: Any = setup.create_strategy()
    writer = AsyncSinkWriter(destination, setup.config, strategy)
    rows = pa.record_batch({"data": pa.array(range(5000))})
    measured = Measured(name)
    stopped = threading.Event()

    def write() -> None:
        while not stopped.is_set():
            writer.write(rows)

    thread = threading.Thread(target=write, daemon=True)
    started = time.monotonic()
    thread.start()
    accepted = refused = 0
    while (now := time.monotonic() - started) < seconds:
        time.sleep(max(0.0, (len(measured.samples) + 1) * INTERVAL - now))
        before, accepted, refused = (accepted, refused), destination.accepted, destination.refused
        limit = float(getattr(strategy, "limit", 0.0))
        rate = float(getattr(strategy, "rate", None) or 0.0)
        at = time.monotonic() - started
        measured.samples.append((at, accepted - before[0], refused - before[1], limit, rate))
    stopped.set()
    thread.join(30.0)
    with contextlib.closing(writer):
        pass
    return measured


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m integration.benchmarks.rate_limiting", description=__doc__
    )
    parser.add_argument("--seconds", type=float, default=18.0, help="a strategy (default 18)")
    parser.add_argument("--shards", type=int, default=1)
    arguments = parser.parse_args()
    Shards.count = arguments.shards
    admitted = RATE * arguments.shards
    bucket = {"tokenBucketRate": str(0.95 * admitted), "tokenBucketBurst": str(round(admitted / 10))}
    runs = [
        measure(name, options, arguments.seconds)
        for name, options in (("aimd", {}), ("none", {}), ("token-bucket", bucket))
    ]
    print(
        f"{admitted:g} records/s admitted, {arguments.seconds:g} s a strategy; settled: after {SETTLED:g} s"
    )
    columns = ("records/s settled", "of admitted", "refused settled", "refused in all", "settles after")
    print(f"{'rateLimiting':<14}" + "".join(f"{title:>19}" for title in columns))
    for run in runs:
        throughput, after = run.throughput(SETTLED), run.settled_after(admitted)
        print(
            f"{run.name:<14}{throughput:>19,.0f}{throughput / admitted:>19.1%}{run.refusals(SETTLED):>19.2%}"
            f"{run.refusals():>19.2%}{'never' if after is None else f'{max(0.0, after):.1f} s':>19}"
        )
    sent = [run.throughput(SETTLED) / (1 - run.refusals(SETTLED)) for run in runs]
    print(f"sent for one that is accepted: aimd {sent[0] / runs[0].throughput(SETTLED):.2f}, ", end="")
    print(f"none {sent[1] / runs[1].throughput(SETTLED):.2f}")
    print(f"picture: {picture(runs, admitted)}")
    aimd = runs[0]
    good = abs(aimd.throughput(SETTLED) / admitted - 1) <= 0.15 and aimd.refusals() < 0.05
    print("aimd is within 15 % and below 5 % refused" if good else "aimd misses 15 % or 5 %")
    return 0 if good else 1


def picture(runs: Sequence[Measured], admitted: float) -> str:
    end = max(run.samples[-1][0] for run in runs)
    line = Line("admitted", [(0.0, admitted), (end, admitted)], dashed=True)

    def lines(part: int, scale: float) -> list[Line]:
        return [Line(run.name, [(each[0], each[part] * scale) for each in run.samples]) for run in runs]

    aimd = [Line("aimd: rate", [(each[0], each[4]) for each in runs[0].samples])]
    limit = [Line("aimd: limit in flight", [(each[0], each[3]) for each in runs[0].samples])]
    panels = [
        Panel("accepted, records/s", [*lines(1, 1 / INTERVAL), line], top=2.5 * admitted),
        Panel("refused, records/s", lines(2, 1 / INTERVAL), top=2.5 * admitted),
        Panel("the rate that aimd has learnt, records/s", [*aimd, line], top=2.5 * admitted),
        Panel("the limit of records in flight", limit),
    ]
    return str(draw("rate_limiting", panels))


if __name__ == "__main__":
    raise SystemExit(main())
