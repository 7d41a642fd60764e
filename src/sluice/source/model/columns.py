"""Columns of tables in JSON: the values of many splits, with their common parts written once.

- Names are written like a shell's brace expansion: ``shardId-00000000{0000..4095,5000}``. If a name
  contains braces, commas or two dots, all names are a list.
- Sequence numbers are hexadecimal, because the shards of a stream then share many digits. ``like`` has
  the shared digits, and a dot for each other digit; ``digits`` has the digits at the dots for each
  split. ``width`` is present if decimal numbers have leading zeros. Other positions are a list,
  ``texts``.
- Integers are written as their minimum, ``from``, and the differences from it, ``plus``.
- In ``digits`` and ``plus``, a minus is a missing value, and ``x*3`` is x three times.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sluice.source.model.positions import checked_number

__all__ = [
    "COMPACT_FROM",
    "INTEGER",
    "MILLIS",
    "NAMES_KEPT",
    "NUMBER",
    "TEXT",
    "Column",
    "read_names",
    "write_names",
]

COMPACT_FROM: Final = 257
"""Minimum number of splits for tables. For fewer splits, objects are cheap and easier to read."""
NAMES_KEPT: Final = 16
"""Cached sets of names. From batch to batch only the values change."""
_MISSING: Final = "-"
_FREE: Final = re.compile(r"\.+")
_DIGITS: Final = re.compile(r"[0-9]+")
_SPECIAL: Final = re.compile(r"[{},]|\.\.")
_RANGE: Final = re.compile(r"([0-9]+)\.\.([0-9]+)")
_SHORTEST_RANGE: Final = 3


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
    differing = differing or 0xF  # every row needs a digit
    size = len(f"{max(first, differing):x}")
    like = "".join(
        "." if differing >> 4 * (size - 1 - place) & 0xF else digit
        for place, digit in enumerate(f"{first:0{size}x}")
    )
    pick = _picker([slice(*free.span()) for free in _FREE.finditer(like)])
    form = f"0{size}x"
    tokens = [_MISSING if n is None else "".join(pick(format(n, form))) for n in numbers]
    value = {"like": like, "digits": _write_tokens(tokens)}
    return {**value, "width": width} if width else value


def _width_of(numbers: Sequence[str]) -> int | None:
    """The number of digits that zeros pad numbers to; 0: no padding; None: no common form."""
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
    if not ends or any(len(token) != ends[-1] and token != _MISSING for token in tokens):
        raise ValueError(f"numbers have not as many digits as there are dots in {value['like']!r}")
    pick = _picker([slice(start, end) for start, end in zip([0, *ends], ends, strict=False)])
    form = _FREE.sub("%s", value["like"])
    hexadecimal = (None if token == _MISSING else form % pick(token) for token in tokens)
    return [None if text is None else str(int(text, 16)).zfill(width) for text in hexadecimal]


def _picker(places: Sequence[slice]) -> Callable[[str], tuple[str, ...]]:
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda text: (text[places[0]],)


def _write_integers(scale: int, values: Sequence[int | None]) -> dict[str, Any]:
    known = [value // scale for value in values if value is not None]
    least = min(known)
    tokens = [_MISSING if value is None else str(value // scale - least) for value in values]
    return {"from": least, "plus": _write_tokens(tokens)}


def _read_integers(scale: int, value: Mapping[str, Any]) -> Sequence[int | None]:
    least, tokens = int(value["from"]), _read_tokens(value["plus"])
    return [None if token == _MISSING else (least + int(token)) * scale for token in tokens]


@dataclass(frozen=True)
class Column:
    """How to write and read a column."""

    write: Callable[[Sequence[Any]], Any]
    read: Callable[[Any], Sequence[Any]]


NUMBER: Final = Column(_write_numbers, _read_numbers)
INTEGER: Final = Column(functools.partial(_write_integers, 1), functools.partial(_read_integers, 1))
MILLIS: Final = Column(functools.partial(_write_integers, 1000), functools.partial(_read_integers, 1000))
"""Microseconds, written as milliseconds."""
TEXT: Final = Column(_write_tokens, _read_tokens)
"""Words without spaces and stars. No value may be missing."""


@functools.lru_cache(maxsize=NAMES_KEPT)
def write_names(names: tuple[str, ...]) -> str | list[str]:
    """Writes sorted names like a shell's brace expansion, or as a list."""
    if any(map(_SPECIAL.search, names)):
        return list(names)
    if len(names) == 1:
        return names[0]
    pairs = zip(names[0], names[-1], strict=False)  # the names are sorted
    prefix = "".join(one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return f"{prefix}{{{','.join(_ranges([name.removeprefix(prefix) for name in names]))}}}"


def _ranges(names: Sequence[str]) -> Iterator[str]:
    """Yields the names, with ``000..007`` for consecutive numbers."""

    def row(item: tuple[int, str]) -> tuple[int, int]:
        place, name = item
        return (len(name), int(name) - place) if _DIGITS.fullmatch(name) else (0, place)

    for _, run in itertools.groupby(enumerate(names), row):
        members = [name for _, name in run]
        yield from [f"{members[0]}..{members[-1]}"] if len(members) >= _SHORTEST_RANGE else members


def read_names(names: str | list[str]) -> Sequence[str]:
    """Reads the result of `write_names`."""
    if not isinstance(names, str):
        return [str(name) for name in names]
    prefix, brace, items = names.partition("{")
    return [prefix + name for name in _expanded(items.removesuffix("}"))] if brace else [names]


def _expanded(items: str) -> Iterator[str]:
    for item in items.split(","):
        if (ends := _RANGE.fullmatch(item)) is None:
            yield item
            continue
        width = len(ends[1])
        for number in range(int(ends[1]), int(ends[2]) + 1):
            yield f"{number:0{width}d}"
