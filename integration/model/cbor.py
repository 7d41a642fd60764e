"""CBOR as the service speaks it with the vendor's JVM SDKs.

Maps and arrays have no length in front and end with a break. Data are byte strings. Times have tag 1 and are
milliseconds, where CBOR itself has seconds: https://github.com/aws/aws-sdk-java-v2/issues/184.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from botocore.parsers import BaseCBORParser

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT = range(4)
_MAP, _ARRAY, _BREAK = b"\xbf", b"\x9f", b"\xff"
_TIME: Final = b"\xc1"


def encode(value: Any, times: Collection[str] = ()) -> bytes:
    """`value` in CBOR; `times`: fields of maps that hold times, in seconds."""
    parts: list[bytes] = []
    _write(parts.append, value, times)
    return b"".join(parts)


def _write(add: Any, value: Any, times: Collection[str]) -> None:  # noqa: C901 - a branch a type
    if isinstance(value, Mapping):
        add(_MAP)
        for name, each in value.items():
            add(_name(name))
            if name in times:
                add(_TIME)
                each = round(each * 1000)  # noqa: PLW2901 - a time from here on
            _write(add, each, times)
        add(_BREAK)
    elif isinstance(value, str):
        text = value.encode()
        add(head(_TEXT, len(text)))
        add(text)
    elif isinstance(value, bytes):
        add(head(_BYTES, len(value)))
        add(value)
    elif value is None or isinstance(value, bool):
        add({None: b"\xf6", True: b"\xf5", False: b"\xf4"}[value])
    elif isinstance(value, int):
        add(head(_UNSIGNED, value) if value >= 0 else head(_NEGATIVE, -1 - value))
    elif isinstance(value, float):
        add(struct.pack("!Bd", 0xFB, value))
    elif isinstance(value, Sequence):
        add(_ARRAY)
        for each in value:
            _write(add, each, times)
        add(_BREAK)
    else:
        raise TypeError(value)


@lru_cache
def _name(name: str) -> bytes:
    return encode(name)


def head(major: int, number: int) -> bytes:
    """The first bytes of an item."""
    if number < 24:
        return bytes((major << 5 | number,))
    for kind, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << 8 * size:
            return bytes((major << 5 | kind,)) + number.to_bytes(size, "big")
    raise ValueError(number)


_SdkParser: Any = BaseCBORParser


class _Parser(_SdkParser):  # type: ignore[misc]
    def _parse_tag(self, stream: Any, additional_info: int) -> Any:
        tag = self._parse_unsigned_integer(stream, additional_info)
        value = self.parse_data_item(stream)
        return value / 1000 if tag == 1 and isinstance(value, int) else value


def decode(body: bytes) -> Any:
    """What a request holds, with times in seconds."""
    parser = _Parser()
    return parser.parse_data_item(parser.get_peekable_stream_from_bytes(body))
