"""The checkpoint of Databricks' Kinesis source (format ``kinesis``).

Databricks publishes no description. Spark's progress events show offsets as they are logged, and the
documentation of those has this one
(https://docs.databricks.com/aws/en/structured-streaming/stream-monitoring, "Kinesis-to-Delta Lake")::

    [{"shard": {"stream": "clicks", "shardId": "shardId-000000000000"}, "firstSeqNum": "4965…",
      "lastSeqNum": "4965…", "closed": false, "msBehindLatest": "0", "lastRecordSeqNum": "4965…"}]

``lastSeqNum`` is the last sequence number of the batch; the source unpacks no aggregated records.
"""

from __future__ import annotations

from typing import Any

from sluice.cli.checkpoint import NO_OFFSET, Checkpoint
from sluice.cli.imports.places import Imported, ImportedFormatError, Place, after
from sluice.source.model.splits import SplitId

__all__ = ["imported_checkpoint"]


def imported_checkpoint(checkpoint: Checkpoint, source: int | None) -> Imported:
    """The places after the last batch that was committed.

    Args:
        source: the index of the source in the query; None: the only one there is.

    Raises:
        ImportedFormatError: it is no such checkpoint.
    """
    batch = checkpoint.last
    if batch is None:
        raise ImportedFormatError(f"{checkpoint.storage.shown}: no batch was planned yet")
    ends = checkpoint.read(batch).sources
    ours = [index for index, each in enumerate(ends) if _is_ours(each.json)]
    if source is None and len(ours) == 1:
        source = ours[0]
    if source not in ours:
        raise ImportedFormatError(
            f"{checkpoint.storage.shown}: which source? Those of Databricks' Kinesis source are "
            f"{', '.join(map(str, ours)) or 'none'} (--source)"
        )
    notes = []
    offset = ends[source]
    if checkpoint.in_flight is not None:
        notes.append(f"batch {batch} was not committed: it is read again")
        offset = checkpoint.starts(batch)[source]
        if offset.text == NO_OFFSET:
            raise ImportedFormatError(
                f"{checkpoint.storage.shown}: the first batch was not committed, and where it starts is not "
                "logged: start the new query as this one was started"
            )
    places: dict[SplitId, Place] = {}
    unread: dict[SplitId, str] = {}
    for each in offset.json:
        split = SplitId(str(each["shard"]["stream"]), str(each["shard"]["shardId"]))
        number = each.get("lastSeqNum")
        if number is None:
            unread[split] = "no sequence number"
        elif isinstance(number, str) and number.isdigit():
            places[split] = after(number)
        else:
            raise ImportedFormatError(f"{split}: lastSeqNum {number!r} is not known")
    return Imported(places, unread, notes)


def _is_ours(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(each, dict) and {"shard", "lastSeqNum"} <= each.keys() for each in value)
        and all({"stream", "shardId"} <= set(each["shard"]) for each in value)
    )
