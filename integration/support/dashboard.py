"""Draws the dashboard of the docs from a run with a real Prometheus, and checks what it asks for.

    python -m integration.support.dashboard [seconds]

A query copies a stream, whose shards an agent polls. For a third of the time a stranger uses up the reads of
one shard, and the destination refuses records. Prometheus scrapes the listener, and answers each panel's own
queries; the answers become ``docs/monitoring/dashboard.svg``. If Prometheus does not understand an expression
of the dashboard or of an alert, or has no series for it, the exit code is 1.

It needs ``prometheus`` on PATH (``apt-get install prometheus``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from integration.model.server import serving
from integration.support.chart import Line, Panel, draw
from integration.support.model_streams import LAWS, ModelStreams
from integration.support.paths import ROOT
from integration.support.prometheus import Prometheus, QueryRefusedError, prometheus
from integration.support.spark import prepare_environment, spark_session
from integration.support.watched import Stranger, copying_query, listening
from sluice.metrics import PrometheusExporter, SluiceListener

DOCS: Final = ROOT / "docs" / "monitoring"
VARIABLES: Final = {"$query": ".*", "$__rate_interval": "10s"}
RATE: Final = 200
STEP: Final = 1.0
REFUSALS: Final = {"PutRecords.record": {"ProvisionedThroughputExceededException": 0.05}}


@dataclass(frozen=True)
class WatchedRun:
    """What Prometheus has of a run."""

    server: Prometheus
    start: float
    end: float  # start, end: of the run, in seconds since the epoch

    def panels(self) -> Iterator[Panel]:
        """The panels of the dashboard that have series."""
        for panel in dashboard()["panels"]:
            lines = []
            for target in panel["targets"]:
                for series in self.series(target["expr"]):
                    labels = series["metric"]
                    name = target["legendFormat"]
                    for label in re.findall(r"\{\{(\w+)\}\}", name):
                        name = name.replace(f"{{{{{label}}}}}", labels.get(label, ""))
                    points = [
                        (at - self.start, float(value)) for at, value in series["values"] if value != "NaN"
                    ]
                    lines.append(Line(re.sub(r"shardId-0+(?=\d)", "shard ", name), points))
            if any(points for line in lines for points in line.points):
                unit = panel["fieldConfig"]["defaults"]["unit"]
                yield Panel(f"{panel['title']} ({unit})", lines)

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
    page = (ROOT / "docs" / "monitoring.md").read_text()
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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.support.dashboard", description=__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=90.0, help="how long the query runs (90)")
    seconds = parser.parse_args().seconds
    prepare_environment()
    with (
        serving(LAWS) as model,
        tempfile.TemporaryDirectory() as name,
        spark_session(Path(name) / "spark") as spark,
        watched_run(spark, ModelStreams(model), Path(name), seconds) as run,
    ):
        problems = run.problems()
        print(*problems, sep="\n", end="\n" if problems else "")
        print(draw("dashboard", list(run.panels()), DOCS))
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
