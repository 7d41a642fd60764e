"""Columns, and fields of structs, that have one name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sluice.sink.contracts import StructType

__all__ = ["same_names"]


def same_names(schema: StructType, key: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Pairs of columns, or of fields of one struct at any depth, whose names are the same; with their paths.

    Args:
        schema: of the rows.
        key: two names are the same if this makes the same of them.
    """
    return _of_struct(schema, key, "")


def _of_struct(struct: Any, key: Callable[[str], str], path: str) -> Iterator[tuple[str, str]]:
    seen: dict[str, str] = {}
    for field in struct.fields:
        name = f"{path}{field.name}"
        if key(field.name) in seen:
            yield seen[key(field.name)], name
        seen.setdefault(key(field.name), name)
        yield from _of_type(field.dataType, key, f"{name}.")


def _of_type(data_type: Any, key: Callable[[str], str], path: str) -> Iterator[tuple[str, str]]:
    if hasattr(data_type, "fields"):
        yield from _of_struct(data_type, key, path)
    for inner in ("elementType", "keyType", "valueType"):
        if hasattr(data_type, inner):
            yield from _of_type(getattr(data_type, inner), key, path)
