"""Figures of queries as tests make them up."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from sluice.metrics import (
    AgentMetrics,
    QueryMetrics,
    ShardMetrics,
    SinkMetrics,
    SourceMetrics,
    StreamMetrics,
)

__all__ = ["FakeLetterbox", "metrics", "progress_event", "shard", "sink"]


def shard(name: str = "s0", *, lag: int | None = 1500, polled: int | None = 10, **more: Any) -> ShardMetrics:
    """One shard, whose reads are known unless `polled` is None."""
    known = polled is not None
    return ShardMetrics(
        shard=name,
        millis_behind_latest=lag,
        lag_basis="service",
        publisher="polling",
        polled=polled,
        pushed=0 if known else None,
        bytes_read=100 if known else None,
        **{"reads_refused": 1, "retries": 2, **more},
    )


def sink(**more: Any) -> SinkMetrics:
    values: dict[str, Any] = {"records": 5, "bytes": 50, "requests": 1, "refused_by_code": {"Slow": 3}}
    return SinkMetrics(destination="kinesis stream 'out'", rate=10.0, limit=7, **{**values, **more})


def metrics(*shards: ShardMetrics, query: str = "q1", run: str = "r1", **more: Any) -> QueryMetrics:
    """A query of one stream, that has made a batch."""
    stream = StreamMetrics(stream="clicks", shards={each.shard: each for each in shards or (shard(),)})
    agent = AgentMetrics(
        state="listening",
        subscribed=1,
        silent_subscriptions=1,
        workers=2,
        silent_workers=1,
        buffered_bytes=5,
        buffer_size=100,
    )
    source = SourceMetrics(source=0, streams={"clicks": stream}, rows=20, rows_per_second=2.0, agent=agent)
    values: dict[str, Any] = {"batch_id": 3, "timestamp": 1000.0, "batch_seconds": 2.0, "rows": 20}
    return QueryMetrics(
        **{
            "query_id": query,
            "run_id": run,
            "name": "orders",
            "sources": [source],
            "sink": sink(),
            **values,
            **more,
        }
    )


def progress_event(value: dict[str, Any]) -> Any:
    """An event of Spark's, as far as the listener looks at it."""
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(value)))


class FakeLetterbox:
    """Gives the letters that the test puts in."""

    def __init__(self) -> None:
        self.letters: list[Any] = []
        self.is_closed = False

    def take(self) -> list[Any]:
        taken, self.letters = self.letters, []
        return taken

    def close(self) -> None:
        self.is_closed = True
