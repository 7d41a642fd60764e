"""Figures for CloudWatch, through ``PutMetricData``."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final

import boto3
from botocore.exceptions import BotoCoreError

from sluice.aws.wire.sdk_deadlines import limit_requests
from sluice.errors import SluiceError
from sluice.metrics.board import Board
from sluice.metrics.catalogue import Sample
from sluice.metrics.exporters import Exporter, Guard

__all__ = ["CloudWatchExporter"]

_Series = tuple[str, tuple[tuple[str, str], ...]]
"""A metric's name, and its attributes or dimensions."""

_MOST: Final = 500
"""Data in a request. CloudWatch takes 1,000, and 1 MiB."""
_NOT_TAKEN: Final = re.compile(r"[\x00-\x1f\x7f]")
_LONGEST: Final = 1024
"""Characters of a dimension's value."""
_CLOSE_TIMEOUT: Final = 5.0
"""Seconds that closing waits for the last request."""
_UNITS: Final = {"s": "Seconds", "By": "Bytes", "{entry}/s": "Count/Second"}
_SHARD: Final = "sluice.shard.id"
_LEFT_OUT: Final = frozenset(("sluice.query.id", "sluice.lag.basis", "sluice.agent.state"))
"""Attributes that are not sent: each new query and state would make a new metric, which is billed."""


class CloudWatchExporter(Exporter):
    """Sends the figures once a minute, in its own thread.

    CloudWatch bills each combination of name and dimensions as a separate metric, so those of single shards
    are sent only on request. Without it, counters of shards are summed over the stream. Counters are sent as
    increments since the last request.

    Args:
        namespace: the namespace of the metrics.
        shards: send metrics of single shards, too.
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
        self._counted: dict[_Series, float] = {}  # by series of the board
        self._unsent: dict[_Series, tuple[Sample, float]] = {}  # by metric of CloudWatch
        self._thread: threading.Thread | None = None
        self._guard = Guard("CloudWatchExporter: PutMetricData")
        self._ends = threading.Event()

    def start(self, board: Board) -> None:
        """Begins to send.

        Raises:
            SluiceError: the SDK makes no client, such as without a region.
        """
        self._board = board
        if self._client is None:
            try:
                self._client = boto3.client("cloudwatch")
                limit_requests(self._client)
            except (BotoCoreError, ValueError) as error:
                raise SluiceError(
                    f"CloudWatchExporter: {error}; set it for the SDK (AWS_REGION), or give client="
                ) from error
        self._thread = threading.Thread(target=self._run, name="sluice-cloudwatch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Sends the increments since the last request, and ends the thread."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT)

    def send(self) -> None:
        """Sends what there is now. What a failed request had counted is in the next one.

        Raises:
            ClientError, BotoCoreError: CloudWatch refuses it, or is not reached.
        """
        assert self._board is not None  # noqa: S101 - it was started
        now = datetime.now(timezone.utc)
        self._count()
        data: list[tuple[_Series | None, dict[str, Any]]] = [  # counters with their metrics
            *(
                (None, _datum(sample, sample.value, self._dimensions_of(sample), now))
                for sample in self._board.samples()
                if sample.metric.kind == "gauge" and (self._shards or _SHARD not in sample.attributes)
            ),
            *(
                (key, _datum(sample, added, self._dimensions_of(sample), now))
                for key, (sample, added) in self._unsent.items()
            ),
        ]
        for start in range(0, len(data), _MOST):
            part = data[start : start + _MOST]
            self._client.put_metric_data(Namespace=self._namespace, MetricData=[each for _, each in part])
            for key, _ in part:
                if key is not None:
                    del self._unsent[key]

    def _count(self) -> None:
        """Adds to the unsent increments. By series of the board: a sum of them falls when one ends."""
        assert self._board is not None  # noqa: S101 - it was started
        counted: dict[_Series, float] = {}
        for sample in self._board.counters():
            series = sample.metric.name, tuple(sample.attributes.items())
            counted[series] = sample.value
            added = sample.value - self._counted.get(series, 0)
            if added:
                self._add(sample, added if added > 0 else sample.value)  # a counter that fell has begun anew
        self._counted = counted
        for sample in self._board.samples():  # those to which nothing was added
            if sample.metric.kind == "counter":
                self._add(sample, 0)

    def _add(self, sample: Sample, added: float) -> None:
        key = sample.metric.name, tuple(self._dimensions_of(sample).items())
        _, unsent = self._unsent.get(key, (sample, 0))
        self._unsent[key] = sample, unsent + added

    def _dimensions_of(self, sample: Sample) -> dict[str, str]:
        kept = {
            name: text
            for name, value in sample.attributes.items()
            if name not in _LEFT_OUT and (self._shards or name != _SHARD)
            if (text := _dimension_value(value))
        }
        return {**kept, **self._dimensions}

    def _run(self) -> None:
        while not self._ends.wait(self._interval):
            self._guard.call(self.send)
        self._count()
        if any(added for _, added in self._unsent.values()):
            self._guard.call(self.send)


def _dimension_value(text: str) -> str:
    """The value as CloudWatch takes it, which refuses a whole request for a name of a query in Cyrillic.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_Dimension.html
    """
    return _NOT_TAKEN.sub("?", text.strip()).encode("ascii", "backslashreplace").decode()[:_LONGEST]


def _datum(sample: Sample, value: float, dimensions: Mapping[str, str], now: datetime) -> dict[str, Any]:
    return {
        "MetricName": sample.metric.name,
        "Dimensions": [{"Name": name, "Value": text} for name, text in sorted(dimensions.items())],
        "Timestamp": now,
        "Value": value,
        "Unit": _UNITS.get(sample.metric.unit, "Count"),
    }
