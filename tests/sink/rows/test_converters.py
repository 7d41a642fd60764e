"""The ready element converter, `JsonConverter`, alone and in front of a destination's own converter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from sluice.errors import InvalidRecordError, OptionError, SluiceError
from sluice.sink.converters import DataConverter, JsonConverter

NOW = datetime(2026, 11, 21, 10, 0, 0, 123456, tzinfo=timezone.utc)
SCHEMA = t.StructType(
    [
        t.StructField("id", t.LongType(), nullable=False),
        t.StructField("small", t.ByteType()),
        t.StructField("price", t.DecimalType(10, 2)),
        t.StructField("ratio", t.DoubleType()),
        t.StructField("single", t.FloatType()),
        t.StructField("name", t.StringType()),
        t.StructField("raw", t.BinaryType()),
        t.StructField("yes", t.BooleanType()),
        t.StructField("day", t.DateType()),
        t.StructField("at", t.TimestampType()),
        t.StructField("local", t.TimestampNTZType()),
        t.StructField("tags", t.ArrayType(t.StringType())),
        t.StructField("counts", t.MapType(t.StringType(), t.IntegerType())),
        t.StructField("inner", t.StructType([t.StructField("at", t.TimestampType())])),
    ]
)
ROW: dict[str, Any] = {
    "id": 2**53 + 1,
    "small": -1,
    "price": Decimal("12345678.90"),
    "ratio": 0.1,
    "single": 0.5,
    "name": "grün",
    "raw": b"\x00\xff",
    "yes": True,
    "day": date(2026, 11, 21),
    "at": NOW,
    "local": NOW.replace(tzinfo=None),
    "tags": ["a", None],
    "counts": [("x", 1), ("y", None)],
    "inner": {"at": NOW},
}
NOTHING: dict[str, Any] = dict.fromkeys(ROW) | {"id": 0}
UTC = pa.timestamp("us", "Europe/Berlin")
ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int8()),
        ("price", pa.decimal128(10, 2)),
        ("ratio", pa.float64()),
        ("single", pa.float32()),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("yes", pa.bool_()),
        ("day", pa.date32()),
        ("at", UTC),
        ("local", pa.timestamp("us")),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int32())),
        ("inner", pa.struct([("at", UTC)])),
    ]
)


def batch(*rows: dict[str, Any], schema: pa.Schema = ARROW) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema)


def one(
    name: str, spark: t.DataType, arrow: pa.DataType, *values: Any
) -> tuple[t.StructType, pa.RecordBatch]:
    return t.StructType([t.StructField(name, spark)]), pa.record_batch(
        [pa.array(values, arrow)], names=[name]
    )


def opened(converter: DataConverter, schema: Any = SCHEMA) -> DataConverter:
    converter.open(schema)
    return converter


class OwnConverter:
    """The converter of a destination with a key in addition to its data."""

    data_column = "Data"
    data_form = "bytes"
    known_columns = ("Data", "partitionKey")

    def __init__(self) -> None:
        self.columns: list[tuple[str, str]] = []

    def open(self, schema: Any) -> None:
        self.columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]

    def convert(self, batch: pa.RecordBatch) -> Iterator[tuple[bytes, str | None]]:
        keys = batch.column("PARTITIONKEY").to_pylist() if "PARTITIONKEY" in batch.schema.names else None
        for n, data in enumerate(batch.column("Data").to_pylist()):
            yield data, keys[n] if keys else None


class Destination:
    name = "fake"

    def __init__(self, own: Any) -> None:
        self.own = own

    def create_converter(self) -> Any:
        return self.own


# --- JSON -------------------------------------------------------------------------------------------------


def test_json_is_as_spark_writes_it() -> None:
    """Nulls are left out, binary is base64, timestamps are in UTC, decimals keep their digits."""
    first, second = opened(JsonConverter()).convert(batch(ROW, NOTHING))

    assert json.loads(first, parse_float=Decimal) == {
        "id": 2**53 + 1,
        "small": -1,
        "price": Decimal("12345678.90"),
        "ratio": Decimal("0.1"),
        "single": Decimal("0.5"),
        "name": "grün",
        "raw": "AP8=",
        "yes": True,
        "day": "2026-11-21",
        "at": "2026-11-21T10:00:00.123456Z",
        "local": "2026-11-21T10:00:00.123456",
        "tags": ["a", None],
        "counts": {"x": 1, "y": None},
        "inner": {"at": "2026-11-21T10:00:00.123456Z"},
    }
    assert second == b'{"id":0}'


@pytest.mark.parametrize(
    ("zone", "micros", "text"),
    [
        ("UTC", 0, "1970-01-01T00:00:00.000Z"),
        ("Europe/Berlin", 100_000, "1970-01-01T00:00:00.100Z"),
        ("UTC", 120_450, "1970-01-01T00:00:00.120450Z"),
        (None, -1_000_000, "1969-12-31T23:59:59.000"),
        (None, 1, "1970-01-01T00:00:00.000001"),
        (None, -62_135_596_800_000_000, "0001-01-01T00:00:00.000"),
    ],
)
def test_timestamps_have_three_digits_of_a_second_or_six(zone: str | None, micros: int, text: str) -> None:
    """Spark writes three; what these do not hold is not cut off."""
    rows = pa.record_batch({"at": pa.array([micros], pa.timestamp("us", zone))})

    assert list(JsonConverter().convert(rows)) == [b'{"at":"%b"}' % text.encode()]


def test_numbers_that_json_lacks_are_text() -> None:
    """As Spark reads them."""
    schema, rows = one("x", t.DoubleType(), pa.float64(), float("nan"), float("inf"), float("-inf"))

    assert list(opened(JsonConverter(), schema).convert(rows)) == [
        *(b'{"x":"NaN"}', b'{"x":"Infinity"}', b'{"x":"-Infinity"}'),
    ]


@pytest.mark.parametrize(
    "kind", [t.DayTimeIntervalType(), t.MapType(t.IntegerType(), t.StringType()), t.NullType()]
)
def test_types_without_a_form_are_refused(kind: t.DataType) -> None:
    """Before any row."""
    with pytest.raises(OptionError, match=r"has no form for.*column 'x'"):
        JsonConverter().open(t.StructType([t.StructField("x", kind)]))


def test_a_value_that_python_cannot_hold_is_an_invalid_row() -> None:
    """Such as the year 10000. It becomes a dead letter, and does not fail every attempt of the task."""
    microseconds = 253_402_300_800_000_000
    schema, rows = one("at", t.TimestampType(), pa.timestamp("us", "UTC"), 0, microseconds)
    converter = opened(JsonConverter(), schema)

    with pytest.raises(InvalidRecordError, match=r"one of rows 0 to 1 of a batch .* cannot be written as"):
        list(converter.convert(rows))
    with pytest.raises(InvalidRecordError, match=r"row 0 of a batch"):
        list(converter.convert(rows.slice(1)))
    assert len(list(converter.convert(rows.slice(0, 1)))) == 1


def end_early(row: int) -> bytes:
    """As `next` of an iterator that is empty, which `map` takes for the end of its rows."""
    if row == 2:
        raise StopIteration
    return b"data"


@pytest.mark.parametrize(
    ("serialized", "count"),
    [
        (lambda rows: map(end_early, range(rows)), 2),
        (lambda rows: [b"data"] * (rows + 1), 5),
        (lambda _: [], 0),
    ],
)
def test_a_converter_that_serializes_more_or_fewer_rows_is_refused(
    serialized: Callable[[int], Any], count: int
) -> None:
    """Rows would be lost, or data go with the key of another row."""

    class Careless(DataConverter):
        format_name = "notes"

        def check(self, schema: Any) -> None: ...

        def serialize(self, batch: pa.RecordBatch) -> Any:
            return serialized(batch.num_rows)

    with pytest.raises(SluiceError, match=f"^serialize of Careless made {count} data of 4 rows"):
        list(Careless().convert(batch(*[{}] * 4)))


# --- in front of a destination's own converter ------------------------------------------------------------


def test_columns_other_than_the_data_are_the_destinations() -> None:
    """They are not in the data, and the destination checks them. Other names are, even that of the data."""
    own = OwnConverter()
    converter = JsonConverter(Destination(own))  # type: ignore[arg-type]
    columns = {"PARTITIONKEY": "k", "data": "x"}
    converter.open(t.StructType([t.StructField(name, t.StringType()) for name in columns]))
    rows = pa.record_batch([pa.array([value]) for value in columns.values()], names=list(columns))

    assert own.columns == [("PARTITIONKEY", "string"), ("Data", "binary")]
    assert list(converter.convert(rows)) == [(b'{"data":"x"}', "k")]


def test_a_destination_that_takes_no_such_data_is_refused() -> None:
    """Where the query starts."""
    with pytest.raises(OptionError, match="fake has no column of data that JSON could be"):
        JsonConverter(Destination(object()))  # type: ignore[arg-type]
    JsonConverter(Destination(type("Text", (OwnConverter,), {"data_form": "text"})()))  # type: ignore[arg-type]


def test_a_field_of_a_struct_occurs_once() -> None:
    """At any depth: no row with it could be written. Names that differ in case are two, as in to_json."""
    x = t.StructField("x", t.LongType())
    twice = t.ArrayType(t.StructType([t.StructField("y", t.StructType([x, x]))]))
    with pytest.raises(OptionError, match=r"columns have the same name: s\.y\.x$"):
        JsonConverter().open(t.StructType([t.StructField("s", twice)]))
    JsonConverter().open(
        t.StructType([x, t.StructField("X", t.StructType([x, t.StructField("X", t.LongType())]))])
    )
