"""The records of a page as columns, without an object for each record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.aws.wire.arrow_arrays import scalar
from sluice.aws.wire.record_bounds import ARRIVAL, DATA, KEY, NUMBER, RecordBounds, millis_of
from sluice.aws.wire.records import WireRecord

__all__ = ["RecordColumns"]

_MICROSECONDS: Final = pa.timestamp("us", tz="UTC")


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
    def of_page(cls, found: RecordBounds) -> RecordColumns | None:
        """The records of a page; None if one is not written as the first.

        The values, and the bytes between them, are one array over the page itself, which is then sorted by
        columns in one call. Arrow reserves memory by the mean size of all values in the array. For long data
        alone that would be a fifth of what they need, and they would be copied three times.
        """
        count = len(found)
        buffers = [None, pa.py_buffer(found.bounds), pa.py_buffer(found.body)]
        page = pa.Array.from_buffers(pa.binary(), 5 * count, buffers).take(_by_column(count))

        def column(place: int) -> pa.Array:
            return page[place * count : (place + 1) * count]

        columns = dict(zip(found.values, map(column, (1, 3)), strict=True))
        for gap, parts in zip(map(column, (0, 2, 4)), found.gaps, strict=True):
            for part in parts:
                values = pc.binary_slice(gap, part.start, part.stop)
                if part.name:
                    columns[part.name] = values
                elif not values.buffers()[2].equals(pa.py_buffer(part.literal * count)):
                    return None
        millis = millis_of(columns[ARRIVAL].buffers()[2].to_pybytes())
        if millis is None:
            return None
        times = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(millis)])
        arrivals = pc.multiply(times, scalar(1000, pa.int64())).view(_MICROSECONDS)
        try:
            keys, numbers = (columns[name].cast(pa.string()) for name in (KEY, NUMBER))
        except pa.ArrowInvalid:  # no UTF-8
            return None
        return cls(columns[DATA], keys, numbers, arrivals)

    @classmethod
    def joined(cls, parts: Sequence[RecordColumns]) -> RecordColumns:
        """The records of all parts; there is at least one."""
        if len(parts) == 1:
            return parts[0]
        return cls(*map(pa.concat_arrays, zip(*(part.all() for part in parts), strict=True)))

    def all(self) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
        """The columns, in the order of the constructor's arguments."""
        return self.data, self.partition_keys, self.sequence_numbers, self.arrivals

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
        micros = self.arrivals.view(pa.int64()).cast(pa.float64())
        seconds = pc.divide(micros, scalar(1e6, pa.float64()))
        columns = (self.sequence_numbers, seconds, self.partition_keys, self.data)
        return map(WireRecord, *(column.to_pylist() for column in columns))


@lru_cache(maxsize=4)
def _by_column(count: int) -> pa.Array:
    """The places of values that are stored record by record, five for each, in the order of columns."""
    places = np.arange(5 * count, dtype=np.int32).reshape(count, 5).T.ravel()
    return pa.Array.from_buffers(pa.int32(), 5 * count, [None, pa.py_buffer(places)])
