"""Makes SQS messages from rows, and refuses rows that SQS would not accept.

Rules: https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html and
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-message-metadata.html
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any, Final, NamedTuple

import pyarrow as pa

from sluice.destinations.common.columns import (
    ROWS_AT_A_TIME,
    Column,
    check_columns,
    column_of,
    invalid_row,
    python_values,
    required_column,
)
from sluice.destinations.common.compression import compressed
from sluice.errors import InvalidRecordError, OptionError
from sluice.sink import ElementConverter, Origin, StructType

__all__ = ["SqsMessage", "SqsRowConverter"]

_NAME: Final = "sqs"
_BODY: Final = Column("body", ("string", "binary"), required=True)
_GROUP: Final = Column("messageGroupId", ("string",))
_DEDUPLICATION: Final = Column("messageDeduplicationId", ("string",))
_DELAY: Final = Column("delaySeconds", ("int", "bigint", "smallint", "tinyint"))
_ATTRIBUTES: Final = Column("attributes", ("map<string,string>",))
_COLUMNS: Final = (_BODY, _GROUP, _DEDUPLICATION, _DELAY, _ATTRIBUTES)

_MAX_DELAY: Final = 900  # seconds
_MAX_ATTRIBUTES: Final = 10
_MAX_ATTRIBUTE_NAME: Final = 256  # characters

# Characters that XML 1.0 excludes. Python strings may also hold surrogates.
_NOT_ALLOWED: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# Group and deduplication ids: ASCII letters, digits and punctuation.
_ID: Final = re.compile(r"[!-~]{1,128}")
_ATTRIBUTE_NAME: Final = re.compile(
    r"(?!aws\.|amazon\.)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII | re.IGNORECASE
)


class SqsMessage(NamedTuple):
    """A message to send. Its attributes are of type String."""

    body: str
    message_group_id: str | None = None
    message_deduplication_id: str | None = None
    delay_seconds: int | None = None
    attributes: Mapping[str, str] | None = None


class SqsRowConverter(ElementConverter[SqsMessage]):
    """Makes messages from rows. Columns with other names are not written.

    Args:
        fifo: whether the queue is a FIFO queue.
        compression: of the bodies, which are base64 then.
    """

    data_column = _BODY.name
    data_form = "text"
    known_columns = tuple(column.name for column in _COLUMNS)

    def __init__(self, *, fifo: bool, compression: str = "none") -> None:
        self._fifo = fifo
        self._compression = compression
        if compression != "none":
            self.data_form = "bytes"

    def open(self, schema: StructType, origin: Origin | None = None) -> None:  # noqa: ARG002
        """Checks the columns.

        Raises:
            OptionError: a column is missing, has the wrong type, or does not apply to this kind of queue.
        """
        found = check_columns(_NAME, _COLUMNS, schema)
        problems = []
        if self._fifo and _GROUP.name not in found:
            problems.append(f"a FIFO queue needs column '{_GROUP.name}' (string)")
        if self._fifo and _DELAY.name in found:
            problems.append(f"a FIFO queue takes no column '{_DELAY.name}': set a delay on the queue")
        if not self._fifo and _DEDUPLICATION.name in found:
            problems.append(
                f"column '{_DEDUPLICATION.name}' is for FIFO queues, and this is a standard queue"
            )
        if problems:
            raise OptionError(f"destination '{_NAME}': " + "; ".join(problems))

    def convert(self, batch: pa.RecordBatch) -> Iterator[SqsMessage]:
        """The messages of a batch, made lazily.

        Raises:
            InvalidRecordError: SQS would not accept a row.
            OptionError: the batch has no column ``body``.
        """
        required_column(_NAME, _BODY, batch)
        for start in range(0, batch.num_rows, ROWS_AT_A_TIME):
            rows = batch.slice(start, ROWS_AT_A_TIME)
            values = [_values(column, rows, start) for column in _COLUMNS]
            for row, (body, group, deduplication, delay, attributes) in enumerate(
                zip(*values, strict=True), start
            ):
                text = _text(row, body) if self._compression == "none" else self._packed(row, body)
                self._check_ids(row, group, deduplication)
                if delay is not None and not 0 <= delay <= _MAX_DELAY:
                    raise _invalid(row, f"column 'delaySeconds' is not from 0 to {_MAX_DELAY}")
                pairs = _attributes(row, attributes) if attributes else None
                yield SqsMessage(text, group, deduplication, delay, pairs)

    def _packed(self, row: int, body: Any) -> str:
        if body is None:
            raise _invalid(row, "column 'body' is null")
        data = body.encode() if isinstance(body, str) else body
        return base64.b64encode(*compressed([data], self._compression)).decode()

    def _check_ids(self, row: int, group: str | None, deduplication: str | None) -> None:
        if self._fifo and group is None:
            raise _invalid(row, "column 'messageGroupId' is null; a FIFO queue needs one")
        for column, value in ((_GROUP, group), (_DEDUPLICATION, deduplication)):
            if value is not None and _ID.fullmatch(value) is None:
                raise _invalid(
                    row,
                    f"column '{column.name}' ({len(value)} characters) is not 1 to 128 letters, digits or "
                    "punctuation of ASCII",
                )


def _values(column: Column, rows: pa.RecordBatch, start: int) -> Any:
    array = column_of(rows, column.name)
    return repeat(None, rows.num_rows) if array is None else python_values(_NAME, column.name, array, start)


def _text(row: int, body: Any) -> str:
    if body is None:
        raise _invalid(row, "column 'body' is null")
    if isinstance(body, bytes):
        try:
            body = body.decode()
        except UnicodeDecodeError as error:
            raise _invalid(
                row, f"column 'body' is not UTF-8 at byte {error.start}: encode it, as base64 for example"
            ) from None
    if not body:
        raise _invalid(row, "column 'body' is empty: a message has at least one character")
    _check_characters(row, "column 'body'", body)
    return str(body)


def _attributes(row: int, pairs: Any) -> dict[str, str]:
    """Checks the value of a map column, which Arrow gives as pairs."""
    attributes: dict[str, str] = dict(pairs)
    if len(attributes) > _MAX_ATTRIBUTES:
        raise _invalid(
            row, f"column 'attributes' has {len(attributes)} entries: allowed are {_MAX_ATTRIBUTES}"
        )
    for name, value in attributes.items():
        if len(name) > _MAX_ATTRIBUTE_NAME or _ATTRIBUTE_NAME.fullmatch(name) is None:
            raise _invalid(
                row,
                "column 'attributes' has a name that is not 1 to 256 letters, digits or any of _-. (no dot "
                "at either end, no two in a row, neither 'AWS.' nor 'Amazon.' in front)",
            )
        if not value:
            what = "null" if value is None else "empty"
            raise _invalid(row, f"column 'attributes' has a value that is {what}: leave it out")
        _check_characters(row, "column 'attributes'", value)
    return attributes


def _check_characters(row: int, where: str, text: str) -> None:
    if found := _NOT_ALLOWED.search(text):
        raise _invalid(
            row,
            f"{where} has U+{ord(found[0]):04X} at character {found.start()}, which SQS does not take: "
            "encode it, as base64 for example",
        )


def _invalid(row: int, why: str) -> InvalidRecordError:
    return invalid_row(_NAME, row, why)
