"""Reads the figures in one of Spark's progress reports, of any version."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sluice.errors import SluiceError
from sluice.instants import MICROS_PER_SECOND, parse_instant
from sluice.metrics.figures import (
    AgentMetrics,
    LagBasis,
    QueryMetrics,
    ShardMetrics,
    SinkMetrics,
    SourceMetrics,
    StreamMetrics,
)
from sluice.source.model.figure_tables import figures_from_json
from sluice.source.model.offsets import After, AtHorizon, AtTime, Closed, Offsets, Position

__all__ = ["merge_sink_progress", "read_progress"]

# Figures of a shard, by their names in reports.
_READS: Final = {
    "records": "batchRecords",
    "bytes": "batchBytes",
    "polled": "polled",
    "pushed": "pushed",
    "bytes_read": "bytes",
}
_CALLS: Final = {"reads_refused": "refused", "retries": "retries"}


def read_progress(
    progress: Any,
    sink_reports: Sequence[Mapping[str, Any]] = (),
    source_reports: Sequence[Mapping[str, Any]] = (),
) -> QueryMetrics:
    """Reads one progress report.

    Args:
        progress: a ``StreamingQueryProgress``, as a `StreamingQueryListener` gets it and
            ``query.lastProgress`` is, its JSON, or the same as objects.
        sink_reports: what the sink has reported for this batch, as `sluice.sink.SinkProgress.json` has it.
        source_reports: what sources have reported otherwise than in `progress`: ``streams``,
            ``millisBehindLatest`` and ``figures``, as ``sources[].latestOffset`` has them from Spark 4.2 on.
            The newest counts.

    Raises:
        SluiceError: `progress` is something else.
    """
    told = _objects(progress)
    try:
        at = parse_instant(told["timestamp"])
        duration = _int(told.get("durationMs", {}).get("triggerExecution"))
        return QueryMetrics(
            query_id=str(told["id"]),
            run_id=str(told["runId"]),
            name=told.get("name"),
            batch_id=int(told["batchId"]),
            timestamp=at / MICROS_PER_SECOND,
            batch_seconds=None if duration is None else duration / 1000,
            rows=int(told.get("numInputRows") or sum(_rows(each) for each in told.get("sources", ()))),
            sources=tuple(_sources(told.get("sources", ()), source_reports, at)),
            sink=merge_sink_progress(sink_reports),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SluiceError(f"this is not a progress report of a streaming query: {error!r}") from error


def merge_sink_progress(reports: Sequence[Mapping[str, Any]]) -> SinkMetrics | None:
    """What several ends of epochs wrote together; None without any."""
    if not reports:
        return None
    sums = {
        name: sum(int(report.get(name) or 0) for report in reports)
        for name in ("records", "bytes", "requests", "retries", "refused", "timeouts", "dead_letters")
    }
    codes: Counter[str] = Counter()
    for report in reports:
        codes.update(report.get("refused_by_code") or {})
    last = reports[-1]

    # Percentiles of several epochs do not add up, so the slowest epoch counts.
    def slowest(name: str) -> float | None:
        return max((float(each[name]) for each in reports if each.get(name) is not None), default=None)

    return SinkMetrics(
        destination=last.get("destination"),
        epochs=len(reports),
        refused_by_code=codes,
        rate=_float(last.get("rate")),
        limit=_int(last.get("limit")),
        send_time_p50=slowest("send_time_p50"),
        send_time_p95=slowest("send_time_p95"),
        send_time_max=slowest("send_time_max"),
        **sums,
    )


def _objects(progress: Any) -> Mapping[str, Any]:
    if isinstance(progress, str | bytes):
        try:
            progress = json.loads(progress)
        except ValueError as error:
            raise SluiceError(f"a progress report is not JSON: {error}") from None
    elif isinstance(text := getattr(progress, "json", None), str):
        progress = json.loads(text)  # PySpark's class, also if that is a dict
    if not isinstance(progress, Mapping):
        raise SluiceError(f"this is not a progress report of a streaming query: {type(progress).__name__}")
    return progress


def _sources(
    told: Iterable[Mapping[str, Any]], reports: Sequence[Mapping[str, Any]], at: int
) -> Iterable[SourceMetrics]:
    by_streams = {tuple(sorted(each.get("streams", ()))): each for each in reports}
    for index, source in enumerate(told):
        end = _offsets(source.get("endOffset"))
        if end is None:
            continue
        reports_of_it = [_json(source.get("latestOffset")), by_streams.get(tuple(sorted(end.streams)))]
        known = [each for each in reports_of_it if isinstance(each, Mapping)]
        newest = max(known, key=_made_at, default={})
        yield _source(index, source, end, newest, max(at, _made_at(newest) * 1000))


def _source(
    index: int, source: Mapping[str, Any], end: Offsets, reported: Mapping[str, Any], at: int
) -> SourceMetrics:
    lags = reported.get("millisBehindLatest")
    figures = reported.get("figures") or {}
    by_split = figures_from_json(figures)
    tasks, heard = _int(figures.get("tasks")), _int(figures.get("reportedTasks"))
    # If no task has reported, the reads are unknown.
    knows_reads = heard is not None and (heard > 0 or tasks == 0)
    names = _CALLS | _READS if knows_reads else _CALLS
    streams: dict[str, dict[str, ShardMetrics]] = {name: {} for name in sorted(end.streams)}
    for split, position in sorted(end.positions.items()):
        told = by_split.get(split.stream, {}).get(split.shard, {})
        lag, basis = _known_lag(position, at)
        if lags is not None and basis != "closed":
            answered = lags.get(split.stream, {}).get(split.shard)
            lag, basis = (lag, basis) if answered is None else (int(answered), "service")
        if basis == "closed" and not told.get("batchRecords"):
            continue  # it was read to its end in an earlier batch
        streams.setdefault(split.stream, {})[split.shard] = ShardMetrics(
            shard=split.shard,
            millis_behind_latest=lag,
            lag_basis=basis,
            publisher=told.get("publisher"),
            **{name: _int(told.get(key)) for name, key in names.items()},
        )
    return SourceMetrics(
        source=index,
        streams={name: StreamMetrics(stream=name, shards=shards) for name, shards in streams.items()},
        rows=_rows(source),
        rows_per_second=_float(source.get("processedRowsPerSecond")),
        tasks=tasks,
        tasks_reported=heard,
        agent=_agent(figures.get("agent")),
    )


def _made_at(report: Mapping[str, Any]) -> int:
    """When a source made its report (milliseconds since the epoch); 0 for a report of an earlier release."""
    return int((report.get("figures") or {}).get("at", 0))


def _agent(told: Mapping[str, Any] | None) -> AgentMetrics | None:
    if told is None:
        return None
    return AgentMetrics(
        state=str(told["state"]),
        subscribed=int(told["subscribed"]),
        silent_subscriptions=_int(told.get("silentSubscriptions")),
        workers=int(told["workers"]),
        silent_workers=_int(told.get("silentWorkers")),
        buffered_bytes=_int(told.get("bufferedBytes")),
        buffer_size=_int(told.get("bufferSize")),
    )


def _known_lag(position: Position, at: int) -> tuple[int | None, LagBasis | None]:
    """How far a position is behind at most at an instant (microseconds), by the offsets alone."""
    known: dict[LagBasis, int | None]
    match position:
        case Closed():
            return 0, "closed"
        case After():
            known = {"arrival": position.arrival, "caughtUp": position.caught_up_at}
        case AtTime():
            known = {"start": position.instant, "caughtUp": position.caught_up_at}
        case AtHorizon():
            known = {"caughtUp": position.caught_up_at}
    latest = max(((when, basis) for basis, when in known.items() if when is not None), default=None)
    if latest is None:
        return None, None
    return max(0, at - latest[0]) // 1000, latest[1]


def _offsets(told: Any) -> Offsets | None:
    """The offsets of a source of Sluice; None for another source's, and before the first batch."""
    value = _json(told)
    if not isinstance(value, Mapping) or "streams" not in value:
        return None
    try:
        return Offsets.from_json(value)
    except SluiceError:
        return None


def _json(told: Any) -> Any:
    """The value of an offset, which is text where PySpark has parsed the report."""
    if not isinstance(told, str):
        return told
    try:
        return json.loads(told)
    except ValueError:
        return None


def _rows(source: Mapping[str, Any]) -> int:
    return int(source.get("numInputRows") or 0)


def _int(value: Any) -> int | None:
    return None if value is None else int(value)


def _float(value: Any) -> float | None:
    """A number of JSON; Spark writes unknown rates as text or NaN."""
    if value is None or isinstance(value, str) or value != value:  # noqa: PLR0124 - NaN
        return None
    return float(value)
