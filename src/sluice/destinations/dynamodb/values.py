"""Spark values as DynamoDB attribute values, and the sizes that DynamoDB counts for them.

Types: https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/HowItWorks.NamingRulesDataTypes.html
Sizes: https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/CapacityUnitCalculations.html
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from sluice.destinations.common.entries import utf8_length
from sluice.sink.rows.json_rows import inner_types
from sluice.sink.rows.json_rows import unsupported_type as no_json_type

__all__ = [
    "AttributeValue",
    "UnsupportedValueError",
    "canonical",
    "serializer",
    "set_serializer",
    "size_of_item",
    "unsupported_set",
    "unsupported_type",
]

AttributeValue = Mapping[str, Any]
"""A value in the form of the low-level API: ``{"S": "a"}``, ``{"N": "1.5"}``, ``{"L": [{"BOOL": True}]}``."""

_Serializer = Callable[[Any], AttributeValue]

NULL: Final[AttributeValue] = {"NULL": True}
_MAX_DEPTH: Final = 32
_MAX_DIGITS: Final = 38
_TEXTS: Final = ("string", "char(", "varchar(")
_UPPER_BOUND: Final = 1e126
_SMALLEST: Final = 1e-130
_COLLECTION_OVERHEAD: Final = 3  # bytes


class UnsupportedValueError(ValueError):
    """A value that DynamoDB cannot hold. The message gives the reason, without the value."""


# --- Spark's types ------------------------------------------------------------------------------------


def unsupported_type(kind: Any, depth: int = 1) -> str | None:
    """The reason why a Spark type, or a type nested in it, cannot be written; None if it can.

    Args:
        kind: a `DataType` of PySpark.
        depth: nesting level of `kind`, 1 for a column.
    """
    if depth > _MAX_DEPTH:
        return f"is nested deeper than {_MAX_DEPTH} levels"
    name, names = kind.simpleString(), [field.name for field in getattr(kind, "fields", ())]
    if "" in names or len(set(names)) < len(names):
        return "has a struct with two fields of the same name, or one without a name"
    if hasattr(kind, "keyType") and not kind.keyType.simpleString().startswith(_TEXTS):
        return f"has a map with keys of type {kind.keyType.simpleString()}: allowed is string"
    if inner := inner_types(kind):
        return next(filter(None, (unsupported_type(each, depth + 1) for each in inner)), None)
    if name in ("void", "struct<>") or not no_json_type(kind, text_keys=True):
        return None
    return f"has type {name}, which DynamoDB does not have: cast it to string"


def unsupported_set(kind: Any) -> str | None:
    """The reason why a column of a Spark type cannot be written as a set; None if it can."""
    element = getattr(kind, "elementType", None)
    name = "" if element is None else element.simpleString()
    if name in ("", "boolean", "void") or inner_types(element) or unsupported_type(element) is not None:
        return f"is {kind.simpleString()}: a set is an array of strings, numbers or binary"
    return None


# --- Arrow's types ------------------------------------------------------------------------------------


def serializer(kind: pa.DataType) -> _Serializer:
    """A function that makes attribute values from the Python values of an Arrow type, except None.

    It raises UnsupportedValueError for a value, or any value of a type, that DynamoDB cannot hold.
    """
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _of_list(serializer(kind.value_type))
    if types.is_map(kind):
        return _of_map(serializer(kind.item_type))
    if types.is_struct(kind):
        return _of_struct({field.name: serializer(field.type) for field in kind})
    for fits, made in _BY_TYPE:
        if fits(kind):
            return made
    return _unsupported


def set_serializer(kind: pa.DataType) -> Callable[[Any], AttributeValue | None]:
    """As `serializer`, of a list that becomes a set. DynamoDB has no empty set: None is made of it."""
    element = serializer(kind.value_type)

    def serialize(values: Any) -> AttributeValue | None:
        if any(value is None for value in values):
            raise UnsupportedValueError("is a set with a null")
        members = {canonical(member): member for member in map(element, values)}
        types = {kind for member in members.values() for kind in member}
        return {f"{types.pop()}S": [next(iter(m.values())) for m in members.values()]} if types else None

    return serialize


def _of_list(element: _Serializer) -> _Serializer:
    return lambda values: {"L": [NULL if value is None else element(value) for value in values]}


def _of_map(item: _Serializer) -> _Serializer:
    def serialize(pairs: Any) -> AttributeValue:
        values = dict(pairs)
        if "" in values:
            raise UnsupportedValueError("has a map with an empty key")
        # A key with a null value differs from no key.
        return {"M": {key: NULL if value is None else item(value) for key, value in values.items()}}

    return serialize


def _of_struct(fields: Mapping[str, _Serializer]) -> _Serializer:
    def serialize(values: Mapping[str, Any]) -> AttributeValue:
        return {
            "M": {name: field(value) for name, field in fields.items() if (value := values[name]) is not None}
        }

    return serialize


def _double(value: float) -> AttributeValue:
    return {"N": _in_range(value, repr(value))}


def _float(value: float) -> AttributeValue:
    # Writes the shortest number that is the same 32-bit float: 0.1, not 0.10000000149011612, which is what
    # Python's 64 bits show.
    for digits in range(6, 9):
        text = f"{value:.{digits}g}"
        if struct.unpack("f", struct.pack("f", float(text)))[0] == value:
            break
    else:
        text = f"{value:.9g}"
    return {"N": _in_range(value, text)}


def _in_range(value: float, text: str) -> str:
    if not math.isfinite(value):
        raise UnsupportedValueError("is NaN or infinite, and DynamoDB has no such number")
    if value == 0:
        return "0"
    if not _SMALLEST <= abs(value) < _UPPER_BOUND:
        raise UnsupportedValueError(
            "is beyond DynamoDB's numbers, which go from 1E-130 to 9.99E+125 and their negatives"
        )
    return text


def _decimal(value: Decimal) -> AttributeValue:
    if not value.is_finite():
        raise UnsupportedValueError("is NaN or infinite, and DynamoDB has no such number")
    if len("".join(map(str, value.as_tuple().digits)).strip("0")) > _MAX_DIGITS:
        raise UnsupportedValueError(f"has more than {_MAX_DIGITS} digits")
    return {"N": f"{value:f}" if value else "0"}


def _date(value: date) -> AttributeValue:
    return {"S": value.isoformat()}


def _timestamp(value: datetime) -> AttributeValue:
    # Always UTC and six digits, so that the text sorts like the instants.
    if value.tzinfo is None:
        return {"S": value.isoformat(timespec="microseconds")}
    instant = value.astimezone(timezone.utc).replace(tzinfo=None)
    return {"S": instant.isoformat(timespec="microseconds") + "Z"}


def _unsupported(value: Any) -> AttributeValue:
    raise UnsupportedValueError(f"holds a {type(value).__name__}, which DynamoDB does not have")


_BY_TYPE: Final[tuple[tuple[Callable[[Any], bool], _Serializer], ...]] = (
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), lambda value: {"S": value}),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), lambda value: {"B": value}),
    (pa.types.is_boolean, lambda value: {"BOOL": value}),
    (pa.types.is_integer, lambda value: {"N": str(value)}),
    (pa.types.is_float32, _float),
    (pa.types.is_float64, _double),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_date, _date),
    (pa.types.is_timestamp, _timestamp),
)


# --- attribute values ---------------------------------------------------------------------------------


def size_of_item(attributes: Mapping[str, AttributeValue]) -> int:
    """The size of an item's names and values in bytes, as DynamoDB counts it.

    A number counts one byte for each two significant digits, one more, and one more if it is negative.
    """
    return sum(utf8_length(name) + _size(value) for name, value in attributes.items())


def _size(value: AttributeValue) -> int:
    ((kind, content),) = value.items()
    if kind == "S":
        return utf8_length(content)
    if kind == "N":
        digits: str = content.lstrip("-").partition("e")[0].replace(".", "").strip("0")
        return 1 + (len(digits) + 1) // 2 + int(content.startswith("-"))
    if kind == "B":
        return len(content)
    if kind in _SETS or kind == "L":
        members = content if kind == "L" else [{kind[0]: each} for each in content]
        return _COLLECTION_OVERHEAD + sum(1 + _size(each) for each in members)
    if kind == "M":
        return _COLLECTION_OVERHEAD + len(content) + size_of_item(content)
    return 1  # BOOL, NULL


_SETS: Final[Mapping[str, Callable[[Any], Any]]] = {"SS": str, "NS": Decimal, "BS": bytes}
"""Types of sets to what their members are compared as. The order of members says nothing."""


def canonical(value: AttributeValue) -> tuple[str, Any]:
    """A hashable form of a value, the same for all that DynamoDB takes for equal, as ``1.0`` and ``1``."""
    ((kind, content),) = value.items()
    if kind == "N":
        return kind, Decimal(content)
    if kind == "B":
        return kind, bytes(content)
    if kind in _SETS:
        return kind, frozenset(map(_SETS[kind], content))
    if kind == "L":
        return kind, tuple(map(canonical, content))
    if kind == "M":
        return kind, frozenset((name, canonical(each)) for name, each in content.items())
    return kind, content
