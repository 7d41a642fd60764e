"""Positions as version 2 of the offsets has them: a table for each kind of position, by columns.

::

    {
        "after": {
            "splits": "shardId-00000000{0000..4095,5000}",
            "number": {"like": "205c2f76b0000000000......005c2f9...00....2", "digits": "…"},
            "arrival": {"from": 1795321674933, "plus": "0 12 - 900*3 …"}
        },
        "closed": {"splits": "shardId-000000000{100..511}"}
    }

The kinds are ``after``, ``horizon``, ``time`` and ``closed``. Columns are named as the keys of version 1, and
``number`` is its ``after``; a column that would hold nothing is left out. Row n of every column belongs to
the n-th split. Readers ignore columns that they do not know, and refuse kinds that they do not know.

- ``splits`` are names as a shell expands them. Names that have braces, commas or two dots themselves are a
  list.
- Sequence numbers are in hexadecimal. There many digits are the same for all shards of a stream, such as
  those of the second and of the version in Kinesis' numbers: ``like`` has these, and a dot for every other
  digit; ``digits`` has the digits of each split that belong at the dots. ``width`` is given where decimal
  numbers have leading zeros. Positions that are no such numbers are a list, ``texts``.
- Integers are told by what they exceed the least of them by. Instants are in milliseconds; ``at``, the
  instant of a ``time``, in microseconds.
- In ``digits`` and ``plus`` a minus stands for nothing, and ``x*3`` for three times x.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from sluice.source.position_json import checked_number
from sluice.source.positions import After, AtHorizon, AtTime, Closed, Position
from sluice.source.splits import SplitId

__all__ = ["columns_from_json", "columns_to_json"]

_NOTHING: Final = "-"
_FREE: Final = re.compile(r"\.+")
_DIGITS: Final = re.compile(r"[0-9]+")
_SPECIAL: Final = re.compile(r"[{},]|\.\.")
_RANGE: Final = re.compile(r"([0-9]+)\.\.([0-9]+)")
_SHORTEST_RANGE: Final = 3
_NAMES_KEPT: Final = 16
"""Sets of names that are remembered: splits are the same from batch to batch, and positions are not."""


def columns_to_json(positions: Mapping[SplitId, Position]) -> dict[str, dict[str, Any]]:
    """The tables of every stream."""
    found: dict[str, dict[str, list[tuple[str, Position]]]] = {}
    for split, position in sorted(positions.items(), key=operator.itemgetter(0)):
        tables = found.setdefault(split.stream, {})
        tables.setdefault(_KIND_OF[type(position)], []).append((split.shard, position))
    return {
        stream: {kind: _KINDS[kind].write(rows) for kind, rows in sorted(tables.items())}
        for stream, tables in found.items()
    }


def columns_from_json(streams: Mapping[str, Any]) -> dict[SplitId, Position]:
    """The positions in the tables of every stream.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: these are no such tables.
    """
    positions: dict[SplitId, Position] = {}
    for stream, tables in streams.items():
        for kind, table in tables.items():
            positions.update(_KINDS[kind].read(stream, table))
    return positions


# --- columns -------------------------------------------------------------------------------------------


def _write_tokens(tokens: Sequence[str]) -> str:
    runs: list[tuple[str, int]] = []
    last, count = "", 0
    for token in tokens:
        if token == last:
            count += 1
            continue
        runs.append((last, count))
        last, count = token, 1
    runs.append((last, count))
    return " ".join(token if count == 1 else f"{token}*{count}" for token, count in runs[1:])


def _read_tokens(text: str) -> Sequence[str]:
    if "*" not in text:
        return text.split(" ")
    counted = (part.partition("*") for part in text.split(" "))
    return [each for token, star, count in counted for each in [token] * (int(count) if star else 1)]


def _write_numbers(values: Sequence[str | None]) -> dict[str, Any]:
    known = [value for value in values if value is not None]
    width = _width_of(known)
    if width is None:
        return {"texts": list(values)}
    numbers = [None if value is None else int(value) for value in values]
    first = int(known[0])
    differing = functools.reduce(lambda bits, n: bits if n is None else bits | (n ^ first), numbers, 0)
    differing = differing or 0xF  # so that every row has a digit
    size = len(f"{max(first, differing):x}")
    like = "".join(
        "." if differing >> 4 * (size - 1 - place) & 0xF else digit
        for place, digit in enumerate(f"{first:0{size}x}")
    )
    pick = _picker([slice(*free.span()) for free in _FREE.finditer(like)])
    form = f"0{size}x"
    tokens = [_NOTHING if n is None else "".join(pick(format(n, form))) for n in numbers]
    value = {"like": like, "digits": _write_tokens(tokens)}
    return {**value, "width": width} if width else value


def _width_of(numbers: Sequence[str]) -> int | None:
    """How many digits numbers are filled up to with zeros: 0 if they have none; None: they are no numbers."""
    if not all(map(_DIGITS.fullmatch, numbers)):
        return None
    if not any(number.startswith("0") and number != "0" for number in numbers):
        return 0
    widths = {len(number) for number in numbers}
    return widths.pop() if len(widths) == 1 else None


def _read_numbers(value: Mapping[str, Any]) -> Sequence[str | None]:
    if "texts" in value:
        return [None if text is None else checked_number(text) for text in value["texts"]]
    width = int(value.get("width", 0))
    ends = list(itertools.accumulate(len(run) for run in _FREE.findall(value["like"])))
    tokens = _read_tokens(value["digits"])
    if not ends or any(len(token) != ends[-1] and token != _NOTHING for token in tokens):
        raise ValueError(f"numbers have not as many digits as there are dots in {value['like']!r}")
    pick = _picker([slice(start, end) for start, end in zip([0, *ends], ends, strict=False)])
    form = _FREE.sub("%s", value["like"])
    hexadecimal = (None if token == _NOTHING else form % pick(token) for token in tokens)
    return [None if text is None else str(int(text, 16)).zfill(width) for text in hexadecimal]


def _picker(places: Sequence[slice]) -> Callable[[str], tuple[str, ...]]:
    """Takes texts out of a text."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda text: (text[places[0]],)


def _write_integers(scale: int, values: Sequence[int | None]) -> dict[str, Any]:
    known = [value // scale for value in values if value is not None]
    least = min(known)
    tokens = [_NOTHING if value is None else str(value // scale - least) for value in values]
    return {"from": least, "plus": _write_tokens(tokens)}


def _read_integers(scale: int, value: Mapping[str, Any]) -> Sequence[int | None]:
    least, tokens = int(value["from"]), _read_tokens(value["plus"])
    return [None if token == _NOTHING else (least + int(token)) * scale for token in tokens]


@dataclass(frozen=True)
class _Column:
    write: Callable[[Sequence[Any]], Any]
    read: Callable[[Any], Sequence[Any]]


_NUMBER: Final = _Column(_write_numbers, _read_numbers)
_INTEGER: Final = _Column(functools.partial(_write_integers, 1), functools.partial(_read_integers, 1))
_MILLIS: Final = _Column(functools.partial(_write_integers, 1000), functools.partial(_read_integers, 1000))


# --- names ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=_NAMES_KEPT)
def _write_names(names: tuple[str, ...]) -> str | list[str]:
    if any(map(_SPECIAL.search, names)):
        return list(names)
    if len(names) == 1:
        return names[0]
    pairs = zip(names[0], names[-1], strict=False)  # the names are sorted
    prefix = "".join(one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return f"{prefix}{{{','.join(_ranges([name.removeprefix(prefix) for name in names]))}}}"


def _ranges(names: Sequence[str]) -> Iterator[str]:
    """The names, with ``000..007`` for some whose numbers follow one another."""

    def row(item: tuple[int, str]) -> tuple[int, int]:
        place, name = item
        return (len(name), int(name) - place) if _DIGITS.fullmatch(name) else (0, place)

    for _, run in itertools.groupby(enumerate(names), row):
        members = [name for _, name in run]
        yield from [f"{members[0]}..{members[-1]}"] if len(members) >= _SHORTEST_RANGE else members


def _read_splits(stream: str, names: str | list[str]) -> Sequence[SplitId]:
    return _expand(stream, names) if isinstance(names, str) else [SplitId(stream, str(n)) for n in names]


@functools.lru_cache(maxsize=_NAMES_KEPT)
def _expand(stream: str, names: str) -> Sequence[SplitId]:
    prefix, brace, items = names.partition("{")
    if not brace:
        return (SplitId(stream, names),)
    return [SplitId(stream, prefix + name) for name in _expanded(items.removesuffix("}"))]


def _expanded(items: str) -> Iterator[str]:
    for item in items.split(","):
        if (ends := _RANGE.fullmatch(item)) is None:
            yield item
            continue
        width = len(ends[1])
        for number in range(int(ends[1]), int(ends[2]) + 1):
            yield f"{number:0{width}d}"


# --- tables --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kind:
    """A kind of position.

    Attributes:
        make: of the values of the columns.
        columns: by name, in the order of the fields of the position.
        is_first_needed: a position has a value in the first of them.
    """

    make: type[Position]
    columns: Mapping[str, _Column]
    is_first_needed: bool = False

    def write(self, rows: Sequence[tuple[str, Position]]) -> dict[str, Any]:
        names, positions = zip(*rows, strict=True)
        table: dict[str, Any] = {"splits": _write_names(names)}
        for field, (name, column) in zip(fields(self.make), self.columns.items(), strict=True):
            values = [getattr(position, field.name) for position in positions]
            if any(value is not None for value in values):
                table[name] = column.write(values)
        return table

    def read(self, stream: str, table: Mapping[str, Any]) -> Iterator[tuple[SplitId, Position]]:
        splits = _read_splits(stream, table["splits"])
        nothing = [None] * len(splits)
        columns = [
            column.read(table[name]) if name in table else nothing for name, column in self.columns.items()
        ]
        if {len(column) for column in columns} != {len(splits)}:
            raise ValueError(f"columns of {table['splits']!r} have other lengths than there are splits")
        if self.is_first_needed and None in columns[0]:
            raise ValueError(f"{next(iter(self.columns))!r} lacks that of a split: {table!r}")
        return zip(splits, map(self.make, *columns), strict=True)


_KINDS: Final[Mapping[str, _Kind]] = {
    "after": _Kind(
        After,
        {
            "number": _NUMBER,
            "sub": _INTEGER,
            "next": _NUMBER,
            "arrival": _MILLIS,
            "idle": _MILLIS,
            "quiet": _MILLIS,
        },
        is_first_needed=True,
    ),
    "horizon": _Kind(AtHorizon, {"next": _NUMBER, "pinned": _MILLIS, "idle": _MILLIS}),
    "time": _Kind(AtTime, {"at": _INTEGER, "pinned": _MILLIS, "idle": _MILLIS}, is_first_needed=True),
    "closed": _Kind(Closed, {"quiet": _MILLIS, "unlisted": _MILLIS}),
}
_KIND_OF: Final = {kind.make: name for name, kind in _KINDS.items()}
