"""Converts the rows that can be converted, and finds the invalid ones among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from sluice.errors import InvalidRecordError
from sluice.sink.rows.taking import TakenEntries, measured

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ValidRows"]

EntryT = TypeVar("EntryT")

_LONGEST_SLICE: Final = 1024
"""Rows that are converted at a time; fewer where they are large."""


class ValidRows(Generic[EntryT]):
    """Halves a slice of rows that fails until the invalid rows are found.

    A slice is in memory on top of what waits to be sent. It has as many rows as fill a request, if they
    are as large as those before them; the first ones have few.

    Args:
        convert: makes entries of rows. Raises InvalidRecordError if one of them is invalid.
        sizes_of: the sizes of entries (bytes).
        request_bytes: what fills a request.
        put_aside: takes an invalid row, and why it is invalid.
    """

    def __init__(
        self,
        convert: Callable[[pa.RecordBatch], Iterator[EntryT]],
        sizes_of: Callable[[Sequence[EntryT]], list[int]],
        request_bytes: int,
        put_aside: Callable[[pa.RecordBatch, str], object],
    ) -> None:
        self._convert = convert
        self._sizes_of = sizes_of
        self._request_bytes = request_bytes
        self._put_aside = put_aside
        self._slice = 1  # rows of the next slice

    def convert(self, batch: pa.RecordBatch) -> Iterator[TakenEntries[EntryT]]:
        """The entries of the valid rows, in their order, a slice at a time."""
        slices = [batch]
        while slices:
            rows = slices.pop()
            if rows.num_rows > self._slice:
                slices += [rows.slice(self._slice), rows.slice(0, self._slice)]
                continue
            try:
                # All of a slice before any of it is sent: a slice that fails is converted again.
                entries = list(self._convert(rows))
            except InvalidRecordError as error:
                half = rows.num_rows // 2
                if half:
                    slices += [rows.slice(half), rows.slice(0, half)]
                else:
                    self._put_aside(rows, error.reason)
                continue
            taken = measured(entries, self._sizes_of(entries))
            fill_a_request = int(self._request_bytes * rows.num_rows / max(1, taken.total))
            self._slice = max(1, min(2 * self._slice, _LONGEST_SLICE, fill_a_request))
            yield taken
