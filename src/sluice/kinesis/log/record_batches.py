"""Makes Arrow record batches from records, without a Python object per row.

Records that have been read as columns stay columns, unless they are aggregated.
"""

from __future__ import annotations

import operator
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, repeat

import pyarrow as pa
import pyarrow.compute as pc

from sluice.aws.wire.arrow_arrays import binaries, floats, integers, repeated, scalar, strings
from sluice.aws.wire.record_columns import RecordColumns
from sluice.instants import MICROS_PER_SECOND
from sluice.kinesis.log.kpl.deaggregator import UserRecords, deaggregate
from sluice.kinesis.log.kpl.format import MAGIC
from sluice.source.logs.stream_log import AnyRecord
from sluice.source.model.offsets import After, Position, SplitRange

_MICROSECONDS = pa.timestamp("us", tz="UTC")

__all__ = ["ARROW_SCHEMA", "arrivals_of", "to_record_batches"]

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
"""The source's schema. Spark checks that record batches have exactly this one."""

_BATCH_BYTES = 8 * 2**20
"""The most data in a batch. Measured into Spark: batches of 1 to 32 MiB are equally fast, so a page is one or
two batches; half a MiB costs a tenth more, a quarter of a MiB a third, and more than 64 MB cost 40 %."""

_MIN_BATCH_BYTES = 256 * 2**10
"""Small pages are gathered to this size, because a batch of few rows costs as much as one of hundreds."""

_RECORD_OVERHEAD = 100
"""Bytes that a record takes in addition to its data, roughly."""

_BATCH_ROWS = 50_000
"""The most user records in a batch. Each row also has a sequence number and the names of the stream and the
shard.
"""

_UNPACKED_BYTES = 16 * 2**20
"""The most data and partition keys of user records in a batch, unless it has a single row. An aggregated
record holds each key once, but each of its rows has a key, so its rows may be a thousand times as large.
"""

_Piece = tuple[SplitRange, Sequence[AnyRecord]]


def to_record_batches(
    pages: Iterable[tuple[SplitRange, Sequence[AnyRecord]]], *, unpack: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of pages, in order within each range. Small pages share a batch, even if they are of several
    ranges.

    Args:
        pages: each with its range. If a range starts or ends inside an aggregated record, only the user
            records in the range become rows.
        unpack: make a row of each user record in the Kinesis Producer Library's aggregated records.
    """
    gathered: list[_Piece] = []
    size = 0
    for split_range, records in pages:
        for chunk, chunk_size in _chunks(records):
            gathered.append((split_range, chunk))
            size += chunk_size + len(chunk) * _RECORD_OVERHEAD
            if size >= _MIN_BATCH_BYTES:
                yield from _batches(gathered, unpack=unpack)
                gathered, size = [], 0
    if gathered:
        yield from _batches(gathered, unpack=unpack)


def _chunks(records: Sequence[AnyRecord]) -> Iterator[tuple[Sequence[AnyRecord], int]]:
    """Parts of a page with at most `_BATCH_BYTES` of data each, and their bytes of data."""
    sizes = _data_sizes(records)
    total = sum(sizes)
    if sizes and total <= _BATCH_BYTES:
        yield records, total  # most pages: no loop over their records
        return
    start = size = 0
    for index, record_size in enumerate(sizes):
        if size and size + record_size > _BATCH_BYTES:
            yield records[start:index], size
            start, size = index, 0
        size += record_size
    if start < len(sizes):
        yield records[start:], size


def _data_sizes(records: Sequence[AnyRecord]) -> Sequence[int]:
    if isinstance(records, RecordColumns):
        return array("i", pc.binary_length(records.data).buffers()[1].to_pybytes())
    return [len(record.data) for record in records]


def _batches(pieces: Sequence[_Piece], *, unpack: bool) -> Iterator[pa.RecordBatch]:
    columns = RecordColumns.joined([_columns_of(records) for _, records in pieces])
    if unpack and pc.any(pc.starts_with(columns.data, MAGIC)).as_py():
        del columns
        for piece in pieces:
            yield from _unpacked(*piece) if len(pieces) == 1 else _batches([piece], unpack=True)
        return
    yield pa.RecordBatch.from_arrays(
        [
            columns.data,
            columns.partition_keys,
            columns.sequence_numbers,
            pa.repeat(scalar(0, pa.int64()), len(columns)),
            columns.arrivals,
            *_names([(split_range, len(records)) for split_range, records in pieces]),
        ],
        schema=ARROW_SCHEMA,
    )


def _columns_of(records: Sequence[AnyRecord]) -> RecordColumns:
    if isinstance(records, RecordColumns):
        return records
    return RecordColumns(
        binaries([record.data for record in records]),
        strings([record.partition_key for record in records]),
        strings([record.sequence_number for record in records]),
        arrivals_of(records),
    )


def _unpacked(split_range: SplitRange, records: Sequence[AnyRecord]) -> Iterator[pa.RecordBatch]:
    rows = _UnpackedRows(split_range)
    for record in records:
        users = _in_range(split_range, record)
        sizes = {key: len(key.encode()) for key in set(users.partition_keys)}
        key_sizes = map(sizes.__getitem__, users.partition_keys)
        ends = list(accumulate(map(operator.add, map(len, users.data), key_sizes), initial=0))
        start = 0
        while start < len(users.data):
            stop = rows.add(record, users, ends, start)
            if stop < len(users.data):
                yield rows.take()
            start = stop
    if rows.count:
        yield rows.take()


class _UnpackedRows:
    """The rows of the next record batch of a range.

    Attributes:
        count: rows so far.
    """

    def __init__(self, split_range: SplitRange) -> None:
        self._split_range = split_range
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self._size = 0
        self._data: list[bytes] = []
        self._keys: list[str] = []
        self._numbers: list[str] = []
        self._places: list[int] = []
        self._arrivals: list[int] = []

    def add(self, record: AnyRecord, users: UserRecords, ends: Sequence[int], start: int) -> int:
        """Adds user records until the batch is full. An empty batch takes at least one, of any size.

        Args:
            record: the record that holds them.
            users: all its user records.
            ends: the bytes of data and partition keys before each user record, and of all.
            start: the index of the first user record to add.

        Returns:
            The index of the first user record that was not added.
        """
        most = ends[start] + _UNPACKED_BYTES - self._size
        stop = min(start + _BATCH_ROWS - self.count, bisect_right(ends, most, start) - 1)
        if stop <= start:
            if self.count:
                return start
            stop = start + 1
        part = slice(start, stop)
        self._data += users.data[part]
        self._keys += users.partition_keys[part]
        self._places += users.places[part]
        self._numbers += repeat(record.sequence_number, stop - start)
        self._arrivals += repeat(record.arrival, stop - start)
        self._size += ends[stop] - ends[start]
        self.count += stop - start
        return stop

    def take(self) -> pa.RecordBatch:
        """The rows as a record batch. The next one begins."""
        # Not joined as `strings` does: rows of one aggregate may share a key of any length.
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(self._data, pa.binary()),
                pa.array(self._keys, pa.string()),
                pa.array(self._numbers, pa.string()),
                pa.array(self._places, pa.int64()),
                pa.array(self._arrivals, _MICROSECONDS),
                *_names([(self._split_range, self.count)]),
            ],
            schema=ARROW_SCHEMA,
        )
        self._clear()
        return batch


def _in_range(split_range: SplitRange, record: AnyRecord) -> UserRecords:
    """The user records in `record` that are in the range."""
    users = deaggregate(record, split_range.hash_range, split_range.split)
    after, last = _place_of(split_range.start, record), _place_of(split_range.end, record)
    if after is None and last is None:
        return users
    start = 0 if after is None else bisect_right(users.places, after)
    stop = len(users.places) if last is None else bisect_right(users.places, last)
    places, keys, data, hash_keys = users
    return UserRecords(places[start:stop], keys[start:stop], data[start:stop], hash_keys[start:stop])


def _place_of(position: Position, record: AnyRecord) -> int | None:
    """The place of the last user record before `position`; None if `position` is not inside `record`."""
    if not isinstance(position, After) or position.sub is None:
        return None
    return position.sub if position.sequence == int(record.sequence_number) else None


def _names(counts: Sequence[tuple[SplitRange, int]]) -> Iterator[pa.Array]:
    """The columns of stream names and shard ids, from ranges and their numbers of rows."""
    for name in map(operator.attrgetter, ("split.stream", "split.shard")):
        parts = [repeated(name(split_range), count) for split_range, count in counts]
        yield parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def arrivals_of(records: Sequence[AnyRecord]) -> pa.Array:
    """The column of arrival times: for each record, exactly its `AnyRecord.arrival`."""
    try:
        seconds = [record.approximate_arrival_timestamp for record in records]  # type: ignore[attr-defined]
    except AttributeError:  # some record is not a WireRecord
        return integers([record.arrival for record in records], _MICROSECONDS)
    values = floats(seconds)
    # The steps of `micros_from_seconds`: each is exact, or rounded half to even as there.
    whole = pc.trunc(values)
    fractions = pc.multiply(pc.subtract(values, whole), scalar(MICROS_PER_SECOND, pa.float64()))
    parts = pc.cast(pc.round(fractions, round_mode="half_to_even"), pa.int64())
    total = pc.add(pc.multiply(pc.cast(whole, pa.int64()), scalar(MICROS_PER_SECOND, pa.int64())), parts)
    return total.view(_MICROSECONDS)
