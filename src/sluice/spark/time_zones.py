"""Time zones of Spark's sessions that Python does not know.

Java knows more names of zones than the IANA's database: ``GMT+8``, ``UTC+3``, ``PST``, ``Z``. Slim
images lack that database entirely. Timestamps in an unknown zone cannot become Python values.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import pyarrow as pa

__all__ = ["in_known_time_zones"]

_KNOWN_EVERYWHERE = "UTC"


def in_known_time_zones(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the same rows; timestamps of zones that Python does not know are in UTC, also inside other
    types.

    They stay the same instants: in Arrow, the zone is part of the type, and not of the values.
    """
    given: pa.Schema | None = None
    schema: pa.Schema | None = None
    for batch in batches:
        if given is None or not batch.schema.equals(given, check_metadata=True):
            given = batch.schema
            schema = pa.schema([_known_field(each) for each in given], given.metadata)
        if schema is None or schema.equals(given):
            yield batch
            continue
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(batch.columns, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _known_field(field: pa.Field) -> pa.Field:
    return field.with_type(_known_type(field.type))


def _known_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, _known_zone(kind.tz))
    if types.is_large_list(kind):
        return pa.large_list(_known_field(kind.value_field))
    if types.is_list(kind):
        return pa.list_(_known_field(kind.value_field))
    if types.is_map(kind):
        return pa.map_(_known_field(kind.key_field), _known_field(kind.item_field), kind.keys_sorted)
    if types.is_struct(kind):
        return pa.struct([_known_field(each) for each in kind])
    return kind


@functools.cache
def _known_zone(zone: str) -> str:
    try:
        pa.scalar(0, pa.timestamp("us", zone)).as_py()
    except Exception:  # noqa: BLE001 - the error depends on what Arrow asks: zoneinfo, pytz or itself
        return _KNOWN_EVERYWHERE
    return zone
