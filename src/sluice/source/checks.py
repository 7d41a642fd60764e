"""Checks that what a source returns obeys the contracts; an error names the broken rule."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

from sluice.errors import SourceRuleError
from sluice.source.model.offsets import Offsets
from sluice.source.model.splits import SplitId

if TYPE_CHECKING:
    import pyarrow as pa


class _Source(Protocol):
    """The methods of a `sluice.source.Source` that this module calls."""

    name: ClassVar[str]

    def schema(self) -> pa.Schema | str: ...

    def offsets_to_json(self, offsets: Any) -> dict[str, Any]: ...

    def offsets_from_json(self, value: Mapping[str, Any]) -> Any: ...


__all__ = ["checked_offsets", "checked_rows", "lag_by_stream", "reread_offsets"]


def checked_offsets(source: _Source, offsets: Any) -> dict[str, Any]:
    """Converts offsets to JSON.

    Raises:
        SourceRuleError: Spark's log would change them.
    """
    value = source.offsets_to_json(offsets)
    if isinstance(offsets, Offsets):
        return value  # trusted, and serializing 10,000 splits again is slow
    try:
        text = json.dumps(value)
    except (TypeError, ValueError) as error:
        raise SourceRuleError(f"source {source.name}: offsets are JSON: {error}: {value!r}") from error
    logged: dict[str, Any] = json.loads(text)
    if logged != value:
        raise SourceRuleError(
            f"source {source.name}: offsets come back from JSON as they were, so keys are text and "
            f"sequences are lists: {value!r}"
        )
    return logged  # a copy: the enumerator may change its offsets


def reread_offsets(source: _Source, value: Mapping[str, Any]) -> Any:
    """Copies offsets through JSON, as Spark's log does.

    Args:
        value: the result of `checked_offsets`.
    """
    return source.offsets_from_json(json.loads(json.dumps(value)))


def checked_rows(
    source: _Source, ranges: Sequence[Any], rows: Iterable[pa.RecordBatch], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yields the rows with exactly the types that Spark expects.

    Args:
        source: may declare other Arrow types for the same Spark types.
        ranges: the ranges of the task, for errors.
        schema: Spark's form of the source's schema.

    Raises:
        SourceRuleError: rows do not fit the source's schema.
    """
    check = _RowCheck(source, ranges, schema)
    for batch in rows:
        yield check.checked(batch)


class _RowCheck:
    def __init__(self, source: _Source, ranges: Sequence[Any], schema: pa.Schema) -> None:
        self._source = source
        self._ranges = ranges
        self._schema = schema
        self._without_nulls = [place for place, field in enumerate(schema) if not field.nullable]
        self._declared: pa.Schema | None = None

    def checked(self, batch: Any) -> pa.RecordBatch:
        import pyarrow as pa  # noqa: PLC0415 - not on the driver host

        if not isinstance(batch, pa.RecordBatch):
            self._fail(f"rows come as pyarrow.RecordBatch, not as {type(batch).__name__}")
        if not batch.schema.equals(self._schema):
            batch = self._with_types(batch)
        for place in self._without_nulls:
            if batch.column(place).null_count:
                self._fail(f"column {self._schema.names[place]} is declared without nulls, and has one")
        return batch

    def _with_types(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._declared is None:
            own = self._source.schema()
            self._declared = self._schema if isinstance(own, str) else own
        if not _is_same(batch.schema, self._declared):
            self._fail(
                f"rows have the columns of schema(): it says {_shown(self._declared)}, and rows have "
                f"{_shown(batch.schema)}"
            )
        columns = map(self._cast, batch.columns, self._schema)
        return type(batch).from_arrays(list(columns), schema=self._schema)

    def _cast(self, column: pa.Array, field: pa.Field) -> pa.Array:
        try:
            return column.cast(field.type)
        except ValueError as error:  # Arrow's errors are ValueErrors
            self._fail(f"column {field.name} has a value that Spark's type {field.type} cannot hold: {error}")

    def _fail(self, rule: str) -> NoReturn:
        splits = ", ".join(dict.fromkeys(str(getattr(each, "split", each)) for each in self._ranges))
        raise SourceRuleError(f"source {self._source.name}, split {splits}: {rule}")


def lag_by_stream(lag: Mapping[Any, int]) -> dict[str, Any]:
    """Returns the lag of each split in milliseconds, by stream and shard for a log, else by split."""
    found: dict[str, Any] = {}
    for split, millis in sorted(lag.items()):
        if isinstance(split, SplitId):
            found.setdefault(split.stream, {})[split.shard] = millis
        else:
            found[str(split)] = millis
    return found


def _is_same(one: pa.Schema, other: pa.Schema) -> bool:
    return bool(one.equals(other) or (one.names == other.names and one.types == other.types))


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
