"""Makes Arrow record batches from the records of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from sluice.aws.wire.changes import ChangeRecord
from sluice.dynamodb_streams.images import IMAGE_FORMATS, as_sent, key_of
from sluice.source.model.splits import SplitId

__all__ = ["ARROW_SCHEMA", "record_batch", "snapshot_batch", "to_record_batches"]

ARROW_SCHEMA: Final = pa.schema(
    [
        ("eventID", pa.string()),
        ("eventName", pa.string()),
        ("keys", pa.string()),
        ("newImage", pa.string()),
        ("oldImage", pa.string()),
        ("streamViewType", pa.string()),
        ("sizeBytes", pa.int64()),
        ("sequenceNumber", pa.string()),
        ("approximateCreationDateTime", pa.timestamp("us", tz="UTC")),
        ("userIdentity", pa.string()),
        ("tableName", pa.string()),
        ("shardId", pa.string()),
    ]
)
"""The source's schema. Spark requires exactly this schema in record batches."""

_MIN_BATCH_ROWS: Final = 1_000
_MIN_BATCH_BYTES: Final = 4 * 2**20
"""Minimum rows, or bytes, of a record batch, for which small pages are joined: a batch of few rows
costs as much as one of hundreds, but a page of large items has few rows."""


def to_record_batches(
    pages: Iterable[tuple[SplitId, Sequence[ChangeRecord]]], image_format: str
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of pages, in order within each split. Small pages, even of several splits, share
    a batch.

    Args:
        image_format: a key of `IMAGE_FORMATS`.
    """
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for split, records in pages:
        gathered.append(record_batch(split, records, image_format))
        rows += len(records)
        size += gathered[-1].nbytes
        if rows >= _MIN_BATCH_ROWS or size >= _MIN_BATCH_BYTES:
            yield from _joined(gathered)
            gathered, rows, size = [], 0, 0
    if rows:
        yield from _joined(gathered)


def record_batch(split: SplitId, records: Sequence[ChangeRecord], image_format: str) -> pa.RecordBatch:
    """Makes the rows of a page.

    Args:
        image_format: a key of `IMAGE_FORMATS`.
    """
    image: Callable[[msgspec.Raw], str | None] = IMAGE_FORMATS[image_format]
    changes = [record.dynamodb for record in records]
    columns: list[Sequence[object]] = [
        [record.event_id for record in records],
        [record.event_name for record in records],
        [image(key_of(change.keys)) for change in changes],
        [image(change.new_image) for change in changes],
        [image(change.old_image) for change in changes],
        [change.stream_view_type for change in changes],
        [change.size_bytes for change in changes],
        [change.sequence_number for change in changes],
        [record.arrival for record in records],
        [as_sent(record.user_identity) for record in records],
    ]
    types = [field.type for field in ARROW_SCHEMA]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=False)]
    names = [pa.repeat(pa.scalar(name, pa.string()), len(records)) for name in (split.stream, split.shard)]
    return pa.RecordBatch.from_arrays([*arrays, *names], schema=ARROW_SCHEMA)


def snapshot_batch(
    table: str, items: Sequence[msgspec.Raw], keys: Sequence[str], image_format: str
) -> pa.RecordBatch:
    """Makes the rows of a page of a table. Columns that a scan lacks, such as times and numbers, are null.

    Args:
        keys: the attributes of the table's key.
        image_format: a key of `IMAGE_FORMATS`.
    """
    image: Callable[[msgspec.Raw], str | None] = IMAGE_FORMATS[image_format]
    columns: dict[str, Sequence[object]] = {
        "eventName": ["SNAPSHOT"] * len(items),
        "keys": [image(key_of(item, keys)) for item in items],
        "newImage": [image(item) for item in items],
        "tableName": [table] * len(items),
    }
    nulls = [None] * len(items)
    arrays = [pa.array(columns.get(field.name, nulls), field.type) for field in ARROW_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def _joined(batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    """Joins batches to one, or to more if the values of a column do not fit into one array."""
    return batches if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()
