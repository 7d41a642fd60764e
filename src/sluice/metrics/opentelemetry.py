"""Figures for OpenTelemetry. Needs the extra ``opentelemetry``, and an SDK that the application sets up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry import metrics as otel

from sluice.metrics.board import Board
from sluice.metrics.catalogue import METRICS, Metric, Sample
from sluice.metrics.exporters import Exporter
from sluice.metrics.figures import QueryMetrics

__all__ = ["OpenTelemetryExporter"]

_FRESH: Final = 0.5
"""Seconds for which the series that were made are used, so that one collection makes them once."""


class OpenTelemetryExporter(Exporter):
    """Makes observable instruments, which the application's meter provider reads when it exports.

    The application chooses where to: https://opentelemetry.io/docs/languages/python/exporters/.

    Args:
        meter_provider: None: the provider that the application has set for the process.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        meter_provider: otel.MeterProvider | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._meter = otel.get_meter("sluice", meter_provider=meter_provider)
        self._clock = clock
        self._lock = threading.Lock()
        self._board: Board | None = None
        self._by_name: dict[str, list[Sample]] = {}
        self._made_at = float("-inf")

    def start(self, board: Board) -> None:
        self._board = board
        for metric in METRICS.values():
            make = (
                self._meter.create_observable_counter
                if metric.kind == "counter"
                else self._meter.create_observable_gauge
            )
            make(metric.name, [self._observer(metric)], unit=metric.unit, description=metric.description)

    def export(self, metrics: QueryMetrics) -> None:
        """The next collection has it."""
        del metrics
        with self._lock:
            self._made_at = float("-inf")

    def close(self) -> None:
        """The instruments stay, as OpenTelemetry removes none, and observe nothing any more."""
        with self._lock:
            self._board, self._by_name = None, {}

    def _observer(self, metric: Metric) -> Callable[[otel.CallbackOptions], Iterable[otel.Observation]]:
        def observe(_options: otel.CallbackOptions) -> Iterable[otel.Observation]:
            return [
                otel.Observation(each.value, dict(each.attributes)) for each in self._samples(metric.name)
            ]

        return observe

    def _samples(self, name: str) -> list[Sample]:
        with self._lock:
            if self._board is not None and self._clock() - self._made_at > _FRESH:
                self._by_name = {}
                for sample in self._board.samples():
                    self._by_name.setdefault(sample.metric.name, []).append(sample)
                self._made_at = self._clock()
            return self._by_name.get(name, [])
