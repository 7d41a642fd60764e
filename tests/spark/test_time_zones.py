"""Timestamps of sessions whose time zone Python does not know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructField, StructType, TimestampType

from sluice.sink import SinkLimits, SubmitResult
from sluice.spark.sink import AsyncSinkDataSource
from sluice.spark.time_zones import in_known_time_zones

INSTANT = datetime(2026, 1, 1, tzinfo=timezone.utc)
JAVA_ONLY = ["GMT+8", "GMT+08:00", "UTC+3", "UT", "Z", "PST", "SystemV/PST8", "+05:30:15"]


class Instants:
    def open(self, schema: Any) -> None:
        pass

    def convert(self, batch: pa.RecordBatch) -> Iterator[datetime]:
        yield from batch.column(0).to_pylist()


class Keeping:
    """A destination that keeps what it gets."""

    OPTIONS: ClassVar[Any] = ()
    LIMITS: ClassVar[SinkLimits] = SinkLimits(
        max_batch_size=10, max_batch_size_in_bytes=1000, max_record_size_in_bytes=100
    )
    kept: ClassVar[list[datetime]] = []

    @classmethod
    def from_options(cls, values: Any, connection: Any) -> Keeping:  # noqa: ARG003
        return cls()

    def create_converter(self) -> Instants:
        return Instants()

    def size_in_bytes(self, entry: datetime) -> int:  # noqa: ARG002
        return 8

    def submit(self, entries: Sequence[datetime]) -> SubmitResult[datetime]:
        self.kept.extend(entries)
        return SubmitResult()

    def is_fatal(self, error: Exception) -> bool:  # noqa: ARG002
        return True

    def close(self) -> None:
        pass


def rows(zone: str | None) -> pa.RecordBatch:
    return pa.record_batch({"at": pa.array([INSTANT.replace(tzinfo=None)], pa.timestamp("us", zone))})


@pytest.mark.parametrize("zone", [*JAVA_ONLY, "UTC", "+05:30", "Europe/Berlin"])
def test_rows_are_written_whatever_the_time_zone_of_the_session(zone: str) -> None:
    """Spark takes names that only Java knows: rows of such a session are as good as any."""
    Keeping.kept.clear()
    options = CaseInsensitiveDict({"destination": f"{__name__}:Keeping"})
    schema = StructType([StructField("at", TimestampType())])
    AsyncSinkDataSource(options).writer(schema, overwrite=False).write(iter([rows(zone)]))

    assert Keeping.kept == [INSTANT]


def nested(zone: str) -> pa.DataType:
    at = pa.timestamp("us", zone)
    pairs = pa.map_(at, pa.struct([pa.field("at", at, nullable=False), ("n", pa.int32())]))
    return pa.struct(
        [("list", pa.list_(at)), ("large", pa.large_list(at)), ("map", pairs), ("text", pa.string())]
    )


def test_timestamps_inside_other_types_are_in_a_known_zone_too() -> None:
    local = INSTANT.replace(tzinfo=None)
    row = {"list": [local, None], "large": [], "map": [(local, {"at": local, "n": None})], "text": "a"}
    schema = pa.schema([pa.field("s", nested("PST"), metadata={"k": "v"}), pa.field("n", pa.int64())])
    columns = [pa.array([None, row, None], nested("UTC")).cast(nested("PST")), pa.array([1, None, 3])]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    (found,) = in_known_time_zones([batch.slice(1)])

    assert found.schema.types == [nested("UTC"), pa.int64()]
    assert found.schema.field("s").metadata == {b"k": b"v"}
    assert found.column(0).to_pylist() == pa.array([row, None], nested("UTC")).to_pylist()
    assert found.column(1).to_pylist() == [None, 3]


def test_rows_that_python_can_hold_stay_as_they_are() -> None:
    """Batches of one task may differ, and those without rows are batches as well."""
    for batch in (rows("Europe/Berlin"), rows("+05:30"), rows(None), rows("UTC").slice(1)):
        given = [batch, rows("GMT+8"), batch]
        first, other, last = in_known_time_zones(given)

        assert first is given[0]
        assert last is given[2]
        assert other.schema == rows("UTC").schema
