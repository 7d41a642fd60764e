"""Compares several ways to do the same, which run in turns."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from integration.support.paths import BUILD
from integration.support.spark import spark_session

OUTPUT = BUILD / "benchmarks"
TITLES = f"{'record':>9} {'way':<18} {'records/s':>12} {'MB/s':>8}"


@dataclass(frozen=True)
class Rates:
    """The rate of each run of one way (records a second)."""

    values: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def against(self, other: Rates) -> tuple[float, float, float]:
        """The ratio of the medians, and the lowest and highest ratio of two runs in the same turn."""
        each = [mine / theirs for mine, theirs in zip(self.values, other.values, strict=True)]
        return self.median / other.median, min(each), max(each)


@contextlib.contextmanager
def session_with(*sources: type[DataSource]) -> Iterator[SparkSession]:
    """A quiet session that also reads `sources`, for what Sluice is compared with."""
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory,
        spark_session(Path(directory) / "spark", {"spark.log.level": "ERROR"}) as spark,
    ):
        for source in sources:
            spark.dataSource.register(source)
        yield spark


def compare(ways: Mapping[str, Callable[[], int]], turns: int) -> dict[str, Rates]:
    """Runs every way once to warm up, then once in each turn. A way returns how many records it moved."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, run in ways.items():
            start = time.perf_counter()
            count = run()
            if turn:
                seconds[name].append(count / (time.perf_counter() - start))
    return {name: Rates(values) for name, values in seconds.items()}


def rows(size: int, rates: Mapping[str, Rates], ours: str) -> list[str]:
    """Lines for a table with `TITLES`: the rate of each way, and how much faster `ours` is.

    `size`: bytes of a record.
    """
    lines = []
    for way, rate in rates.items():
        ratio, low, high = rates[ours].against(rate)
        shown = "" if way == ours else f"{ratio:6.2f}  ({low:.2f}-{high:.2f})"
        lines.append(
            f"{size:>7} B {way:<18} {rate.median:>12,.0f} {rate.median * size / 1e6:>8,.1f}   {shown}"
        )
    return lines


def write_table(name: str, lines: Sequence[str]) -> None:
    """Prints a table and writes it to the build directory."""
    print("\n".join(lines), flush=True)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / f"{name}.txt").write_text("\n".join(lines) + "\n")
