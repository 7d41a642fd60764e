"""``sluice files``: what destinations ``files`` and ``s3`` have committed, and the removal of what is old."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from sluice.aws.calling.connection import CONNECTION_OPTIONS, connection_from_options
from sluice.cli.options import add_commands, add_connection, given_options, parse_time
from sluice.cli.report import Report, table
from sluice.destinations.files.layout import Layout
from sluice.destinations.files.places import ANY_PATH, open_store
from sluice.destinations.files.retention import CommittedEpoch, expire, sink_files
from sluice.destinations.files.store import Store
from sluice.instants import iso_instant
from sluice.options import read_options
from sluice.source.settings import TIMESTAMP

HELP = "list what destination files or s3 has committed below a path, and remove old batches"


def configure(parser: argparse.ArgumentParser) -> None:
    """See `sluice.cli.app.Command`."""
    what = "the committed batches below a path, and files of none"
    old = "remove the files of old batches; shows which unless --execute is given"
    commands = {
        "list": (what, "sluice files list s3://lake/orders --region eu-west-1"),
        "expire": (old, "sluice files expire s3://lake/orders --before 2026-11-01"),
    }
    listing, removal = add_commands(parser, commands)
    for each in (listing, removal):
        each.add_argument("path", help="the sink's option path: s3://bucket/prefix or a directory")
        each.add_argument("--query", metavar="ID", help="of this query alone")
        add_connection(each)
    listing.set_defaults(run=_list)
    removal.add_argument(
        "--before", required=True, metavar="TIME", help=f"committed before: {TIMESTAMP.allowed}"
    )
    removal.add_argument("--execute", action="store_true", help="do it")
    removal.set_defaults(run=_expire)


def _place(arguments: argparse.Namespace) -> tuple[Store, Layout]:
    options = {"path": arguments.path, **given_options(arguments)}
    values = read_options("sluice files", [ANY_PATH, *CONNECTION_OPTIONS], options)
    connection = connection_from_options(values)
    values.check()
    layout = Layout(values.require(ANY_PATH))
    return open_store(layout, connection), layout


def _of(query: str | None, epochs: Sequence[CommittedEpoch]) -> list[CommittedEpoch]:
    return [each for each in epochs if query in (None, each.manifest.query)]


def _list(arguments: argparse.Namespace) -> Report:
    store, layout = _place(arguments)
    found = sink_files(store, layout)
    epochs = _of(arguments.query, found.epochs)
    urls = [layout.address(file.path) for e in epochs for file in e.manifest.files]
    orphans = sum(len(each.orphans) for each in epochs)
    value = {
        "path": arguments.path,
        "batches": [_value(each) for each in epochs],
        "files": urls,
        "uncommitted": [
            {"key": each.key, "bytes": each.size, "modified": iso_instant(each.modified)}
            for each in found.uncommitted
        ],
    }
    lines = [_table(value["batches"])]
    total = sum(each.size for each in epochs)
    lines += [
        "",
        f"{len(epochs)} batches, {len(urls)} files, {sum(e.rows for e in epochs)} rows, {total} bytes",
    ]
    if orphans:
        lines.append(f"{orphans} files of removed batches are left: 'sluice files expire' removes them")
    if found.uncommitted:
        size = sum(each.size for each in found.uncommitted)
        lines.append(
            f"{len(found.uncommitted)} files ({size} bytes) are of no committed batch: being written, or "
            "left by a query that never came back"
        )
    return Report(value, "\n".join(lines))


def _expire(arguments: argparse.Namespace) -> Report:
    before = parse_time("--before", arguments.before)
    store, layout = _place(arguments)
    epochs = [
        each
        for each in _of(arguments.query, sink_files(store, layout).epochs)
        if each.orphans or (each.committed < before and each.manifest.files)
    ]
    # What is left of a removed batch goes, however young its emptied manifest is.
    chosen = [each for each in epochs if each.committed < before or not each.manifest.files]
    deleted = expire(store, layout, chosen) if arguments.execute else 0
    value = {
        "path": arguments.path,
        "before": iso_instant(before),
        "executed": arguments.execute,
        "batches": [_value(each) for each in chosen],
        "deletedFiles": deleted,
    }
    lines = [_table(value["batches"]), ""]
    if arguments.execute:
        lines.append(f"{deleted} files deleted. The batches stay committed, without files.")
    else:
        lines.append("Nothing was changed. Give --execute to do it.")
    return Report(value, "\n".join(lines))


def _table(batches: Sequence[Mapping[str, Any]]) -> str:
    keys = ("query", "batch", "files", "rows", "bytes", "committed")
    return table([key.upper() for key in keys], ([each[key] for key in keys] for each in batches))


def _value(epoch: CommittedEpoch) -> dict[str, Any]:
    return {
        "query": epoch.manifest.query,
        "batch": epoch.manifest.batch,
        "run": epoch.manifest.run,
        "committed": iso_instant(epoch.committed),
        "files": len(epoch.manifest.files),
        "rows": epoch.rows,
        "bytes": epoch.size,
        "left": len(epoch.orphans),
    }
