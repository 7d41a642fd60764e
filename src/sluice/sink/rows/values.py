"""Any value as JSON: of a row as Arrow holds it, and of an entry as Python holds it; timestamps in UTC.

Spark has values that Python has not, such as dates after the year 9999 and strings that are not UTF-8. JSON
has neither NaN nor bytes. A record that can never be delivered must still become a dead letter, so nothing
here fails for a value.
"""

from __future__ import annotations

import base64
import functools
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from sluice.instants import MICROS_PER_SECOND, far_date, far_instant

__all__ = [
    "fields_of_row",
    "in_utc",
    "json_text",
    "json_value",
    "not_finite_text",
    "python_value",
    "unique_names",
]

_PER_SECOND: Final = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}

# What Arrow raises for a value of a type that it has no Python class for.
_NO_CLASS: Final = (KeyError, NotImplementedError)

_MAX_DEPTH: Final = 100
# Bits from which on a number becomes its hexadecimal text. Below, it has fewer than 640 digits, which Python
# writes and reads in decimal under any limit.
_LONG_INT: Final = 2_000


def json_text(value: Any, *, ensure_ascii: bool = True, separators: tuple[str, str] | None = None) -> str:
    """Any value of Python as JSON that strict readers take."""
    return json.dumps(json_value(value), ensure_ascii=ensure_ascii, separators=separators, allow_nan=False)


def json_value(value: Any, _above: tuple[int, ...] = ()) -> Any:
    """A value of Python as JSON has it.

    Numbers that are not finite become the strings ``NaN``, ``Infinity`` and ``-Infinity``, as Spark writes
    them; bytes become base64; what JSON has no form for becomes its text, and so does what holds itself, or
    is more than a hundred levels deep. Of keys that become one text, the second has a number.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else not_finite_text(value)
    if isinstance(value, int):
        return value if value.bit_length() < _LONG_INT else hex(value)
    if id(value) in _above or len(_above) == _MAX_DEPTH:
        return _shown(value)
    try:
        return _composed_value(value, (*_above, id(value)))
    except Exception:  # noqa: BLE001 - a type of the user's own that does not do what it says
        return _shown(value)


def _composed_value(value: Any, above: tuple[int, ...]) -> Any:
    """`above` has the identities of the mappings and lists that `value` is in, and its own."""
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, Mapping):
        return unique_names((_key(key), json_value(each, above)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return [json_value(each, above) for each in value]
    return _shown(value)


def not_finite_text(value: float) -> str:
    """NaN or an infinity as the string that Spark writes and reads."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _shown(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a value that cannot say what it is must not lose its record
        return f"<{type(value).__name__}>"


def unique_names(fields: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """A dictionary; a name that is there twice gets a number: ``id``, ``id (2)``."""
    found: dict[str, Any] = {}
    for name, value in fields:
        unique, number = name, 1
        while unique in found:
            number += 1
            unique = f"{name} ({number})"
        found[unique] = value
    return found


def _key(key: Any) -> str:
    value = json_value(key)
    return value if isinstance(value, str) else json.dumps(value)


# --- Arrow --------------------------------------------------------------------------------------------


def fields_of_row(row: pa.RecordBatch) -> dict[str, Any]:
    """The values of a batch of one row, by column, as `python_value` makes them."""
    columns = zip(row.schema.names, row.columns, strict=True)
    return unique_names((name, python_value(column[0])) for name, column in columns)


def python_value(scalar: Any) -> Any:
    """The Python value of an Arrow scalar; text in the place of a value that Python cannot hold.

    Dates and timestamps beyond the years 1 to 9999 become text in ISO-8601, timestamps in UTC. In strings
    that are not UTF-8 the wrong bytes become ``\\xff`` and the like. Of a type that Arrow has no
    Python class for, such as Spark's intervals of months, its name is left.
    """
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.StructScalar | pa.ListScalar):  # a map is a list to Arrow
        try:
            return _inner_values(scalar)
        except _NO_CLASS:
            return f"<{scalar.type}>"
    try:
        # What Python has for nanoseconds depends on whether pandas is installed.
        return _text(scalar) if getattr(scalar.type, "unit", "") == "ns" else in_utc(scalar).as_py()
    except Exception:  # noqa: BLE001 - the type of the error depends on the type of the value
        return _text(scalar)


def _inner_values(scalar: Any) -> Any:
    if isinstance(scalar, pa.StructScalar):
        return unique_names((field.name, _field(scalar, n)) for n, field in enumerate(scalar.type))
    if isinstance(scalar, pa.MapScalar):
        return [[python_value(pair[0]), python_value(pair[1])] for pair in scalar.values]
    return [python_value(each) for each in scalar.values]


def _field(struct: Any, number: int) -> Any:
    try:
        return python_value(struct[number])
    except _NO_CLASS:
        return f"<{struct.type.field(number).type}>"


def _text(scalar: Any) -> str:
    kind = scalar.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return bytes(scalar.as_buffer()).decode(errors="backslashreplace")
    if pa.types.is_date32(kind):
        return far_date(scalar.value)
    if pa.types.is_timestamp(kind):
        text = far_instant(scalar.value * MICROS_PER_SECOND // _PER_SECOND[kind.unit])
        return text if kind.tz is None else f"{text}+00:00"
    value = getattr(scalar, "value", None)
    return f"<{kind}>" if value is None else f"{value} <{kind}>"


def in_utc(array: Any) -> Any:
    """An Arrow array, or scalar, whose timestamps with a time zone are in UTC, nested ones included.

    Arrow makes Python values in the zone of the type. There the first and the last hours of the years 1 to
    9999 are beyond what Python holds, though the instants are not.
    """
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
