"""Columns by name, for destinations that take a fixed set of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import InvalidRecordError, OptionError
from sluice.sink import ElementConverter, Origin, StructType
from sluice.sink.rows.values import in_utc

__all__ = [
    "ROWS_AT_A_TIME",
    "Column",
    "OneColumnConverter",
    "binary_values",
    "check_columns",
    "column_of",
    "first_row",
    "invalid_row",
    "python_values",
    "required_column",
]

ROWS_AT_A_TIME: Final = 1024
"""Rows that a converter turns into Python objects at once, so that a large batch needs little memory."""


class Column(NamedTuple):
    """A column that a destination takes.

    Attributes:
        name: as the documentation spells it. Names of columns are compared without regard to case.
        types: the Spark types it may have, as SQL spells them; ``string`` includes collated strings.
        required: rows without this column are refused.
    """

    name: str
    types: tuple[str, ...]
    required: bool = False

    @property
    def allowed(self) -> str:
        """The types, for messages."""
        return " or ".join(self.types)


class OneColumnConverter(ElementConverter[bytes]):
    """Makes entries, which are plain bytes, from one column. Other columns are not written.

    Attributes:
        DESTINATION: its name, for messages.
        COLUMN: the column.
    """

    DESTINATION: ClassVar[str]
    COLUMN: ClassVar[Column]

    def open(self, schema: StructType, origin: Origin | None = None) -> None:  # noqa: ARG002
        """Checks the columns.

        Raises:
            OptionError: the column is missing or has the wrong type.
        """
        check_columns(self.DESTINATION, [self.COLUMN], schema)

    def convert(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """The entries of a batch, made lazily.

        Raises:
            InvalidRecordError: a row is null, or cannot be an entry.
            OptionError: the batch has no such column.
        """
        data = required_column(self.DESTINATION, self.COLUMN, batch)
        for start in range(0, len(data), ROWS_AT_A_TIME):
            rows = data.slice(start, ROWS_AT_A_TIME)
            yield from self.entries(binary_values(self.DESTINATION, self.COLUMN, rows, start), start)

    def entries(self, values: list[bytes], first: int) -> Iterator[bytes]:  # noqa: ARG002
        """The entries of some rows; `first` is the number of the first one in its batch."""
        return iter(values)


def check_columns(destination: str, columns: Sequence[Column], schema: StructType) -> list[str]:
    """Checks the columns of a schema; those with other names are ignored.

    Returns:
        The names of the columns that the schema has, spelled as in `columns`.

    Raises:
        OptionError: names all columns that are missing, there twice or of a wrong type.
    """
    problems: list[str] = []
    seen: list[str] = []
    by_key = {column.name.lower(): column for column in columns}
    for field in schema.fields:
        column = by_key.get(field.name.lower())
        if column is None:
            continue
        if column.name in seen:
            problems.append(f"column '{column.name}' exists twice")
        seen.append(column.name)
        given = field.dataType.simpleString()
        if given not in column.types and given.split(" ")[0] not in column.types:
            remedy = _remedy(column, given)
            problems.append(f"column '{column.name}' is {given}: allowed is {column.allowed}{remedy}")
    for column in columns:
        if column.required and column.name not in seen:
            remedy = f'selectExpr("to_json(struct(*)) AS {column.name}") makes it of all columns'
            problems.insert(0, f"column '{column.name}' ({column.allowed}) is required: {remedy}")
    if problems:
        names = [column.name for column in columns]
        many = f"columns {', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else f"column {names[0]}"
        raise OptionError(f"destination '{destination}' takes the {many}: " + "; ".join(problems))
    return seen


def _remedy(column: Column, given: str) -> str:
    """How to convert a column of another type (`given`) to an allowed one."""
    if "string" in column.types:
        makes = f"to_json({column.name})" if "<" in given else f"CAST({column.name} AS STRING)"
    elif "<" in given + column.types[0]:
        return ""
    else:
        makes = f"CAST({column.name} AS {column.types[0].upper()})"
    return f"; {makes} makes one of it"


def column_of(batch: pa.RecordBatch, name: str) -> Any:
    """The Arrow array of column `name`, in any case; None if the batch has no such column."""
    for position, found in enumerate(batch.schema.names):
        if found.lower() == name.lower():
            return batch.column(position)
    return None


def required_column(destination: str, column: Column, batch: pa.RecordBatch) -> Any:
    """The Arrow array of a column. Raises OptionError if the batch has no such column."""
    array = column_of(batch, column.name)
    if array is None:
        raise OptionError(
            f"destination '{destination}': column '{column.name}' ({column.allowed}) is required"
        )
    return array


def binary_values(destination: str, column: Column, array: Any, first: int) -> list[bytes]:
    """The values of a binary or string column; strings as UTF-8.

    Args:
        destination: for messages.
        column: for messages.
        array: some rows of the column.
        first: the number of the first row in its batch.

    Raises:
        InvalidRecordError: a value is null.
    """
    if array.null_count:
        raise invalid_row(
            destination, first + first_row(pc.is_null(array)), f"column '{column.name}' is null"
        )
    if not (pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)):
        array = array.cast(pa.large_binary() if pa.types.is_large_string(array.type) else pa.binary())
    values: list[bytes] = array.to_pylist()
    return values


def python_values(destination: str, column: str, array: Any, first: int) -> list[Any]:
    """The Python values of a column.

    Args:
        destination: for messages.
        column: its name, for messages.
        array: some rows of the column.
        first: the number of the first row in its batch.

    Raises:
        InvalidRecordError: Python has no such value. Spark has dates and timestamps before the year 1 and
            after 9999, and strings that are not UTF-8.
    """
    array = in_utc(array)
    try:
        values: list[Any] = array.to_pylist()
    except (ValueError, OverflowError):
        for row, value in enumerate(array, first):
            try:
                value.as_py()
            except UnicodeDecodeError as error:
                why = f"is not UTF-8 at byte {error.start}: encode it, as base64 for example"
            except pa.ArrowInvalid:
                raise  # such as an unknown time zone: no row is at fault
            except (ValueError, OverflowError):
                why = "has a date or timestamp that is not in the years 1 to 9999"
            else:
                continue
            raise invalid_row(destination, row, f"column '{column}' {why}") from None
        raise
    return values


def first_row(mask: Any) -> int:
    """The index of the first true value in an Arrow array of booleans; -1 if there is none."""
    return int(pc.index(pc.fill_null(mask, fill_value=False), value=True).as_py())


def invalid_row(destination: str, row: int, why: str) -> InvalidRecordError:
    """The error for a row that can never be delivered.

    Args:
        destination: for the message.
        row: its number in the batch, counted from 0.
        why: must not hold any of the row's data.
    """
    return InvalidRecordError(
        f"destination '{destination}': row {row} of a batch of rows (counted from 0): {why}",
        reason=f"destination '{destination}': {why}",
    )
