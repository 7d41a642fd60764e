"""Makes JSON documents from rows: column ``body``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import pyarrow as pa

from sluice.destinations.common.columns import (
    ROWS_AT_A_TIME,
    Column,
    binary_values,
    check_columns,
    invalid_row,
    required_column,
)
from sluice.sink import ElementConverter, Origin, StructType

__all__ = ["HttpRowConverter"]

_NAME: Final = "http"
_BODY: Final = Column("body", ("string", "binary"), required=True)


class HttpRowConverter(ElementConverter[bytes]):
    """Makes documents, which are plain bytes, from column ``body``. Other columns are not written.

    Each document is checked to be JSON: with one that is not, an endpoint would refuse the whole request.

    Args:
        lines: whether a document is a line of its request, and so has no line break of its own.
    """

    data_column = _BODY.name
    data_form = "json"
    known_columns = (_BODY.name,)

    def __init__(self, *, lines: bool) -> None:
        self._lines = lines

    def open(self, schema: StructType, origin: Origin | None = None) -> None:  # noqa: ARG002
        """Checks the columns.

        Raises:
            OptionError: column ``body`` is missing or has the wrong type.
        """
        check_columns(_NAME, [_BODY], schema)

    def convert(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """The documents of a batch, made lazily.

        Raises:
            InvalidRecordError: ``body`` is null in a row, or is not JSON.
            OptionError: the batch has no column ``body``.
        """
        bodies = required_column(_NAME, _BODY, batch)
        for start in range(0, len(bodies), ROWS_AT_A_TIME):
            values = binary_values(_NAME, _BODY, bodies.slice(start, ROWS_AT_A_TIME), start)
            for row, value in enumerate(values, start):
                yield self._document(row, value)

    def _document(self, row: int, value: bytes) -> bytes:
        try:
            document = bytes(msgspec.json.decode(value, type=msgspec.Raw))
            # The parser looks for the end of a string, and not at the characters in it.
            document.decode()
        except UnicodeDecodeError as error:
            raise invalid_row(_NAME, row, f"column 'body' is not UTF-8 at byte {error.start}") from None
        except (msgspec.DecodeError, RecursionError) as error:
            # It names a position, and nothing of the text.
            raise invalid_row(_NAME, row, f"column 'body' is not JSON: {error}") from None
        if self._lines and (b"\n" in document or b"\r" in document):
            return bytes(msgspec.json.format(document, indent=-1))
        return document
