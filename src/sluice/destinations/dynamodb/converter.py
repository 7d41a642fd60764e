"""Rows as writes to a table: items to put, keys to delete."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa

from sluice.destinations.common.columns import invalid_row
from sluice.destinations.dynamodb.values import (
    AttributeValue,
    UnfitError,
    canonical,
    serializer,
    size_of_item,
    unfit_type,
)
from sluice.errors import OptionError
from sluice.sink.contracts import StructType

__all__ = ["DynamoDbRowConverter", "DynamoDbWrite"]

_NAME: Final = "dynamodb"
_ITEM: Final = "item"
_LONGEST_KEY: Final = 2048  # bytes; of a sort key the service takes 1024
_KEY_TYPES: Final = ("S", "N", "B")
# Rows turned into Python objects at a time, whatever the size of the batch they come in.
_SLICE: Final = 1024


class DynamoDbWrite(NamedTuple):
    """One write.

    Attributes:
        operation: what is done.
        attributes: the item to put, or the key to delete, in the form of the low-level API.
        key: what the writes to one item have in common; None where the key is not known.
        size: bytes, as the service counts them.
    """

    operation: Literal["PUT", "DELETE"]
    attributes: Mapping[str, AttributeValue]
    key: Hashable
    size: int


class _Rows(NamedTuple):
    """The columns of a batch, told apart."""

    names: list[str]  # of attributes
    columns: list[Any]
    operations: Any
    items: Any  # the column `item`, where that is what is written


class DynamoDbRowConverter:
    """Makes writes of rows.

    Every column is an attribute of its name. A struct `item` that is the only column (beside that of the
    operation) is an item of its own: its fields are the attributes. Null is no attribute.

    Of rows in one batch with the same key only the last is written; which others came before it makes no
    difference to the table. Across batches the writer keeps order: see `DynamoDbDestination.ordering_key`.

    Args:
        key_columns: the attributes of the table's key; empty where they are not given.
        operation_column: the column that holds ``PUT`` or ``DELETE``; without one every row is put.
    """

    def __init__(self, *, key_columns: Sequence[str] = (), operation_column: str | None = None) -> None:
        self._keys = tuple(key_columns)
        self._operation = operation_column

    def open(self, schema: StructType) -> None:
        """Checks the columns.

        Raises:
            OptionError: a column that an option names is missing or has the wrong type, or a column has a
                type that a table cannot hold.
        """
        problems: list[str] = []
        fields = {field.name: field.dataType for field in schema.fields}
        if len(fields) < len(schema.fields):
            problems.append("a column is there twice")
        operations = [name for name in fields if self._is_operation(name)]
        if self._operation is not None and len(operations) != 1:
            problems.append(f"option 'operationColumn' is {self._operation!r}: there is no such column")
        for name in operations:
            kind = fields.pop(name).simpleString()
            if kind.split(" ")[0] != "string":
                problems.append(f"column '{name}' (operationColumn) is {kind}: allowed is string")
        if [name.lower() for name in fields] == [_ITEM] and hasattr(next(iter(fields.values())), "fields"):
            (item,) = fields.values()
            fields = {field.name: field.dataType for field in item.fields}
        if not fields:
            problems.append("there is no column to write")
        for name, kind in fields.items():
            why = "has no name" if not name else unfit_type(kind)
            if why is not None:
                problems.append(f"column '{name}' {why}")
        problems += filter(None, (_unfit_key(key, fields) for key in self._keys))
        if problems:
            raise OptionError(f"destination '{_NAME}': " + "; ".join(problems))

    def convert(self, batch: pa.RecordBatch) -> Iterator[DynamoDbWrite]:
        """The writes of a batch, made slice by slice as they are asked for.

        Raises:
            InvalidRecordError: a row that the table would never take.
            OptionError: a column that an option names is missing.
        """
        rows = self._told_apart(batch)
        last = self._last_rows(rows)
        serializers = [serializer(column.type) for column in rows.columns]
        key_places = [place for place, name in enumerate(rows.names) if name in self._keys]
        for start in range(0, batch.num_rows, _SLICE):
            values = [_values(each.slice(start, _SLICE), start) for each in rows.columns]
            operations = None if rows.operations is None else rows.operations.slice(start, _SLICE).to_pylist()
            for offset in range(min(_SLICE, batch.num_rows - start)):
                row = start + offset
                if rows.items is not None and not rows.items[row].is_valid:
                    raise invalid_row(_NAME, row, "column 'item' is null")
                operation = _operation(row, operations[offset]) if operations is not None else "PUT"
                places = key_places if operation == "DELETE" else range(len(rows.names))
                attributes: dict[str, AttributeValue] = {}
                for place in places:
                    value = values[place][offset]
                    if value is not None:
                        try:
                            attributes[rows.names[place]] = serializers[place](value)
                        except UnfitError as error:
                            raise invalid_row(_NAME, row, f"column '{rows.names[place]}' {error}") from None
                key = self._key(row, attributes)
                if key is None or last[key] == row:
                    yield DynamoDbWrite(operation, attributes, key, size_of_item(attributes))

    def _told_apart(self, batch: pa.RecordBatch) -> _Rows:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        operations = None
        if self._operation is not None:
            name = next(filter(self._is_operation, columns), None)
            if name is None:
                raise OptionError(f"destination '{_NAME}': there is no column '{self._operation}'")
            operations = columns.pop(name)
        items = None
        if [name.lower() for name in columns] == [_ITEM]:
            (only,) = columns.values()
            if pa.types.is_struct(only.type):
                items = only if only.null_count else None
                columns = dict(zip((field.name for field in only.type), only.flatten(), strict=True))
        missing = [key for key in self._keys if key not in columns]
        if missing:
            raise OptionError(f"destination '{_NAME}': there is no column '{missing[0]}' (keyColumns)")
        return _Rows(list(columns), list(columns.values()), operations, items)

    def _last_rows(self, rows: _Rows) -> dict[Hashable, int]:
        """The last row of every key."""
        if not self._keys:
            return {}
        columns = [rows.columns[rows.names.index(key)] for key in self._keys]
        serializers = [serializer(column.type) for column in columns]

        def key(values: tuple[Any, ...]) -> Hashable:
            if None in values:
                return None  # refused when it is the row's turn
            try:
                return tuple(canonical(make(value)) for make, value in zip(serializers, values, strict=True))
            except UnfitError:
                return None  # so is this

        rows_of_keys = zip(*(_values(column, 0) for column in columns), strict=True)
        return {key(values): row for row, values in enumerate(rows_of_keys)}

    def _key(self, row: int, attributes: Mapping[str, AttributeValue]) -> Hashable:
        if not self._keys:
            if not attributes:
                raise invalid_row(_NAME, row, "every column is null")
            return None
        for name in self._keys:
            value = attributes.get(name)
            if value is None:
                raise invalid_row(_NAME, row, f"column '{name}' (keyColumns) is null")
            if value.get("S") == "" or value.get("B") == b"":
                raise invalid_row(_NAME, row, f"column '{name}' (keyColumns) is empty")
            if size_of_item({"": value}) > _LONGEST_KEY:
                raise invalid_row(
                    _NAME, row, f"column '{name}' (keyColumns) is longer than {_LONGEST_KEY} bytes"
                )
        return tuple(canonical(attributes[name]) for name in self._keys)

    def _is_operation(self, name: str) -> bool:
        return self._operation is not None and name.lower() == self._operation.lower()


def _unfit_key(key: str, fields: Mapping[str, Any]) -> str | None:
    if key not in fields:
        near = next((name for name in fields if name.lower() == key.lower()), None)
        hint = "" if near is None else f", only '{near}', and names of attributes tell upper from lower case"
        return f"option 'keyColumns' has {key!r}: there is no such column{hint}"
    kind = fields[key].simpleString()
    if kind == "boolean" or kind.split("<")[0] in ("array", "map", "struct"):
        return f"column '{key}' (keyColumns) is {kind}: a key is a string, a number or binary"
    return None


def _operation(row: int, text: str | None) -> Literal["PUT", "DELETE"]:
    operation = (text or "").upper()
    if operation == "PUT":
        return "PUT"
    if operation == "DELETE":
        return "DELETE"
    what = "is null" if text is None else "is something else"
    raise invalid_row(_NAME, row, f"operationColumn {what}: allowed are PUT and DELETE")


def _values(column: Any, start: int) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        # Spark's dates and timestamps reach further than Python's.
        row = next((row for row, value in enumerate(column, start) if not _is_in_python(value)), start)
        raise invalid_row(_NAME, row, "a date or timestamp is not in the years 1 to 9999") from None
    return values


def _is_in_python(value: Any) -> bool:
    try:
        value.as_py()
    except (ValueError, OverflowError):
        return False
    return True
