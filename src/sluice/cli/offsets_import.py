"""``sluice offsets import``: a starting position from the positions of another consumer."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

from sluice.aws.connection import ConnectionConfig
from sluice.cli.checkpoint import Checkpoint
from sluice.cli.imports import awslabs, databricks, kcl
from sluice.cli.imports.places import TRIM_HORIZON, Imported, Place, at_time
from sluice.cli.options import add_connection, connection_of
from sluice.cli.report import Report, UsageError, table
from sluice.cli.service import kinesis_log
from sluice.cli.storage import open_storage
from sluice.errors import OptionError
from sluice.instants import iso_instant
from sluice.kinesis.starting_positions import TIMESTAMP
from sluice.source.splits import Split

HELP = "make a startingPosition of where the KCL, awslabs' connector or Databricks' source has come to"


def configure(parser: argparse.ArgumentParser) -> None:
    """See `sluice.cli.app.Command`."""
    parser.add_argument("kind", choices=("kcl", "awslabs", "databricks"), help="the other consumer, stopped")
    parser.add_argument(
        "location",
        help="kcl: the lease table, or @FILE from 'aws dynamodb scan'; else: a checkpointLocation",
    )
    parser.add_argument("--stream", help="of this stream alone; kcl: leases of one stream do not name it")
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
    imported = _read(arguments, connection).starting_unread_at(unread)
    if not arguments.offline:
        imported = imported.completed(_listed(connection, imported.streams))
    position = imported.starting_position()
    text = json.dumps(position)
    if arguments.output:
        try:
            Path(arguments.output).write_text(text + "\n")
        except OSError as error:
            raise UsageError(f"--output: {error}") from None
    value = {"startingPosition": position, "streams": imported.streams, "notes": list(imported.notes)}
    rows = [(split, json.dumps(place)) for split, place in sorted(imported.places.items())]
    lines = [table(("SHARD", "STARTS"), rows), "", *(f"- {note}" for note in imported.notes)]
    lines += ["", "startingPosition:", text if not arguments.output else f"in {arguments.output}"]
    return Report(value, "\n".join(lines))


def _read(arguments: argparse.Namespace, connection: ConnectionConfig) -> Imported:
    location: str = arguments.location
    if arguments.kind == "kcl":
        if arguments.source is not None:
            raise UsageError("--source is for checkpoints: a lease table has no sources")
        items = (
            kcl.scanned_file(Path(location[1:]))
            if location.startswith("@")
            else kcl.scan(location, connection)
        )
        return kcl.imported_leases(items, arguments.stream)
    checkpoint = Checkpoint(open_storage(location, connection))
    if arguments.kind == "awslabs":
        imported = awslabs.imported_checkpoint(checkpoint, arguments.source)
    else:
        imported = databricks.imported_checkpoint(checkpoint, arguments.source)
    return imported if arguments.stream is None else imported.of_stream(arguments.stream)


def _place(text: str) -> Place:
    if text.upper() == "TRIM_HORIZON":
        return TRIM_HORIZON
    try:
        return at_time(iso_instant(TIMESTAMP.parse(text)))
    except (OptionError, ValueError):
        raise UsageError(f"--unread is {text!r}: allowed is TRIM_HORIZON, or {TIMESTAMP.allowed}") from None


def _listed(connection: ConnectionConfig, streams: Iterable[str]) -> list[Split]:
    streams = list(streams)
    log = kinesis_log(connection, streams)
    return [split for stream in streams for split in log.list_splits(stream)]
