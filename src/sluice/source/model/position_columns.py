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

`sluice.source.model.columns` says what the values of a column look like. Instants are in milliseconds;
``at``, the instant of a ``time``, in microseconds.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from sluice.source.model.columns import INTEGER, MILLIS, NAMES_KEPT, NUMBER, Column, read_names, write_names
from sluice.source.model.positions import After, AtHorizon, AtTime, Closed, Position
from sluice.source.model.splits import SplitId

__all__ = ["columns_from_json", "columns_to_json"]


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


@functools.lru_cache(maxsize=NAMES_KEPT)
def _expand(stream: str, names: str) -> Sequence[SplitId]:
    return [SplitId(stream, name) for name in read_names(names)]


def _read_splits(stream: str, names: str | list[str]) -> Sequence[SplitId]:
    return (
        _expand(stream, names) if isinstance(names, str) else [SplitId(stream, n) for n in read_names(names)]
    )


@dataclass(frozen=True)
class _Kind:
    """A kind of position.

    Attributes:
        make: makes a position of the values of the columns.
        columns: by name, in the order of the fields of the position.
        is_first_needed: every position has a value in the first column.
    """

    make: type[Position]
    columns: Mapping[str, Column]
    is_first_needed: bool = False

    def write(self, rows: Sequence[tuple[str, Position]]) -> dict[str, Any]:
        names, positions = zip(*rows, strict=True)
        table: dict[str, Any] = {"splits": write_names(names)}
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
            raise ValueError(f"{next(iter(self.columns))!r} lacks the value of a split: {table!r}")
        return zip(splits, map(self.make, *columns), strict=True)


_KINDS: Final[Mapping[str, _Kind]] = {
    "after": _Kind(
        After,
        {
            "number": NUMBER,
            "sub": INTEGER,
            "next": NUMBER,
            "arrival": MILLIS,
            "idle": MILLIS,
            "quiet": MILLIS,
        },
        is_first_needed=True,
    ),
    "horizon": _Kind(AtHorizon, {"next": NUMBER, "pinned": MILLIS, "idle": MILLIS}),
    "time": _Kind(
        AtTime,
        {"at": INTEGER, "pinned": MILLIS, "idle": MILLIS, "number": NUMBER},
        is_first_needed=True,
    ),
    "closed": _Kind(Closed, {"quiet": MILLIS, "unlisted": MILLIS}),
}
_KIND_OF: Final = {kind.make: name for name, kind in _KINDS.items()}
