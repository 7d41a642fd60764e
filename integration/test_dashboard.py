"""The dashboard and the alerts of docs/operate.md, before a real Prometheus."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.support.dashboard import dashboard, watched_run
from integration.support.model_streams import ModelStreams
from integration.support.prometheus import QueryRefusedError

SECONDS = 24.0


@pytest.mark.soak(seconds=60)
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Prometheus: apt-get install prometheus")
def test_each_expression_of_dashboard_and_alerts_has_series(
    spark: SparkSession, service: ModelStreams, tmp_path: Path
) -> None:
    """Of a run in which reads and writes are refused, shards are polled by an agent, and nothing is lost."""
    with watched_run(spark, service, tmp_path, SECONDS) as run:
        assert run.problems() == []
        panels = {panel["title"]: panel for panel in dashboard()["panels"]}
        refused = run.series(panels["Reads refused by shard"]["targets"][0]["expr"])
        assert max(float(rate) for series in refused for _, rate in series["values"]) > 0
        with pytest.raises(QueryRefusedError):
            run.series("sum by (rate(")
