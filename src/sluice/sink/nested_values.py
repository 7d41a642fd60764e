"""Changes values inside arrays, maps and structs of Arrow columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

__all__ = ["Change", "change_of"]

Change: TypeAlias = Callable[[Any], Any]


def change_of(arrow: pa.DataType, simple: Callable[[pa.DataType], Change | None]) -> Change | None:
    """A function for the values, other than null, of an Arrow type; None if all of them stay as they are.

    Maps, which Arrow gives as pairs, become dictionaries.

    Args:
        arrow: the type.
        simple: the function for the values of a type without other types inside; None: they stay.
    """
    types = pa.types
    if types.is_list(arrow) or types.is_large_list(arrow):
        item = change_of(arrow.value_type, simple)
        return partial(_list, item) if item else None
    if types.is_map(arrow):
        return partial(_map, change_of(arrow.item_type, simple))
    if types.is_struct(arrow):
        fields = {field.name: change for field in arrow if (change := change_of(field.type, simple))}
        return partial(_struct, fields) if fields else None
    return simple(arrow)


def _list(item: Change, values: list[Any]) -> list[Any]:
    return [value if value is None else item(value) for value in values]


def _map(item: Change | None, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value if value is None or item is None else item(value) for key, value in pairs}


def _struct(fields: dict[str, Change], value: dict[str, Any]) -> dict[str, Any]:
    return {k: fields[k](v) if v is not None and k in fields else v for k, v in value.items()}
