"""``sluice consumers``: the registered fan-out consumers of streams, and the removal of those left over."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.aws.calling.calls import Calls
from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.names.arns import CONSUMER_ARN_FORM, ConsumerArn, StreamArn, consumer_path
from sluice.cli.checkpoint import Checkpoint
from sluice.cli.options import add_commands, add_connection, add_repeated, connection_of
from sluice.cli.report import Report, UsageError, table
from sluice.cli.service import (
    STREAM_FORM,
    LiveStream,
    OtherStreamError,
    describe_stream,
    foreign_shard,
    in_region,
    kinesis_calls,
    parse_stream,
    streams_of,
)
from sluice.cli.storage import open_storage
from sluice.errors import ServiceError
from sluice.instants import iso_instant
from sluice.kinesis.consumers.calls import DESCRIBE, deregister_consumer, list_consumers, read_description
from sluice.kinesis.options.streams import StreamRef

HELP = "list the fan-out consumers of streams, which are billed by shard and hour, and remove ones left over"


def configure(parser: argparse.ArgumentParser) -> None:
    """See `sluice.cli.app.Command`."""
    what = "the consumers of streams, with their open shards and the checkpoint that each belongs to"
    arn = "arn:aws:kinesis:eu-west-1:1234:stream/orders/consumer/q:1764000000"
    commands = {
        "list": (what, "sluice consumers list --stream orders --checkpoint s3://bucket/checkpoints/orders"),
        "remove": (
            "deregister consumers; shows which unless --execute is given",
            f"sluice consumers remove {arn}",
        ),
    }
    listing, removal = add_commands(parser, commands)
    add_repeated(listing, "--stream", "STREAM", f"of this stream: {STREAM_FORM}")
    listing.add_argument(
        "--all-streams", action="store_true", help="of all streams of the account and region"
    )
    _add_checkpoints(listing, "whose consumers to name; its streams are listed, too")
    listing.set_defaults(run=_list)
    removal.add_argument("arn", nargs="+", help=f"{CONSUMER_ARN_FORM}; the region of the ARN is used")
    _add_checkpoints(removal, "whose query may use consumers of its streams: they are not removed")
    removal.add_argument("--execute", action="store_true", help="do it")
    removal.add_argument(
        "--force", action="store_true", help="also consumers of streams that a given checkpoint reads"
    )
    removal.set_defaults(run=_remove)


def _add_checkpoints(parser: argparse.ArgumentParser, what: str) -> None:
    add_repeated(parser, "--checkpoint", "PATH", f"a query's checkpointLocation, {what}")
    add_connection(parser)


# --- list ----------------------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> Report:
    connection = connection_of(arguments)
    queries = _Queries.of(arguments.checkpoint, connection)
    wanted = {parse_stream(each) for each in arguments.stream} | queries.streams
    if arguments.all_streams:
        wanted |= set(map(StreamRef, _all_streams(connection)))
    elif not wanted:
        raise UsageError("whose consumers? Give --stream, --checkpoint or --all-streams")
    found = [
        {
            "stream": name,
            "name": each.name,
            "arn": each.arn,
            "status": each.status,
            "registered": None if each.created is None else iso_instant(each.created),
            "openShards": stream.open_shards,
            "checkpoint": queries.owners.get(each.arn),
            "perhapsUsedBy": queries.readers(stream.arn),
        }
        for name, stream, calls in _described(connection, wanted)
        for each in sorted(list_consumers(calls, stream.arn), key=lambda each: each.name)
    ]
    there = {each["arn"] for each in found}
    value = {
        "streams": sorted({stream.name for stream in wanted}),
        "consumers": found,
        # Registered by a query, and not there any more: the query registers another one when it starts.
        "missing": {arn: where for arn, where in queries.owners.items() if arn not in there},
    }
    unknown = "no checkpoint given" if arguments.checkpoint else "give --checkpoint to know"
    return Report(value, _text(value, unknown))


def _described(
    connection: ConnectionConfig, streams: Iterable[StreamRef]
) -> list[tuple[str, LiveStream, Calls]]:
    """Each stream once, with the calls of its region, by name and ARN."""
    found = {}
    for stream in streams:
        arn = None if stream.arn is None else StreamArn.parse(stream.arn)
        calls = kinesis_calls(in_region(connection, arn))
        live = describe_stream(calls, stream)
        found[stream.name, live.arn] = (stream.name, live, calls)
    return [found[key] for key in sorted(found)]


def _text(value: Mapping[str, Any], unknown: str) -> str:
    lines = [f"no consumers: {', '.join(value['streams'])}"]
    if value["consumers"]:
        rows = [
            (
                f"{each['stream']}/{each['name']}",
                each["status"],
                each["registered"],
                each["openShards"],
                each["checkpoint"] or _perhaps(each["perhapsUsedBy"]) or unknown,
            )
            for each in value["consumers"]
        ]
        arns = (f"{each['stream']}/{each['name']}  {each['arn']}" for each in value["consumers"])
        lines = [table(("CONSUMER", "STATUS", "REGISTERED", "SHARDS", "BELONGS TO"), rows), "", *arns]
    return "\n".join([*lines, *(f"gone: {arn}, of {where}" for arn, where in value["missing"].items())])


def _perhaps(paths: Sequence[str]) -> str:
    return f"perhaps {', '.join(paths)}" if paths else ""


@dataclass(frozen=True)
class _Queries:
    """The queries of the checkpoints that were given.

    Attributes:
        owners: ARN of a consumer to the checkpoint of the query that registered it.
        reads: checkpoint to the streams that its query reads; None if no batch names them yet.
    """

    owners: Mapping[str, str]
    reads: Mapping[str, Sequence[StreamRef] | None]

    @classmethod
    def of(cls, paths: Iterable[str], connection: ConnectionConfig) -> _Queries:
        owners: dict[str, str] = {}
        reads: dict[str, Sequence[StreamRef] | None] = {}
        for path in paths:
            checkpoint = Checkpoint(open_storage(path, connection))
            reads[path] = None
            if checkpoint.last is None:
                continue
            sources = [source.offsets for source in checkpoint.read(checkpoint.last).sources]
            ours = [each for each in sources if each is not None and foreign_shard(each) is None]
            reads[path] = [stream for each in ours for stream in streams_of(each)]
            for each in ours:
                owners |= dict.fromkeys(each.consumers.values(), path)
        return cls(owners, reads)

    @property
    def streams(self) -> set[StreamRef]:
        return {stream for streams in self.reads.values() for stream in streams or ()}

    def readers(self, stream_arn: str) -> list[str]:
        """The checkpoints whose queries may use any consumer of a stream.

        A query uses consumers that it has found by name, or was given by ARN, and its checkpoint names only
        one that it registered.
        """
        name = StreamArn.parse(stream_arn).stream
        return [
            path
            for path, streams in self.reads.items()
            if streams is None
            or any(each.name == name and each.arn in (None, stream_arn) for each in streams)
        ]


def _all_streams(connection: ConnectionConfig) -> list[str]:
    calls = kinesis_calls(connection)
    names: list[str] = []
    request: dict[str, Any] = {}
    while True:
        page, has_more = calls.call(
            "ListStreams", "", request, lambda answer: (answer["StreamNames"], answer["HasMoreStreams"])
        )
        names += page
        if not has_more:
            return names
        request = {"ExclusiveStartStreamName": names[-1]}


# --- remove --------------------------------------------------------------------------------------------


def _remove(arguments: argparse.Namespace) -> Report:
    connection = connection_of(arguments)
    arns = [_parsed(text) for text in arguments.arn]
    calls = {arn: kinesis_calls(in_region(connection, arn)) for arn in arns}
    queries = _Queries.of(arguments.checkpoint, connection)
    outcomes = {arn.text: _outcome(arguments, each, arn, queries) for arn, each in calls.items()}
    value = {
        "executed": arguments.execute,
        "consumers": [{"arn": arn, "outcome": text} for arn, (text, _) in outcomes.items()],
    }
    lines = [f"{text}: {arn}" for arn, (text, _) in outcomes.items()]
    if not arguments.execute:
        advice = "a query that reads with it fails over to polling, or registers another one when it starts"
        lines += ["", f"Nothing was changed. Give --execute to do it; {advice}."]
    return Report(value, "\n".join(lines), has_problem=any(is_problem for _, is_problem in outcomes.values()))


def _parsed(text: str) -> ConsumerArn:
    try:
        return ConsumerArn.parse(text)
    except ValueError:
        raise UsageError(f"{text!r} is not the ARN of a consumer: {CONSUMER_ARN_FORM}") from None


def _outcome(
    arguments: argparse.Namespace, calls: Calls, arn: ConsumerArn, queries: _Queries
) -> tuple[str, bool]:
    """What happened to a consumer, and whether it was to be removed and may still be there."""
    if not arguments.force:
        if owner := queries.owners.get(arn.text):
            return f"refused, as it belongs to {owner} (--force removes it)", True
        if readers := ", ".join(queries.readers(arn.stream_arn)):
            why = f"it is perhaps in use: {readers} may read {arn.stream} with it"
            return f"refused, as {why} (--force removes it)", True
    try:
        status = calls.call(
            DESCRIBE, consumer_path(arn.text), {"ConsumerARN": arn.text}, read_description
        ).status
        if arguments.execute and status != "DELETING":
            deregister_consumer(calls, arn.text)
    except ServiceError as error:  # the results for the other consumers are still to be reported
        return _missing(calls, arn) if error.missing else (f"not removed ({error})", True)
    if status == "DELETING":
        return "is being removed already", False
    return "removed" if arguments.execute else "would be removed", False


def _missing(calls: Calls, arn: ConsumerArn) -> tuple[str, bool]:
    """Reports a consumer as deleted only if its stream exists. Otherwise another account or endpoint may have
    answered.
    """
    try:
        describe_stream(calls, StreamRef(arn.stream, arn.stream_arn))
    except OtherStreamError as error:
        return f"not found ({error})", True
    except ServiceError as error:
        if not error.missing:
            return f"not removed ({error})", True
        return "not found, nor is its stream: check account and endpoint", True
    return "was deleted already", False
