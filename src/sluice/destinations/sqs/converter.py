"""Rows as messages of a queue, and what a queue does not take.

Rules: https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html and
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-message-metadata.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any, Final, NamedTuple

import pyarrow as pa

from sluice.destinations.common.columns import Column, check_columns, column_of, invalid_row
from sluice.errors import OptionError
from sluice.sink.contracts import StructType

__all__ = ["SqsMessage", "SqsRowConverter"]

_NAME: Final = "sqs"
_BODY: Final = Column("body", ("string", "binary"), required=True)
_GROUP: Final = Column("messageGroupId", ("string",))
_DEDUPLICATION: Final = Column("messageDeduplicationId", ("string",))
_DELAY: Final = Column("delaySeconds", ("int", "bigint", "smallint", "tinyint"))
_ATTRIBUTES: Final = Column("attributes", ("map<string,string>",))
_COLUMNS: Final = (_BODY, _GROUP, _DEDUPLICATION, _DELAY, _ATTRIBUTES)

_LONGEST_DELAY: Final = 900  # seconds
_MOST_ATTRIBUTES: Final = 10
_LONGEST_ATTRIBUTE_NAME: Final = 256

# What XML 1.0 has no place for. Python's strings may also hold halves of characters (surrogates).
_NOT_ALLOWED: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# Group and deduplication ids: letters, digits and the punctuation of ASCII.
_ID: Final = re.compile(r"[!-~]{1,128}")
_ATTRIBUTE_NAME: Final = re.compile(r"(?!aws\.|amazon\.)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.IGNORECASE)
# Rows turned into Python objects at a time, whatever the size of the batch they come in.
_SLICE: Final = 1024


class SqsMessage(NamedTuple):
    """A message to send. Its attributes are of type String."""

    body: str
    message_group_id: str | None = None
    message_deduplication_id: str | None = None
    delay_seconds: int | None = None
    attributes: Mapping[str, str] | None = None


class SqsRowConverter:
    """Makes messages of rows. Other columns are not written.

    Args:
        fifo: whether the queue is a FIFO queue.
    """

    def __init__(self, *, fifo: bool) -> None:
        self._fifo = fifo

    def open(self, schema: StructType) -> None:
        """Checks the columns.

        Raises:
            OptionError: a column is missing, has the wrong type, or is not for this kind of queue.
        """
        found = check_columns(_NAME, _COLUMNS, schema)
        problems = []
        if self._fifo and _GROUP.name not in found:
            problems.append(f"a FIFO queue needs column '{_GROUP.name}' (string)")
        if self._fifo and _DELAY.name in found:
            problems.append(f"a FIFO queue takes no column '{_DELAY.name}': a delay is set for all of it")
        if not self._fifo and _DEDUPLICATION.name in found:
            problems.append(
                f"column '{_DEDUPLICATION.name}' is for FIFO queues, and this is a standard queue"
            )
        if problems:
            raise OptionError(f"destination '{_NAME}': " + "; ".join(problems))

    def convert(self, batch: pa.RecordBatch) -> Iterator[SqsMessage]:
        """The messages of a batch, made slice by slice as they are asked for.

        Raises:
            InvalidRecordError: a row that the queue would never take.
            OptionError: the batch has no column ``body``.
        """
        if column_of(batch, _BODY.name) is None:
            raise OptionError(f"destination '{_NAME}': column 'body' ({_BODY.allowed}) is required")
        for start in range(0, batch.num_rows, _SLICE):
            rows = batch.slice(start, _SLICE)
            values = [_values(column_of(rows, column.name), rows.num_rows) for column in _COLUMNS]
            for row, (body, group, deduplication, delay, attributes) in enumerate(
                zip(*values, strict=True), start
            ):
                text = _text(row, body)
                self._check_ids(row, group, deduplication)
                if delay is not None and not 0 <= delay <= _LONGEST_DELAY:
                    raise invalid_row(_NAME, row, f"column 'delaySeconds' is not from 0 to {_LONGEST_DELAY}")
                pairs = _attributes(row, attributes) if attributes else None
                yield SqsMessage(text, group, deduplication, delay, pairs)

    def _check_ids(self, row: int, group: str | None, deduplication: str | None) -> None:
        if self._fifo and group is None:
            raise invalid_row(_NAME, row, "column 'messageGroupId' is null; a FIFO queue needs one")
        for column, value in ((_GROUP, group), (_DEDUPLICATION, deduplication)):
            if value is not None and _ID.fullmatch(value) is None:
                raise invalid_row(
                    _NAME,
                    row,
                    f"column '{column.name}' ({len(value)} characters) is not 1 to 128 letters, digits or "
                    "punctuation of ASCII",
                )


def _values(column: Any, rows: int) -> Any:
    return repeat(None, rows) if column is None else column.to_pylist()


def _text(row: int, body: Any) -> str:
    if body is None:
        raise invalid_row(_NAME, row, "column 'body' is null")
    if isinstance(body, bytes):
        try:
            body = body.decode()
        except UnicodeDecodeError as error:
            raise invalid_row(
                _NAME,
                row,
                f"column 'body' is not UTF-8 at byte {error.start}: encode it, as base64 for example",
            ) from None
    if not body:
        raise invalid_row(_NAME, row, "column 'body' is empty: a message has at least one character")
    _check_characters(row, "column 'body'", body)
    return str(body)


def _attributes(row: int, pairs: Any) -> dict[str, str]:
    """The map of a row, which Arrow gives as pairs."""
    attributes: dict[str, str] = dict(pairs)
    if len(attributes) > _MOST_ATTRIBUTES:
        raise invalid_row(
            _NAME, row, f"column 'attributes' has {len(attributes)} entries: allowed are {_MOST_ATTRIBUTES}"
        )
    for name, value in attributes.items():
        if len(name) > _LONGEST_ATTRIBUTE_NAME or _ATTRIBUTE_NAME.fullmatch(name) is None:
            raise invalid_row(
                _NAME,
                row,
                "column 'attributes' has a name that is not 1 to 256 letters, digits or any of _-. (no dot "
                "at either end, no two in a row, neither 'AWS.' nor 'Amazon.' in front)",
            )
        if not value:
            what = "null" if value is None else "empty"
            raise invalid_row(_NAME, row, f"column 'attributes' has a value that is {what}: leave it out")
        _check_characters(row, "column 'attributes'", value)
    return attributes


def _check_characters(row: int, where: str, text: str) -> None:
    if found := _NOT_ALLOWED.search(text):
        raise invalid_row(
            _NAME,
            row,
            f"{where} has U+{ord(found[0]):04X} at character {found.start()}, which SQS does not take: "
            "encode it, as base64 for example",
        )
