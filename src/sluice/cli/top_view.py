"""What ``sluice top`` shows: one look at a listener, and what changed since the last one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from sluice.aws.wire.exchanges import fetch as fetch_url
from sluice.cli.report import duration, table
from sluice.errors import SluiceError

__all__ = ["Look", "QueryRow", "ShardRow", "frame", "line", "look_at_listener", "rated"]

_JSON_PATH: Final = "/sluice.json"
_TIMEOUT: Final = 5.0
_LARGEST: Final = 64 * 2**20
_NOT_PRINTED: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_COUNTED: Final = {
    "sluice.source.records": "records",
    "sluice.source.io": "bytes",
    "sluice.source.reads.refused": "refused",
    "sluice.source.retries": "retries",
}


@dataclass(frozen=True, kw_only=True)
class ShardRow:
    """One shard; None is unknown.

    Attributes:
        lag: seconds behind the tip. Unless `is_exact`, the shard is at most this far behind.
        publisher: ``efo`` or ``polling``.
        totals: the counts so far, by name.
        rates: the same a second, since the last look.
    """

    stream: str
    shard: str
    lag: float | None
    is_exact: bool
    publisher: str | None
    totals: Mapping[str, float]
    rates: Mapping[str, float] = field(default_factory=dict)

    @property
    def shown_lag(self) -> str:
        if self.lag is None:
            return "?"
        text = f"{self.lag * 1000:.0f} ms" if self.lag < 10 else duration(self.lag)
        return text if self.is_exact else f"<= {text}"


@dataclass(frozen=True, kw_only=True)
class QueryRow:
    """One query.

    Attributes:
        batch_age: seconds since the last batch ended.
        counted_at: when the totals were counted (seconds since the epoch). They rise with each batch.
        shards: those furthest behind first.
        agent: the known state of the agent.
        sink: the figures of the last batch, as in `sluice.metrics.SinkMetrics`.
        totals, rates: see `ShardRow`.
    """

    name: str
    batch: int
    batch_age: float
    counted_at: float
    shards: Sequence[ShardRow]
    agent: Mapping[str, Any] | None
    sink: Mapping[str, Any] | None
    totals: Mapping[str, float]
    rates: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look.

    Attributes:
        at: seconds since the epoch.
        source: the listener's address.
    """

    at: float
    source: str
    queries: Sequence[QueryRow]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def look_at_listener(address: str, now: float, fetch: Callable[[str], bytes] | None = None) -> Look:
    """Asks a listener.

    Args:
        address: ``host:port``, or a URL.
        now: seconds since the epoch.
        fetch: gets a URL.

    Raises:
        SluiceError: nothing answers there, or what answers is not a listener.
    """
    base = address if "://" in address else f"http://{address}"
    url = base.removesuffix("/").removesuffix("/metrics").removesuffix(_JSON_PATH) + _JSON_PATH
    try:
        value = json.loads((fetch or _fetch)(url))
        queries = [_query(each, now) for each in value["queries"]]
    except OSError as error:
        raise SluiceError(
            f"no listener answers at {url} (has the application a SluiceListener?): {error}"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SluiceError(f"what answers at {url} is not a listener of Sluice: {error!r}") from error
    return Look(at=now, source=address, queries=queries)


def rated(look: Look, before: Look | None) -> Look:
    """The look, with what has changed since the one before."""
    known = {query.name: query for query in before.queries} if before else {}
    return replace(look, queries=[_rated(query, known.get(query.name)) for query in look.queries])


def frame(look: Look, *, rows: int | None = None) -> str:
    """The current figures, as a screen shows them.

    Args:
        rows: shards to show of each query at most, those furthest behind first; None: all.
    """
    parts = [f"sluice top {_clean(look.source)}"]
    if not look.queries:
        parts.append(line(look))
    for query in look.queries:
        parts += ["", _summary(query), *_sink_line(query), *_agent_line(query), ""]
        parts.append(_table(query.shards[:rows]))
        if rows is not None and rows < len(query.shards):
            parts.append(f"and {len(query.shards) - rows} shards that are less far behind")
    return "\n".join(parts)


def line(look: Look) -> str:
    """The current figures in one line for each query, for logs and pipes."""
    return "\n".join(map(_summary, look.queries)) or "no query has made progress yet"


def _fetch(url: str) -> bytes:
    # Only http or https: `file:` would read files of this host.
    if not url.startswith(("http://", "https://")):
        raise SluiceError(f"{url} is not the address of a listener: expected host:port or http://host:port")
    return fetch_url(url, seconds=_TIMEOUT, at_most=_LARGEST)


def _query(value: Mapping[str, Any], now: float) -> QueryRow:
    totals: dict[str, float] = {}
    by_shard: dict[tuple[str, str, str], dict[str, float]] = {}
    for each in value["totals"]:
        name, attributes, counted = each["name"], each["attributes"], totals
        if name in _COUNTED:
            keys = ("sluice.source", "aws.kinesis.stream_name", "sluice.shard.id")
            source, stream, shard = (attributes[key] for key in keys)
            counted = by_shard.setdefault((source, stream, shard), {})
        short = _COUNTED.get(name) or name.removeprefix("sluice.query.").removeprefix("sluice.")
        counted[short] = counted.get(short, 0) + each["value"]
    shards = [
        ShardRow(
            stream=stream["stream"],
            shard=shard["shard"],
            lag=None if (lag := shard["millis_behind_latest"]) is None else lag / 1000,
            is_exact=shard["lag_basis"] == "service",
            publisher=shard["publisher"],
            totals=by_shard.get((str(source["source"]), stream["stream"], shard["shard"]), {}),
        )
        for source in value["sources"]
        for stream in source["streams"].values()
        for shard in stream["shards"].values()
    ]
    query_id = value["query_id"]
    return QueryRow(
        name=f"query {value['name']} ({query_id})" if value["name"] else f"query {query_id}",
        batch=value["batch_id"],
        batch_age=max(0.0, now - value["timestamp"] - (value["batch_seconds"] or 0.0)),
        counted_at=value["event_time"],
        shards=sorted(shards, key=lambda row: -1.0 if row.lag is None else row.lag, reverse=True),
        agent=next((source["agent"] for source in value["sources"] if source["agent"]), None),
        sink=value["sink"],
        totals=totals,
    )


def _rated(query: QueryRow, before: QueryRow | None) -> QueryRow:
    if before is None:
        return query
    seconds = query.counted_at - before.counted_at
    rows = {(row.stream, row.shard): row for row in before.shards}

    def rates(now: QueryRow | ShardRow, then: QueryRow | ShardRow | None) -> Mapping[str, float]:
        if then is None or seconds <= 0:  # no batch has ended since
            return then.rates if then else {}
        known = then.totals
        return {name: max(0.0, n - known[name]) / seconds for name, n in now.totals.items() if name in known}

    shards = [replace(row, rates=rates(row, rows.get((row.stream, row.shard)))) for row in query.shards]
    return replace(query, shards=shards, rates=rates(query, before))


def _summary(query: QueryRow) -> str:
    parts = [_clean(query.name), f"batch {query.batch}", f"{duration(query.batch_age)} ago"]
    lag = query.shards[0].shown_lag if query.shards else "?"
    parts += [f"{len(query.shards)} shards", f"lag {lag}"]
    if "rows" in query.rates:
        parts.append(f"{_number(query.rates['rows'])} rows/s")
    if refused := [row.totals["refused"] for row in query.shards if "refused" in row.totals]:
        parts.append(f"{sum(refused):.0f} reads refused")
    return "  ".join(parts)


def _sink_line(query: QueryRow) -> Iterable[str]:
    sink = query.sink
    if sink is None:
        return
    parts = [f"sink {_clean(str(sink['destination']))}"]
    if "sink.records" in query.rates:
        parts.append(f"{_number(query.rates['sink.records'])} records/s")
    if sink["rate"] is not None:
        parts.append(f"may send {_number(sink['rate'])} records/s")
    refused = ", ".join(f"{_clean(code)} {count}" for code, count in sink["refused_by_code"].items())
    parts.append(f"refused {refused or 0}")
    if sink["dead_letters"]:
        parts.append(f"dead letters {sink['dead_letters']}")
    if sink["send_time_p95"] is not None:
        parts.append(f"p95 {sink['send_time_p95'] * 1000:.0f} ms")
    yield "  ".join(parts)


def _agent_line(query: QueryRow) -> Iterable[str]:
    agent = query.agent
    if agent is None:
        return
    parts = [f"agent {_clean(agent['state'])}", f"{agent['subscribed']} subscriptions"]
    if agent["buffered_bytes"] is not None:
        parts.append(f"buffer {_bytes(agent['buffered_bytes'])} of {_bytes(agent['buffer_size'])}")
    yield "  ".join(parts)


def _table(shards: Sequence[ShardRow]) -> str:
    rows = [
        (
            _clean(f"{row.stream}/{row.shard}"),
            row.shown_lag,
            _number(row.rates.get("records")),
            _bytes(row.rates.get("bytes")),
            _number(row.totals.get("refused")),
            _number(row.rates.get("refused")),
            _number(row.rates.get("retries")),
            row.publisher or "?",
        )
        for row in shards
    ]
    return table(("SHARD", "LAG", "RECORDS/S", "DATA/S", "REFUSED", "REFUSED/S", "RETRIES/S", "BY"), rows)


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _bytes(value: float | None) -> str:
    if value is None:
        return "?"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} B"


def _clean(text: str) -> str:
    """`text` without characters that would move the cursor: names come from other programs."""
    return _NOT_PRINTED.sub("?", text)
