"""The JSON forms of positions: an object for each split (version 1 of the offsets), or tables (version 2).

`offsets` explains the keys of an object. A table has them as columns::

    {
      "after": {
        "splits": "shardId-00000000{0000..4095,5000}",
        "number": {"like": "205c2f76b0000000000......005c2f9...00....2", "digits": "…"},
        "arrival": {"from": 1795321674933, "plus": "0 12 - 900*3 …"}
      },
      "closed": {"splits": "shardId-000000000{100..511}"}
    }

There is a table for each kind of position: ``after``, ``horizon``, ``time`` and ``closed``. Row n of
every column belongs to the n-th split. Column ``number`` of ``after`` is the key ``after`` of an object.
``at``, the instant of a ``time``, is in microseconds, other instants are in milliseconds. Empty columns
are omitted. Readers ignore unknown columns, and reject unknown kinds. `sluice.source.model.columns`
explains the values.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from sluice.instants import iso_instant, parse_instant
from sluice.source.model.columns import INTEGER, MILLIS, NAMES_KEPT, NUMBER, Column, read_names, write_names
from sluice.source.model.positions import After, AtHorizon, AtTime, Closed, Position, checked_number
from sluice.source.model.splits import SplitId

__all__ = ["columns_from_json", "columns_to_json", "positions_from_json", "positions_to_json"]


@dataclass(frozen=True)
class _Kind:
    """A kind of position.

    Attributes:
        make: makes a position from the values of the columns.
        columns: by name, in the order of the position's fields.
        is_first_needed: every position has a value in the first column.
    """

    make: type[Position]
    columns: Mapping[str, Column]
    is_first_needed: bool = False

    @property
    def fields(self) -> dict[str, str]:
        """By column, the field of the position."""
        return dict(zip(self.columns, (field.name for field in fields(self.make)), strict=True))

    def write(self, rows: Sequence[tuple[str, Position]]) -> dict[str, Any]:
        names, positions = zip(*rows, strict=True)
        table: dict[str, Any] = {"splits": write_names(names)}
        for name, field in self.fields.items():
            values = [getattr(position, field) for position in positions]
            if any(value is not None for value in values):
                table[name] = self.columns[name].write(values)
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


# --- objects ------------------------------------------------------------------------------------------


def positions_to_json(positions: Mapping[SplitId, Position]) -> dict[str, dict[str, Any]]:
    """Writes an object for each split, by stream."""
    streams: dict[str, dict[str, Any]] = {}
    for split, position in sorted(positions.items(), key=operator.itemgetter(0)):
        streams.setdefault(split.stream, {})[split.shard] = _object_of(position)
    return streams


def positions_from_json(streams: Mapping[str, Any]) -> dict[SplitId, Position]:
    """Reads the objects of every stream.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: these are not such objects.
    """
    return {
        SplitId(stream, shard): _position_of(value)
        for stream, shards in streams.items()
        for shard, value in shards.items()
    }


def _object_of(position: Position) -> dict[str, Any]:
    kind = _KINDS[_KIND_OF[type(position)]]
    value = {
        name: found // 1000 if kind.columns[name] is MILLIS else found
        for name, field in kind.fields.items()
        if (found := getattr(position, field)) is not None
    }
    match position:
        case After():
            return {"after": value.pop("number"), **value}
        case AtTime(instant=instant):
            return value | {"at": iso_instant(instant)}
        case AtHorizon():
            return {"at": "TRIM_HORIZON", **value}
        case Closed():
            return {"closed": True, **value}


def _position_of(value: Mapping[str, Any]) -> Position:
    if value.get("closed") is True:
        name = "closed"
    elif "after" in value:
        name, value = "after", {**value, "number": value["after"]}
    elif value["at"] == "TRIM_HORIZON":
        name = "horizon"
    else:
        name, value = "time", {**value, "at": parse_instant(value["at"])}
    kind = _KINDS[name]
    return kind.make(*(_one_of(column, value.get(key)) for key, column in kind.columns.items()))


def _one_of(column: Column, value: Any) -> Any:
    if column is NUMBER:
        return None if value is None else checked_number(value)
    return None if value is None else int(value) * (1000 if column is MILLIS else 1)


# --- tables -------------------------------------------------------------------------------------------


def columns_to_json(positions: Mapping[SplitId, Position]) -> dict[str, dict[str, Any]]:
    """Writes the tables of every stream."""
    found: dict[str, dict[str, list[tuple[str, Position]]]] = {}
    for split, position in sorted(positions.items(), key=operator.itemgetter(0)):
        tables = found.setdefault(split.stream, {})
        tables.setdefault(_KIND_OF[type(position)], []).append((split.shard, position))
    return {
        stream: {kind: _KINDS[kind].write(rows) for kind, rows in sorted(tables.items())}
        for stream, tables in found.items()
    }


def columns_from_json(streams: Mapping[str, Any]) -> dict[SplitId, Position]:
    """Reads the tables of every stream.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: these are not such tables.
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
