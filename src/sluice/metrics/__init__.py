"""What queries do, in numbers: from Spark's progress reports to Prometheus, OpenTelemetry, CloudWatch.

``docs/operate.md`` shows it. What needs PySpark or an extra is imported when it is used first.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sluice.errors import SluiceError
from sluice.metrics.catalogue import METRICS, Metric, Sample
from sluice.metrics.endpoint import JsonExporter
from sluice.metrics.exporters import Exporter
from sluice.metrics.figures import (
    AgentMetrics,
    QueryMetrics,
    ShardMetrics,
    SinkMetrics,
    SourceMetrics,
    StreamMetrics,
)
from sluice.metrics.progress import read_progress

if TYPE_CHECKING:
    from sluice.metrics.cloudwatch import CloudWatchExporter
    from sluice.metrics.listener import SluiceListener
    from sluice.metrics.opentelemetry import OpenTelemetryExporter
    from sluice.metrics.prometheus import PrometheusExporter

__all__ = [
    "METRICS",
    "AgentMetrics",
    "CloudWatchExporter",
    "Exporter",
    "JsonExporter",
    "Metric",
    "OpenTelemetryExporter",
    "PrometheusExporter",
    "QueryMetrics",
    "Sample",
    "ShardMetrics",
    "SinkMetrics",
    "SluiceListener",
    "SourceMetrics",
    "StreamMetrics",
    "read_progress",
]


_LATE: Final[Mapping[str, tuple[str, str | None]]] = {
    "CloudWatchExporter": ("sluice.metrics.cloudwatch", None),
    "OpenTelemetryExporter": ("sluice.metrics.opentelemetry", "opentelemetry"),
    "PrometheusExporter": ("sluice.metrics.prometheus", "prometheus"),
    "SluiceListener": ("sluice.metrics.listener", "spark"),
}
"""By the name that is asked for: the module that is imported then, and the extra that it needs, if any."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _LATE[name]
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if extra is None or (error.name or "").startswith("sluice"):
            raise
        raise SluiceError(
            f"{name} needs {error.name}, which is not here: pip install 'pyspark-sluice[{extra}]'"
        ) from error
