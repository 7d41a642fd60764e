"""The page lists the metrics that there are, as they are."""

from __future__ import annotations

import json
import re
from pathlib import Path

from sluice.metrics import METRICS
from sluice.metrics.catalogue import Metric
from sluice.metrics.prometheus import prometheus_label, prometheus_name

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "operate.md").read_text()
NAMED = {
    "query": ("sluice.query.id", "sluice.query.name"),
    "source": ("sluice.query.id", "sluice.query.name", "sluice.source"),
    "stream": ("sluice.query.id", "sluice.query.name", "sluice.source", "aws.kinesis.stream_name"),
    "shard": (
        *("sluice.query.id", "sluice.query.name", "sluice.source", "aws.kinesis.stream_name"),
        "sluice.shard.id",
    ),
    "sink": ("sluice.query.id", "sluice.query.name", "sluice.destination"),
}


def listed() -> list[Metric]:
    """The rows of the table."""
    found = []
    table = r"^\| `(sluice[\w.]+)` \| `(.+?)` \| (\w+) \| (.+?) \| (.+?) \|$"
    for row in re.findall(table, PAGE, re.MULTILINE):
        name, unit, kind, attributes, description = row
        words = [part for each in attributes.split(", ") for part in NAMED.get(each, (each.strip("`"),))]
        found.append(Metric(name, kind, unit, description, tuple(words)))
    return found


def test_the_page_lists_every_metric() -> None:
    """With its unit, kind and attributes; no other metric, and in the same order."""
    assert listed() == list(METRICS.values())


def test_dashboard_and_alerts_ask_for_series_that_there_are() -> None:
    """By the names and labels that Prometheus has for them."""
    names = {prometheus_name(metric) for metric in METRICS.values()}
    labels = {prometheus_label(each) for metric in METRICS.values() for each in metric.attributes}
    dashboard = json.loads((DOCS / "monitoring" / "dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    alerts = re.findall(r"expr: (.+)", PAGE)

    assert len(asked) >= 8
    assert len(alerts) >= 4
    for expression in [*asked, *alerts]:
        words = set(re.findall(r"\b(?:sluice|aws)_\w+", expression))
        assert words & names, expression
        assert words <= names | labels, expression
