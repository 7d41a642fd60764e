"""An instant is written as the same text in any time zone of the session."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from sluice.destinations.common.columns import python_values
from sluice.destinations.dynamodb.converter import DynamoDbRowConverter
from sluice.sink.rows.json_rows import JsonRows
from sluice.sink.rows.values import fields_of_row, in_utc, json_value

ZONES = ["UTC", "America/New_York", "Asia/Tokyo", "+14:00", "-12:00"]
FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
INSTANTS = [FIRST, FIRST + 1, -1, 0, 1_700_000_000_123_456, LAST - 1, LAST]


def types_of(stamp: pa.DataType) -> list[tuple[pa.DataType, Callable[[int], Any]]]:
    """Types with a timestamp in them, and a value of each for an instant."""
    return [
        (stamp, lambda at: at),
        (pa.list_(stamp), lambda at: [at, None]),
        (pa.large_list(stamp), lambda at: [at]),
        (pa.struct([("at", stamp), ("n", pa.int64())]), lambda at: {"at": at, "n": 1}),
        (pa.map_(pa.string(), pa.list_(stamp)), lambda at: [("k", [at])]),
    ]


def rows(zone: str, of: int) -> pa.RecordBatch:
    kind, value = types_of(pa.timestamp("us", zone))[of]
    column = pa.array([*map(value, INSTANTS), None], kind)
    return pa.record_batch([pa.array(map(str, range(len(column)))), column], names=["id", "t"])


def as_json(batch: pa.RecordBatch) -> Any:
    return [json.loads(msgspec.json.encode(row)) for row in JsonRows(batch.schema).of(batch)]


def as_items(batch: pa.RecordBatch) -> Any:
    return [each.attributes for each in DynamoDbRowConverter(key_columns=["id"]).convert(batch)]


def as_values(batch: pa.RecordBatch) -> Any:
    return python_values("any", "t", batch.column(1), 0)


def as_dead_letters(batch: pa.RecordBatch) -> Any:
    return [json_value(fields_of_row(batch.slice(row, 1))) for row in range(batch.num_rows)]


@pytest.mark.parametrize("form", [as_json, as_items, as_values, as_dead_letters])
@pytest.mark.parametrize("of", range(5), ids=["plain", "list", "large list", "struct", "map"])
@pytest.mark.parametrize("zone", ZONES)
def test_the_zone_of_the_session_changes_nothing(
    form: Callable[[pa.RecordBatch], Any], of: int, zone: str
) -> None:
    """At the edges of the calendar neither, where the same instant is in the year 0 or 10000 elsewhere."""
    assert form(rows(zone, of)) == form(rows("UTC", of))


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.string(), pa.list_(pa.int32()), pa.date32()])
def test_what_has_no_zone_stays_as_it_is(kind: pa.DataType) -> None:
    array = pa.array([None], kind)
    assert in_utc(array) is array
