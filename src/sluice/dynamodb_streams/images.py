"""Items as plain JSON, or in DynamoDB's own form.

Types: https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_streams_AttributeValue.html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from sluice.aws.wire.mended_text import mended_json

__all__ = ["IMAGE_FORMATS", "as_sent", "key_of", "plain", "plain_item", "plain_value"]

_JSON_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")

_decoder: Final = msgspec.json.Decoder(dict[str, Any])
_attributes: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encoder: Final = msgspec.json.Encoder()


def as_sent(item: msgspec.Raw) -> str | None:
    """Returns an item as the service has sent it: ``{"id": {"N": "1"}}``; None if there is none."""
    text = bytes(item)
    return mended_json(text).decode() if text and text != b"null" else None


def plain(item: msgspec.Raw) -> str | None:
    """Returns an item as plain JSON: ``{"id": 1}``; None if there is none.

    Numbers keep all their digits, up to 38; sets are arrays, in the service's order; binary is base64.
    """
    text = as_sent(item)
    return None if text is None else plain_item(_decoder.decode(text))


def plain_item(item: Mapping[str, Any]) -> str:
    """As `plain`, for a decoded item."""
    return _encoder.encode({name: plain_value(value) for name, value in item.items()}).decode()


def key_of(item: msgspec.Raw, names: Iterable[str] = ()) -> msgspec.Raw:
    """Returns the key of an item, with sorted attributes: the same key is always the same text.

    Args:
        item: as the service has sent it.
        names: the attributes of the key; empty: all attributes of the item.
    """
    if not bytes(item):
        return item
    attributes = _attributes.decode(mended_json(bytes(item)))
    return msgspec.Raw(_encoder.encode({name: attributes[name] for name in sorted(names or attributes)}))


IMAGE_FORMATS: Final = {"json": plain, "dynamodb-json": as_sent}
"""By value of option ``imageFormat``, the function that makes a column's text from an item."""


def plain_value(attribute: Any) -> Any:
    """Returns the value of an attribute, for `msgspec.json` to encode."""
    if not isinstance(attribute, Mapping) or len(attribute) != 1:
        return attribute
    ((kind, value),) = attribute.items()
    expected, make = _VALUES.get(kind, _UNKNOWN)
    # An unknown type, or a value of another form, stays as the service writes it.
    return make(value) if isinstance(value, expected) else attribute


def _number(text: Any) -> Any:
    """Keeps every digit: there is no conversion to float."""
    if not isinstance(text, str):
        return text
    if _JSON_NUMBER.fullmatch(text) is None:
        try:
            text = str(Decimal(text))
        except InvalidOperation:
            return text
        if _JSON_NUMBER.fullmatch(text) is None:
            return text
    return msgspec.Raw(text.encode())


_UNKNOWN: Final[tuple[type, Callable[[Any], Any]]] = (type(None), lambda value: value)
_VALUES: Final[Mapping[str, tuple[type, Callable[[Any], Any]]]] = {
    **dict.fromkeys(("S", "B", "BOOL", "SS", "BS"), (object, lambda value: value)),
    "N": (str, _number),
    "NS": (list, lambda numbers: [_number(each) for each in numbers]),
    "NULL": (object, lambda _: None),
    "M": (dict, lambda values: {name: plain_value(inner) for name, inner in values.items()}),
    "L": (list, lambda values: [plain_value(inner) for inner in values]),
}
