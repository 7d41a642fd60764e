"""The streams that a source reads: options ``tableName`` and ``streamArn``.

A table has one stream at a time. Its ARN ends with a label, the time at which it was enabled. If a
stream is disabled and enabled again, that is another stream, with another label.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sluice.aws.names.arns import references, references_from_options
from sluice.errors import OptionError
from sluice.options import Option, OptionValues

__all__ = ["STREAM_ARN", "TABLE_NAME", "StreamArn", "TableRef", "tables_from_options"]

_TABLE_KEY: Final = "tableName"
_ARN_KEY: Final = "streamArn"
_TABLE: Final = r"[A-Za-z0-9_.-]{3,255}"
_TABLE_PATTERN: Final = re.compile(_TABLE)
_ARN_FORM: Final = "arn:aws:dynamodb:<region>:<account>:table/<table>/stream/<label>"
_ARN_PATTERN: Final = re.compile(
    rf"arn:aws[a-z-]*:dynamodb:(?P<region>[a-z0-9-]+):\d{{12}}:table/(?P<table>{_TABLE})/stream/(?P<label>\S+)"
)


@dataclass(frozen=True, slots=True)
class StreamArn:
    """The ARN of a table's stream, and its parts."""

    text: str
    region: str
    table: str
    label: str

    @classmethod
    def parse(cls, text: str) -> StreamArn:
        """Raises ValueError for other text."""
        match = _ARN_PATTERN.fullmatch(text.strip())
        if match is None:
            raise ValueError(text)
        return cls(match[0], match["region"], match["table"], match["label"])


@dataclass(frozen=True, slots=True)
class TableRef:
    """A table. Its name identifies its stream in offsets, rows and messages.

    Attributes:
        arn: of the stream, if the user named one; None: the table's newest.
    """

    name: str
    arn: str | None = None

    @property
    def region(self) -> str | None:
        """The region of the ARN."""
        return None if self.arn is None else StreamArn.parse(self.arn).region


def _by_name(text: str) -> TableRef:
    if text.startswith("arn:"):
        raise OptionError(f"is {text!r}: that is an ARN; the ARN of a stream belongs into '{_ARN_KEY}'")
    if _TABLE_PATTERN.fullmatch(text) is None:
        raise ValueError(text)
    return TableRef(text)


def _by_arn(text: str) -> TableRef:
    arn = StreamArn.parse(text)
    return TableRef(arn.table, arn.text)


TABLE_NAME: Option[tuple[TableRef, ...]] = Option(
    _TABLE_KEY,
    references("tables", "a table's name (3 to 255 letters, digits, _ . -)", "table", _by_name),
    None,
    "Table to read changes of, or several, comma-separated. The newest stream of each is read.",
    shown_default=f"this or `{_ARN_KEY}` is required",
)
STREAM_ARN: Option[tuple[TableRef, ...]] = Option(
    _ARN_KEY,
    references("arns", _ARN_FORM, "table", _by_arn),
    None,
    "Streams by ARN, for example of another account, or disabled in the last 24 hours. All in one region.",
    shown_default=f"this or `{_TABLE_KEY}` is required",
)


def tables_from_options(values: OptionValues) -> tuple[TableRef, ...]:
    """Reads the tables, in the given order; `OptionValues.check` raises the errors.

    Args:
        values: read with TABLE_NAME and STREAM_ARN declared.
    """
    return references_from_options(values, TABLE_NAME, STREAM_ARN)
