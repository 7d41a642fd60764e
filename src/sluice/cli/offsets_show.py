"""``sluice offsets show``: a query's position in every shard, and where it would resume."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from sluice.aws.calling.connection import ConnectionConfig
from sluice.cli.checkpoint import Checkpoint, SourceOffset
from sluice.cli.options import add_connection, add_repeated, connection_of
from sluice.cli.positions import Lag, describe, known_lag, position_json, shortened
from sluice.cli.report import Report, UsageError, duration, table
from sluice.cli.same_stream import STREAM_ARN_HELP, NamedStreams, compare_streams
from sluice.cli.service import OtherStreamError, foreign_shard, source_kind
from sluice.cli.storage import open_storage
from sluice.errors import ServiceError
from sluice.instants import MICROS_PER_SECOND, iso_instant, parse_instant
from sluice.kinesis.log.client import KinesisLog
from sluice.sink.user_code.loading import load_object
from sluice.source.logs.cursor import iterator_start
from sluice.source.logs.stream_log import StreamLog
from sluice.source.model.offsets import After, Closed, Offsets, Position
from sluice.source.model.splits import SplitId

HELP = "where every shard is, how far behind, and what the next batch starts from"
EXAMPLE = "sluice offsets show s3://bucket/checkpoints/orders --live --region eu-west-1"

_PAGES: Final = 20
"""Pages that are read of a shard, at most."""
_RECORDS: Final = 2
"""Records of a page: the position's record, and the next one."""
_PAUSE: Final = 0.25
"""Seconds between two reads of a shard, which allows five a second to all its readers together."""

_THROTTLED: Final = 10
"""How often throttled reads are repeated, of all shards together, since people wait for the answer. The query
itself may use up the reads of a shard."""
_THROTTLED_PAUSE: Final = 1.0
"""Seconds before each repetition."""

LagOf = Callable[[SplitId, Position], Lag]


def configure(parser: argparse.ArgumentParser) -> None:
    """See `sluice.cli.app.Command`."""
    parser.add_argument(
        "checkpoint", help="the query's checkpointLocation: a path, or a URL such as s3://bucket/path"
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="ask Kinesis for the first unread record of each shard: two or more GetRecords of two records",
    )
    add_repeated(parser, "--stream", "ARN", f"with --live, {STREAM_ARN_HELP}")
    parser.add_argument(
        "--log",
        metavar="MODULE:CLASS",
        help="the log of a custom source, which says how splits are called and positions written",
    )
    add_connection(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Report:
    """Shows a checkpoint."""
    connection = connection_of(arguments)
    checkpoint = Checkpoint(open_storage(arguments.checkpoint, connection))
    sources, now = checkpoint.next_starts, time.time_ns() // 1000
    ours = {index: offsets for index, each in enumerate(sources) if (offsets := each.offsets) is not None}
    named = NamedStreams(arguments.stream)
    named.check({name for offsets in ours.values() for name in offsets.streams})
    if arguments.stream and not arguments.live:
        raise UsageError("--stream is for --live: a checkpoint is shown whole")
    lags: dict[int, LagOf] = dict.fromkeys(ours, lambda _split, position: known_lag(position, now))
    for index, offsets in ours.items() if arguments.live else ():
        if foreign := foreign_shard(offsets):
            raise UsageError(
                f"--live asks Kinesis, and source {index} reads something else: it has shards such as "
                f"{foreign}"
            )
        lags[index] = _live_lag(connection, offsets, named)
    custom = _log_class(arguments.log)
    value = _value(checkpoint)
    value["sources"] = [
        _source_value(index, each, lags.get(index), custom) for index, each in enumerate(sources)
    ]
    return Report(value, _text(value, now), has_problem=bool(value["problems"]))


def _log_class(name: str | None) -> type[StreamLog]:
    if name is None:
        return StreamLog
    try:
        found = load_object(name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise UsageError(f"--log {name}: it cannot be loaded: {error}") from None
    if not (isinstance(found, type) and issubclass(found, StreamLog)):
        raise UsageError(
            f"--log {name}: give the class of the log, which inherits from StreamLog or PositionLog"
        )
    return found


def _live_lag(connection: ConnectionConfig, offsets: Offsets, named: NamedStreams) -> LagOf:
    streams = compare_streams(connection, offsets, named, instead="without --live no service is asked")
    if streams.recreated:
        live = streams.live[min(streams.recreated)]
        raise OtherStreamError(
            f"{live.arn} was deleted, and created again {iso_instant(live.created)}: the positions of the "
            "checkpoint are of the deleted one. See them without --live; 'sluice offsets reset' replaces them"
        )
    log = streams.log
    left = iter(range(_THROTTLED))

    def ask(split: SplitId, position: Position) -> Lag:
        if isinstance(position, Closed):
            return Lag(0.0, "closed")
        while True:
            try:
                return _ask(log, split, position)
            except ServiceError as error:
                if error.missing:
                    return Lag(None, "gone")
                if not error.throttling:
                    raise
            if next(left, None) is None:
                return Lag(None, "throttled")
            time.sleep(_THROTTLED_PAUSE)

    return ask


def _ask(log: KinesisLog, split: SplitId, position: Position) -> Lag:
    """The age of the first record after a position.

    A page may be empty anywhere in a shard, and the first one of an iterator may wrongly say that it is at
    the tip; and the page with the last record may say that it is not. So the loop reads until it finds a
    record or the tip.
    """
    iterator = log.get_iterator(split, iterator_start(position))
    read = position.sequence if isinstance(position, After) else -1
    for number in range(_PAGES):
        if iterator is None:
            return Lag(0.0, "closed")
        if number:
            time.sleep(_PAUSE)
        page = log.get_records(split, iterator, _RECORDS)
        unread = next((each for each in page.records if int(each.sequence_number) > read), None)
        if unread is not None:
            return Lag(max(0, log.server_time() - unread.arrival) / MICROS_PER_SECOND, "service")
        if page.millis_behind == 0 and number:
            return Lag(0.0, "service")
        iterator = page.next_iterator
    return Lag(None, "unknown")


# --- the report ----------------------------------------------------------------------------------------


def _value(checkpoint: Checkpoint) -> dict[str, Any]:
    batch = None
    if checkpoint.last is not None:
        end = checkpoint.read(checkpoint.last)
        batch = {
            "id": checkpoint.last,
            "state": "committed" if checkpoint.in_flight is None else "inFlight",
            "plannedAt": None if end.logged_at is None else iso_instant(end.logged_at * 1000),
            "watermark": None if end.watermark is None else iso_instant(end.watermark * 1000),
        }
    written = checkpoint.written_at
    return {
        "checkpoint": checkpoint.storage.shown,
        "queryId": checkpoint.query_id,
        "isStateful": checkpoint.is_stateful,
        "lastWrite": None if written is None else iso_instant(int(written.timestamp() * 1e6)),
        "batch": batch,
        "problems": list(checkpoint.damage.values()),
    }


def _source_value(
    index: int, source: SourceOffset, lag_of: LagOf | None, custom: type[StreamLog]
) -> dict[str, Any]:
    offsets = source.offsets
    if offsets is None or lag_of is None:
        kind = "custom" if source.is_of_splits else "other"
        return {"source": index, "name": source.name, "kind": kind, "offset": source.json}
    kind = source_kind(offsets)
    shown = custom.format_position if kind == "custom" else shortened
    streams: dict[str, Any] = {}
    for stream in sorted(offsets.streams):
        shards = {}
        for split, position in sorted(offsets.positions.items(), key=lambda item: item[0]):
            if split.stream == stream:
                lag = lag_of(split, position)
                millis = None if lag.seconds is None else round(lag.seconds * 1000)
                shards[split.shard] = {
                    "position": position_json(position),
                    "description": describe(position, shown),
                    "millisBehind": millis,
                    "basis": lag.basis,
                    "behind": lag.text,
                }
        expiry = offsets.expiry.get(stream)
        streams[stream] = {
            "created": None if (created := offsets.created.get(stream)) is None else iso_instant(created),
            "retentionHours": None if expiry is None else expiry.retention / 3600 / MICROS_PER_SECOND,
            "consumer": offsets.consumers.get(stream),
            "startedAt": offsets.starting.get(stream),
            "shards": shards,
            "splitName": custom.split_name if kind == "custom" else "shard",
        }
    return {"source": index, "name": source.name, "kind": kind, "streams": streams}


def _text(value: Mapping[str, Any], now: int) -> str:
    lines = [f"checkpoint   {value['checkpoint']}", f"query        {value['queryId']}"]
    batch = value["batch"]
    if batch is None:
        lines.append("batches      none yet: the query starts at its startingPosition")
        return "\n".join(lines)
    is_done = f"committed; the next one is {batch['id'] + 1} and starts as below"
    runs_again = "not committed: it runs again with the range logged, which starts below"
    ago = duration((now - parse_instant(value["lastWrite"])) / MICROS_PER_SECOND)
    lines += [
        f"batch        {batch['id']}, {is_done if batch['state'] == 'committed' else runs_again}",
        f"last write   {value['lastWrite']} ({ago} ago)",
    ]
    lines += [f"problem      {each}" for each in value["problems"]]
    if batch["watermark"]:
        lines.append(f"watermark    {batch['watermark']}")
    for source in value["sources"]:
        if "streams" not in source:
            what = "is not Sluice's" if source["kind"] == "other" else "reads splits: --json shows its offset"
            lines += ["", f"source {source['source']} {what}"]
            continue
        for name, stream in source["streams"].items():
            lines += ["", *_stream_lines(source["source"], name, stream)]
    return "\n".join(lines)


def _stream_lines(source: int, name: str, stream: Mapping[str, Any]) -> list[str]:
    lines = [f"stream {name} (source {source}), {len(stream['shards'])} {stream['splitName']}s"]
    if stream["consumer"]:
        lines.append(f"consumer {stream['consumer']}, registered by this query")
    rows = [(shard, each["description"], each["behind"]) for shard, each in stream["shards"].items()]
    lines.append(table((stream["splitName"].upper(), "POSITION", "BEHIND"), rows))
    return lines
