"""DynamoDB's attribute values to plain JSON, and back.

Types: https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_AttributeValue.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import msgspec

from sluice.aws.wire.mended_text import mended_json
from sluice.dynamodb_streams.images import plain_item, plain_value
from sluice.functions.columns import BadValueError

__all__ = ["attribute_json", "plain_json"]

_FORMS: Final[Mapping[str, type]] = {
    **dict.fromkeys(("S", "N", "B"), str),
    **dict.fromkeys(("SS", "NS", "BS", "L"), list),
    **dict.fromkeys(("BOOL", "NULL"), bool),
}


def plain_json(data: bytes) -> str | None:
    """Plain JSON of an item, or of a single attribute value. None for JSON's null.

    Raises:
        BadValueError: it is neither.
    """
    try:
        value = msgspec.json.decode(mended_json(data))
        if value is None:
            return None
        if not isinstance(value, dict):
            raise BadValueError("a value is JSON, and neither an item nor an attribute value of DynamoDB")
        if _is_attribute(value):  # which no item is as well
            return msgspec.json.encode(plain_value(value)).decode()
        return plain_item(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadValueError(f"a value is not JSON: {error}") from None


def _is_item(value: Any) -> bool:
    """Whether all of an object are attribute values."""
    return isinstance(value, dict) and all(map(_is_attribute, value.values()))


def _is_attribute(value: Any) -> bool:
    if not isinstance(value, dict) or len(value) != 1:
        return False
    ((kind, inner),) = value.items()
    return _is_item(inner) if kind == "M" else kind in _FORMS and isinstance(inner, _FORMS[kind])


def attribute_json(data: bytes) -> str:
    """Attribute values of a JSON document: of an object an item, of anything else one attribute value.

    Raises:
        BadValueError: it is not JSON.
    """
    try:
        value = _decode(mended_json(data).decode())
        made = _attribute(value)
    except (ValueError, RecursionError) as error:
        raise BadValueError(f"a value is not JSON: {error}") from None
    return msgspec.json.encode(made["M"] if isinstance(value, dict) else made).decode()


class _Number(str):
    """The digits of a number."""

    __slots__ = ()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


_digits: Final[Any] = _Number  # which typeshed expects to be a float
_decode: Final = json.JSONDecoder(parse_float=_digits, parse_int=_digits, parse_constant=_refuse).decode


def _attribute(value: Any) -> dict[str, Any]:
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case _Number():
            return {"N": str(value)}
        case str():
            return {"S": value}
        case list():
            return {"L": list(map(_attribute, value))}
    return {"M": {name: _attribute(inner) for name, inner in value.items()}}
