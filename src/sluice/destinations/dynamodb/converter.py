"""Makes DynamoDB writes from rows: items to put, keys to delete."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa

from sluice.destinations.common.columns import ROWS_AT_A_TIME, invalid_row, python_values
from sluice.destinations.dynamodb.values import (
    AttributeValue,
    UnsupportedValueError,
    canonical,
    serializer,
    set_serializer,
    size_of_item,
    unsupported_set,
    unsupported_type,
)
from sluice.errors import InvalidRecordError, OptionError
from sluice.sink import ElementConverter, Origin, StructType

__all__ = ["DynamoDbRowConverter", "DynamoDbWrite"]

_NAME: Final = "dynamodb"
_ITEM: Final = "item"
_MAX_KEY: Final = 2048  # bytes, for a partition key; a sort key has at most 1024
_PLACEHOLDER: Final = re.compile(r":(\w+)")

Operation = Literal["PUT", "UPDATE", "DELETE"]


class DynamoDbWrite(NamedTuple):
    """One write.

    Attributes:
        operation: ``PUT``, ``UPDATE`` or ``DELETE``.
        attributes: the item to put, the key and the attributes to set, or the key to delete.
        key: equal for writes to the same item; None if the table's key columns are not known.
        size: bytes, as DynamoDB counts them.
        values: of the placeholders in the condition.
    """

    operation: Operation
    attributes: Mapping[str, AttributeValue]
    key: Hashable
    size: int
    values: Mapping[str, AttributeValue] = {}


class _Columns(NamedTuple):
    """The columns of a batch, by what they are for.

    Attributes:
        names: of the attributes.
        arrays: of the attributes.
        operations: the operation column; None without option ``operationColumn``.
        items: the column ``item``, if its fields are the attributes and some rows of it are null; else None.
    """

    names: list[str]
    arrays: list[Any]
    operations: Any
    items: Any


class DynamoDbRowConverter(ElementConverter[DynamoDbWrite]):
    """Makes writes from rows.

    Every column becomes an attribute. If the only column, besides the operation column, is a struct named
    ``item``, its fields become the attributes instead. A null becomes no attribute.

    Of the rows of one batch that have the same key, only the last is written, unless rows update items or
    have a condition. Across batches the writer keeps the order of writes with the same key: see
    `DynamoDbDestination.ordering_key`.

    Args:
        key_columns: the attributes of the table's key; empty if not known.
        operation_column: the column that holds ``PUT`` or ``DELETE``; without it every row is put.
        set_columns: arrays that become sets.
        updates: whether rows that are not deleted set attributes, and leave others as they are.
        condition: whose placeholders ``:name`` are values of columns; None: there is none.
    """

    def __init__(
        self,
        *,
        key_columns: Sequence[str] = (),
        operation_column: str | None = None,
        set_columns: Sequence[str] = (),
        updates: bool = False,
        condition: str | None = None,
    ) -> None:
        self._keys = tuple(key_columns)
        self._operation = operation_column
        self._sets = frozenset(set_columns)
        self._updates = updates
        self._named = None if condition is None else frozenset(_PLACEHOLDER.findall(condition))

    def open(self, schema: StructType, origin: Origin | None = None) -> None:  # noqa: ARG002
        """Checks the columns.

        Raises:
            OptionError: a column that an option names is missing or has the wrong type, or a column has a
                type that DynamoDB cannot hold.
        """
        problems: list[str] = []
        operations = [field for field in schema.fields if self._is_operation(field.name)]
        attributes = _attributes([field for field in schema.fields if not self._is_operation(field.name)])
        fields = {field.name: field.dataType for field in attributes}
        if len(operations) > 1 or len(fields) < len(attributes):
            problems.append("two columns have the same name")
        if self._operation is not None and not operations:
            problems.append(f"option 'operationColumn' is {self._operation!r}: this column does not exist")
        for field in operations:
            kind = field.dataType.simpleString()
            if kind.split(" ")[0] != "string":
                problems.append(f"column '{field.name}' (operationColumn) is {kind}: allowed is string")
        if not fields:
            problems.append("the rows have no column to write")
        for name, kind in fields.items():
            why = "has no name" if not name else self._why_not(name, kind)
            if why is not None:
                problems.append(f"column '{name}' {why}")
        problems += filter(None, (_key_problem(key, fields) for key in self._keys))
        problems += self._missing_columns(fields)
        if problems:
            raise OptionError(f"destination '{_NAME}': " + "; ".join(problems))

    def convert(self, batch: pa.RecordBatch) -> Iterator[DynamoDbWrite]:
        """The writes of a batch, made lazily.

        Raises:
            InvalidRecordError: the table would not accept a row.
            OptionError: a column that an option names is missing.
        """
        columns = self._split_columns(batch)
        last_rows = self._last_rows(columns)
        serializers = self._serializers(columns.names, columns.arrays)
        needed = {*self._keys, *(self._named or ())}  # of a row to delete
        identifying = [position for position, name in enumerate(columns.names) if name in needed]
        all_positions = range(len(columns.names))
        names, items = columns.names, columns.items
        for start in range(0, batch.num_rows, ROWS_AT_A_TIME):
            values = [
                python_values(_NAME, name, array.slice(start, ROWS_AT_A_TIME), start)
                for name, array in zip(names, columns.arrays, strict=True)
            ]
            operations = None
            if columns.operations is not None:
                operations = python_values(
                    _NAME, "operationColumn", columns.operations.slice(start, ROWS_AT_A_TIME), start
                )
            for offset in range(min(ROWS_AT_A_TIME, batch.num_rows - start)):
                row = start + offset
                if items is not None and not items[row].is_valid:
                    raise _invalid(row, "column 'item' is null")
                operation = _operation(row, operations[offset]) if operations is not None else "PUT"
                positions = identifying if operation == "DELETE" else all_positions
                made: dict[str, AttributeValue] = {}
                for position in positions:
                    if (value := values[position][offset]) is not None:
                        made |= _attribute(row, names[position], serializers[position], value)
                key = self._key(row, made)
                if self._named is not None or self._updates:
                    yield self._conditional(row, operation, made, key)
                elif key is None or last_rows[key] == row:
                    yield DynamoDbWrite(operation, made, key, size_of_item(made))

    def _conditional(
        self, row: int, operation: Operation, made: Mapping[str, AttributeValue], key: Hashable
    ) -> DynamoDbWrite:
        """A write that depends on the item, so each of a key's rows counts."""
        for name in sorted(self._named or ()):
            if name not in made:
                raise _invalid(row, f"column '{name}' (condition) is null")
        attributes = made
        if operation == "DELETE":
            attributes = {name: made[name] for name in self._keys}
        elif self._updates:
            operation = "UPDATE"
            if made.keys() <= {*self._keys}:
                raise _invalid(row, "every column but the key is null, and writeMode is update")
        named = {f":{name}": made[name] for name in self._named or ()}
        return DynamoDbWrite(operation, attributes, key, size_of_item(attributes), named)

    def _serializers(
        self, names: Sequence[str], arrays: Sequence[Any]
    ) -> list[Callable[[Any], AttributeValue | None]]:
        return [
            set_serializer(array.type) if name in self._sets else serializer(array.type)
            for name, array in zip(names, arrays, strict=True)
        ]

    def _missing_columns(self, fields: Mapping[str, Any]) -> Iterator[str]:
        for option, names in (("setColumns", self._sets), ("condition", self._named or ())):
            for name in sorted({*names} - fields.keys()):
                yield f"option '{option}' has {name!r}: this column does not exist"

    def _why_not(self, name: str, kind: Any) -> str | None:
        return unsupported_set(kind) if name in self._sets else unsupported_type(kind)

    def _split_columns(self, batch: pa.RecordBatch) -> _Columns:
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
        return _Columns(list(columns), list(columns.values()), operations, items)

    def _last_rows(self, columns: _Columns) -> dict[Hashable, int]:
        """The last row of every key."""
        if not self._keys:
            return {}
        arrays = [columns.arrays[columns.names.index(key)] for key in self._keys]
        serializers = [serializer(array.type) for array in arrays]

        def key(values: tuple[Any, ...]) -> Hashable:
            if None in values:
                return None  # `convert` refuses the row later
            try:
                return tuple(canonical(make(value)) for make, value in zip(serializers, values, strict=True))
            except UnsupportedValueError:
                return None  # likewise

        keys = zip(
            *(python_values(_NAME, name, array, 0) for name, array in zip(self._keys, arrays, strict=True)),
            strict=True,
        )
        return {key(values): row for row, values in enumerate(keys)}

    def _key(self, row: int, attributes: Mapping[str, AttributeValue]) -> Hashable:
        if not self._keys:
            if not attributes:
                raise _invalid(row, "every column is null")
            return None
        for name in self._keys:
            value = attributes.get(name)
            if value is None:
                raise _invalid(row, f"column '{name}' (keyColumns) is null")
            if value.get("S") == "" or value.get("B") == b"":
                raise _invalid(row, f"column '{name}' (keyColumns) is empty")
            if size_of_item({"": value}) > _MAX_KEY:
                raise invalid_row(_NAME, row, f"column '{name}' (keyColumns) is longer than {_MAX_KEY} bytes")
        return tuple(canonical(attributes[name]) for name in self._keys)

    def _is_operation(self, name: str) -> bool:
        return self._operation is not None and name.lower() == self._operation.lower()


def _attribute(
    row: int, name: str, make: Callable[[Any], AttributeValue | None], value: Any
) -> dict[str, AttributeValue]:
    """What becomes of a column's value; nothing of an empty set."""
    try:
        made = make(value)
    except UnsupportedValueError as error:
        raise _invalid(row, f"column '{name}' {error}") from None
    return {} if made is None else {name: made}


def _attributes(columns: Sequence[Any]) -> Sequence[Any]:
    """What becomes attributes: the columns; if the only one is a struct named ``item``, its fields."""
    if [column.name.lower() for column in columns] == [_ITEM] and hasattr(columns[0].dataType, "fields"):
        fields: Sequence[Any] = columns[0].dataType.fields
        return fields
    return columns


def _key_problem(key: str, fields: Mapping[str, Any]) -> str | None:
    """The reason why the column `key` cannot be a key column; None if it can."""
    if key not in fields:
        near = next((name for name in fields if name.lower() == key.lower()), None)
        hint = "" if near is None else f", only '{near}', and names of attributes tell upper from lower case"
        return f"option 'keyColumns' has {key!r}: this column does not exist{hint}"
    kind = fields[key].simpleString()
    if kind == "boolean" or kind.split("<")[0] in ("array", "map", "struct"):
        return f"column '{key}' (keyColumns) is {kind}: a key is a string, a number or binary"
    return None


def _operation(row: int, text: str | None) -> Operation:
    operation = (text or "").upper()
    if operation == "PUT":
        return "PUT"
    if operation == "DELETE":
        return "DELETE"
    what = "is null" if text is None else "is something else"
    raise _invalid(row, f"operationColumn {what}: allowed are PUT and DELETE")


def _invalid(row: int, why: str) -> InvalidRecordError:
    return invalid_row(_NAME, row, why)
