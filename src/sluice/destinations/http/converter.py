"""Makes JSON documents from rows: column ``body``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec

from sluice.destinations.common.columns import Column, OneColumnConverter, invalid_row

__all__ = ["HttpRowConverter"]


class HttpRowConverter(OneColumnConverter):
    """Makes documents, which are plain bytes, from column ``body``.

    Each document is checked to be JSON: otherwise an endpoint would refuse the whole request.

    Args:
        lines: whether a document is a line of its request, so that it must not contain a line break.
    """

    DESTINATION = "http"
    COLUMN = Column("body", ("string", "binary"), required=True)
    data_column = COLUMN.name
    data_form = "json"
    known_columns = (COLUMN.name,)

    def __init__(self, *, lines: bool) -> None:
        self._lines = lines

    def entries(self, values: list[bytes], first: int) -> Iterator[bytes]:
        return map(self._document, itertools.count(first), values)

    def _document(self, row: int, value: bytes) -> bytes:
        try:
            document = bytes(msgspec.json.decode(value, type=msgspec.Raw))
            # The parser looks for the end of a string, and not at the characters in it.
            document.decode()
        except UnicodeDecodeError as error:
            raise invalid_row(
                self.DESTINATION, row, f"column 'body' is not UTF-8 at byte {error.start}"
            ) from None
        except (msgspec.DecodeError, RecursionError) as error:
            # It names a position, and nothing of the text.
            raise invalid_row(self.DESTINATION, row, f"column 'body' is not JSON: {error}") from None
        if self._lines and (b"\n" in document or b"\r" in document):
            return bytes(msgspec.json.format(document, indent=-1))
        return document
