"""Checks what a source gives: a source that breaks a rule is told which one, and not read wrongly."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sluice.errors import SourceRuleError
from sluice.source.log_source import LogSource
from sluice.source.splits import SplitId

if TYPE_CHECKING:
    import pyarrow as pa

    from sluice.source.contracts import Source

__all__ = ["checked_offsets", "checked_rows", "lag_by_stream"]


def checked_offsets(source: Source, offsets: Any) -> dict[str, Any]:
    """Offsets as JSON.

    Raises:
        SourceRuleError: they would not come back from Spark's log as they are.
    """
    value = source.offsets_to_json(offsets)
    if type(source).offsets_to_json is LogSource.offsets_to_json:
        return value  # our own code made it, and writing 10,000 splits once more takes a while
    try:
        text = json.dumps(value)
    except (TypeError, ValueError) as error:
        raise SourceRuleError(f"source {source.name}: offsets are JSON: {error}: {value!r}") from error
    if json.loads(text) != value:
        raise SourceRuleError(
            f"source {source.name}: offsets come back from JSON as they were, so keys are text and "
            f"sequences are lists: {value!r}"
        )
    return value


def checked_rows(
    source: Source, ranges: Sequence[Any], rows: Iterable[pa.RecordBatch], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows with exactly the types that Spark expects.

    Args:
        source: declares a schema, which may have other types of Arrow for the same types of Spark.
        ranges: what the task reads, for errors.
        rows: what it has read.
        schema: as Spark makes it of the source's.

    Raises:
        SourceRuleError: rows have other columns than the source says.
    """
    declared: pa.Schema | None = None
    for batch in rows:
        if batch.schema.equals(schema):
            yield batch
            continue
        if declared is None:
            own = source.schema()
            declared = schema if isinstance(own, str) else own
        if not _is_same(batch.schema, declared):
            splits = ", ".join(dict.fromkeys(str(getattr(each, "split", each)) for each in ranges))
            raise SourceRuleError(
                f"source {source.name}, split {splits}: rows have the columns of schema(): it says "
                f"{_shown(declared)}, and rows have {_shown(batch.schema)}"
            )
        columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
        yield type(batch).from_arrays(columns, schema=schema)


def lag_by_stream(lag: Mapping[Any, int]) -> dict[str, Any]:
    """How far splits are behind (milliseconds): by stream and shard for a log, else by split."""
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
