"""Values of Spark as attribute values of DynamoDB, and how large they are there.

Types: https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/HowItWorks.NamingRulesDataTypes.html
Sizes: https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/CapacityUnitCalculations.html
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

__all__ = ["AttributeValue", "UnfitError", "canonical", "serializer", "size_of_item", "unfit_type"]

# As the low-level API has it: {"S": "text"}, {"N": "1.5"}, {"M": {"name": {"BOOL": True}}}.
AttributeValue = Mapping[str, Any]
_Serializer = Callable[[Any], AttributeValue]

NULL: Final[AttributeValue] = {"NULL": True}
_DEEPEST: Final = 32
_MOST_DIGITS: Final = 38
_TOO_LARGE: Final = 1e126
_SMALLEST: Final = 1e-130
_COLLECTION_OVERHEAD: Final = 3
_SCALARS: Final = frozenset(
    {
        "bigint",
        "binary",
        "boolean",
        "char",
        "date",
        "decimal",
        "double",
        "float",
        "int",
        "smallint",
        "string",
        "timestamp",
        "timestamp_ntz",
        "tinyint",
        "varchar",
        "void",
    }
)


class UnfitError(ValueError):
    """A value that DynamoDB cannot hold. The message says why and holds none of it."""


# --- Spark's types ------------------------------------------------------------------------------------


def unfit_type(kind: Any, depth: int = 1) -> str | None:
    """Why a Spark type cannot be written, or None. Nested types are looked through."""
    if depth > _DEEPEST:
        return f"is nested deeper than {_DEEPEST} levels"
    if hasattr(kind, "elementType"):
        return unfit_type(kind.elementType, depth + 1)
    if hasattr(kind, "keyType"):
        return _unfit_map(kind, depth)
    if hasattr(kind, "fields"):
        return _unfit_struct(kind.fields, depth)
    if _scalar(kind) in _SCALARS:
        return None
    return f"has type {kind.simpleString()}, which DynamoDB has no counterpart of: cast it to string"


def _unfit_map(kind: Any, depth: int) -> str | None:
    if _scalar(kind.keyType) not in ("string", "char", "varchar"):
        return f"has a map with keys of type {kind.keyType.simpleString()}: allowed is string"
    return unfit_type(kind.valueType, depth + 1)


def _unfit_struct(fields: Sequence[Any], depth: int) -> str | None:
    names = [field.name for field in fields]
    if "" in names or len(set(names)) < len(names):
        return "has a struct with a field that is there twice, or has no name"
    return next(filter(None, (unfit_type(field.dataType, depth + 1) for field in fields)), None)


def _scalar(kind: Any) -> str:
    """The name of a type without what follows: ``decimal(10,2)``, ``string collate UNICODE``."""
    return re.split(r"[( ]", kind.simpleString(), maxsplit=1)[0]


# --- Arrow's types ------------------------------------------------------------------------------------


def serializer(kind: pa.DataType) -> _Serializer:
    """What makes attribute values of the Python values (not None) of an Arrow type.

    It raises UnfitError for a value that DynamoDB cannot hold, and for a type that has no counterpart.
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
    return _no_counterpart


def _of_list(element: _Serializer) -> _Serializer:
    return lambda values: {"L": [NULL if value is None else element(value) for value in values]}


def _of_map(item: _Serializer) -> _Serializer:
    def serialize(pairs: Any) -> AttributeValue:
        values = dict(pairs)
        if "" in values:
            raise UnfitError("has a map with an empty key")
        # A key with nothing behind it is something else than no key.
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
    # Python holds it with twice the precision: 0.1 of a float column is to be 0.1, the shortest number
    # that is the same float, and not 0.10000000149011612.
    for digits in range(6, 9):
        text = f"{value:.{digits}g}"
        if struct.unpack("f", struct.pack("f", float(text)))[0] == value:
            break
    else:
        text = f"{value:.9g}"
    return {"N": _in_range(value, text)}


def _in_range(value: float, text: str) -> str:
    if not math.isfinite(value):
        raise UnfitError("is NaN or infinite, and DynamoDB has no such number")
    if value == 0:
        return "0"
    if not _SMALLEST <= abs(value) < _TOO_LARGE:
        raise UnfitError(
            "is beyond DynamoDB's numbers, which go from 1E-130 to 9.99E+125 and their negatives"
        )
    return text


def _decimal(value: Decimal) -> AttributeValue:
    if not value.is_finite():
        raise UnfitError("is NaN or infinite, and DynamoDB has no such number")
    if len("".join(map(str, value.as_tuple().digits)).strip("0")) > _MOST_DIGITS:
        raise UnfitError(f"has more than {_MOST_DIGITS} digits")
    return {"N": f"{value:f}" if value else "0"}


def _date(value: date) -> AttributeValue:
    return {"S": value.isoformat()}


def _timestamp(value: datetime) -> AttributeValue:
    # Always six digits, and UTC: the text sorts as the instants do.
    if value.tzinfo is None:
        return {"S": value.isoformat(timespec="microseconds")}
    instant = value.astimezone(timezone.utc).replace(tzinfo=None)
    return {"S": instant.isoformat(timespec="microseconds") + "Z"}


def _no_counterpart(value: Any) -> AttributeValue:
    raise UnfitError(f"holds a {type(value).__name__}, which DynamoDB has no counterpart of")


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
    """Bytes of an item, names and values, as DynamoDB counts them.

    Numbers take about one byte for two significant digits, one more, and one more below zero.
    """
    return sum(_length(name) + _size(value) for name, value in attributes.items())


def _size(value: AttributeValue) -> int:
    ((kind, content),) = value.items()
    if kind == "S":
        return _length(content)
    if kind == "N":
        digits: str = content.lstrip("-").partition("e")[0].replace(".", "").strip("0")
        return 1 + (len(digits) + 1) // 2 + int(content.startswith("-"))
    if kind == "B":
        return len(content)
    if kind == "L":
        return _COLLECTION_OVERHEAD + sum(1 + _size(each) for each in content)
    if kind == "M":
        return _COLLECTION_OVERHEAD + len(content) + size_of_item(content)
    return 1  # BOOL, NULL


def _length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def canonical(value: AttributeValue) -> tuple[str, Any]:
    """Equal for values that are equal to DynamoDB, however they are written: ``1.0`` is ``1``. Hashable."""
    ((kind, content),) = value.items()
    if kind == "N":
        return kind, Decimal(content)
    if kind == "B":
        return kind, bytes(content)
    if kind == "L":
        return kind, tuple(map(canonical, content))
    if kind == "M":
        return kind, frozenset((name, canonical(each)) for name, each in content.items())
    return kind, content
