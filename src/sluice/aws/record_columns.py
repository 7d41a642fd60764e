"""Reads the records of a page in CBOR column by column, without an object for each record.

In CBOR the length of a value stands before it, so the bounds of all values are found by stepping from head to
head. The first record of a page shows how the service writes records: names, their order, what else is
there. All records of a page are taken to be written so, and checked to be. Where one is not, nothing is read
here, and `sluice.aws.cbor` reads the page item by item, with the same records.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple, overload

import pyarrow as pa
import pyarrow.compute as pc

from sluice.aws.cbor import BREAK, Decoder
from sluice.aws.errors import DamagedAnswerError
from sluice.aws.records import WireRecord

__all__ = ["RecordColumns", "read_columns"]

_MICROSECONDS: Final = pa.timestamp("us", tz="UTC")

_NUMBER, _ARRIVAL, _KEY, _DATA = (
    "SequenceNumber",
    "ApproximateArrivalTimestamp",
    "PartitionKey",
    "Data",
)
_BYTES, _TEXT, _ARRAY, _MAP = 2, 3, 4, 5  # major types
_MILLIS_HEAD: Final = b"\xc1\x1b"  # tag 1, and an integer of 8 bytes
_LARGEST_PAGE: Final = 10_000
_FEW: Final = 20
"""Records up to which reading item by item is faster: checking a page takes 0.2 ms."""
_LATEST: Final = 2**43
"""Milliseconds until when seconds and their fraction fit into a float to the microsecond (the year 2248)."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordColumns(Sequence[WireRecord]):
    """Records in order, column by column. A slice shares the columns.

    Attributes:
        arrivals: in microseconds, see `WireRecord.arrival`.
    """

    data: pa.Array
    partition_keys: pa.Array
    sequence_numbers: pa.Array
    arrivals: pa.Array

    @classmethod
    def joined(cls, parts: Sequence[RecordColumns]) -> RecordColumns:
        """The records of all parts; there is at least one."""
        if len(parts) == 1:
            return parts[0]
        return cls(*map(pa.concat_arrays, zip(*(part.all() for part in parts), strict=True)))

    def __len__(self) -> int:
        return len(self.data)

    @overload
    def __getitem__(self, place: int) -> WireRecord: ...
    @overload
    def __getitem__(self, place: slice) -> RecordColumns: ...
    def __getitem__(self, place: int | slice) -> WireRecord | RecordColumns:
        if isinstance(place, slice):
            return RecordColumns(*(column[place] for column in self.all()))
        index = range(len(self))[place]
        return next(iter(self[index : index + 1]))

    def __iter__(self) -> Iterator[WireRecord]:
        seconds = pc.divide(self.arrivals.view(pa.int64()).cast(pa.float64()), 1e6)
        columns = (self.sequence_numbers, seconds, self.partition_keys, self.data)
        return map(WireRecord, *(column.to_pylist() for column in columns))

    def all(self) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
        """The columns, in the order of the constructor's arguments."""
        return self.data, self.partition_keys, self.sequence_numbers, self.arrivals


def read_columns(body: bytes, at: int) -> tuple[RecordColumns, int] | None:
    """Reads the array of records that starts at an offset of a page.

    Returns:
        The records, and the offset behind the array. None where the records are few, or damaged, or not all
        written as the first one, or in a way that is not known here.
    """
    try:
        major, count, start = Decoder(body).head(at)
        layout = None if major != _ARRAY or count == 0 else _Layout.of_record(body, start)
        if layout is None or len(body) - start < _FEW * layout.record_size:
            return None
        bounds = _bounds_of(body, start, count, layout)
        columns = None if bounds is None else _columns_of(body, bounds, layout)
    except (IndexError, OverflowError, DamagedAnswerError, pa.ArrowInvalid):
        return None
    if bounds is None or columns is None:
        return None
    return columns, bounds[-1] + (count is None)


class _Fixed(NamedTuple):
    """Bytes of a gap: where they start in it, and what is there, or whose value."""

    start: int
    stop: int
    literal: bytes = b""
    field: str = ""


@dataclass
class _Gap:
    """What stands before a value of any length, or before the end of a record: names, values of fixed length.

    Attributes:
        size: bytes, without the head of the value.
    """

    size: int = 0
    parts: list[_Fixed] = field(default_factory=list)

    def add(self, literal: bytes, name: str = "", size: int = 0) -> None:
        """Adds bytes that are the same in every record and, after them, a value."""
        between = self.size + len(literal)
        self.parts.append(_Fixed(self.size, between, literal=literal))
        if name:
            self.parts.append(_Fixed(between, between + size, field=name))
        self.size = between + size


class _Layout:
    """How records are written.

    Keys and data may have any length. Sequence numbers have the same length in the whole page, and times
    always have 8 bytes.

    Attributes:
        gaps: before the first value of any length, before the second, and after it.
        values: the names of the two, in their order.
        record_size: bytes of the first record.
    """

    def __init__(self) -> None:
        self.record_size = 0
        self.gaps = [_Gap()]
        self.values: list[str] = []

    @classmethod
    def of_record(cls, body: bytes, start: int) -> _Layout | None:
        """The layout of the record that starts at an offset; None where it is none that is known here."""
        layout, decoder = cls(), Decoder(body)
        major, count, at = decoder.head(start)
        if major != _MAP:
            return None
        done, found = start, set()
        while body[at] != BREAK if count is None else count > 0:
            count = None if count is None else count - 1
            name, value = decoder.item(at)
            _, at = decoder.item(value)
            if name in _TYPES:
                if name in found or not layout._add(name, body, done, value, at):
                    return None
                found.add(name)
                done = at
        end = at + (body[at] == BREAK and count is None)
        layout.gaps[-1].add(body[done:end])
        layout.record_size = end - start
        return layout if len(found) == len(_TYPES) else None

    def _add(self, name: str, body: bytes, done: int, value: int, end: int) -> bool:
        if name == _ARRIVAL:
            self.gaps[-1].add(body[done : end - 8], name, 8)
            return body[value : end - 8] == _MILLIS_HEAD
        major, size, start = Decoder(body).head(value)
        if major != _TYPES[name] or size is None:
            return False
        if name == _NUMBER:
            self.gaps[-1].add(body[done:start], name, size)
        else:
            self.gaps[-1].add(body[done:value])
            self.gaps.append(_Gap())
            self.values.append(name)
        return True


_TYPES: Final = {_NUMBER: _TEXT, _ARRIVAL: None, _KEY: _TEXT, _DATA: _BYTES}


def _sizes(major: int) -> list[int]:
    """By the first byte of a string, its length; or minus the number of bytes that have it; or a huge one."""
    sizes = [2**62] * 256
    for size in range(24):
        sizes[major << 5 | size] = size
    for width, kind in ((1, 24), (2, 25), (4, 26)):
        sizes[major << 5 | kind] = -width
    return sizes


_SIZES: Final = {_KEY: _sizes(_TEXT), _DATA: _sizes(_BYTES)}


def _bounds_of(body: bytes, at: int, count: int | None, layout: _Layout) -> array[int] | None:
    """For each record where it starts, and where its two values of any length start and end; then, where the
    last one ends. None where the array does not end there.

    Raises:
        IndexError: `body` ends inside a record.
        OverflowError: a value has another type.
    """
    bounds = array("i")
    add = bounds.append
    steps = [(gap.size, _SIZES[name]) for gap, name in zip(layout.gaps, layout.values, strict=False)]
    rest = layout.gaps[-1].size
    left = -1 if count is None else count
    while left and body[at] != BREAK:
        left -= 1
        add(at)
        for gap, sizes in steps:
            at += gap
            size = sizes[body[at]]
            at += 1
            if size == -1:
                size = body[at]
                at += 1
            elif size == -2:
                size = body[at] << 8 | body[at + 1]
                at += 2
            elif size == -4:
                size = int.from_bytes(body[at : at + 4], "big")
                at += 4
            add(at)
            at += size
            add(at)
        at += rest
    add(at)
    return bounds if at <= len(body) and left <= 0 else None


def _columns_of(body: bytes, bounds: array[int], layout: _Layout) -> RecordColumns | None:
    """The columns; None where a record is not written as the layout says.

    Values and what is between them are one array over the page itself, of which every fifth element is taken.
    """
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(body)]
    page = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers)
    first = _multiples_of_five(max(len(page) // 5, _LARGEST_PAGE)).slice(0, len(page) // 5)

    def every_fifth(start: int) -> pa.Array:
        return page.take(pc.add(first, pa.scalar(start, pa.int32())))

    columns = dict(zip(layout.values, map(every_fifth, (1, 3)), strict=True))
    for gap, each in zip(layout.gaps, map(every_fifth, (0, 2, 4)), strict=True):
        for part in gap.parts:
            values = pc.binary_slice(each, part.start, part.stop)
            if part.field:
                columns[part.field] = values
            elif not pc.all(pc.equal(values, pa.scalar(part.literal, pa.binary()))).as_py():
                return None
    arrivals = _arrivals(columns[_ARRIVAL])
    if arrivals is None:
        return None
    keys, numbers = (columns[name].cast(pa.string()) for name in (_KEY, _NUMBER))  # refuses what is no UTF-8
    return RecordColumns(columns[_DATA], keys, numbers, arrivals)


@lru_cache(maxsize=1)
def _multiples_of_five(count: int) -> pa.Array:
    return pa.array(range(0, 5 * count, 5), pa.int32())


def _arrivals(values: pa.Array) -> pa.Array | None:
    """Times from their 8 bytes, milliseconds with the highest first; None where one is far from now."""
    millis = array("q", values.buffers()[2][: 8 * len(values)].to_pybytes())
    if sys.byteorder == "little":
        millis.byteswap()
    if min(millis) < 0 or max(millis) >= _LATEST:
        return None
    numbers = pa.Array.from_buffers(pa.int64(), len(millis), [None, pa.py_buffer(millis)])
    return pc.multiply(numbers, pa.scalar(1000, pa.int64())).view(_MICROSECONDS)
