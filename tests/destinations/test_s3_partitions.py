"""Destination s3, partitionBy: each row is in the directory of its own values, for any values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from sluice.destinations.files.layout import hive_escaped
from sluice.destinations.files.partitions import Partitioning
from sluice.errors import InvalidRecordError

NULL = "__HIVE_DEFAULT_PARTITION__"
SPARK: dict[pa.DataType, t.DataType] = {
    pa.int32(): t.IntegerType(),
    pa.int64(): t.LongType(),
    pa.string(): t.StringType(),
    pa.bool_(): t.BooleanType(),
    pa.date32(): t.DateType(),
}


def split(names: Sequence[str], columns: Sequence[Any]) -> list[tuple[str, list[int]]]:
    """The directories of a batch with the numbers of their rows, as they come."""
    batch = pa.record_batch([*columns, pa.array(range(len(columns[0])))], names=[*names, "row"])
    fields = [t.StructField(name, SPARK[column.type]) for name, column in zip(names, columns, strict=True)]
    schema = t.StructType([*fields, t.StructField("row", t.LongType())])
    return [
        (directory, rows["row"].to_pylist()) for directory, rows in Partitioning(names, schema).split(batch)
    ]


def test_any_number_of_distinct_values() -> None:
    """The product of what six columns have passes 2^63: numbers that wrap around would mix directories up."""
    count, names = 10_000, [f"c{number}" for number in range(6)]
    columns = [
        pa.array([(row + number) % count for row in range(count)], pa.int32()) for number in range(len(names))
    ]
    found = split(names, columns)

    assert len(found) == count
    for directory, (row,) in found:
        assert directory == "".join(f"c{number}={(row + number) % count}/" for number in range(6))


VALUES = {
    pa.int64(): st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1),
    pa.string(): st.sampled_from(["", "a", "b/=", NULL]) | st.text(max_size=3),
    pa.bool_(): st.booleans(),
}


@st.composite
def batches(draw: Any) -> list[pa.Array]:
    count = draw(st.integers(1, 30))
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=5))
    return [
        pa.array(draw(st.lists(st.none() | VALUES[kind], min_size=count, max_size=count)), kind)
        for kind in kinds
    ]


@settings(max_examples=200)
@given(batches())
def test_each_row_is_in_the_directory_of_its_values(columns: list[pa.Array]) -> None:
    """Each directory comes once, and rows keep their order in it."""
    names = [f"c {number}" for number in range(len(columns))]
    expected: dict[str, list[int]] = {}
    for row, values in enumerate(zip(*(column.to_pylist() for column in columns), strict=True)):
        texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
        directory = "".join(
            f"{name}={NULL if value is None or value == '' else hive_escaped(text)}/"
            for name, value, text in zip(names, values, texts, strict=True)
        )
        expected.setdefault(directory, []).append(row)
    found = split(names, columns)

    assert dict(found) == expected
    assert len(found) == len(expected)


def test_dates_beyond_the_calendar_of_python() -> None:
    """As Spark writes them: with a sign from the year 10000 on."""
    days = pa.array([0, 3_663_382, -719_529, None], pa.date32())

    assert [directory for directory, _ in split(["day"], [days])] == [
        "day=1970-01-01/",
        "day=+12000-01-01/",
        "day=-0001-12-31/",
        f"day={NULL}/",
    ]


def test_a_string_that_is_no_utf8_is_refused() -> None:
    """By the name of the column: no key can hold it."""
    column = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"], pa.binary()).buffers())
    with pytest.raises(InvalidRecordError, match="column 'text' has a string that is not UTF-8"):
        split(["text"], [column])


@pytest.mark.parametrize("character", ["\ufffe", "\uffff"])
def test_a_string_that_no_listing_can_hold_is_refused(character: str) -> None:
    """S3 lists keys in XML, which has no such character: nobody would find the file."""
    with pytest.raises(InvalidRecordError, match="column 'text' has a string with U"):
        split(["text"], [pa.array(["fine", f"a{character}"])])
