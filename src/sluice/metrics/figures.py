"""The figures of a query as plain data.

None means unknown: the version of Spark does not carry the figure, or it was not reported. An unknown
figure is never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = ["AgentMetrics", "QueryMetrics", "ShardMetrics", "SinkMetrics", "SourceMetrics", "StreamMetrics"]

LagBasis = Literal["service", "arrival", "caughtUp", "start", "closed"]
Publisher = Literal["efo", "polling"]


@dataclass(frozen=True, kw_only=True)
class ShardMetrics:
    """One shard.

    Attributes:
        shard: its id.
        millis_behind_latest: milliseconds from the end of the last batch to the shard's tip.
        lag_basis: what the lag is known from. ``service``: Kinesis, when the batch was planned. ``arrival``,
            ``caughtUp`` and ``start``: the offsets alone, and the shard is at most this far behind at the
            time of the event. ``closed``: the shard was read to its end.
        publisher: where ends of batches are found: in subscriptions (``efo``), or by reads (``polling``).
        records, bytes: of the last batch whose tasks have reported, before deaggregation. Spark takes reports
            when it has planned a batch, so mostly it is the one before `QueryMetrics.batch_id`.
        polled, pushed: records that tasks have read by polling and by fan-out, since the run of the query
            began, what failed attempts read included.
        bytes_read: bytes of their data, likewise.
        reads_refused: reads that the service refused because of load, since the run began.
        retries: calls that were repeated, since the run began.
    """

    shard: str
    millis_behind_latest: int | None = None
    lag_basis: LagBasis | None = None
    publisher: Publisher | None = None
    records: int | None = None
    bytes: int | None = None
    polled: int | None = None
    pushed: int | None = None
    bytes_read: int | None = None
    reads_refused: int | None = None
    retries: int | None = None


@dataclass(frozen=True, kw_only=True)
class StreamMetrics:
    """The shards of one stream that a query reads."""

    stream: str
    shards: Mapping[str, ShardMetrics] = field(default_factory=dict)

    @property
    def max_millis_behind_latest(self) -> int | None:
        """Of the shard that is furthest behind."""
        return max(self._lags(), default=None)

    @property
    def min_millis_behind_latest(self) -> int | None:
        """Of the shard that is the least behind."""
        return min(self._lags(), default=None)

    @property
    def mean_millis_behind_latest(self) -> float | None:
        """Over the shards whose lag is known."""
        lags = self._lags()
        return sum(lags) / len(lags) if lags else None

    def total(self, figure: str) -> int | None:
        """A figure of `ShardMetrics`, such as ``records``, over all shards; None if any is unknown."""
        known = [getattr(each, figure) for each in self.shards.values()]
        return None if None in known else sum(known)

    def _lags(self) -> Sequence[int]:
        known = (each.millis_behind_latest for each in self.shards.values())
        return [each for each in known if each is not None]


@dataclass(frozen=True, kw_only=True)
class AgentMetrics:
    """The fan-out agent.

    Attributes:
        state: ``none`` (none runs), ``starting``, ``listening`` or ``silent``.
        subscribed: shards with a subscription, or that it polls.
        silent_subscriptions: of these, shards from which nothing has come for 10 s, or whose agent is silent:
            planner and tasks poll them. None if an earlier release did not report it.
        workers: worker hosts with an agent.
        silent_workers: of these, hosts whose agent has said nothing for 5 s; None likewise.
        buffered_bytes, buffer_size: of all agents; None before they have told.
    """

    state: str
    subscribed: int
    workers: int
    silent_subscriptions: int | None = None
    silent_workers: int | None = None
    buffered_bytes: int | None = None
    buffer_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class SourceMetrics:
    """One source of the query that is Sluice's.

    Attributes:
        source: its index among all sources of the query.
        streams: by name.
        rows: how many Spark got from it in the batch, after deaggregation.
        rows_per_second: how many Spark processed.
        tasks: how many tasks were planned since the run began.
        tasks_reported: how many of them have reported. Figures of the others are missing.
        agent: None with polling, or unknown.
    """

    source: int
    streams: Mapping[str, StreamMetrics]
    rows: int
    rows_per_second: float | None
    tasks: int | None = None
    tasks_reported: int | None = None
    agent: AgentMetrics | None = None


@dataclass(frozen=True, kw_only=True)
class SinkMetrics:
    """What the sink wrote in the batch; see `sluice.sink.SinkProgress` for the figures' meaning.

    Attributes:
        epochs: how many ends of epochs are in these figures: 1, or more with ``foreachBatch`` and retries.
    """

    destination: str | None
    epochs: int = 1
    records: int = 0
    bytes: int = 0
    requests: int = 0
    retries: int = 0
    refused: int = 0
    timeouts: int = 0
    dead_letters: int = 0
    refused_by_code: Mapping[str, int] = field(default_factory=dict)
    rate: float | None = None
    limit: int | None = None
    send_time_p50: float | None = None
    send_time_p95: float | None = None
    send_time_max: float | None = None


@dataclass(frozen=True, kw_only=True)
class QueryMetrics:
    """The figures of one progress event.

    Attributes:
        query_id, run_id: Spark's.
        name: the query's, if it has one.
        batch_id: of the last batch.
        timestamp: when the trigger began, in seconds since the epoch.
        batch_seconds: how long the trigger took.
        rows: how many Spark got from all sources.
        sources: the sources that are Sluice's.
        sink: None if the query does not write to Sluice's sink, or unknown.
    """

    query_id: str
    run_id: str
    name: str | None
    batch_id: int
    timestamp: float
    batch_seconds: float | None
    rows: int
    sources: Sequence[SourceMetrics] = ()
    sink: SinkMetrics | None = None

    @property
    def streams(self) -> Sequence[StreamMetrics]:
        """The shards of all sources."""
        return [stream for source in self.sources for stream in source.streams.values()]

    @property
    def max_millis_behind_latest(self) -> int | None:
        """Of the shard that is furthest behind."""
        known = (stream.max_millis_behind_latest for stream in self.streams)
        return max((each for each in known if each is not None), default=None)

    @property
    def is_of_sluice(self) -> bool:
        """Whether source or sink of the query is Sluice's, as far as is known."""
        return bool(self.sources) or self.sink is not None

    def to_json(self) -> dict[str, Any]:
        """The figures as objects of JSON, with these names."""
        return asdict(self)
