"""What ``sluice top`` shows: one look at a checkpoint or a listener, and what changed since the last one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from sluice.aws.wire.exchanges import fetch as fetch_url
from sluice.cli.checkpoint import Checkpoint
from sluice.cli.positions import describe, known_lag
from sluice.cli.report import duration, table
from sluice.destinations.http.transport import proxy_for
from sluice.errors import SluiceError
from sluice.hosts import is_loopback
from sluice.instants import MICROS_PER_SECOND
from sluice.source.model.offsets import After, Closed

__all__ = ["Look", "QueryRow", "ShardRow", "frame", "line", "look_at_checkpoint", "look_at_listener", "rated"]

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
        place: where a checkpoint is.
        arrival: when the last record read arrived (seconds since the epoch).
        totals: what was counted so far, by name.
        rates: the same a second, since the last look. ``pace``: seconds of arrival time read a second; above
            1 a backlog shrinks.
    """

    stream: str
    shard: str
    lag: float | None
    is_exact: bool
    publisher: str | None = None
    place: str | None = None
    arrival: float | None = None
    totals: Mapping[str, float] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class QueryRow:
    """One query.

    Attributes:
        batch_age: seconds since the last batch ended.
        counted_at: when the totals were counted (seconds since the epoch). They rise with each batch.
        agent: what is known of the fan-out agent.
        sink: what was written in the last batch, as `sluice.metrics.SinkMetrics` has it.
        totals, rates: as those of `ShardRow`.
    """

    name: str
    batch: int | None
    batch_age: float | None
    counted_at: float
    shards: Sequence[ShardRow]
    agent: Mapping[str, Any] | None = None
    sink: Mapping[str, Any] | None = None
    totals: Mapping[str, float] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)

    @property
    def lag(self) -> float | None:
        """The lag of the shard that is furthest behind."""
        return max((each.lag for each in self.shards if each.lag is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look.

    Attributes:
        at: seconds since the epoch.
        source: the checkpoint, or the listener's address.
    """

    at: float
    source: str
    queries: Sequence[QueryRow]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def look_at_checkpoint(checkpoint: Checkpoint, now: float) -> Look:
    """Reads where the last batch that was planned ends.

    Args:
        now: seconds since the epoch.
    """
    micros = int(now * MICROS_PER_SECOND)
    last = checkpoint.last
    shards: list[ShardRow] = []
    for source in () if last is None else checkpoint.read(last).sources:
        offsets = source.offsets
        for split, position in sorted({} if offsets is None else offsets.positions.items()):
            if isinstance(position, Closed):
                continue
            arrival = position.arrival if isinstance(position, After) else None
            shards.append(
                ShardRow(
                    stream=split.stream,
                    shard=split.shard,
                    lag=known_lag(position, micros).seconds,
                    is_exact=False,
                    place=describe(position),
                    arrival=None if arrival is None else arrival / MICROS_PER_SECOND,
                )
            )
    written = checkpoint.written_at
    age = None if written is None else now - written.timestamp()
    query = QueryRow(
        name=f"query {checkpoint.query_id}",
        batch=last,
        batch_age=age,
        counted_at=now if age is None else now - age,
        shards=shards,
        totals={} if last is None else {"batches": last},
    )
    return Look(at=now, source=checkpoint.storage.shown, queries=[query])


def look_at_listener(address: str, now: float, fetch: Callable[[str], bytes] | None = None) -> Look:
    """Asks a listener.

    Args:
        address: ``host:port``, or a URL.
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
        raise SluiceError(f"no listener answers at {url}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SluiceError(f"what answers at {url} is no listener of Sluice: {error!r}") from error
    return Look(at=now, source=address, queries=queries)


def rated(look: Look, before: Look | None) -> Look:
    """The look, with what has changed since the one before."""
    known = {} if before is None else {query.name: query for query in before.queries}
    queries = [_rated_query(query, known.get(query.name)) for query in look.queries]
    return replace(look, queries=queries)


def frame(look: Look, *, rows: int | None = None) -> str:
    """A look as a screen shows it.

    Args:
        rows: shards to show of each query at most, those furthest behind first; None: all.
    """
    parts = [f"sluice top {_clean(look.source)}"]
    if not look.queries:
        parts.append("no query has made progress yet")
    for query in look.queries:
        parts += ["", _summary(query), *_lines_of_sink(query), *_lines_of_agent(query), ""]
        ordered = sorted(query.shards, key=lambda row: (-(row.lag or 0.0), row.stream, row.shard))
        shown = ordered if rows is None else ordered[:rows]
        parts.append(_checkpoint_table(shown) if query.shards and shown[0].place else _table(shown))
        if len(shown) < len(ordered):
            parts.append(f"and {len(ordered) - len(shown)} shards that are less far behind")
    return "\n".join(parts)


def line(look: Look) -> str:
    """A look in one line for each query, for logs and pipes."""
    return "\n".join(_summary(query) for query in look.queries) or "no query has made progress yet"


def _fetch(url: str) -> bytes:
    # Only http or https: `file:` would read files of this host.
    if not url.startswith(("http://", "https://")):
        raise SluiceError(f"{url} is no address of a listener: expected host:port or http://host:port")
    host = urlsplit(url).hostname or ""
    # Through a proxy, its own loopback would be asked.
    proxy = None if is_loopback(host) else proxy_for(url, getproxies(), proxy_bypass)
    return fetch_url(url, seconds=_TIMEOUT, at_most=_LARGEST, proxy=proxy)


def _query(value: Mapping[str, Any], now: float) -> QueryRow:
    totals: dict[str, float] = {}
    by_shard: dict[tuple[str, str, str], dict[str, float]] = {}
    for each in value["totals"]:
        name, attributes = each["name"], each["attributes"]
        if name in _COUNTED:
            key = (
                attributes["sluice.source"],
                attributes["aws.kinesis.stream_name"],
                attributes["sluice.shard.id"],
            )
            counted = by_shard.setdefault(key, {})
            counted[_COUNTED[name]] = counted.get(_COUNTED[name], 0) + each["value"]
        else:
            short = name.removeprefix("sluice.query.").removeprefix("sluice.")
            totals[short] = totals.get(short, 0) + each["value"]
    shards = [
        ShardRow(
            stream=stream["stream"],
            shard=shard["shard"],
            lag=_seconds(shard["millis_behind_latest"]),
            is_exact=shard["lag_basis"] == "service",
            publisher=shard["publisher"],
            totals=by_shard.get((str(source["source"]), stream["stream"], shard["shard"]), {}),
        )
        for source in value["sources"]
        for stream in source["streams"].values()
        for shard in stream["shards"].values()
    ]
    ended, query_id = value["timestamp"] + (value["batch_seconds"] or 0.0), value["query_id"]
    return QueryRow(
        name=f"query {value['name']} ({query_id})" if value["name"] else f"query {query_id}",
        batch=value["batch_id"],
        batch_age=max(0.0, now - ended),
        counted_at=value["event_time"],
        shards=shards,
        agent=next((source["agent"] for source in value["sources"] if source["agent"]), None),
        sink=value["sink"],
        totals=totals,
    )


def _rated_query(query: QueryRow, before: QueryRow | None) -> QueryRow:
    if before is None:
        return query
    seconds = query.counted_at - before.counted_at
    rows = {(row.stream, row.shard): row for row in before.shards}
    shards = [_rated_shard(row, rows.get((row.stream, row.shard)), seconds) for row in query.shards]
    rates = before.rates if seconds <= 0 else _rates(query.totals, before.totals, seconds)
    return replace(query, shards=shards, rates=rates)


def _rated_shard(row: ShardRow, before: ShardRow | None, seconds: float) -> ShardRow:
    if before is None:
        return row
    if seconds <= 0:  # no batch has ended since
        return replace(row, rates=before.rates)
    rates = _rates(row.totals, before.totals, seconds)
    if row.arrival is not None and before.arrival is not None:
        rates["pace"] = (row.arrival - before.arrival) / seconds
    return replace(row, rates=rates)


def _rates(totals: Mapping[str, float], before: Mapping[str, float], seconds: float) -> dict[str, float]:
    return {
        name: max(0.0, total - before[name]) / seconds for name, total in totals.items() if name in before
    }


def _summary(query: QueryRow) -> str:
    parts = [_clean(query.name), f"batch {'none yet' if query.batch is None else query.batch}"]
    if query.batch_age is not None:
        parts.append(f"{duration(max(0.0, query.batch_age))} ago")
    parts += [f"{len(query.shards)} shards", f"lag {_lag(query.lag, is_exact=_is_exact(query))}"]
    if "rows" in query.rates:
        parts.append(f"{_number(query.rates['rows'])} rows/s")
    refused = sum(row.totals["refused"] for row in query.shards if "refused" in row.totals)
    if any("refused" in row.totals for row in query.shards):
        parts.append(f"{refused:.0f} reads refused")
    return "  ".join(parts)


def _lines_of_sink(query: QueryRow) -> list[str]:
    sink = query.sink
    if sink is None:
        return []
    parts = [f"sink {_clean(str(sink['destination']))}"]
    if "sink.records" in query.rates:
        parts.append(f"{_number(query.rates['sink.records'])} records/s")
    if sink["rate"] is not None:
        parts.append(f"may send {_number(sink['rate'])} records/s")
    refused = ", ".join(f"{_clean(code)} {count}" for code, count in sink["refused_by_code"].items())
    parts.append(f"refused {refused}" if refused else "refused 0")
    if sink["dead_letters"]:
        parts.append(f"dead letters {sink['dead_letters']}")
    if sink["send_time_p95"] is not None:
        parts.append(f"p95 {sink['send_time_p95'] * 1000:.0f} ms")
    return ["  ".join(parts)]


def _lines_of_agent(query: QueryRow) -> list[str]:
    agent = query.agent
    if agent is None:
        return []
    parts = [f"fan-out agent {_clean(agent['state'])}", f"{agent['subscribed']} subscriptions"]
    if agent["buffered_bytes"] is not None:
        parts.append(f"buffer {_bytes(agent['buffered_bytes'])} of {_bytes(agent['buffer_size'])}")
    return ["  ".join(parts)]


def _table(rows: Sequence[ShardRow]) -> str:
    header = ("SHARD", "LAG", "RECORDS/S", "DATA/S", "REFUSED", "REFUSED/S", "RETRIES/S", "BY")
    return table(
        header,
        (
            (
                _clean(f"{row.stream}/{row.shard}"),
                _lag(row.lag, is_exact=row.is_exact),
                _number(row.rates.get("records")),
                _bytes(row.rates.get("bytes")),
                _number(row.totals.get("refused")),
                _number(row.rates.get("refused")),
                _number(row.rates.get("retries")),
                row.publisher or "?",
            )
            for row in rows
        ),
    )


def _checkpoint_table(rows: Sequence[ShardRow]) -> str:
    return table(
        ("SHARD", "LAG", "PACE", "POSITION"),
        (
            (
                _clean(f"{row.stream}/{row.shard}"),
                _lag(row.lag, is_exact=row.is_exact),
                "?" if "pace" not in row.rates else f"{row.rates['pace']:.1f}x",
                row.place,
            )
            for row in rows
        ),
    )


def _is_exact(query: QueryRow) -> bool:
    return all(row.is_exact for row in query.shards if row.lag == query.lag)


def _lag(seconds: float | None, *, is_exact: bool) -> str:
    if seconds is None:
        return "?"
    text = f"{seconds * 1000:.0f} ms" if seconds < 10 else duration(seconds)
    return text if is_exact else f"<= {text}"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _bytes(value: float | None) -> str:
    if value is None:
        return "?"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} B"


def _seconds(millis: float | None) -> float | None:
    return None if millis is None else millis / 1000


def _clean(text: str) -> str:
    """`text` without characters that would move the cursor: names come from other programs."""
    return _NOT_PRINTED.sub("?", text)
