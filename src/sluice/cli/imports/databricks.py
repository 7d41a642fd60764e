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

from sluice.cli.checkpoint import Checkpoint
from sluice.cli.imports.places import Imported, ImportedFormatError, Place, after, last_offset
from sluice.source.model.splits import SplitId

__all__ = ["imported_checkpoint"]


def imported_checkpoint(checkpoint: Checkpoint, source: int | None) -> Imported:
    """The places after the last batch that was committed.

    Args:
        source: the index of the source in the query; None: the only one there is.

    Raises:
        ImportedFormatError: it is not such a checkpoint.
    """
    batch, index, offset, notes = last_offset(checkpoint, source, _is_ours, "Databricks' Kinesis source")
    if checkpoint.in_flight is not None:
        offset = checkpoint.starts(batch)[index].json
        if offset is None:
            raise ImportedFormatError(
                f"{checkpoint.storage.shown}: the first batch was not committed, and where it starts is not "
                "logged: start the new query as this one was started"
            )
    places: dict[SplitId, Place] = {}
    unread: dict[SplitId, str] = {}
    for each in offset:
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
