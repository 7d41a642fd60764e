"""``sluice offsets import``: a starting position from the positions of another consumer."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping
from pathlib import Path

from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.names.arns import StreamArn
from sluice.cli.checkpoint import Checkpoint
from sluice.cli.imports import awslabs, databricks, kcl
from sluice.cli.imports.places import TRIM_HORIZON, Imported, Place
from sluice.cli.options import add_connection, connection_of, parse_time
from sluice.cli.report import Report, UsageError, table
from sluice.cli.same_stream import ADVICE, connect
from sluice.cli.service import STREAM_FORM, LiveStream, OtherStreamError, parse_stream
from sluice.cli.storage import open_storage
from sluice.instants import MICROS_PER_SECOND, iso_instant
from sluice.kinesis.options.streams import StreamRef
from sluice.source.model.positions import sequence_of
from sluice.source.model.splits import Split

HELP = "make a startingPosition from the state of the KCL, awslabs' connector or Databricks' source"
EXAMPLE = "sluice offsets import kcl orders-leases --stream orders --output starting.json"


def configure(parser: argparse.ArgumentParser) -> None:
    """See `sluice.cli.app.Command`."""
    parser.add_argument("kind", choices=("kcl", "awslabs", "databricks"), help="the other consumer, stopped")
    parser.add_argument(
        "location",
        help="kcl: the lease table, or @FILE from 'aws dynamodb scan'; else: a checkpointLocation",
    )
    parser.add_argument(
        "--stream",
        help=f"of this stream alone, {STREAM_FORM}; kcl: leases of one stream do not name it",
    )
    parser.add_argument("--source", type=int, help="which source of the query, from 0, if it has several")
    parser.add_argument(
        "--unread",
        default="TRIM_HORIZON",
        metavar="TIME",
        help="where shards start that the consumer has not begun to read: a time, or TRIM_HORIZON (default)",
    )
    parser.add_argument(
        "--offline",
        action="store_true",
        help="do not ask Kinesis which shards there are, to leave out what has expired or was finished",
    )
    parser.add_argument("--output", metavar="FILE", help="write the JSON to a file")
    add_connection(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Report:
    """Imports the places of another consumer."""
    connection = connection_of(arguments)
    unread = _place(arguments.unread)
    stream = None if arguments.stream is None else parse_stream(arguments.stream)
    imported = _read(arguments, connection, stream).starting_unread_at(unread)
    arns: dict[str, str] = {}
    if not arguments.offline:
        streams = [stream] if stream else [StreamRef(name) for name in imported.streams]
        log, live = connect(connection, streams)
        listed = [split for name in live for split in log.list_splits(name)]
        _check_same(imported, live, listed, is_named=stream is not None and stream.arn is not None)
        imported = imported.completed(listed)
        arns = {name: each.arn for name, each in live.items()}
    position = imported.starting_position()
    text = json.dumps(position)
    if arguments.output:
        try:
            Path(arguments.output).write_text(text + "\n")
        except OSError as error:
            raise UsageError(f"--output: {error}") from None
    value = {
        "startingPosition": position,
        "streams": imported.streams,
        "arns": arns,
        "notes": list(imported.notes),
    }
    rows = [(split, json.dumps(place)) for split, place in sorted(imported.places.items())]
    lines = [table(("SHARD", "STARTS"), rows), ""]
    lines += [f"- {name}: shards as {arn} has them now" for name, arn in sorted(arns.items())]
    lines += [f"- {note}" for note in imported.notes]
    lines += ["", "startingPosition:", text if not arguments.output else f"in {arguments.output}"]
    return Report(value, "\n".join(lines))


def _read(arguments: argparse.Namespace, connection: ConnectionConfig, stream: StreamRef | None) -> Imported:
    location: str = arguments.location
    if arguments.kind == "kcl":
        if arguments.source is not None:
            raise UsageError("--source is for checkpoints: a lease table has no sources")
        items = (
            kcl.scanned_file(Path(location[1:]))
            if location.startswith("@")
            else kcl.scan(location, connection)
        )
        return kcl.imported_leases(items, stream)
    checkpoint = Checkpoint(open_storage(location, connection))
    if arguments.kind == "awslabs":
        imported = awslabs.imported_checkpoint(checkpoint, arguments.source)
    else:
        imported = databricks.imported_checkpoint(checkpoint, arguments.source)
    return imported if stream is None else imported.of_stream(stream.name)


def _place(text: str) -> Place:
    if text.upper() == "TRIM_HORIZON":
        return TRIM_HORIZON
    try:
        return {"AT_TIMESTAMP": iso_instant(parse_time("--unread", text))}
    except UsageError as error:
        raise UsageError(f"{error}; or TRIM_HORIZON") from None


def _check_same(
    imported: Imported, live: Mapping[str, LiveStream], listed: Collection[Split], *, is_named: bool
) -> None:
    """Refuses the shards of another stream of the same name.

    Leases of several streams name account and time of creation. Other consumers store neither: then no shard
    is known, or its records are younger than those of the consumer.

    Args:
        is_named: the user gives the ARN. What a lease calls the time of creation is the application's choice.

    Raises:
        OtherStreamError: it is another stream.
    """
    by_id = {split.id: split for split in listed}
    for name, stream in live.items():
        if problem := _other_identity(imported.identities.get(name), stream, is_named=is_named):
            raise OtherStreamError(_refusal(stream, problem))
        places = {split: place for split, place in imported.places.items() if split.stream == name}
        if places.keys().isdisjoint(by_id):
            raise OtherStreamError(_refusal(stream, "it has none of the consumer's shards"))
        for split, place in sorted(places.items()):
            number = place.get("AFTER_SEQUENCE_NUMBER", place.get("AT_SEQUENCE_NUMBER"))
            start = by_id[split].starting_sequence if split in by_id else None
            if number is not None and start is not None and int(number) < sequence_of(start):
                raise OtherStreamError(
                    _refusal(stream, f"its shard {split.shard} begins at {start}, after the place {number}")
                )


def _other_identity(identity: str | None, stream: LiveStream, *, is_named: bool) -> str | None:
    """What a lease says of its stream that does not fit."""
    if identity is None:
        return None
    account, _, epoch = identity.split(":")[:3]
    if account != StreamArn.parse(stream.arn).account:
        return f"the leases are of {identity}, of account {account}"
    if not is_named and epoch != str(stream.created // MICROS_PER_SECOND):
        return f"the leases are of {identity}, and it was created {iso_instant(stream.created)}"
    return None


def _refusal(stream: LiveStream, problem: str) -> str:
    return (
        f"{stream.arn} is not the stream that the consumer has read, or was created again, or all its shards "
        f"of then have expired: {problem}. If it is the right stream, start it at TRIM_HORIZON. Else "
        f"{ADVICE}; --offline asks no service"
    )
