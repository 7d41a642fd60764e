"""The names of all metrics. They are a contract: ``docs/operate.md`` lists them, and a test compares.

Names follow OpenTelemetry's conventions: https://opentelemetry.io/docs/specs/semconv/general/naming/. Units
are UCUM's. Exporters write them as their system does (Prometheus: ``sluice_source_lag_seconds``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["METRICS", "Metric", "Sample"]

_QUERY: Final = ("sluice.query.id", "sluice.query.name")
_STREAM: Final = (*_QUERY, "sluice.source", "aws.kinesis.stream_name")
_SHARD: Final = (*_STREAM, "sluice.shard.id")
_AGENT: Final = (*_QUERY, "sluice.source")
_SINK: Final = (*_QUERY, "sluice.destination")


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        kind: ``gauge`` for a current value, ``counter`` for a value that only rises.
        attributes: the names of attributes by which its series differ.
    """

    name: str
    kind: Literal["gauge", "counter"]
    unit: str
    description: str
    attributes: tuple[str, ...]


@dataclass(frozen=True)
class Sample:
    """The value of one series, with a text for each attribute of its metric."""

    metric: Metric
    value: float
    attributes: Mapping[str, str]


def _gauge(name: str, unit: str, attributes: tuple[str, ...], description: str) -> Metric:
    return Metric(name, "gauge", unit, description, attributes)


def _counter(name: str, unit: str, attributes: tuple[str, ...], description: str) -> Metric:
    return Metric(name, "counter", unit, description, attributes)


_LIST: Final = (
    _counter("sluice.query.batches", "{batch}", _QUERY, "Micro-batches that have ended."),
    _counter("sluice.query.rows", "{row}", _QUERY, "Rows that Spark got of all sources."),
    _gauge("sluice.query.batch.duration", "s", _QUERY, "How long the last trigger with a batch took."),
    _gauge("sluice.query.batch.time", "s", _QUERY, "When the last batch ended, in seconds since the epoch."),
    _gauge("sluice.query.event.time", "s", _QUERY, "When Spark last told of the query, idle or not."),
    _gauge("sluice.source.lag", "s", (*_SHARD, "sluice.lag.basis"), "From the last batch to the tip."),
    _gauge("sluice.source.lag.max", "s", _STREAM, "Of the shard that is furthest behind."),
    _gauge("sluice.source.lag.mean", "s", _STREAM, "Over the shards whose lag is known."),
    _gauge("sluice.source.lag.min", "s", _STREAM, "Of the shard that is the least behind."),
    _gauge("sluice.source.shards", "{shard}", _STREAM, "Shards that are read."),
    _gauge("sluice.source.shards.pushed", "{shard}", _STREAM, "Of these, shards read by a subscription."),
    _counter("sluice.source.records", "{record}", (*_SHARD, "sluice.publisher"), "Records that tasks read."),
    _counter("sluice.source.io", "By", _SHARD, "Data of the records that tasks read, about."),
    _counter("sluice.source.reads.refused", "{read}", _SHARD, "Reads refused by Kinesis because of load."),
    _counter("sluice.source.retries", "{call}", _SHARD, "Reads that were repeated."),
    _gauge("sluice.agent.up", "1", (*_AGENT, "sluice.agent.state"), "1 if the agent listens."),
    _gauge("sluice.agent.subscriptions", "{shard}", _AGENT, "Shards that it subscribes to, or polls."),
    _gauge(
        "sluice.agent.subscriptions.silent", "{shard}", _AGENT, "Of these, shards from which nothing comes."
    ),
    _gauge("sluice.agent.workers", "{host}", _AGENT, "Worker hosts with an agent."),
    _gauge("sluice.agent.workers.silent", "{host}", _AGENT, "Of these, hosts whose agent says nothing."),
    _gauge("sluice.agent.buffer.usage", "By", _AGENT, "What agents buffer."),
    _gauge("sluice.agent.buffer.limit", "By", _AGENT, "What agents may buffer."),
    _counter("sluice.sink.records", "{record}", _SINK, "Records accepted by the destination."),
    _counter("sluice.sink.io", "By", _SINK, "Bytes accepted by the destination."),
    _counter("sluice.sink.requests", "{request}", _SINK, "Requests, with any outcome."),
    _counter("sluice.sink.retries", "{record}", _SINK, "Records that were sent again."),
    _counter("sluice.sink.refused", "{record}", (*_SINK, "error.type"), "Refusals, by the error's code."),
    _counter("sluice.sink.timeouts", "{request}", _SINK, "Requests without an answer in time."),
    _counter("sluice.sink.dead_letters", "{record}", _SINK, "Records that became dead letters."),
    _gauge("sluice.sink.rate", "{entry}/s", _SINK, "Entries a second, as the rate limiters have learnt."),
    _gauge("sluice.sink.limit", "{entry}", _SINK, "Entries that a task may have in flight."),
    _gauge("sluice.sink.send.duration.p50", "s", _SINK, "Half of the requests took no longer."),
    _gauge("sluice.sink.send.duration.p95", "s", _SINK, "95 % of the requests took no longer."),
    _gauge("sluice.sink.send.duration.max", "s", _SINK, "The longest request."),
)

METRICS: Final[Mapping[str, Metric]] = {metric.name: metric for metric in _LIST}
"""All metrics by name."""
