"""Figures for Prometheus. Needs the extra ``prometheus``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from sluice.errors import SluiceError
from sluice.metrics.board import Board
from sluice.metrics.catalogue import METRICS
from sluice.metrics.catalogue import Metric as Described
from sluice.metrics.endpoint import JsonExporter, Page

__all__ = ["PrometheusExporter", "prometheus_label", "prometheus_name"]

_UNITS: Final = {"s": "_seconds", "By": "_bytes", "{entry}/s": "_per_second"}


class PrometheusExporter(JsonExporter):
    """Serves the figures at ``/metrics`` for Prometheus to scrape, and as JSON for ``sluice top``.

    Series of expired shards and ended queries are missing from the next scrape on.

    Args:
        port: 0 for any that is free; 9464 is the usual one of OpenTelemetry's exporters for Prometheus.
        host: the address to listen on; Prometheus on another host does not reach this default.
        registry: where to collect as well, such as ``prometheus_client.REGISTRY`` of an application that
            serves it itself.
        serve: whether to listen. Otherwise the figures are in `registry` only.
    """

    def __init__(
        self,
        port: int = 9464,
        host: str = "127.0.0.1",
        *,
        registry: CollectorRegistry | None = None,
        serve: bool = True,
    ) -> None:
        super().__init__(port, host)
        self._serves = serve
        self._registry = registry or CollectorRegistry()
        self._collector: _BoardCollector | None = None

    def start(self, board: Board) -> None:
        """Adds the figures to the registry, and listens.

        Raises:
            SluiceError: the registry has another exporter's figures, or as `JsonExporter.start` does.
        """
        collector = _BoardCollector(board)
        try:
            self._registry.register(collector)
        except ValueError as error:
            raise SluiceError(
                f"PrometheusExporter: the registry has such figures already: {error}; one listener serves "
                "all queries of a session"
            ) from error
        self._collector = collector
        if self._serves:
            try:
                super().start(board)
            except SluiceError:
                self.close()
                raise

    def pages(self, board: Board) -> Mapping[str, Page]:
        metrics: Page = lambda: (CONTENT_TYPE_LATEST, generate_latest(self._registry))  # noqa: E731
        return {"/metrics": metrics, **super().pages(board)}

    def close(self) -> None:
        super().close()
        if self._collector is not None:
            self._registry.unregister(self._collector)
            self._collector = None


class _BoardCollector(Collector):
    """Makes the metrics at each scrape, so that series end with their shards and queries."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def describe(self) -> Iterator[Metric]:
        """Names without values, which the registry compares with the names of other collectors."""
        return (_family(metric) for metric in METRICS.values())

    def collect(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for sample in self._board.samples():
            family = families.get(sample.metric.name)
            if family is None:
                family = families[sample.metric.name] = _family(sample.metric)
            values = [sample.attributes.get(name, "") for name in sample.metric.attributes]
            family.add_metric(values, sample.value)
        return iter(families.values())


def _family(metric: Described) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    labels = [prometheus_label(name) for name in metric.attributes]
    return kind(prometheus_name(metric).removesuffix("_total"), metric.description, labels=labels)


def prometheus_name(metric: Described) -> str:
    """The name by OpenTelemetry's rules:
    https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
    """
    name = metric.name.replace(".", "_") + _UNITS.get(metric.unit, "")
    return f"{name}_total" if metric.kind == "counter" else name


def prometheus_label(attribute: str) -> str:
    """The label for an attribute."""
    return attribute.replace(".", "_")
