"""Figures for CloudWatch, through ``PutMetricData``."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final

import boto3

from sluice.metrics.board import Board
from sluice.metrics.catalogue import Sample
from sluice.metrics.exporters import Guard
from sluice.metrics.figures import QueryMetrics

__all__ = ["CloudWatchExporter"]

_Series = tuple[str, tuple[tuple[str, str], ...]]
"""A metric's name and its dimensions."""

_MOST: Final = 500
"""Data in a request. CloudWatch takes 1,000, and 1 MiB."""
_UNITS: Final = {"s": "Seconds", "By": "Bytes", "{entry}/s": "Count/Second"}
_SHARD: Final = "sluice.shard.id"
_LEFT_OUT: Final = frozenset(("sluice.query.id", "sluice.lag.basis", "sluice.agent.state"))
"""Attributes that are not sent: each new query and state would make a new metric, which is billed."""


class CloudWatchExporter:
    """Sends the figures once a minute, in a thread of its own.

    CloudWatch bills each combination of name and dimensions as a metric of its own, so those of single shards
    are sent only on request. Without it, counters of shards are summed over the stream. Counters are sent
    as what was added since the last time.

    Args:
        namespace: the namespace of the metrics.
        shards: send those of single shards, too.
        interval: seconds between two requests.
        client: a client of boto3; None: one with the settings that the SDK finds.
        dimensions: added to all, such as ``{"Environment": "prod"}``.
    """

    def __init__(
        self,
        namespace: str = "Sluice",
        *,
        shards: bool = False,
        interval: float = 60.0,
        client: Any = None,
        dimensions: Mapping[str, str] | None = None,
    ) -> None:
        self._namespace = namespace
        self._shards = shards
        self._interval = interval
        self._client = client
        self._dimensions = dict(dimensions or {})
        self._board: Board | None = None
        self._sent: dict[_Series, float] = {}
        self._guard = Guard("CloudWatchExporter: PutMetricData")
        self._ends = threading.Event()

    def start(self, board: Board) -> None:
        self._board = board
        if self._client is None:
            self._client = boto3.client("cloudwatch")
        threading.Thread(target=self._run, name="sluice-cloudwatch", daemon=True).start()

    def export(self, metrics: QueryMetrics) -> None:
        """The next request has it."""

    def close(self) -> None:
        """Ends the thread."""
        self._ends.set()

    def send(self) -> None:
        """Sends what there is now. What a failed request had counted is in the next one.

        Raises:
            ClientError, BotoCoreError: CloudWatch refuses it, or is not reached.
        """
        assert self._board is not None  # noqa: S101 - it was started
        totals: dict[_Series, float] = {}
        data: list[tuple[_Series | None, dict[str, Any]]] = []  # counters with their series
        now = datetime.now(timezone.utc)
        for sample in self._board.samples():
            if _SHARD in sample.attributes and sample.metric.kind == "gauge" and not self._shards:
                continue
            dimensions = self._dimensions_of(sample)
            if sample.metric.kind == "gauge":
                data.append((None, _datum(sample, sample.value, dimensions, now)))
                continue
            key = sample.metric.name, tuple(sorted(dimensions.items()))
            totals[key] = totals.get(key, 0) + sample.value
        units = {sample.metric.name: sample for sample in self._board.samples()}
        for key, total in totals.items():
            name, pairs = key
            risen = total - self._sent.get(key, 0)
            if name in units:  # a total that fell has begun anew
                added = risen if risen >= 0 else total
                data.append((key, _datum(units[name], added, dict(pairs), now)))
        for start in range(0, len(data), _MOST):
            part = data[start : start + _MOST]
            self._client.put_metric_data(Namespace=self._namespace, MetricData=[each for _, each in part])
            self._sent |= {key: totals[key] for key, _ in part if key is not None}
        self._sent = totals

    def _dimensions_of(self, sample: Sample) -> dict[str, str]:
        kept = {
            name: value
            for name, value in sample.attributes.items()
            if value and name not in _LEFT_OUT and (self._shards or name != _SHARD)
        }
        return {**kept, **self._dimensions}

    def _run(self) -> None:
        while not self._ends.wait(self._interval):
            self._guard.call(self.send)


def _datum(sample: Sample, value: float, dimensions: Mapping[str, str], now: datetime) -> dict[str, Any]:
    return {
        "MetricName": sample.metric.name,
        "Dimensions": [{"Name": name, "Value": text} for name, text in sorted(dimensions.items())],
        "Timestamp": now,
        "Value": value,
        "Unit": _UNITS.get(sample.metric.unit, "Count"),
    }
