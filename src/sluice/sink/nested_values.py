"""Changes values inside arrays, maps and structs of Arrow columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

__all__ = ["Change", "change_of"]

Change: TypeAlias = Callable[[Any], Any]


def change_of(
    arrow: pa.DataType, simple: Callable[[pa.DataType], Change | None], *, keeps_nulls: bool
) -> Change | None:
    """A function for the values, other than null, of an Arrow type; None if all of them stay as they are.

    Maps, which Arrow gives as pairs, become dictionaries.

    Args:
        arrow: the type.
        simple: the function for the values of a type without other types inside; None: they stay.
        keeps_nulls: whether structs keep fields that are null. Arrays and maps always keep nulls.
    """
    types = pa.types
    if types.is_list(arrow) or types.is_large_list(arrow):
        item = change_of(arrow.value_type, simple, keeps_nulls=keeps_nulls)
        return partial(_list, item) if item else None
    if types.is_map(arrow):
        return partial(_map, change_of(arrow.item_type, simple, keeps_nulls=keeps_nulls))
    if types.is_struct(arrow):
        found = ((each.name, change_of(each.type, simple, keeps_nulls=keeps_nulls)) for each in arrow)
        fields = {name: change for name, change in found if change}
        if not keeps_nulls:
            return partial(_struct_without_nulls, fields)
        return partial(_struct, fields) if fields else None
    return simple(arrow)


def _list(item: Change, values: list[Any]) -> list[Any]:
    return [value if value is None else item(value) for value in values]


def _map(item: Change | None, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value if value is None or item is None else item(value) for key, value in pairs}


def _struct(fields: dict[str, Change], value: dict[str, Any]) -> dict[str, Any]:
    return {k: fields[k](v) if v is not None and k in fields else v for k, v in value.items()}


def _struct_without_nulls(fields: dict[str, Change], value: dict[str, Any]) -> dict[str, Any]:
    return {k: fields[k](v) if k in fields else v for k, v in value.items() if v is not None}
