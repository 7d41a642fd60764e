"""Finds where the values of records are in a page in CBOR, without decoding them.

In CBOR the length of a value stands before it, so the bounds of all values are found by stepping from head to
head. The first record of a page shows how the service writes records: the names, their order, and other
values. All records of a page are taken to be written in this way, which is checked when their values are
taken. If one is not, nothing is read here, and `sluice.aws.wire.cbor` reads the page item by item.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sluice.aws.errors import DamagedAnswerError
from sluice.aws.wire.cbor import BREAK, Decoder
from sluice.aws.wire.records import WireRecord

__all__ = [
    "ARRIVAL",
    "DATA",
    "KEY",
    "MAJOR_TYPES",
    "NUMBER",
    "Find",
    "FixedPart",
    "Layout",
    "RecordBounds",
    "millis_of",
]

NUMBER: Final = "SequenceNumber"
ARRIVAL: Final = "ApproximateArrivalTimestamp"
KEY: Final = "PartitionKey"
DATA: Final = "Data"

_BYTES, _TEXT, _ARRAY, _MAP = 2, 3, 4, 5  # major types
MAJOR_TYPES: Final = {NUMBER: _TEXT, ARRIVAL: None, KEY: _TEXT, DATA: _BYTES}
_MILLIS_HEADS: Final = (b"\xc1\x1b", b"\x1b")  # an integer of 8 bytes, with tag 1 or without
_LATEST: Final = 2**43
"""Milliseconds since the epoch: until then (the year 2248), a float of seconds is exact to the
microsecond."""


class FixedPart(NamedTuple):
    """Some bytes of a gap: either a literal that every record has, or the value of the field `name`.

    Attributes:
        start, stop: where they are in the gap.
    """

    start: int
    stop: int
    literal: bytes = b""
    name: str = ""


@dataclass
class _Gap:
    """The names and values of fixed length before a value of any length, or before the end of a record.

    Attributes:
        size: bytes, without the head of the value.
    """

    size: int = 0
    parts: list[FixedPart] = field(default_factory=list)

    def add(self, literal: bytes, name: str = "", size: int = 0) -> None:
        """Adds bytes that are the same in every record and, after them, a value."""
        between = self.size + len(literal)
        if literal:
            self.parts.append(FixedPart(self.size, between, literal=literal))
        if name:
            self.parts.append(FixedPart(between, between + size, name=name))
        self.size = between + size


class Layout:
    """How records are written.

    Keys and data may have any length. Sequence numbers have the same length in the whole page, and times
    always have 8 bytes.

    Attributes:
        gaps: before the first value of any length, before the second, and after it.
        values: the names of these two values, in their order.
        size: bytes of the record from which the layout was read.
    """

    def __init__(self) -> None:
        self.gaps = [_Gap()]
        self.values: list[str] = []
        self.size = 0

    @classmethod
    def of_record(cls, body: bytes, start: int) -> Layout | None:
        """The layout of the record that starts at an offset; None if it is written in an unknown way."""
        layout, decoder = cls(), Decoder(body)
        major, count, at = decoder.head(start)
        if major != _MAP:
            return None
        done, found = start, set()
        while body[at] != BREAK if count is None else count > 0:
            count = None if count is None else count - 1
            name, value = decoder.item(at)
            _, at = decoder.item(value)
            if not isinstance(name, str):
                return None
            if name in MAJOR_TYPES:
                if name in found or not layout._add(name, body, done, value, at):
                    return None
                found.add(name)
                done = at
        end = at + (count is None)
        layout.gaps[-1].add(body[done:end])
        layout.size = end - start
        return layout if len(found) == len(MAJOR_TYPES) else None

    def _add(self, name: str, body: bytes, done: int, value: int, end: int) -> bool:
        if name == ARRIVAL:
            self.gaps[-1].add(body[done : end - 8], name, 8)
            return body[value : end - 8] in _MILLIS_HEADS
        major, size, start = Decoder(body).head(value)
        if major != MAJOR_TYPES[name] or size is None:
            return False
        if name == NUMBER:
            self.gaps[-1].add(body[done:start], name, size)
        else:
            self.gaps[-1].add(body[done:value])
            self.gaps.append(_Gap())
            self.values.append(name)
        return True


Find = Callable[[bytes, int, "int | None", Layout], "array[int] | None"]
"""Finds `RecordBounds.bounds` of the array whose first record starts at an offset. The third
argument is the number of records; None: the array ends with a break. Returns None if stepping from head to
head has to find the bounds."""


@dataclass(frozen=True)
class RecordBounds:
    """The bounds of the values of records.

    Attributes:
        body: the page.
        bounds: for each record where it starts, and where its two values of any length start and end; then,
            where the last one ends.
        values: the names of the two values.
        gaps: the fixed parts before the first value, before the second, and after it.
    """

    body: bytes
    bounds: array[int]
    values: Sequence[str]
    gaps: Sequence[Sequence[FixedPart]]

    @classmethod
    def of_array(cls, body: bytes, at: int, find: Find | None = None) -> tuple[RecordBounds, int] | None:
        """The bounds of the array of records that starts at an offset, and the offset behind the array.

        None if the records are written in a way that is not known here, or damaged.

        Args:
            find: asked first; see `Find`.
        """
        try:
            major, count, start = Decoder(body).head(at)
            layout = None if major != _ARRAY or count == 0 else Layout.of_record(body, start)
            bounds = None
            if layout is not None:
                bounds = find and find(body, start, count, layout)
                bounds = _walk(body, start, count, layout) if bounds is None else bounds
        except (IndexError, OverflowError, DamagedAnswerError):
            return None
        if layout is None or bounds is None:
            return None
        found = cls(body, bounds, layout.values, [gap.parts for gap in layout.gaps])
        return found, bounds[-1] + (count is None)

    def __len__(self) -> int:
        return len(self.bounds) // 5

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return self.bounds[-1] - self.bounds[0]

    def records(self) -> list[WireRecord] | None:
        """An object for each record; None if one is not written as the first."""
        found = self._fixed_values()
        if found is None:
            return None
        numbers, millis = found
        strings: dict[str, list[bytes]] = {}
        for name, start in zip(self.values, (1, 3), strict=True):
            between = zip(self.bounds[start::5], self.bounds[start + 1 :: 5], strict=True)
            strings[name] = [self.body[start:stop] for start, stop in between]
        try:
            keys = [key.decode() for key in strings[KEY]]
        except UnicodeDecodeError:
            return None
        return list(map(WireRecord, numbers, [each / 1000 for each in millis], keys, strings[DATA]))

    def heads(self) -> tuple[list[str], list[int]] | None:
        """The sequence numbers of the records, and when they arrived (microseconds); None as in `records`."""
        found = self._fixed_values()
        return None if found is None else (found[0], [each * 1000 for each in found[1]])

    def _fixed_values(self) -> tuple[list[str], array[int]] | None:
        """Sequence numbers, and times in milliseconds, if all records are written as the first."""
        body, bounds, found = self.body, self.bounds, dict[str, list[bytes]]()
        for place, parts in enumerate(self.gaps):
            starts = bounds[2 * place : -1 : 5]
            for begin, end, literal, name in parts:
                taken = [body[start + begin : start + end] for start in starts]
                if name:
                    found[name] = taken
                elif taken.count(literal) != len(taken):
                    return None
        millis = millis_of(b"".join(found[ARRIVAL]))
        try:
            numbers = [number.decode() for number in found[NUMBER]]
        except UnicodeDecodeError:
            return None
        return None if millis is None else (numbers, millis)


def millis_of(values: bytes) -> array[int] | None:
    """Times from 8 bytes each, the highest byte first; None if one is later than `_LATEST`."""
    millis = array("Q", values)
    if sys.byteorder == "little":
        millis.byteswap()
    return millis if max(millis) < _LATEST else None


def _sizes(major: int) -> list[int]:
    """By the first byte of a string: its length; or, negative, how many bytes follow that have the length.

    For first bytes of other types it is a huge length, which no page has.
    """
    sizes = [2**62] * 256
    for size in range(24):
        sizes[major << 5 | size] = size
    for width, kind in ((1, 24), (2, 25), (4, 26)):
        sizes[major << 5 | kind] = -width
    return sizes


_SIZES: Final = {KEY: _sizes(_TEXT), DATA: _sizes(_BYTES)}


def _walk(body: bytes, at: int, count: int | None, layout: Layout) -> array[int] | None:
    """Steps through an array of records. Returns None if the array does not end where a record ends.

    Raises:
        IndexError: `body` ends inside a record.
        OverflowError: a value has another type.
    """
    bounds = array("i")
    add = bounds.append
    steps = [(gap.size, _SIZES[name]) for gap, name in zip(layout.gaps, layout.values, strict=False)]
    rest = layout.gaps[-1].size
    left = -1 if count is None else count
    while left and body[at] != BREAK:
        left -= 1
        add(at)
        for gap, sizes in steps:
            at += gap
            size = sizes[body[at]]
            at += 1
            if size == -1:
                size = body[at]
                at += 1
            elif size == -2:
                size = body[at] << 8 | body[at + 1]
                at += 2
            elif size == -4:
                size = int.from_bytes(body[at : at + 4], "big")
                at += 4
            add(at)
            at += size
            add(at)
        at += rest
    add(at)
    return bounds if at <= len(body) and left <= 0 else None
