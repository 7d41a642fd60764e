"""CBOR as Kinesis and its emulators write it (https://www.rfc-editor.org/rfc/rfc8949), and as they read it.

The vendor's SDKs of the JVM speak it with Kinesis by default: the operation is in the header
``X-Amz-Target`` as in JSON, data are byte strings, and times have tag 1 and are milliseconds, where CBOR
itself has seconds (``AwsCborProtocolFactory`` in https://github.com/aws/aws-sdk-java-v2). The Python SDK
knows another protocol in CBOR.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from sluice.aws.errors import DamagedCborError
from sluice.aws.wire.mended_text import mended

__all__ = ["BREAK", "CONTENT_TYPE", "Decoder", "ReadField", "encode", "is_cbor"]

CONTENT_TYPE: Final = "application/x-amz-cbor-1.1"

BREAK: Final = 0xFF
"""The byte that ends an array, a map or a string of unknown length."""

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(8)
_UNKNOWN_LENGTH: Final = 31
_SIMPLE_VALUES: Final = {20: False, 21: True, 22: None, 23: None}
_FLOATS: Final = {2: struct.Struct("!e"), 4: struct.Struct("!f"), 8: struct.Struct("!d")}

_DEEPEST: Final = 32
"""How deep arrays, maps and tags may be nested. An answer of Kinesis needs 5."""
_MOST_ITEMS: Final = 300_000
"""The most items of an answer. Each may take 100 bytes of memory; the largest page has half of these
items."""

ReadField = Callable[[bytes, int], tuple[Any, int] | None]
"""Reads the value that starts at an offset. Returns it and the offset behind it, or None if it can't."""


def is_cbor(body: bytes | memoryview) -> bool:
    """Whether an answer is CBOR: a map, whose first byte no JSON begins with."""
    return len(body) > 0 and body[0] >> 5 == _MAP


def encode(value: str | int | Mapping[str, Any]) -> bytes:
    """Encodes the parameters of a request."""
    if isinstance(value, str):
        text = value.encode()
        return _head(_TEXT, len(text)) + text
    if isinstance(value, int):
        return _head(_UNSIGNED, value) if value >= 0 else _head(_NEGATIVE, -1 - value)
    return _head(_MAP, len(value)) + b"".join(encode(name) + encode(each) for name, each in value.items())


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes([major << 5 | number])
    width = next(width for width in (1, 2, 4, 8) if number < 256**width)
    return bytes([major << 5 | 23 + width.bit_length()]) + number.to_bytes(width, "big")


class Decoder:
    """Decodes any answer: lengths known or unknown, fields in any order, any fields.

    Tags are passed over: a time is known by its field, as in JSON. Fields that are null are left out, as by
    the SDK.

    Args:
        body: the whole answer.
        fields: what reads a field of the answer in the decoder's place, if it can.

    Attributes:
        has_mended: whether a text was not UTF-8; see `mended`.

    Raises:
        DamagedCborError: `body` is cut short, or something else than one map with names as keys. Every
            method raises it.
    """

    def __init__(self, body: bytes, fields: Mapping[str, ReadField] | None = None) -> None:
        self._body = body
        self._fields = fields or {}
        self._items_left = _MOST_ITEMS
        self.has_mended = False

    def decode(self) -> dict[str, Any]:
        """Decodes the whole answer."""
        if not is_cbor(self._body):
            raise DamagedCborError("the answer is not a CBOR map")
        value, end = self.item(0, depth=0)
        if end != len(self._body):
            raise DamagedCborError(f"{len(self._body) - end} bytes follow the answer")
        fields: dict[str, Any] = value
        return fields

    def item(self, at: int, depth: int = 1) -> tuple[Any, int]:
        """Decodes one item.

        Returns:
            The value, and the offset at which the next item starts.
        """
        if depth > _DEEPEST:
            raise DamagedCborError("the answer is nested too deep")
        self._count_item()
        major, number, start = self.head(at)
        if major in (_BYTES, _TEXT):
            return self._string(major, number, start)
        if major in (_ARRAY, _MAP):
            return (self._array if major == _ARRAY else self._map)(number, start, depth)
        if number is None:
            raise DamagedCborError(f"byte {at} of the answer ends nothing")
        if major == _TAG:
            return self.item(start, depth + 1)
        if major == _SIMPLE:
            return self._simple(number, at, start), start
        return number if major == _UNSIGNED else -1 - number, start

    def head(self, at: int) -> tuple[int, int | None, int]:
        """Decodes the head of an item.

        Returns:
            The major type; its number (None for an unknown length, and for a break); the offset behind the
            head.
        """
        first = self._take(at, 1)[0]
        major, kind = first >> 5, first & 31
        if kind < 24:
            return major, kind, at + 1
        if kind < 28:
            width = 1 << kind - 24
            return major, int.from_bytes(self._take(at + 1, width), "big"), at + 1 + width
        if kind != _UNKNOWN_LENGTH or major in (_UNSIGNED, _NEGATIVE, _TAG):
            raise DamagedCborError(f"byte {at} of the answer begins no item")
        return major, None, at + 1

    def _count_item(self) -> None:
        self._items_left -= 1
        if self._items_left < 0:
            raise DamagedCborError(f"the answer has more than {_MOST_ITEMS} items")

    def _take(self, at: int, size: int) -> bytes:
        if at + size > len(self._body):
            raise DamagedCborError(f"the answer of {len(self._body)} bytes ends inside an item")
        return self._body[at : at + size]

    def _ends(self, at: int) -> bool:
        return self._take(at, 1)[0] == BREAK

    def _string(self, major: int, size: int | None, at: int) -> tuple[bytes | str, int]:
        if size is not None:
            data = self._take(at, size)
            at += size
        else:
            chunks = []
            while not self._ends(at):
                self._count_item()
                kind, size, start = self.head(at)
                if kind != major or size is None:
                    raise DamagedCborError(f"byte {at} of the answer begins no chunk of a string")
                chunks.append(self._take(start, size))
                at = start + size
            data, at = b"".join(chunks), at + 1
        try:
            return data if major == _BYTES else data.decode(), at
        except UnicodeDecodeError:
            self.has_mended = True
            return mended(data), at

    def _array(self, count: int | None, at: int, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while count is None or len(items) < count:
            if count is None and self._ends(at):
                return items, at + 1
            item, at = self.item(at, depth + 1)
            items.append(item)
        return items, at

    def _map(self, count: int | None, at: int, depth: int) -> tuple[dict[str, Any], int]:
        fields: dict[str, Any] = {}
        while count is None or count > 0:
            if count is None and self._ends(at):
                return fields, at + 1
            count = None if count is None else count - 1
            name, at = self.item(at, depth + 1)
            if not isinstance(name, str):
                raise DamagedCborError(f"a field of the answer has the name {name!r:.100}")
            read = self._fields.get(name) if depth == 0 else None
            value, at = (read and read(self._body, at)) or self.item(at, depth + 1)
            if value is not None:
                fields[name] = value
        return fields, at

    def _simple(self, number: int, at: int, end: int) -> object:
        width = end - at - 1
        if width in _FLOATS:
            return _FLOATS[width].unpack(self._take(at + 1, width))[0]
        if width or number not in _SIMPLE_VALUES:
            raise DamagedCborError(f"byte {at} of the answer begins no item")
        return _SIMPLE_VALUES[number]
