"""Keeps the known figures of all queries of an application, as the series that exporters show."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sluice.metrics.catalogue import METRICS, Sample
from sluice.metrics.figures import (
    AgentMetrics,
    QueryMetrics,
    ShardMetrics,
    SinkMetrics,
    SourceMetrics,
    StreamMetrics,
)

__all__ = ["Board"]

_Attributes = dict[str, str]
_Figures = Iterator[tuple[str, _Attributes, float | None]]
"""Metrics by name, with their attributes and values; None: unknown."""
_Series = tuple[str, tuple[tuple[str, str], ...]]

_MOST_ENDED: Final = 200
"""Queries that have ended, whose counters are kept."""
_MOST_GONE: Final = 10_000
"""Series of one query whose shards are not read any more, and whose counters are kept."""


@dataclass
class _Query:
    """One query.

    Attributes:
        metrics: the figures of its last batch.
        event_time: when its last event was (seconds since the epoch).
        sink: the last figures of its sink that are known in this run. Not each event has them.
        totals: by series, the counters, which only rise.
        run: by series, the last value of counters that restart with each run of the query.
        gone: the series of `totals` whose shards are not read any more.
    """

    metrics: QueryMetrics
    event_time: float
    sink: SinkMetrics | None = None
    totals: dict[_Series, float] = field(default_factory=dict)
    run: dict[_Series, float] = field(default_factory=dict)
    gone: frozenset[_Series] = frozenset()

    @property
    def shown(self) -> Iterator[tuple[_Series, float]]:
        """The counters that are shown."""
        return ((series, value) for series, value in self.totals.items() if series not in self.gone)

    def samples(self) -> Iterator[Sample]:
        """All series."""
        for name, attributes, value in _gauges(self):
            if value is not None:
                yield Sample(METRICS[name], value, attributes)
        for (name, series), value in self.shown:
            yield Sample(METRICS[name], value, dict(series))


class Board:
    """The last figures of all queries. Thread-safe: one thread records, others read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}
        self._ended: OrderedDict[str, _Query] = OrderedDict()

    def record(self, metrics: QueryMetrics, *, is_batch: bool = True) -> None:
        """A query has made progress.

        Args:
            is_batch: a batch has ended. Otherwise these are newer figures of the last one.
        """
        with self._lock:
            query = self._queries.get(metrics.query_id)
            if query is None:
                query = self._ended.pop(metrics.query_id, None)
                if query is None or query.metrics.name != metrics.name:  # the name is in all series
                    query = _Query(metrics, metrics.timestamp)
                self._queries[metrics.query_id] = query
            if query.metrics.run_id != metrics.run_id:
                query.run, query.sink = {}, None
            query.sink = metrics.sink or query.sink
            # What is newer is about the source alone.
            query.metrics = metrics if is_batch else replace(metrics, sink=query.metrics.sink)
            query.event_time = max(query.event_time, metrics.timestamp + (metrics.batch_seconds or 0.0))
            self._count(query, is_batch=is_batch)

    def mark_alive(self, query_id: str, instant: float) -> None:
        """Spark has reported a query as idle at `instant` (seconds since the epoch)."""
        with self._lock:
            if (query := self._queries.get(query_id)) is not None:
                query.event_time = max(query.event_time, instant)

    def forget(self, query_id: str) -> None:
        """A query has ended: its series end. If it is started again, its counters continue."""
        with self._lock:
            if (query := self._queries.pop(query_id, None)) is not None:
                self._ended[query_id] = query
                if len(self._ended) > _MOST_ENDED:
                    self._ended.popitem(last=False)

    @property
    def queries(self) -> Sequence[QueryMetrics]:
        """The last figures of each query."""
        with self._lock:
            return [query.metrics for query in self._queries.values()]

    def samples(self) -> list[Sample]:
        """All series as of now."""
        with self._lock:
            return [sample for query in self._queries.values() for sample in query.samples()]

    def counters(self) -> list[Sample]:
        """All counters, also of shards and queries that have ended, with their last figures."""
        with self._lock:
            return [
                Sample(METRICS[name], value, dict(attributes))
                for query in (*self._queries.values(), *self._ended.values())
                for (name, attributes), value in query.totals.items()
            ]

    def to_json(self) -> dict[str, Any]:
        """All queries as JSON: the figures, when they were made, and the counters."""
        with self._lock:
            return {
                "version": 1,
                "queries": [
                    {
                        **query.metrics.to_json(),
                        "event_time": query.event_time,
                        "totals": [
                            {"name": name, "attributes": dict(attributes), "value": value}
                            for (name, attributes), value in query.shown
                        ],
                    }
                    for query in self._queries.values()
                ],
            }

    def _count(self, query: _Query, *, is_batch: bool) -> None:
        metrics = query.metrics
        of_query = _of_query(metrics)
        if is_batch:
            _add(query, "sluice.query.batches", of_query, 1)
            _add(query, "sluice.query.rows", of_query, metrics.rows)
        seen: set[_Series] = set()
        for name, attributes, value in _run_totals(metrics):
            series = _series(name, attributes)
            seen.add(series)
            if value is None:
                continue
            risen = value - query.run.get(series, 0)
            query.run[series] = value
            query.totals[series] = query.totals.get(series, 0) + max(0, risen)
        query.gone = frozenset(
            each for each in query.totals if each[0].startswith("sluice.source.") and each not in seen
        )
        for series in [each for each in query.totals if each in query.gone][:-_MOST_GONE]:
            del query.totals[series]
            query.run.pop(series, None)
        sink = metrics.sink
        if sink is None or not is_batch:
            return
        of_sink = {**of_query, "sluice.destination": sink.destination or ""}
        _add(query, "sluice.sink.records", of_sink, sink.records)
        _add(query, "sluice.sink.io", of_sink, sink.bytes)
        for name in ("requests", "retries", "timeouts", "dead_letters"):
            _add(query, f"sluice.sink.{name}", of_sink, getattr(sink, name))
        for code, count in sink.refused_by_code.items():
            _add(query, "sluice.sink.refused", {**of_sink, "error.type": code}, count)


def _run_totals(metrics: QueryMetrics) -> _Figures:
    """What the source has counted since the run began; None if that is unknown for the moment."""
    for attributes, shard in _shards(metrics):
        for publisher, records in (("polling", shard.polled), ("efo", shard.pushed)):
            yield "sluice.source.records", {**attributes, "sluice.publisher": publisher}, records
        yield "sluice.source.io", attributes, shard.bytes_read
        yield "sluice.source.reads.refused", attributes, shard.reads_refused
        yield "sluice.source.retries", attributes, shard.retries


def _gauges(query: _Query) -> _Figures:
    metrics = query.metrics
    of_query = _of_query(metrics)
    ended = metrics.timestamp + (metrics.batch_seconds or 0.0)
    yield "sluice.query.batch.duration", of_query, metrics.batch_seconds
    yield "sluice.query.batch.time", of_query, ended
    yield "sluice.query.event.time", of_query, query.event_time
    for source in metrics.sources:
        if source.agent is not None:
            yield from _of_agent({**of_query, "sluice.source": str(source.source)}, source.agent)
        for stream in source.streams.values():
            yield from _of_shards(_of_stream(metrics, source, stream), stream)
    for attributes, shard in _shards(metrics):
        basis = {"sluice.lag.basis": shard.lag_basis or ""}
        yield "sluice.source.lag", attributes | basis, _seconds(shard.millis_behind_latest)
    if (sink := query.sink) is not None:
        of_sink = {**of_query, "sluice.destination": sink.destination or ""}
        yield "sluice.sink.rate", of_sink, sink.rate
        yield "sluice.sink.limit", of_sink, sink.limit
        for part in ("p50", "p95", "max"):
            yield f"sluice.sink.send.duration.{part}", of_sink, getattr(sink, f"send_time_{part}")


def _of_shards(attributes: _Attributes, stream: StreamMetrics) -> _Figures:
    yield "sluice.source.lag.max", attributes, _seconds(stream.max_millis_behind_latest)
    yield "sluice.source.lag.mean", attributes, _seconds(stream.mean_millis_behind_latest)
    yield "sluice.source.lag.min", attributes, _seconds(stream.min_millis_behind_latest)
    yield "sluice.source.shards", attributes, len(stream.shards)
    publishers = [shard.publisher for shard in stream.shards.values()]
    yield "sluice.source.shards.pushed", attributes, None if None in publishers else publishers.count("efo")


def _of_agent(attributes: _Attributes, agent: AgentMetrics) -> _Figures:
    yield "sluice.agent.up", {**attributes, "sluice.agent.state": agent.state}, agent.state == "listening"
    yield "sluice.agent.subscriptions", attributes, agent.subscribed
    yield "sluice.agent.subscriptions.silent", attributes, agent.silent_subscriptions
    yield "sluice.agent.workers", attributes, agent.workers
    yield "sluice.agent.workers.silent", attributes, agent.silent_workers
    yield "sluice.agent.buffer.usage", attributes, agent.buffered_bytes
    yield "sluice.agent.buffer.limit", attributes, agent.buffer_size


def _shards(metrics: QueryMetrics) -> Iterator[tuple[_Attributes, ShardMetrics]]:
    for source in metrics.sources:
        for stream in source.streams.values():
            for shard in stream.shards.values():
                attributes = {**_of_stream(metrics, source, stream), "sluice.shard.id": shard.shard}
                yield attributes, shard


def _of_query(metrics: QueryMetrics) -> _Attributes:
    return {"sluice.query.id": metrics.query_id, "sluice.query.name": metrics.name or ""}


def _of_stream(metrics: QueryMetrics, source: SourceMetrics, stream: StreamMetrics) -> _Attributes:
    return {
        **_of_query(metrics),
        "sluice.source": str(source.source),
        "aws.kinesis.stream_name": stream.stream,
    }


def _add(query: _Query, name: str, attributes: Mapping[str, str], value: float) -> None:
    series = _series(name, attributes)
    query.totals[series] = query.totals.get(series, 0) + value


def _series(name: str, attributes: Mapping[str, str]) -> _Series:
    return name, tuple(attributes.items())


def _seconds(millis: float | None) -> float | None:
    return None if millis is None else millis / 1000
