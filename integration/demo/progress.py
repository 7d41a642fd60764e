"""How far the pipeline is, from Spark's own progress reports."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from integration.demo.pipeline import LATENCY


class PipelineError(Exception):
    """A query has failed."""


class Latency:
    """How long rows took lately, from put to row: the median, by the medians of batches."""

    def __init__(self, seconds: float = 5.0) -> None:
        self._seconds = seconds
        self._batches: deque[tuple[float, int, int]] = deque()  # when it was added, its median, its rows

    def add(self, median: int, rows: int) -> None:
        self._batches.append((time.monotonic(), median, rows))

    @property
    def p50(self) -> int | None:
        """In ms; None where no rows have come lately."""
        while self._batches and self._batches[0][0] < time.monotonic() - self._seconds:
            self._batches.popleft()
        half = sum(rows for _, _, rows in self._batches) / 2
        for _, median, rows in sorted(self._batches, key=lambda batch: batch[1]):
            half -= rows
            if half <= 0:
                return median
        return None


@dataclass
class Figures:
    batches: int = 0
    rows: int = 0
    late_rows: int = 0
    lag: dict[str, int] = field(default_factory=dict)  # ms behind the tip, by shard
    latency: Latency = field(default_factory=Latency)


class Progress:
    """Adds up the reports of some queries."""

    def __init__(self, queries: Sequence[StreamingQuery]) -> None:
        self._queries = queries
        self._seen: set[tuple[str, int]] = set()
        self.figures: dict[str, Figures] = {query.name or "": Figures() for query in queries}

    @property
    def least(self) -> int:
        """Rows that every query has read."""
        return min(figures.rows for figures in self.figures.values())

    def refresh(self) -> None:
        """Takes the reports that are new; raises what a query has failed with."""
        for query in self._queries:
            if error := query.exception():
                raise PipelineError(str(error))  # Spark's own error cannot be shown once its JVM has ended
            for report in query.recentProgress:
                self._add(query.name or "", json.loads(report.json))

    def _add(self, name: str, report: dict[str, Any]) -> None:
        figures = self.figures[name]
        source = report["sources"][0]
        figures.lag.update(lags(source.get("latestOffset")))
        batch = (name, report["batchId"])
        if batch in self._seen or not report["numInputRows"]:
            return  # Spark reports an idle query again and again under the batch that is to come
        self._seen.add(batch)
        figures.batches += 1
        figures.rows += report["numInputRows"]
        observed = report.get("observedMetrics", {}).get(LATENCY)
        if observed and observed["rows"]:
            figures.latency.add(observed["p50"], observed["rows"])
        figures.late_rows += sum(
            operator.get("numRowsDroppedByWatermark", 0) for operator in report["stateOperators"]
        )


def lags(offset: object) -> Iterator[tuple[str, int]]:
    """Shard and ms behind the tip, wherever the newest offset has ``millisBehindLatest``.

    Spark before 4.2 does not ask the source for its newest offset: there is nothing then.
    """
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return
    if not isinstance(offset, dict):
        return
    for key, value in offset.items():
        if key == "millisBehindLatest" and isinstance(value, dict):
            yield from leaves(value)
        else:
            yield from lags(value)


def leaves(tree: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value)
        elif isinstance(value, int | float):
            yield key, int(value)
