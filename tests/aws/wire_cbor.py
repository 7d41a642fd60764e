"""Pages of the service in all the ways to write CBOR."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping
from random import Random
from typing import Any

from hypothesis import strategies as st
from integration.model.cbor import encode, head

ARRIVAL = "ApproximateArrivalTimestamp"
_BYTES, _TEXT, _ARRAY, _MAP = 2, 3, 4, 5


def _any_head(style: Random, major: int, number: int) -> bytes:
    """A head that may be longer than it has to be."""
    shortest = head(major, number)
    sizes = [size for size in (1, 2, 4, 8) if number < 1 << 8 * size]
    size = style.choice(sizes)
    longer = bytes([major << 5 | 23 + size.bit_length()]) + number.to_bytes(size, "big")
    return style.choice([shortest, shortest, shortest, longer])


def _string(style: Random, major: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    if style.random() < 0.8:
        return _any_head(style, major, len(data)) + data
    middle = style.randint(0, len(content))
    chunks = [
        part.encode() if isinstance(part, str) else part for part in (content[:middle], content[middle:])
    ]
    body = b"".join(_any_head(style, major, len(chunk)) + chunk for chunk in chunks)
    return bytes([major << 5 | 31]) + body + b"\xff"


def _time(style: Random, millis: int) -> bytes:
    if style.random() < 0.8:
        return style.choice([b"\xc1", b"\xc1", b""]) + written(style, millis)
    return style.choice([b"\xc1", b""]) + struct.pack("!Bd", 0xFB, millis / 1000)


def written(style: Random, value: Any) -> bytes:
    """`value` in CBOR, with lengths known or not, of any width, and fields in any order."""
    if isinstance(value, str | bytes):
        return _string(style, _TEXT if isinstance(value, str) else _BYTES, value)
    if isinstance(value, dict | list):
        names = style.sample(list(value), len(value)) if isinstance(value, dict) else []
        items = [
            _string(style, _TEXT, name)
            + (_time(style, value[name]) if name == ARRIVAL else written(style, value[name]))
            for name in names
        ] or [written(style, each) for each in value]
        major = _MAP if isinstance(value, dict) else _ARRAY
        if style.random() < 0.5:
            return _any_head(style, major, len(value)) + b"".join(items)
        return bytes([major << 5 | 31]) + b"".join(items) + b"\xff"
    if value is None or isinstance(value, bool):
        return {None: b"\xf6", True: b"\xf5", False: b"\xf4"}[value]
    if isinstance(value, float):
        return struct.pack("!Bd", 0xFB, value)
    return _any_head(style, 0, value) if value >= 0 else _any_head(style, 1, -1 - value)


def plainly_written(page: Mapping[str, Any], *, counted: bool = False) -> bytes:
    """`page` as one writer writes it: all records in the same way, with the order of fields that they have.

    `counted`: maps and arrays have their lengths in front.
    """

    def write(value: Any, name: str = "") -> bytes:
        if name == ARRIVAL:
            return b"\xc1\x1b" + value.to_bytes(8, "big") if value >= 0 else b"\xc1" + head(1, -1 - value)
        if isinstance(value, dict | list):
            items = (
                [write(key) + write(value[key], key) for key in value] if isinstance(value, dict) else None
            )
            body = b"".join(items if items is not None else map(write, value))
            major = _MAP if isinstance(value, dict) else _ARRAY
            return head(major, len(value)) + body if counted else bytes([major << 5 | 31]) + body + b"\xff"
        if isinstance(value, str | bytes):
            data = value.encode() if isinstance(value, str) else value
            return head(_TEXT if isinstance(value, str) else _BYTES, len(data)) + data
        return encode(value)

    return write(page)


def in_json(page: Mapping[str, Any]) -> bytes:
    """The same page in JSON."""

    def convert(name: str, value: Any) -> Any:
        if isinstance(value, list):
            return [convert("", each) for each in value]
        if isinstance(value, dict):
            return {key: convert(key, each) for key, each in value.items()}
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        return value / 1000 if name == ARRIVAL and value is not None else value

    return json.dumps(convert("", dict(page))).encode()


# --- pages of any content ----------------------------------------------------------------------

NUMBERS = st.integers(10**55, 10**56 - 1).map(str)
ARRIVALS = st.integers(0, 2**42)
# Values that look like the fields around them, and lengths at which heads change.
LOOKALIKES = st.sampled_from(
    [ARRIVAL, "Data", "\u007fDataA\x00", "PartitionKey", "SequenceNumber", "\u00ff\u00bf"]
)
KEYS = st.one_of(st.text(max_size=40), LOOKALIKES, st.integers(0, 256).map(lambda size: "k" * size))
SIZES = (0, 1, 23, 24, 255, 256, 257)
DATA = st.one_of(
    st.binary(max_size=40),
    LOOKALIKES.map(str.encode),
    st.sampled_from(SIZES).map(lambda size: b"\xff" * size),
    st.just(b"\xbf"),
)
MORE: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["New", "EncryptionType", "records", ""]),
    st.one_of(
        st.none(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=30), st.just({"a": [1.5, {}, True]})
    ),
    max_size=2,
)


@st.composite
def cbor_pages(draw: st.DrawFn, more: Any = MORE, numbers: Any = NUMBERS, count: int = 4) -> dict[str, Any]:
    """A page, with the arrivals of its records in milliseconds."""
    records = [
        {"SequenceNumber": number, ARRIVAL: arrival, "PartitionKey": key, "Data": data} | extra
        for number, arrival, key, data, extra in draw(
            st.lists(st.tuples(numbers, ARRIVALS, KEYS, DATA, more), max_size=count)
        )
    ]
    tail: dict[str, Any] = {"NextShardIterator": "AAAA"} if draw(st.booleans()) else {"ChildShards": []}
    return {"MillisBehindLatest": draw(st.integers(0, 2**40)), "Records": records, **tail}
