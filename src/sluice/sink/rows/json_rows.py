"""Rows as JSON objects, as Spark's ``to_json`` writes them, but with microseconds and always in UTC."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from sluice.sink.rows.values import in_utc, not_finite_text

__all__ = ["JsonRows", "inner_types", "unsupported_type"]

_Change: TypeAlias = Callable[[Any], Any]

# Spark types without other types inside, by name or by the beginning of it.
_SIMPLE_TYPES: Final = (
    *("tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string", "binary"),
    *("date", "timestamp", "timestamp_ntz"),
)
_SIMPLE_PREFIXES: Final = ("decimal(", "char(", "varchar(", "string collate ")


def inner_types(data_type: Any) -> list[Any]:
    """The Spark types inside a type: of elements, keys, values and fields."""
    names = ("elementType", "keyType", "valueType")
    inner = [getattr(data_type, name) for name in names if hasattr(data_type, name)]
    return inner + [field.dataType for field in getattr(data_type, "fields", ())]


def unsupported_type(data_type: Any, *, text_keys: bool) -> str | None:
    """The first Spark type in `data_type`, including itself, that has no form; None if there is none.

    Args:
        data_type: of a column.
        text_keys: whether the keys of maps must be strings, as in JSON.
    """
    inner = inner_types(data_type)
    name = str(data_type.simpleString())
    if not inner:
        return None if name in _SIMPLE_TYPES or name.startswith(_SIMPLE_PREFIXES) else name
    if (
        text_keys
        and hasattr(data_type, "keyType")
        and not data_type.keyType.simpleString().startswith("string")
    ):
        return name
    return next((found for each in inner if (found := unsupported_type(each, text_keys=text_keys))), None)


def _plain_values(_: str, column: Any) -> list[Any]:
    values: list[Any] = in_utc(column).to_pylist()
    return values


class JsonRows:
    """Makes objects, for ``msgspec.json`` to encode, from rows.

    Args:
        schema: of the rows.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._changes = [_change_of(field.type) for field in schema]
        self._names = schema.names

    def of(
        self, batch: pa.RecordBatch, values_of: Callable[[str, Any], list[Any]] = _plain_values
    ) -> list[dict[str, Any]]:
        """One object for each row. Nulls are left out, but for those that are items of arrays and maps.

        Args:
            batch: the rows.
            values_of: makes Python values of a column, given its name and its array.
        """
        columns = []
        for name, column, change in zip(self._names, batch.columns, self._changes, strict=True):
            values = values_of(name, column)
            columns.append(values if change is None else [v if v is None else change(v) for v in values])
        return [
            {name: value for name, value in zip(self._names, row, strict=True) if value is not None}
            for row in zip(*columns, strict=True)
        ]


def _change_of(arrow: pa.DataType) -> _Change | None:
    """A function for the values, other than null, of an Arrow type; None if all of them stay as they are.

    Maps, which Arrow gives as pairs, become dictionaries. Structs lose fields that are null.
    """
    types = pa.types
    if types.is_list(arrow) or types.is_large_list(arrow):
        item = _change_of(arrow.value_type)
        return partial(_list, item) if item else None
    if types.is_map(arrow):
        return partial(_map, _change_of(arrow.item_type))
    if types.is_struct(arrow):
        fields = {each.name: change for each in arrow if (change := _change_of(each.type))}
        return partial(_struct, fields)
    return _simple(arrow)


def _list(item: _Change, values: list[Any]) -> list[Any]:
    return [value if value is None else item(value) for value in values]


def _map(item: _Change | None, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value if value is None or item is None else item(value) for key, value in pairs}


def _struct(fields: dict[str, _Change], value: dict[str, Any]) -> dict[str, Any]:
    return {k: fields[k](v) if k in fields else v for k, v in value.items() if v is not None}


def _simple(arrow: pa.DataType) -> _Change | None:
    if pa.types.is_floating(arrow):
        return _single if pa.types.is_float32(arrow) else _number
    if pa.types.is_timestamp(arrow):
        return _local_time if arrow.tz is None else _instant
    return None


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else not_finite_text(value)


def _single(value: float) -> float | str:
    """A number of 32 bits: 0.1, where its 64 bits would be written as 0.10000000149011612."""
    return _number(float(str(np.float32(value))))


def _local_time(value: datetime) -> datetime | str:
    """With three digits of a second, as Spark writes it; the encoder writes six if they are needed."""
    return value if value.microsecond % 1000 else value.isoformat(timespec="milliseconds")


def _instant(value: datetime) -> datetime | str:
    value = value.astimezone(timezone.utc)
    if value.microsecond % 1000:
        return value
    return value.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
