"""Reads pages of records: answers to ``GetRecords``, and events of subscriptions.

The first byte of a page tells whether it is JSON or CBOR, so the reader need not know which was asked for.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from sluice.aws.wire.cbor import Decoder, is_cbor
from sluice.aws.wire.mended_text import check_mended, mended_json
from sluice.aws.wire.record_bounds import ARRIVAL, Find, Layout, RecordBounds
from sluice.aws.wire.records import WireRecord

__all__ = ["PageReader", "data_size", "find_many", "take_records"]

_MANY: Final = 200
"""From this many records on, columns are used instead of an object for each record."""
_MANY_BYTES: Final = 256 * 2**10
"""The same for the bytes of records. An object has a copy of its data, which is copied again into the record
batch: for 10 MiB of records of 100 KiB that takes twice the CPU of columns."""

_LONG_RECORD: Final = 2 * 2**10
"""From this size of a record on (bytes), stepping from record to record is faster than searching all
bytes."""

_AROUND_DATA: Final = 140
"""Bytes of a record in a page that are neither data nor key: the names of four fields, a sequence number of
56 digits and a time. They do not count among the 2 MiB a second that the service gives."""


def data_size(length: int, records: int, *, is_cbor: bool) -> int:
    """Bytes of data of a page, about: its body without what surrounds the data of each record, and three
    quarters of that where data is base64.

    Args:
        length: bytes of the body.
        records: how many it has.
    """
    size = max(0, length - _AROUND_DATA * records)
    return size if is_cbor else size * 3 // 4


class _Page(Protocol):
    records: Any


PageT = TypeVar("PageT", bound=_Page)


class PageReader(Generic[PageT]):
    """Reads pages of one kind.

    Args:
        kind: a `msgspec.Struct` with a field ``records``.
        decode_json: decodes a page in JSON.
        take: makes the records of a page in CBOR that are all written in the same way, or returns None.
        find: see `RecordBounds.of_array`.
    """

    def __init__(
        self,
        kind: type[PageT],
        decode_json: Callable[[Any], PageT],
        take: Callable[[RecordBounds], Any],
        find: Find | None = None,
    ) -> None:
        self._kind = kind
        self._decode_json = decode_json
        self._take = take
        self._find = find

    def read(self, body: bytes | memoryview) -> PageT:
        """Reads a page.

        Raises:
            msgspec.DecodeError: the page is damaged, or a field is missing or has another type.
            DamagedAnswerError: the same.
        """
        if is_cbor(body):
            return self._read_cbor(bytes(body))
        try:
            return self._decode_json(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            body = bytes(body)
            text = mended_json(body)
            if text == body:
                raise
        page = self._decode_json(text)
        check_mended(page.records or ())
        return page

    def _read_cbor(self, body: bytes) -> PageT:
        records: Any = None

        def read_alike(body: bytes, at: int) -> tuple[Any, int] | None:
            nonlocal records
            bounds, end = RecordBounds.of_array(body, at, self._find) or (None, at)
            records = None if bounds is None else self._take(bounds)
            return None if records is None else ([], end)

        decoder = Decoder(body, {"Records": read_alike})
        fields = decoder.decode()
        if isinstance(fields.get("Records"), list):
            _set_seconds(fields["Records"])
        page = msgspec.convert(fields, self._kind)  # takes data in base64, which some emulators write
        if records is not None:
            page.records = records
        elif decoder.has_mended:
            check_mended(page.records or ())
        return page


def find_many(body: bytes, start: int, count: int | None, layout: Layout) -> array[int] | None:
    """A `Find` that searches if the records are many and short."""
    about = (len(body) - start) // layout.size if count is None else count
    if about < _MANY or layout.size >= _LONG_RECORD:
        return None
    from sluice.aws.wire.record_search import search_bounds  # noqa: PLC0415 - imports numpy; see `take_records`

    return search_bounds(body, start, count, layout)


def take_records(bounds: RecordBounds) -> Sequence[WireRecord] | None:
    """Records as columns if they are many or large, or else as objects."""
    if len(bounds) < _MANY and bounds.size < _MANY_BYTES:
        return bounds.records()
    # Imported only here: it imports pyarrow, which takes 30 MiB, and agents do not need it.
    from sluice.aws.wire.record_columns import RecordColumns  # noqa: PLC0415

    return RecordColumns.of_page(bounds)


def _set_seconds(records: Sequence[Any]) -> None:
    """Converts times of CBOR, which are milliseconds, to seconds. Numbers with a fraction are seconds."""
    for record in records:
        if isinstance(record, dict) and isinstance(time := record.get(ARRIVAL), int):
            record[ARRIVAL] = time / 1000
