"""From records to the rows users see, as Arrow record batches: never a Python object for each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sluice.kinesis.aggregation import MAGIC, UserRecord, deaggregate
from sluice.kinesis.records import arrivals_of
from sluice.source.log import AnyRecord
from sluice.source.offsets import After, Position, SplitRange

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
"""Of data. Measured into Spark, batches of 1 to 32 MiB are equally fast, so that a page is one batch or two;
half a MiB costs a tenth, a quarter of a MiB a third, and above 64 MB they are 40 % slower."""

_BATCH_ROWS = 50_000
"""Of user records, whose keys may take far more room unpacked than packed."""


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
            yield from _unpacked(split_range, chunk)
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


def _unpacked(split_range: SplitRange, records: Sequence[AnyRecord]) -> Iterator[pa.RecordBatch]:
    users: list[UserRecord] = []
    for record in records:
        users += _in_range(split_range, record)
        if len(users) >= _BATCH_ROWS:
            yield _unpacked_batch(split_range, users)
            users = []
    if users:
        yield _unpacked_batch(split_range, users)


def _in_range(split_range: SplitRange, record: AnyRecord) -> list[UserRecord]:
    """Of the user records in `record` those that are in the range."""
    users = deaggregate(record, split_range.hash_range)
    first, last = _edge(split_range.start, record), _edge(split_range.end, record)
    if first is not None:
        users = [user for user in users if user.sub_sequence_number > first]
    if last is not None:
        users = [user for user in users if user.sub_sequence_number <= last]
    return users


def _edge(position: Position, record: AnyRecord) -> int | None:
    """The last user record that is before `position`, where that is inside `record`."""
    if not isinstance(position, After) or position.sub is None:
        return None
    return position.sub if position.sequence == int(record.sequence_number) else None


def _unpacked_batch(split_range: SplitRange, users: Sequence[UserRecord]) -> pa.RecordBatch:
    numbers, subs, arrivals, keys, data, _ = zip(*users, strict=True)
    return _batch(
        split_range,
        pa.array(data, pa.binary()),
        pa.array(keys, pa.string()),
        pa.array(numbers, pa.string()),
        pa.array(subs, pa.int64()),
        pa.array(arrivals, pa.timestamp("us", tz="UTC")),
    )


def _batch(split_range: SplitRange, *columns: pa.Array) -> pa.RecordBatch:
    split, count = split_range.split, len(columns[0])
    names = [pa.repeat(pa.scalar(name, pa.string()), count) for name in (split.stream, split.shard)]
    return pa.RecordBatch.from_arrays([*columns, *names], schema=ARROW_SCHEMA)
