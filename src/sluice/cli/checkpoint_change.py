"""Writing to a checkpoint: describes the change, copies the files that it replaces, and restores them on
request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, Final

from sluice.cli.checkpoint import Checkpoint, CheckpointError, LoggedBatch
from sluice.cli.positions import describe, position_json
from sluice.cli.report import UsageError, duration, table
from sluice.cli.storage import Storage, StorageError
from sluice.instants import MICROS_PER_SECOND, iso_instant
from sluice.source.model.offsets import After, AtHorizon, AtTime, Closed, Position
from sluice.source.model.splits import SplitId

__all__ = [
    "BACKUPS",
    "Change",
    "ShardChange",
    "change_of",
    "checked_batch",
    "read_backup",
    "write",
]

BACKUPS: Final = "_sluice_backup"
"""A directory of the checkpoint, which Spark does not look into."""
_INDEX: Final = "files.json"
"""The file of a copy that names the files which were changed, and says whether each existed before."""
_FIRST_COMMIT: Final = b'v1\n{"nextBatchWatermarkMs":0}'


@dataclass(frozen=True)
class ShardChange:
    """One shard's position before and after.

    Attributes:
        old: None if it had none.
        new: None if it is dropped.
        is_recreated: `old` is of another stream, which was deleted.
    """

    split: SplitId
    old: Position | None
    new: Position | None
    is_recreated: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "stream": self.split.stream,
            "shard": self.split.shard,
            "from": None if self.old is None else position_json(self.old),
            "to": None if self.new is None else position_json(self.new),
            "meaning": self.meaning,
        }

    @property
    def row(self) -> tuple[object, ...]:
        """The same, for people."""
        old = "none" if self.old is None else describe(self.old)
        return self.split, old, "none" if self.new is None else describe(self.new), self.meaning

    @property
    def meaning(self) -> str:
        """What happens to the rows in between."""
        if self.new is None:
            return "dropped: its stream was deleted" if self.is_recreated else "dropped: the shard is gone"
        if self.is_recreated and self.old is not None:
            return "starts in the new stream: the old one was deleted"
        return _meaning(self.old, self.new)


def _meaning(old: Position | None, new: Position) -> str:
    match old, new:
        case _, Closed():
            text = "skips all unread records"
        case None, _:
            text = "was not read yet"
        case _ if old == new:
            text = "stays"
        case Closed(), _:
            text = "reads existing records from there on again"
        case _, AtHorizon():
            text = "reads all existing records again"
        case AtHorizon(), AtTime(instant=instant):
            text = f"skips records that arrived before {iso_instant(instant)}"
        case After() as old, After() as new:
            is_later = (new.sequence, new.sub or 0) > (old.sequence, old.sub or 0)
            text = "skips the records between" if is_later else "reads the records between again"
        case _:
            text = _by_time(old, new)
    return text


def _by_time(old: Position | None, new: Position) -> str:
    was, then = (getattr(each, "arrival", getattr(each, "instant", None)) for each in (old, new))
    if was is None or then is None:
        return "unknown from the checkpoint alone"
    by = duration(abs(then - was) / MICROS_PER_SECOND)
    return f"skips unread records of {by}" if then > was else f"reads {by} again"


@dataclass(frozen=True)
class Change:
    """What is written to a checkpoint.

    Attributes:
        writes: paths and contents, in this order; None deletes the file. A change that is cut short after any
            of them loses no row.
        value: describes the change, for programs.
        lines: the same for people.
        drops_streams: all positions of a stream are dropped, as it was created again.
    """

    writes: Sequence[tuple[str, bytes | None]]
    value: Mapping[str, Any]
    lines: Sequence[str]
    drops_streams: bool = False


def checked_batch(checkpoint: Checkpoint) -> int:
    """The last batch, whose end is about to be replaced.

    Raises:
        CheckpointError: the checkpoint cannot be changed as it is.
    """
    batch, where = checkpoint.last, checkpoint.storage.shown
    if batch is None:
        raise CheckpointError(f"{where}: no batch was planned yet; the query starts at its startingPosition")
    entry = checkpoint.last_entry
    if batch - (-1 if entry is None else entry) > 1:
        raise CheckpointError(
            f"{where}: batch {batch} is planned, and the last committed one is {entry}; a query "
            "with asynchronous progress tracking cannot be reset"
        )
    if checkpoint.in_flight is not None and checkpoint.is_stateful:
        if remedy := checkpoint.damage.get(f"commits/{batch}"):
            raise CheckpointError(remedy)
        raise CheckpointError(
            f"{where}: batch {batch} is not committed, and the query keeps state, which would lack a version "
            "for it. Let the query finish it first (Trigger.AvailableNow; with 'failOnDataLoss' false if its "
            "records have expired), or start a new checkpoint"
        )
    return batch


def change_of(
    checkpoint: Checkpoint, source: int, text: str, changes: Sequence[ShardChange], notes: Sequence[str]
) -> Change:
    """The change that lets the next batch start elsewhere. If the last one is not committed, it is given up.

    Args:
        source: the index of the source that is reset.
        text: its offsets at the start of the next batch.
        changes: the reset positions.
        notes: sentences on the streams that the service has.
    """
    batch = checked_batch(checkpoint)
    is_given_up = checkpoint.in_flight is not None
    end = checkpoint.read(batch)
    texts = [text if n == source else each.text for n, each in enumerate(checkpoint.next_starts)]
    written = end.with_texts(texts).to_text().encode()
    writes: list[tuple[str, bytes | None]] = []
    if is_given_up:
        writes.append((f"offsets/{batch}", _emptied(checkpoint, batch, end)))
        writes.append((f"commits/{batch}", _commit_entry(checkpoint)))
    writes.append((f"offsets/{batch}", written))
    if f"offsets/{batch - 1}" in checkpoint.damage:  # Spark has to read it, and goes by the last one alone
        writes.append((f"offsets/{batch - 1}", written))
    notes = [*notes, *_notes(checkpoint, end, is_given_up=is_given_up, batch=batch)]
    value = {
        "source": source,
        "lastBatch": batch,
        "givesUpBatch": is_given_up,
        "nextBatch": batch + 1,
        "shards": [each.to_json() for each in changes],
        "notes": notes,
    }
    lines = [
        f"checkpoint   {checkpoint.storage.shown}",
        f"query        {checkpoint.query_id}",
        "",
        table(("SHARD", "FROM", "TO", "MEANS"), (each.row for each in changes)),
        "",
        *(f"- {note}" for note in notes),
    ]
    return Change(writes, value, lines, drops_streams=any(each.is_recreated for each in changes))


def _emptied(checkpoint: Checkpoint, batch: int, end: LoggedBatch) -> bytes:
    """A batch that ends where it starts: it has no row to lose, whether it is committed or run again."""
    texts = []
    for source, start in zip(end.sources, checkpoint.starts(batch, end), strict=True):
        offsets, text = source.offsets, start.text
        if offsets is not None and offsets.start is not None:  # which is needed if it is run again
            text = source.text_of(replace(offsets, positions=offsets.start))
        texts.append(text)
    return end.with_texts(texts).to_text().encode()


def _commit_entry(checkpoint: Checkpoint) -> bytes:
    """The entry of the batch before: the batch that is given up has no row, so the watermark is the same."""
    committed = checkpoint.last_committed
    return _FIRST_COMMIT if committed is None else checkpoint.storage.read(f"commits/{committed}")


def _notes(checkpoint: Checkpoint, end: LoggedBatch, *, is_given_up: bool, batch: int) -> list[str]:
    new_id = f"The next batch is {batch + 1}. Its id is new, so no sink mistakes it for an earlier batch."
    twice = (
        "Rows that are read again are written again: destinations are at least once across a reset. With "
        "files and s3, the files of earlier batches stay committed, so such rows are in two batches."
    )
    notes = [new_id, twice]
    notes += [
        f"{path} is damaged, so the query cannot start. The reset repairs it." for path in checkpoint.damage
    ]
    if is_given_up:
        notes.append(
            f"Batch {batch} was planned and not committed. It is given up: what it was to read of shards and "
            "sources that are not reset is read again in the next batch. What the sink had taken stays: "
            "with destination s3 all of it or nothing, by the manifest of the batch."
        )
    if checkpoint.is_stateful:
        late = (
            "" if end.watermark is None else f", and rows before {iso_instant(end.watermark * 1000)} are late"
        )
        notes.append(
            "The query keeps state, which is not set back: rows that are read again count again in "
            f"aggregates{late}."
        )
    return notes


# --- writing -------------------------------------------------------------------------------------------


def write(checkpoint: Checkpoint, change: Change) -> str:
    """Copies the files that the change replaces, and then makes the change.

    Returns:
        The name of the copy.

    Raises:
        CheckpointError: a batch was planned since the checkpoint was read; or only a part of the change was
            made, and what was there could not be put back.
        StorageError: the change could not be made, and all is as it was.
    """
    storage = checkpoint.storage
    now = Checkpoint(storage)
    if (now.last, now.last_committed) != (checkpoint.last, checkpoint.last_committed):
        raise CheckpointError(f"{storage.shown}: a batch was planned a moment ago: the query runs; stop it")
    name = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
    was_there = {path: storage.exists(path) for path, _ in change.writes}
    for path, is_there in was_there.items():
        if is_there:
            storage.write(f"{BACKUPS}/{name}/{path}", storage.read(path))
    storage.write(f"{BACKUPS}/{name}/{_INDEX}", json.dumps({"version": 1, "files": was_there}).encode())
    begun: set[str] = set()
    try:
        for path, body in change.writes:
            begun.add(path)
            _replace(storage, path, body)
    except BaseException as error:
        try:
            # The commit entry first: with the end of a batch that is given up, its rows would count as read.
            for path in sorted(begun):
                _put_back(storage, name, path, was_there=was_there[path])
        except StorageError:
            raise CheckpointError(
                f"{str(error) or 'interrupted'}; the change is incomplete. Before you start the query, "
                f"restore the original files: --undo {name} --execute"
            ) from error
        if isinstance(error, StorageError):
            raise StorageError(f"{error}; nothing was changed") from error
        raise
    return name


def _put_back(storage: Storage, name: str, path: str, *, was_there: bool) -> None:
    before = storage.read(f"{BACKUPS}/{name}/{path}") if was_there else None
    now = storage.read(path) if storage.exists(path) else None
    if now != before:
        _replace(storage, path, before)


def _replace(storage: Storage, path: str, body: bytes | None) -> None:
    directory, _, name = path.rpartition("/")
    # Hadoop's checksum of a local file would not fit any more. Without one the file is not checked.
    storage.delete(f"{directory}/.{name}.crc")
    if body is None:
        storage.delete(path)
    else:
        storage.write(path, body)


def read_backup(checkpoint: Checkpoint, name: str) -> Change:
    """The change that puts a copy back.

    Raises:
        UsageError: there is no such copy.
        CheckpointError: batches were planned since.
    """
    storage = checkpoint.storage
    index = f"{BACKUPS}/{name}/{_INDEX}"
    if "/" in name or not storage.exists(index):
        known = sorted(
            file.path.split("/")[-2]
            for file in storage.files(BACKUPS, recursive=True)
            if file.path.endswith(f"/{_INDEX}")
        )
        raise UsageError(
            f"--undo {name}: no such backup exists; existing ones are {', '.join(known) or 'none'}"
        )
    was_there: Mapping[str, bool] = json.loads(storage.read(index))["files"]
    batch = max(int(path.rpartition("/")[2]) for path in was_there)
    if checkpoint.last != batch:
        raise CheckpointError(
            f"the copy is from the time of batch {batch}, and batch {checkpoint.last} was planned since: "
            "reset to a position instead"
        )
    files = {
        path: storage.read(f"{BACKUPS}/{name}/{path}") if is_there else None
        for path, is_there in sorted(was_there.items())  # commit entries first
    }
    writes = list(files.items())
    before = files[f"offsets/{batch}"]
    if before is not None and not was_there.get(f"commits/{batch}", True):
        end = LoggedBatch.parse(before.decode())
        writes.insert(0, (f"offsets/{batch}", _emptied(checkpoint, batch, end)))
    value = {"undo": name, "lastBatch": batch, "files": dict(was_there)}
    lines = [
        f"checkpoint   {storage.shown}",
        *(f"{'puts back' if body is not None else 'deletes'} {path}" for path, body in files.items()),
    ]
    return Change(writes, value, lines)
