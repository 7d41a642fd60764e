"""The figures of each split in progress reports: objects, or tables if there are many splits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sluice.source.model.columns import COMPACT_FROM, INTEGER, TEXT, Column, read_names, write_names
from sluice.source.model.splits import SplitId

__all__ = ["figures_from_json", "figures_to_json"]

_COLUMNS: Final[Mapping[str, Column]] = {
    "publisher": TEXT,
    "polled": INTEGER,
    "pushed": INTEGER,
    "bytes": INTEGER,
    "refused": INTEGER,
    "retries": INTEGER,
    "batchRecords": INTEGER,
    "batchBytes": INTEGER,
}


def figures_to_json(figures: Mapping[SplitId, Mapping[str, Any]]) -> dict[str, Any]:
    """Writes ``streams``, with an object for each split, or for more than 256 splits ``tables``, by
    columns.
    """
    streams: dict[str, dict[str, Mapping[str, Any]]] = {}
    for split, found in sorted(figures.items()):
        streams.setdefault(split.stream, {})[split.shard] = found
    if len(figures) < COMPACT_FROM:
        return {"streams": streams}
    return {"tables": {stream: _table(splits) for stream, splits in streams.items()}}


def figures_from_json(value: Mapping[str, Any]) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Reads the result of `figures_to_json`, by stream and split.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: `value` is something else.
    """
    streams: dict[str, dict[str, Mapping[str, Any]]] = {**value.get("streams", {})}
    for stream, table in value.get("tables", {}).items():
        known = [name for name in _COLUMNS if name in table]
        rows = zip(*(_COLUMNS[name].read(table[name]) for name in known), strict=True)
        named = zip(read_names(table["splits"]), rows, strict=True)
        streams[stream] = {split: dict(zip(known, row, strict=True)) for split, row in named}
    return streams


def _table(splits: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    columns = {
        name: column.write([found[name] for found in splits.values()]) for name, column in _COLUMNS.items()
    }
    return {"splits": write_names(tuple(splits)), **columns}
