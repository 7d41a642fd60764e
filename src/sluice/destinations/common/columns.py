"""Columns by name, as destinations with a fixed set of them need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import InvalidRecordError, OptionError
from sluice.sink.contracts import StructType

__all__ = ["Column", "check_columns", "column_of", "first_row", "invalid_row"]


class Column(NamedTuple):
    """A column that a destination takes.

    Attributes:
        name: as the documentation spells it; names are compared as Spark does, without regard to case.
        types: the Spark types it may have, as SQL spells them; "string" includes collated strings.
        required: refused when missing.
    """

    name: str
    types: tuple[str, ...]
    required: bool = False

    @property
    def allowed(self) -> str:
        return " or ".join(self.types)


def check_columns(destination: str, columns: Sequence[Column], schema: StructType) -> list[str]:
    """The names, as in `columns`, of those that are there. Other columns are left alone.

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
            problems.append(f"column '{column.name}' is there twice")
        seen.append(column.name)
        given = field.dataType.simpleString()
        if given not in column.types and given.split(" ")[0] not in column.types:
            problems.append(f"column '{column.name}' is {given}: allowed is {column.allowed}")
    for column in columns:
        if column.required and column.name not in seen:
            problems.insert(0, f"column '{column.name}' ({column.allowed}) is required")
    if problems:
        names = [column.name for column in columns]
        many = f"columns {', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else f"column {names[0]}"
        raise OptionError(f"destination '{destination}' takes the {many}: " + "; ".join(problems))
    return seen


def column_of(batch: pa.RecordBatch, name: str) -> Any:
    """The Arrow array of column `name`, or None."""
    for position, found in enumerate(batch.schema.names):
        if found.lower() == name.lower():
            return batch.column(position)
    return None


def first_row(mask: Any) -> int:
    """The first row for which an Arrow array of booleans is true; -1 for none."""
    return int(pc.index(pc.fill_null(mask, fill_value=False), value=True).as_py())


def invalid_row(destination: str, row: int, why: str) -> InvalidRecordError:
    """The error for a row that can never be delivered. `why` holds none of its data."""
    return InvalidRecordError(
        f"destination '{destination}': row {row} of a batch of rows (counted from 0): {why}"
    )
