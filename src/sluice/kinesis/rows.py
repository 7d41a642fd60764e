"""From records to the rows users see, as Arrow record batches: never a Python object for each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sluice.kinesis.aggregation import MAGIC, UserRecord, deaggregate
from sluice.kinesis.records import arrivals_of
from sluice.source.log import AnyRecord
from sluice.source.offsets import After, SplitRange

__all__ = ["ARROW_SCHEMA", "to_record_batches"]

ARROW_SCHEMA = pa.schema(
    [
        ("data", pa.binary()),
        ("partitionKey", pa.string()),
        ("sequenceNumber", pa.string()),
        ("subSequenceNumber", pa.int64()),
        ("approximateArrivalTimestamp", pa.timestamp("us", tz="UTC")),
        ("streamName", pa.string()),
        ("shardId", pa.string()),
    ]
)
"""The source's schema; Spark wants it to the letter."""

_BATCH_BYTES = 8 * 2**20
"""Batches of 1 to 10 MB are the fastest into Spark; above 64 MB they are 40 % slower."""


def to_record_batches(
    split_range: SplitRange, records: Sequence[AnyRecord], *, unpack: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of one page, in order.

    Args:
        split_range: whose page it is. Where it starts or ends inside an aggregated record, the
            sub-records that are not in it are left out.
        unpack: whether aggregated records of the Kinesis Producer Library are taken apart.
    """
    for chunk in _chunks(records):
        data = pa.array([r.data for r in chunk], pa.binary())
        if unpack and pc.any(pc.starts_with(data, MAGIC)).as_py():
            del data
            yield from _in_chunks(split_range, _unpacked(split_range, chunk))
            continue
        yield _batch(
            split_range,
            data,
            pa.array([r.partition_key for r in chunk], pa.string()),
            pa.array([r.sequence_number for r in chunk], pa.string()),
            pa.repeat(pa.scalar(0, pa.int64()), len(chunk)),
            arrivals_of(chunk),
        )


def _chunks(records: Sequence[AnyRecord]) -> Iterator[Sequence[AnyRecord]]:
    if records and sum([len(r.data) for r in records]) <= _BATCH_BYTES:
        yield records  # as most pages are: nothing to look at record by record
        return
    start = size = 0
    for index, record in enumerate(records):
        if size and size + len(record.data) > _BATCH_BYTES:
            yield records[start:index]
            start, size = index, 0
        size += len(record.data)
    if start < len(records):
        yield records[start:]


def _unpacked(
    split_range: SplitRange, records: Sequence[AnyRecord]
) -> Iterator[tuple[AnyRecord, UserRecord]]:
    start, end = split_range.start, split_range.end
    for record in records:
        first, last = 0, None
        number = int(record.sequence_number)
        if isinstance(start, After) and start.sub is not None and number == start.sequence:
            first = start.sub + 1
        if isinstance(end, After) and end.sub is not None and number == end.sequence:
            last = end.sub
        for user_record in deaggregate(record, split_range.hash_range):
            sub = user_record.sub_sequence_number
            if sub >= first and (last is None or sub <= last):
                yield record, user_record


def _in_chunks(
    split_range: SplitRange, rows: Iterator[tuple[AnyRecord, UserRecord]]
) -> Iterator[pa.RecordBatch]:
    chunk: list[tuple[AnyRecord, UserRecord]] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row[1].data)
        if size >= _BATCH_BYTES:
            yield _unpacked_batch(split_range, chunk)
            chunk, size = [], 0
    if chunk:
        yield _unpacked_batch(split_range, chunk)


def _unpacked_batch(split_range: SplitRange, rows: Sequence[tuple[AnyRecord, UserRecord]]) -> pa.RecordBatch:
    return _batch(
        split_range,
        pa.array([user.data for _, user in rows], pa.binary()),
        pa.array([user.partition_key for _, user in rows], pa.string()),
        pa.array([record.sequence_number for record, _ in rows], pa.string()),
        pa.array([user.sub_sequence_number for _, user in rows], pa.int64()),
        pa.array([record.arrival for record, _ in rows], pa.timestamp("us", tz="UTC")),
    )


def _batch(split_range: SplitRange, *columns: pa.Array) -> pa.RecordBatch:
    split, count = split_range.split, len(columns[0])
    names = [pa.repeat(pa.scalar(name, pa.string()), count) for name in (split.stream, split.shard)]
    return pa.RecordBatch.from_arrays([*columns, *names], schema=ARROW_SCHEMA)
