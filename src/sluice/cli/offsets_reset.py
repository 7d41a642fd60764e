"""``sluice offsets reset``: makes a stopped query resume at other positions.

The last offset in Spark's log is replaced, so the next batch starts there. No batch id is used twice: if the
last batch was not committed, it is given up by a commit entry, and what it should have read and is not reset
is read again. So a sink that knows a batch by its id, as destination ``s3`` does by its manifests, never
takes the new rows for those of an old batch and skips them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.names.shard_table import ShardTable
from sluice.cli.checkpoint import Checkpoint, CheckpointError, choose_source
from sluice.cli.checkpoint_change import (
    BACKUPS,
    Change,
    ShardChange,
    change_of,
    checked_batch,
    read_backup,
    write,
)
from sluice.cli.options import add_connection, add_repeated, connection_of, parse_time
from sluice.cli.report import Report, UsageError, duration
from sluice.cli.same_stream import STREAM_ARN_HELP, NamedStreams, SameStreams, compare_streams
from sluice.cli.service import foreign_shard
from sluice.cli.storage import open_storage
from sluice.errors import OptionError
from sluice.instants import MICROS_PER_SECOND, iso_instant
from sluice.kinesis.options.starting_positions import (
    STARTING,
    PerShard,
    ShardStart,
    shard_position,
    time_position,
)
from sluice.source.model.offsets import AtHorizon, AtTime, Closed, Offsets, Position
from sluice.source.model.splits import Split, SplitId
from sluice.source.settings import TIMESTAMP

HELP = "make a stopped query resume at another position; without --execute, only show what it would do"
EXAMPLE = "sluice offsets reset s3://bucket/checkpoints/orders --to-timestamp 2026-11-01T08:00:00Z"

_LEAST_SILENCE: Final = 120.0
"""Seconds without a new file after which a query with short batches counts as stopped."""
_SILENT_GAPS: Final = 3
"""A query with long batches counts as stopped after this many times the usual time between two batches."""
_DROPS: Final = "positions of a stream that was deleted and created again are dropped"


def configure(parser: argparse.ArgumentParser) -> None:
    """See `sluice.cli.app.Command`."""
    parser.add_argument("checkpoint", help="the query's checkpointLocation")
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument("--to-timestamp", metavar="TIME", help=f"records from then on: {TIMESTAMP.allowed}")
    to.add_argument("--to-trim-horizon", action="store_true", help="the oldest records there are")
    to.add_argument("--to-latest", action="store_true", help="records that arrive from now on")
    to.add_argument(
        "--to-position",
        metavar="JSON",
        help="sequence numbers by shard, as option startingPosition has them; or @FILE. Other shards stay",
    )
    to.add_argument(
        "--undo", metavar="BACKUP", help=f"puts back a copy: the name of a directory in {BACKUPS}"
    )
    add_repeated(parser, "--shard", "[STREAM/]SHARD", "reset this shard alone")
    why = "needed for a stream that was created again, if the checkpoint does not hold its ARN"
    add_repeated(parser, "--stream", "ARN", f"{STREAM_ARN_HELP}; {why}")
    parser.add_argument(
        "--source", type=int, help="which source of the query, counted from 0, if it has several"
    )
    parser.add_argument("--execute", action="store_true", help="do it")
    parser.add_argument(
        "--force",
        action="store_true",
        help="even if the query may be running, or positions of a stream that was deleted are dropped",
    )
    parser.add_argument(
        "--offline",
        action="store_true",
        help="do not ask Kinesis which shards there are: shards that were read to their end stay so",
    )
    add_connection(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Report:
    """Resets a checkpoint, or says what that would do."""
    connection = connection_of(arguments)
    checkpoint = Checkpoint(open_storage(arguments.checkpoint, connection))
    is_quiet, last_write = _quiet(checkpoint)
    if arguments.undo:
        change = read_backup(checkpoint, arguments.undo)
    else:
        change = _plan(arguments, checkpoint, connection)
    value = {"checkpoint": checkpoint.storage.shown, **change.value, "lastWrite": last_write}
    text = "\n".join([*change.lines, "", f"The query has to be stopped: {last_write}."])
    unchanged = {**value, "executed": False, "backup": None}
    if not arguments.execute:
        return Report(unchanged, f"{text}\n\nNothing was changed. Give --execute to do it.")
    reasons = {} if is_quiet else {last_write: "Stop the query, or be sure that it is stopped."}
    if change.drops_streams:
        reasons[_DROPS] = "See above which stream it is, and which positions are dropped."
    if reasons and not arguments.force:
        return Report(
            {**unchanged, "refused": "; ".join(reasons)},
            f"{text}\n\nRefused. {' '.join(reasons.values())} --force does it.",
            has_problem=True,
        )
    backup = write(checkpoint, change)
    lines = [text, "", f"Done. To restore the original files: --undo {backup}"]
    runs = Checkpoint(checkpoint.storage).last != checkpoint.last
    if runs:
        lines.append(
            "A batch was planned meanwhile: the query is running, and ignores the reset. Stop it, restore "
            "the original files, and reset again."
        )
    return Report({**value, "executed": True, "backup": backup}, "\n".join(lines), has_problem=runs)


def _quiet(checkpoint: Checkpoint) -> tuple[bool, str]:
    """Whether the query counts as stopped, and a sentence that says why.

    This is never certain. Spark takes no lock on a checkpoint, and an idle query writes nothing at all.
    A young file is a sign that the query runs; an old one does not prove that it is stopped.
    """
    written = checkpoint.written_at
    if written is None:
        return True, "no batch was logged yet"
    age = max(0.0, time.time() - written.timestamp())
    needed = max(_LEAST_SILENCE, _SILENT_GAPS * checkpoint.usual_gap)
    logged = f"the checkpoint was written to {duration(age)} ago"
    if age >= needed:
        return True, f"{logged}, which does not prove that the query is stopped: an idle one writes nothing"
    return False, f"{logged}, and a query that is stopped has not written for {duration(needed)}"


# --- which positions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Listing:
    """The shards as Kinesis has them now.

    Attributes:
        at: when they were listed (microseconds).
        shards: by id.
        streams: compared with the streams of the checkpoint.
    """

    at: int
    shards: Mapping[SplitId, Split]
    streams: SameStreams

    @classmethod
    def of(cls, streams: SameStreams) -> _Listing:
        at = streams.log.server_time()
        shards = {split.id: split for name in streams.live for split in streams.log.list_splits(name)}
        return cls(at, shards, streams)

    def notes(self, base: Offsets) -> list[str]:
        """Which stream each is, and which positions of recreated streams are dropped."""
        found = []
        for name, live in sorted(self.streams.live.items()):
            note = f"Stream {name} is {live.arn}, created {iso_instant(live.created)}."
            if name in self.streams.recreated:
                before = base.created.get(name)
                of = "" if before is None else f", which was created {iso_instant(before)}"
                note += f" The checkpoint belongs to a deleted stream{of}. All positions in it are dropped"
                consumer = base.consumers.get(name)
                note += "." if consumer is None else f", and its consumer {consumer}."
            found.append(note)
        return found


def _plan(arguments: argparse.Namespace, checkpoint: Checkpoint, connection: ConnectionConfig) -> Change:
    batch = checked_batch(checkpoint)
    end = checkpoint.read(batch)
    starts = checkpoint.next_starts
    ours = {n: offsets for n, each in enumerate(starts) if (offsets := each.offsets) is not None}
    if not ours and any(each.is_of_splits for each in starts):
        raise UsageError("a source of splits has no positions to move: start the query with a new checkpoint")
    index, base = choose_source(ours, arguments.source, "Sluice's source")
    last = end.sources[index].offsets or base
    base = replace(base, consumers={**base.consumers, **last.consumers})
    if not arguments.offline and (foreign := foreign_shard(base)):
        raise UsageError(
            f"source {index} does not read Kinesis, which cannot be asked for shards such as {foreign}: give "
            "--offline"
        )
    named = NamedStreams(arguments.stream)
    targets = _targets(arguments, base.streams, named)
    named.check(base.streams)
    listing = None
    if not arguments.offline:
        listing = _Listing.of(compare_streams(connection, base, named, instead="--offline asks no service"))
    now = time.time_ns() // 1000 if listing is None else listing.at
    wanted = _wanted(arguments, targets, base, listing, now)
    moved = base.with_positions(_moved(base, wanted, listing, is_whole=targets is None))
    recreated: Collection[str] = ()
    if listing is not None and targets is None:
        recreated = listing.streams.recreated
        consumers = {name: arn for name, arn in base.consumers.items() if name not in recreated}
        created = {**base.created, **{name: live.created for name, live in listing.streams.live.items()}}
        moved = replace(moved, created=created, listed=listing.at, consumers=consumers)
    changes = [
        ShardChange(split, base.positions.get(split), moved.positions.get(split), split.stream in recreated)
        for split in sorted(wanted.keys() | (base.positions.keys() - moved.positions.keys()))
    ]
    notes = [] if listing is None else listing.notes(base)
    return change_of(checkpoint, index, end.sources[index].text_of(moved), changes, notes)


_Targets = Mapping[SplitId, ShardStart | None]
"""Shards that the command line names, with what ``--to-position`` gives each; None: as all others."""


def _targets(arguments: argparse.Namespace, streams: Collection[str], named: NamedStreams) -> _Targets | None:
    """What ``--shard`` and ``--to-position`` name; None: all shards are reset, as if the query began."""
    chosen = {_split(text, streams, named) for text in arguments.shard}
    if arguments.to_position is None:
        return dict.fromkeys(chosen) or None
    table = _table(arguments.to_position, streams, named)
    if unknown := chosen - table.keys():
        raise UsageError(f"--to-position names no position for {min(unknown)}")
    return {split: start for split, start in table.items() if not chosen or split in chosen}


def _wanted(
    arguments: argparse.Namespace,
    targets: _Targets | None,
    base: Offsets,
    listing: _Listing | None,
    now: int,
) -> dict[SplitId, Position]:
    """The shards to reset, and their new positions."""
    shards: Mapping[SplitId, Split] = {} if listing is None else listing.shards
    there = base.positions.keys() if listing is None else shards.keys()
    if targets is None:
        # Without a listing it is unknown whether a shard that was read to its end still exists.
        closed = {split for split, old in base.positions.items() if isinstance(old, Closed)}
        return dict.fromkeys(there - closed if listing is None else there, _same_position(arguments, now))
    found = {
        split: _same_position(arguments, now)
        if start is None
        else shard_position(start, now, shards.get(split))
        for split, start in targets.items()
    }
    if unknown := sorted(found.keys() - there):
        shown = ", ".join(str(split) for split in sorted(there))
        raise UsageError(f"shard {unknown[0]} does not exist: the shards are {shown}")
    return found


def _same_position(arguments: argparse.Namespace, now: int) -> Position:
    if arguments.to_trim_horizon:
        return AtHorizon(pinned=now)
    if arguments.to_latest:
        # As the source does: some services cut arrival times to seconds.
        return AtTime(now // MICROS_PER_SECOND * MICROS_PER_SECOND, pinned=now)
    instant = parse_time("--to-timestamp", arguments.to_timestamp)
    if instant > now:
        raise UsageError(f"--to-timestamp is {iso_instant(instant)}, which is in the future")
    return time_position(instant, now)


def _table(given: str, streams: Collection[str], named: NamedStreams) -> Mapping[SplitId, ShardStart]:
    try:
        text = Path(given[1:]).read_text() if given.startswith("@") else given
    except OSError as error:
        raise UsageError(f"--to-position: {error}") from None
    try:
        parsed = STARTING.kind.parse(text) if text.lstrip().startswith("{") else None
        if not isinstance(parsed, ShardTable):
            raise UsageError("--to-position: expected JSON as in option startingPosition, or @FILE")
        starts = {_stream_name(name, named): start for name, start in parsed.starts.items()}
        return PerShard.of(replace(parsed, starts=starts), streams).positions
    except OptionError as error:
        raise UsageError(f"--to-position {error}") from None


def _stream_name(text: str, named: NamedStreams) -> str:
    """The name of a stream that is given by its name or its ARN."""
    return named.add(text).name if text.startswith("arn:") else text


def _split(text: str, streams: Collection[str], named: NamedStreams) -> SplitId:
    stream, slash, shard = text.rpartition("/")
    if not slash:
        if len(streams) > 1:
            raise UsageError(f"--shard {text}: the source has several streams; give STREAM/SHARD")
        stream = next(iter(streams))
    return SplitId(_stream_name(stream, named), shard)


def _moved(
    base: Offsets, wanted: Mapping[SplitId, Position], listing: _Listing | None, *, is_whole: bool
) -> dict[SplitId, Position]:
    """All positions after the reset.

    If all shards are reset, a shard that was not read to its end and no longer exists is left out: the query
    would fail for its loss. So are all shards of a stream that was deleted and created again.
    """
    positions = dict(base.positions)
    if listing is not None:
        recreated = listing.streams.recreated
        if recreated and not is_whole:
            raise CheckpointError(
                f"stream {min(recreated)} was deleted and created again since: reset all shards"
            )
        for split, old in base.positions.items():
            is_open = not isinstance(old, Closed)
            if is_whole and split not in listing.shards and (split.stream in recreated or is_open):
                del positions[split]
    return {**positions, **wanted}
