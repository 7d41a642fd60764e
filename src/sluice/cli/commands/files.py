"""``sluice files``: what destinations ``files`` and ``s3`` have committed, to list, merge and remove."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from sluice.aws.calling.connection import CONNECTION_OPTIONS, connection_from_options
from sluice.cli.options import add_commands, add_connection, add_options, given_options, parse_time
from sluice.cli.report import Report, table
from sluice.destinations.common.object_settings import OBJECT_OPTIONS, ObjectSettings
from sluice.destinations.files.destination import (
    ALLOW_UNSAFE_COMMITS,
    REPLACED_FILE_RETENTION,
    TARGET_FILE_SIZE,
)
from sluice.destinations.files.layout import Layout
from sluice.destinations.files.maintenance import Maintenance
from sluice.destinations.files.places import ANY_PATH, open_store
from sluice.destinations.files.retention import CommittedEpoch, expire, sink_files
from sluice.destinations.files.store import Store
from sluice.instants import iso_instant
from sluice.options import Option, OptionValues, read_options
from sluice.source.settings import TIMESTAMP

_TARGET: Final = 128 * 1024 * 1024
_COMPACTION: Final[Sequence[Option[Any]]] = (
    TARGET_FILE_SIZE,
    REPLACED_FILE_RETENTION,
    ALLOW_UNSAFE_COMMITS,
    *OBJECT_OPTIONS,
)

HELP = "list what destination files or s3 has committed below a path, merge small files, remove old batches"


def configure(parser: argparse.ArgumentParser) -> None:
    """See `sluice.cli.app.Command`."""
    what = "the committed batches below a path, and files of none"
    small = "merge small files of committed batches, and fold manifests into a checkpoint"
    old = "remove the files of old batches; shows which unless --execute is given"
    commands = {
        "list": (what, "sluice files list s3://lake/orders --region eu-west-1"),
        "compact": (small, "sluice files compact s3://lake/orders --option targetFileSize=256MiB"),
        "expire": (old, "sluice files expire s3://lake/orders --before 2026-11-01"),
    }
    listing, merging, removal = add_commands(parser, commands)
    for each in (listing, merging, removal):
        each.add_argument("path", help="the sink's option path: s3://bucket/prefix or a directory")
    for each in (listing, removal):
        each.add_argument("--query", metavar="ID", help="of this query alone")
    add_connection(listing)
    add_options(removal, "a connection option, or allowUnsafeCommits")
    listing.set_defaults(run=_list)
    add_options(
        merging, "an option of the sink: of the connection, of objects in S3, targetFileSize and others"
    )
    merging.set_defaults(run=_compact)
    removal.add_argument(
        "--before", required=True, metavar="TIME", help=f"committed before: {TIMESTAMP.allowed}"
    )
    removal.add_argument("--execute", action="store_true", help="do it")
    removal.set_defaults(run=_expire)


def _place(arguments: argparse.Namespace, *more: Option[Any]) -> tuple[Store, Layout, OptionValues]:
    """The store and the keys of the path, and the values of further options. Sends nothing."""
    options = {"path": arguments.path, **given_options(arguments)}
    values = read_options("sluice files", [ANY_PATH, *more, *CONNECTION_OPTIONS], options)
    connection = connection_from_options(values)
    settings = ObjectSettings.of(values, [each for each in more if each in OBJECT_OPTIONS])
    values.check()
    layout = Layout(values.require(ANY_PATH))
    if not layout.bucket:
        values.reject_each(OBJECT_OPTIONS, "only for a 'path' in S3")
        values.check()
    unsafe = ALLOW_UNSAFE_COMMITS in more and values.require(ALLOW_UNSAFE_COMMITS)
    return open_store(layout, connection, settings, allows_unsafe_commits=unsafe), layout, values


def _compact(arguments: argparse.Namespace) -> Report:
    store, layout, values = _place(arguments, *_COMPACTION)
    store.check_conditional_writes(layout.manifests)
    done = Maintenance(
        store,
        layout,
        target=values.get(TARGET_FILE_SIZE) or _TARGET,
        retention=values.require(REPLACED_FILE_RETENTION),
    ).run()
    lines = [
        f"{done.folded} manifests are folded into the checkpoint.",
        f"{done.merged} files are merged into {done.made}.",
        f"{done.deleted} files are deleted that were merged or removed before.",
        *(f"not merged: {failure}" for failure in done.failures),
    ]
    value = {"path": arguments.path, **asdict(done)}
    return Report(value, "\n".join(lines), has_problem=bool(done.failures))


def _of(query: str | None, epochs: Sequence[CommittedEpoch]) -> list[CommittedEpoch]:
    return [each for each in epochs if query in (None, each.query)]


def _list(arguments: argparse.Namespace) -> Report:
    store, layout, _ = _place(arguments)
    found = sink_files(store, layout)
    epochs = _of(arguments.query, found.epochs)
    urls = [layout.address(file.path) for e in epochs for file in e.files]
    orphans = sum(len(each.orphans) for each in epochs)
    value = {
        "path": arguments.path,
        "batches": [_value(each) for each in epochs],
        "files": urls,
        "uncommitted": [
            {"key": each.key, "bytes": each.size, "modified": iso_instant(each.modified)}
            for each in found.uncommitted
        ],
        "replaced": [{"key": each.key, "bytes": each.size} for each in found.replaced],
    }
    lines = [_table(value["batches"])]
    total = sum(each.size for each in epochs)
    merged = sum(each.batch is None for each in epochs)
    batches = f"{len(epochs) - merged} batches" + (" and merged ones" if merged else "")
    lines += [
        "",
        f"{batches}, {len(urls)} files, {sum(e.rows for e in epochs)} rows, {total} bytes",
    ]
    if orphans:
        lines.append(f"{orphans} files of removed batches are left: 'sluice files expire' removes them")
    if found.replaced:
        size = sum(each.size for each in found.replaced)
        lines.append(f"{len(found.replaced)} merged files ({size} bytes) stay for those who are reading them")
    if found.uncommitted:
        size = sum(each.size for each in found.uncommitted)
        lines.append(
            f"{len(found.uncommitted)} files ({size} bytes) are of no committed batch: being written, or "
            "left by a query that never came back"
        )
    return Report(value, "\n".join(lines))


def _expire(arguments: argparse.Namespace) -> Report:
    before = parse_time("--before", arguments.before)
    store, layout, _ = _place(arguments, ALLOW_UNSAFE_COMMITS)
    epochs = [
        each
        for each in _of(arguments.query, sink_files(store, layout).epochs)
        if each.orphans or (each.committed < before and each.files)
    ]
    # What is left of a removed batch goes, however young its emptied manifest is.
    chosen = [each for each in epochs if each.committed < before or not each.files]
    deleted = 0
    if arguments.execute:
        store.check_conditional_writes(layout.manifests)
        deleted = expire(store, layout, chosen)
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
        "query": epoch.query,
        "batch": epoch.batch,
        "run": epoch.manifest and epoch.manifest.run,
        "committed": iso_instant(epoch.committed),
        "files": len(epoch.files),
        "rows": epoch.rows,
        "bytes": epoch.size,
        "left": len(epoch.orphans),
    }
