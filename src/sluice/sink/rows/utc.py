"""Timestamps in UTC, whatever time zone the session has.

Arrow makes Python values in the zone of the type. There the first and the last hours of the years 1 to 9999
are beyond what Python holds, though the instants are not.
"""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa

__all__ = ["in_utc"]


def in_utc(array: Any) -> Any:
    """An Arrow array, or scalar, whose timestamps with a time zone are in UTC, nested ones included."""
    kind = _utc_type(array.type)
    return array if kind == array.type else array.cast(kind)


@functools.lru_cache(maxsize=256)
def _utc_type(kind: Any) -> Any:
    """An equal type, if it has no timestamps with another zone."""
    types = pa.types
    if types.is_timestamp(kind):
        return kind if kind.tz in (None, "UTC") else pa.timestamp(kind.unit, "UTC")
    if types.is_struct(kind):
        found = pa.struct([_utc_field(field) for field in kind])
    elif types.is_map(kind):
        found = pa.map_(_utc_type(kind.key_type), _utc_field(kind.item_field))
    elif types.is_large_list(kind):
        found = pa.large_list(_utc_field(kind.value_field))
    elif types.is_fixed_size_list(kind):
        found = pa.list_(_utc_field(kind.value_field), kind.list_size)
    elif types.is_list(kind):
        found = pa.list_(_utc_field(kind.value_field))
    else:
        return kind
    return found


def _utc_field(field: Any) -> Any:
    return field.with_type(_utc_type(field.type))
