"""The checkpoint of awslabs' spark-sql-kinesis-connector (format ``aws-kinesis``).

Spark's offset log holds where a batch *starts* (``KinesisV2SourceOffset``)::

    {"metadata": {"streamName": "clicks", "batchId": "7"},
     "shardId-000000000000": {"iteratorType": "AFTER_SEQUENCE_NUMBER", "iteratorPosition": "4964…",
                              "subSequenceNumber": "-1", "isLast": "true"}}

Where a batch ended, each task writes next to it, as ``sources/<n>/shard-source/<batchId>/<shardId>``
(``HDFSMetadataCommitter``): the same fields, of one shard. A sub-sequence number is -1 outside aggregated
records; with ``isLast`` false, user records after it are unread. Finished shards are left out of the next
batch.

Qubole's kinesis-sql, from which it grew, writes the same without the last two fields, and calls the directory
``shard-commit``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from sluice.cli.checkpoint import Checkpoint
from sluice.cli.imports.places import (
    SHARD_END,
    TRIM_HORIZON,
    Imported,
    ImportedFormatError,
    Place,
    after,
    last_offset,
)
from sluice.instants import iso_instant
from sluice.source.model.splits import SplitId

__all__ = ["imported_checkpoint"]

_ENDS: Final = ("shard-source", "shard-commit")
"""Directories of awslabs' connector, and of Qubole's."""


def imported_checkpoint(checkpoint: Checkpoint, source: int | None) -> Imported:
    """The places after the last batch that was committed.

    Args:
        source: the index of the source in the query; None: the only one there is.

    Raises:
        ImportedFormatError: it is not a checkpoint of that connector, or a file of it is missing.
    """
    _, index, offset, notes = last_offset(checkpoint, source, _is_ours, "awslabs' connector")
    stream, number = str(offset["metadata"]["streamName"]), str(offset["metadata"]["batchId"])
    shards = {shard: value for shard, value in offset.items() if shard != "metadata"}
    if checkpoint.in_flight is None:
        # A shard in which nothing came since a time ends at LATEST; its start has the time.
        ends = _ends(checkpoint, index, number)
        shards |= {shard: end for shard, end in ends.items() if end.get("iteratorType") != "LATEST"}
    places: dict[SplitId, Place] = {}
    unread: dict[SplitId, str] = {}
    for shard, value in shards.items():
        split = SplitId(stream, shard)
        if value.get("iteratorType") == "LATEST":
            unread[split] = "LATEST"
        else:
            places[split] = _place(split, value)
    return Imported(places, unread, notes)


def _is_ours(value: Any) -> bool:
    metadata = value.get("metadata") if isinstance(value, dict) else None
    return isinstance(metadata, dict) and metadata.keys() >= {"streamName", "batchId"}


def _ends(checkpoint: Checkpoint, source: int, number: str) -> dict[str, Mapping[str, Any]]:
    directories = [f"sources/{source}/{name}/{number}" for name in _ENDS]
    files = [
        file.path
        for directory in directories
        for file in checkpoint.storage.files(directory)
        if not file.path.rpartition("/")[2].startswith(".")
    ]
    if not files:
        raise ImportedFormatError(
            f"{checkpoint.storage.shown}: no files in {' or '.join(directories)}, which say where the batch "
            "ended; what option 'kinesis.metadataCommitterType' DYNAMODB keeps is not read"
        )
    return dict(_end(checkpoint, path) for path in files)


def _end(checkpoint: Checkpoint, path: str) -> tuple[str, Mapping[str, Any]]:
    try:
        value = json.loads(checkpoint.storage.read(path))
        return str(value["shardId"]), value
    except (ValueError, KeyError, TypeError):
        raise ImportedFormatError(f"{checkpoint.storage.shown}/{path}: not a position") from None


def _place(split: SplitId, value: Mapping[str, Any]) -> Place:
    kind, position = value.get("iteratorType"), str(value.get("iteratorPosition", ""))
    try:
        sub = int(value.get("subSequenceNumber", -1))
    except (TypeError, ValueError):
        raise ImportedFormatError(f"{split}: position {dict(value)!r} is not known") from None
    is_last = str(value.get("isLast", "true")).lower() == "true"
    match kind:
        case "SHARD_END":
            return SHARD_END
        case "TRIM_HORIZON":
            return TRIM_HORIZON
        case "AT_TIMESTAMP" if position.isdigit():
            return {kind: iso_instant(int(position) * 1000)}
        case "AFTER_SEQUENCE_NUMBER" | "AT_SEQUENCE_NUMBER" if position.isdigit():
            if sub >= 0 and not is_last:
                return after(position, sub)
            return after(position) if kind == "AFTER_SEQUENCE_NUMBER" else {kind: position}
    raise ImportedFormatError(f"{split}: position {dict(value)!r} is not known")
