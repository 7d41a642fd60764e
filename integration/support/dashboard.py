"""A run that a real Prometheus watches, for the queries of the docs' dashboard and alerts.

A query copies a stream, whose shards an agent polls. For a third of the time a stranger uses up the reads of
one shard, and the destination refuses records.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from integration.support.model_streams import ModelStreams
from integration.support.paths import ROOT
from integration.support.prometheus import Prometheus, QueryRefusedError, prometheus
from integration.support.watched import Stranger, copying_query, listening
from sluice.metrics import PrometheusExporter, SluiceListener

DOCS: Final = ROOT / "docs" / "monitoring"
VARIABLES: Final = {"$query": ".*", "$__rate_interval": "10s"}
RATE: Final = 200
STEP: Final = 1.0
REFUSALS: Final = {"PutRecords.record": {"ProvisionedThroughputExceededException": 0.05}}


@dataclass(frozen=True)
class WatchedRun:
    server: Prometheus
    start: float
    end: float  # start, end: of the run, in seconds since the epoch

    def series(self, expression: str) -> list[Any]:
        """What Prometheus answers to an expression of the dashboard."""
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        return self.server.query_range(expression, self.start, self.end, STEP)

    def problems(self) -> list[str]:
        """A sentence for each expression of dashboard and alerts that is not understood, or has no series."""
        asked = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
        return [problem for each in (*asked, *alerts()) if (problem := self._problem(each))]

    def _problem(self, expression: str) -> str | None:
        try:
            has_series = any(series["values"] for series in self.series(expression))
        except QueryRefusedError as error:
            return f"{error}: {expression}"
        return None if has_series else f"no series: {expression}"


def dashboard() -> Mapping[str, Any]:
    """That of the docs, as Grafana imports it."""
    found: dict[str, Any] = json.loads((DOCS / "dashboard.json").read_text())
    return found


def alerts() -> list[str]:
    """The expressions of the docs' alerts, without what they are compared with: whole ones mostly have no
    series.
    """
    page = (ROOT / "docs" / "operate.md").read_text()
    return [expression.rpartition(" > ")[0] for expression in re.findall(r"expr: (.+)", page)]


@contextlib.contextmanager
def watched_run(
    spark: SparkSession, service: ModelStreams, directory: Path, seconds: float
) -> Iterator[WatchedRun]:
    """A run of so many seconds. Prometheus answers until the ``with`` block ends."""
    exporter = PrometheusExporter(port=0)
    stream, sink = service.create(2, name="orders"), service.create(1, name="orders-out")
    shard = min(service.open_shards(stream))
    ends = threading.Event()

    def produce() -> None:
        number = 0
        while not ends.wait(0.1):
            service.put(stream, [(f"key-{number + n}", b"x" * 200) for n in range(RATE // 10)])
            number += RATE // 10

    with (
        listening(spark, SluiceListener(exporter)),
        prometheus(exporter.address, directory) as server,
        copying_query(spark, service, stream, sink, directory / "checkpoint", agent="driver") as query,
    ):
        producer = threading.Thread(target=produce, daemon=True)
        producer.start()
        while not query.lastProgress:
            time.sleep(0.5)
        start = time.time()
        time.sleep(seconds / 3)
        service.fail(REFUSALS)
        with Stranger(service, stream, shard):
            time.sleep(seconds / 3)
        service.clear_faults()
        time.sleep(seconds / 3)
        yield WatchedRun(server, start, time.time())
        ends.set()
        producer.join()
