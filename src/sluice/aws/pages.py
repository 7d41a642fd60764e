"""Reads pages of records: answers to ``GetRecords``, and events of subscriptions.

The first byte of a page tells whether it is JSON or CBOR. So a page is read wherever it comes from, and
whatever was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from sluice.aws.cbor import Decoder, is_cbor

__all__ = ["PageReader"]


class _Page(Protocol):
    records: Any


PageT = TypeVar("PageT", bound=_Page)


class PageReader(Generic[PageT]):
    """Reads pages of one kind.

    In CBOR, records are a `sluice.aws.record_columns.RecordColumns` where all are written in the same way,
    and otherwise a list as in JSON.

    Args:
        kind: a `msgspec.Struct` with a field ``records``.
        decode_json: decodes a page in JSON.
    """

    def __init__(self, kind: type[PageT], decode_json: Callable[[Any], PageT]) -> None:
        self._kind = kind
        self._decode_json = decode_json

    def read(self, body: bytes | memoryview) -> PageT:
        """Reads a page.

        Raises:
            msgspec.DecodeError: it is damaged, or a field is missing or has another type.
            DamagedAnswerError: the same.
        """
        return self._read_cbor(bytes(body)) if is_cbor(body) else self._decode_json(body)

    def _read_cbor(self, body: bytes) -> PageT:
        # Only here, as it imports pyarrow, which processes that meet no page in CBOR need not have.
        from sluice.aws.record_columns import RecordColumns, read_columns  # noqa: PLC0415

        fields = Decoder(body, {"Records": read_columns}).decode()
        records: Sequence[Any] | None = fields.get("Records")
        if isinstance(records, RecordColumns):
            fields["Records"] = []
        page = msgspec.convert(fields, self._kind)  # takes data in base64, which one emulator writes
        if isinstance(records, RecordColumns):
            page.records = records
        return page
