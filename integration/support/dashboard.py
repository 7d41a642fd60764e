"""Draws the dashboard of the docs from a run with a real Prometheus.

    python -m integration.support.dashboard [seconds]

A query copies a stream while a stranger uses up the reads of one shard for a third of the time. Prometheus
scrapes the listener, and answers each panel's own queries. The panels that have series become
``docs/monitoring/dashboard.svg``. It needs ``prometheus`` on PATH (``apt-get install prometheus``).
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from integration.model.server import serving
from integration.support.chart import Line, Panel, draw
from integration.support.model_streams import LAWS, ModelStreams
from integration.support.paths import ROOT
from integration.support.prometheus import Prometheus, prometheus
from integration.support.spark import prepare_environment, spark_session
from integration.support.watched import Stranger, copying_query, listening
from sluice.metrics import PrometheusExporter, SluiceListener

__all__ = ["panels"]

DOCS: Final = ROOT / "docs" / "monitoring"
VARIABLES: Final = {"$query": ".*", "$__rate_interval": "10s"}
RATE: Final = 200
STEP: Final = 1.0


def panels(dashboard: Mapping[str, Any], server: Prometheus, start: float, end: float) -> Iterator[Panel]:
    """The panels of the dashboard that have series."""
    for panel in dashboard["panels"]:
        lines = []
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            for series in server.query_range(expression, start, end, STEP):
                labels = series["metric"]
                name = target["legendFormat"]
                for label in re.findall(r"\{\{(\w+)\}\}", name):
                    name = name.replace(f"{{{{{label}}}}}", labels.get(label, ""))
                points = [(at - start, float(value)) for at, value in series["values"] if value != "NaN"]
                lines.append(Line(re.sub(r"shardId-0+(?=\d)", "shard ", name), points))
        if any(points for line in lines for points in line.points):
            unit = panel["fieldConfig"]["defaults"]["unit"]
            yield Panel(f"{panel['title']} ({unit})", lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m integration.support.dashboard", description=__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=90.0, help="how long the query runs (90)")
    seconds = parser.parse_args().seconds
    prepare_environment()
    exporter = PrometheusExporter(port=0)
    with (
        serving(LAWS) as model,
        tempfile.TemporaryDirectory() as directory,
        spark_session(Path(directory) / "spark") as spark,
        listening(spark, SluiceListener(exporter)),
        prometheus(exporter.address, Path(directory)) as server,
    ):
        service = ModelStreams(model)
        stream, sink = service.create(2, name="orders"), service.create(1, name="orders-out")
        shard = min(service.open_shards(stream))
        ends = threading.Event()

        def produce() -> None:
            number = 0
            while not ends.wait(0.1):
                records = [(f"key-{number + n}", b"x" * 200) for n in range(RATE // 10)]
                service.put(stream, records)
                number += len(records)

        with copying_query(spark, service, stream, sink, Path(directory) / "checkpoint") as query:
            producer = threading.Thread(target=produce, daemon=True)
            producer.start()
            while not query.lastProgress:
                time.sleep(0.5)
            start = time.time()
            time.sleep(seconds / 3)
            with Stranger(service, stream, shard):
                time.sleep(seconds / 3)
            time.sleep(seconds / 3)
            end = time.time()
            ends.set()
            producer.join()
            dashboard = json.loads((DOCS / "dashboard.json").read_text())
            print(draw("dashboard", list(panels(dashboard, server, start, end)), DOCS))


if __name__ == "__main__":
    main()
