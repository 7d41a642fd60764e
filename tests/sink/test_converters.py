"""The ready element converters: JSON and Avro, alone and in front of a destination's own converter."""

from __future__ import annotations

import io
import json
import struct
import sys
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import types as t

from sluice.errors import InvalidRecordError, OptionError, SluiceError
from sluice.sink.avro_rows import avro_schema
from sluice.sink.converters import AvroConverter, DataConverter, JsonConverter

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
    """Of a destination with a key beside its data."""

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


def test_nulls_inside_of_other_types() -> None:
    """As by Spark: structs leave them out, arrays and maps keep them."""
    pair = pa.struct([("a", pa.int32()), ("b", pa.string())])
    null, half = {"a": None, "b": None}, {"a": None, "b": "x"}
    columns = {
        "s": pa.array([half], pair),
        "e": pa.array([null], pair),
        "l": pa.array([[null, None, half]], pa.list_(pair)),
        "m": pa.array([[("k", None), ("l", half)]], pa.map_(pa.string(), pair)),
        "n": pa.array([{"s": null}], pa.struct([("s", pair)])),
        "i": pa.array([[1, None]]),
    }

    assert list(JsonConverter().convert(pa.record_batch(columns))) == [
        b'{"s":{"b":"x"},"e":{},"l":[{},null,{"b":"x"}],"m":{"k":null,"l":{"b":"x"}},"n":{"s":{}},"i":[1,null]}'
    ]


def test_numbers_of_32_bits_have_their_own_digits() -> None:
    """And not those of the 64 bits that Python holds them in."""
    values = [0.1, 123456.7, 16777216.0, 3.4028235e38, 1.1754944e-38, -0.0, 3.3e-3, float("nan")]
    schema, rows = one("x", t.FloatType(), pa.float32(), *values)
    found = [json.loads(each)["x"] for each in opened(JsonConverter(), schema).convert(rows)]

    assert found == [*values[:-1], "NaN"]
    nested = pa.record_batch({"l": pa.array([[0.1, None]], pa.list_(pa.float32()))})
    assert list(JsonConverter().convert(nested)) == [b'{"l":[0.1,null]}']


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
    for converter in (JsonConverter(), AvroConverter()):
        with pytest.raises(OptionError, match=r"has no form for.*column 'x'"):
            converter.open(t.StructType([t.StructField("x", kind)]))


@pytest.mark.parametrize("make", [JsonConverter, AvroConverter])
def test_a_value_that_python_cannot_hold_is_an_invalid_row(make: type[DataConverter]) -> None:
    """Such as the year 10000. It becomes a dead letter, and does not fail every attempt of the task."""
    microseconds = 253_402_300_800_000_000
    schema, rows = one("at", t.TimestampType(), pa.timestamp("us", "UTC"), 0, microseconds)
    converter = opened(make(), schema)

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


def test_many_rows_keep_their_order() -> None:
    """They are serialized in several steps."""
    schema, rows = one("n", t.LongType(), pa.int64(), *range(3000))

    assert [json.loads(each)["n"] for each in opened(JsonConverter(), schema).convert(rows)] == [*range(3000)]


# --- in front of a destination's own converter ------------------------------------------------------------


def test_columns_beside_the_data_are_the_destinations() -> None:
    """They are not in the data, and the destination checks them. Other names are, even that of the data."""
    own = OwnConverter()
    converter = JsonConverter(Destination(own))  # type: ignore[arg-type]
    columns = {"PARTITIONKEY": "k", "data": "x"}
    converter.open(t.StructType([t.StructField(name, t.StringType()) for name in columns]))
    rows = pa.record_batch([pa.array([value]) for value in columns.values()], names=list(columns))

    assert own.columns == [("PARTITIONKEY", "string"), ("Data", "binary")]
    assert list(converter.convert(rows)) == [(b'{"data":"x"}', "k")]


@pytest.mark.parametrize(
    ("own", "make", "message"),
    [
        (type("Other", (), {}), JsonConverter, "fake has no column of data that JSON could be"),
        (
            type("Json", (OwnConverter,), {"data_form": "json"}),
            AvroConverter,
            "fake takes json, and Avro is not",
        ),
        (
            type("Text", (OwnConverter,), {"data_form": "text"}),
            AvroConverter,
            "fake takes text, and Avro is not",
        ),
    ],
)
def test_a_destination_that_takes_no_such_data_is_refused(
    own: Any, make: type[DataConverter], message: str
) -> None:
    """Where the query starts."""
    with pytest.raises(OptionError, match=message):
        make(Destination(own()))  # type: ignore[arg-type]
    JsonConverter(Destination(type("Text", (OwnConverter,), {"data_form": "text"})()))  # type: ignore[arg-type]


def test_something_must_be_left_to_serialize() -> None:
    """Once."""
    key = t.StructField("partitionKey", t.StringType())
    column = t.StructField("x", t.StringType())
    with pytest.raises(OptionError, match="there is no column to write as JSON"):
        JsonConverter(Destination(OwnConverter())).open(t.StructType([key]))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="columns are there twice: x"):
        JsonConverter().open(t.StructType([column, column]))


@pytest.mark.parametrize("make", [JsonConverter, AvroConverter])
def test_a_field_of_a_struct_is_there_once(make: type[DataConverter]) -> None:
    """At any depth: no row with it could be written. Names that differ in case are two, as in to_json."""
    x = t.StructField("x", t.LongType())
    twice = t.ArrayType(t.StructType([t.StructField("y", t.StructType([x, x]))]))
    with pytest.raises(OptionError, match=r"columns are there twice: s\.y\.x$"):
        make().open(t.StructType([t.StructField("s", twice)]))
    make().open(t.StructType([x, t.StructField("X", t.StructType([x, t.StructField("X", t.LongType())]))]))


# --- Avro -------------------------------------------------------------------------------------------------


def read(data: bytes, schema: Any) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(schema), None)


def test_avro_is_read_back_as_it_was() -> None:
    """With the schema made of the columns; a null is a null."""
    first, second = opened(AvroConverter()).convert(batch(ROW, NOTHING))
    schema = avro_schema(SCHEMA)

    assert read(first, schema) == ROW | {
        "counts": {"x": 1, "y": None},
        "at": NOW,
        # The library gives local times the zone in which their numbers count.
        "local": read(first, schema)["local"],
    }
    assert read(first, schema)["local"].replace(tzinfo=None) == ROW["local"]
    assert read(second, schema) == NOTHING


def test_the_schema_of_the_columns() -> None:
    """As that of Spark's to_avro: unions with null last, a record for each struct."""
    fields = {field["name"]: field["type"] for field in avro_schema(SCHEMA)["fields"]}

    assert fields["id"] == "long"
    assert fields["small"] == ["int", "null"]
    assert fields["price"] == [
        {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        "null",
    ]
    assert fields["tags"] == [{"type": "array", "items": ["string", "null"]}, "null"]
    assert fields["counts"] == [{"type": "map", "values": ["int", "null"]}, "null"]
    assert fields["inner"][0]["name"] == "topLevelRecord_inner"


def test_a_name_that_avro_does_not_take_is_refused() -> None:
    """With its path."""
    inner = t.StructType([t.StructField("two words", t.StringType())])
    with pytest.raises(OptionError, match=r"Avro has no form for a column called 'a\.two words'"):
        AvroConverter().open(t.StructType([t.StructField("a", inner)]))


GIVEN: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "kind", "type": "string", "default": "plain"},
    ],
}


def test_a_schema_of_ones_own() -> None:
    """Fields with a default need no column. The id goes ahead, as schema registries have it."""
    schema, rows = one("n", t.LongType(), pa.int64(), 7)
    (data,) = opened(AvroConverter(schema=GIVEN, schema_id=258), schema).convert(rows)

    assert struct.unpack(">bI", data[:5]) == (0, 258)
    assert read(data[5:], GIVEN) == {"n": 7, "kind": "plain"}


def test_a_schema_that_does_not_fit_is_refused() -> None:
    """With every column and field that does not."""
    schema, _ = one("kinds", t.StringType(), pa.string())
    with pytest.raises(OptionError) as caught:
        AvroConverter(schema=GIVEN).open(schema)

    assert "column 'kinds' is no field of it: did you mean 'kind'?" in str(caught.value)
    assert "field 'n' is no column, and has no default" in str(caught.value)


def test_a_row_that_does_not_fit_the_schema_is_invalid() -> None:
    """A null where there is none; the error has none of its data."""
    schema, rows = one("n", t.StringType(), pa.string(), "secret")
    with pytest.raises(InvalidRecordError, match="row 0 of a batch") as caught:
        list(opened(AvroConverter(schema=GIVEN), schema).convert(rows))
    assert "secret" not in str(caught.value)
    schema, rows = one("n", t.LongType(), pa.int64(), None)
    with pytest.raises(InvalidRecordError):
        list(opened(AvroConverter(schema=GIVEN), schema).convert(rows))


FLOATS = pa.list_(pa.float64())


@pytest.mark.parametrize(
    ("kind", "arrow", "value"),
    [
        ("int", pa.int64(), 2**40),
        ("int", pa.float64(), 1.5),
        ("boolean", pa.int64(), 5),
        ("float", pa.float64(), 1e300),
        ("float", pa.float64(), -3.5e38),
        (["null", "float"], pa.float64(), 1e300),
        ({"type": "array", "items": "float"}, FLOATS, [1.0, float("inf"), 1e39]),
    ],
)
def test_a_value_is_not_cut_to_what_a_type_holds(kind: Any, arrow: pa.DataType, value: Any) -> None:
    """A reader would have another number, and no error. The row has no form in Avro."""
    given = {"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}]}
    schema, rows = one("x", t.DoubleType(), arrow, value)
    with pytest.raises(InvalidRecordError, match="row 0 of a batch"):
        list(opened(AvroConverter(schema=given, schema_id=7), schema).convert(rows))


@pytest.mark.parametrize(
    ("kind", "arrow", "value"),
    [
        ("int", pa.int64(), 2**31 - 1),
        ("float", pa.float64(), 3.4e38),
        ("float", pa.float64(), float("-inf")),
        ("double", pa.int64(), 7),
        (["null", "double"], pa.decimal128(10, 2), Decimal("1.50")),
        ("int", pa.bool_(), True),
        (["null", "float", "double"], pa.float64(), 1e300),
        ({"type": "array", "items": "float"}, FLOATS, [float("inf"), float("-inf"), 0.5]),
    ],
)
def test_a_value_that_fits_a_type_other_than_its_columns(kind: Any, arrow: pa.DataType, value: Any) -> None:
    """It is written; a float has the digits that its 32 bits hold."""
    given = {"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}]}
    schema, rows = one("x", t.DoubleType(), arrow, value)
    (data,) = opened(AvroConverter(schema=given), schema).convert(rows)

    assert read(data, given)["x"] == (value if isinstance(value, list) else pytest.approx(float(value)))


def logical(name: str) -> dict[str, str]:
    return {"type": "int" if name == "date" else "long", "logicalType": name}


INSTANT, LOCAL = logical("timestamp-micros"), logical("local-timestamp-millis")
TS, NTZ = t.TimestampType(), t.TimestampNTZType()
AT = t.StructType([t.StructField("at", TS)])
TIMED = {"type": "record", "name": "Timed", "fields": [{"name": "at", "type": LOCAL}]}


@pytest.mark.parametrize(
    ("kind", "column", "path"),
    [
        (INSTANT, NTZ, "x"),
        (logical("timestamp-millis"), NTZ, "x"),
        (logical("date"), NTZ, "x"),
        (LOCAL, TS, "x"),
        (logical("date"), TS, "x"),
        (["null", INSTANT], NTZ, "x"),
        ({"type": "array", "items": ["null", INSTANT]}, t.ArrayType(NTZ), "x"),
        ({"type": "map", "values": LOCAL}, t.MapType(t.StringType(), TS), "x"),
        (TIMED, AT, "x.at"),
        # By its name, where a schema uses a record again.
        (
            {
                "type": "record",
                "name": "Two",
                "fields": [{"name": "a", "type": TIMED}, {"name": "b", "type": "Timed"}],
            },
            t.StructType(
                [t.StructField("a", t.StructType([t.StructField("at", NTZ)])), t.StructField("b", AT)]
            ),
            "x.b.at",
        ),
    ],
)
def test_a_time_does_not_become_another_kind_of_time(kind: Any, column: t.DataType, path: str) -> None:
    """What is written would depend on the time zone of the session, or of the host that a task runs on."""
    given = {"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}]}
    schema = t.StructType([t.StructField("x", column)])
    with pytest.raises(
        OptionError, match=f"column '{path}' is timestamp.*, and .* in it: allowed is .*micros$"
    ):
        AvroConverter(schema=given).open(schema)


@pytest.mark.parametrize(
    ("kind", "column"), [(INSTANT, TS), (["null", logical("local-timestamp-micros")], NTZ)]
)
def test_a_time_of_the_same_kind_is_taken(kind: Any, column: t.DataType) -> None:
    given = {"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}]}
    zone = "Asia/Tokyo" if column is TS else None
    schema, rows = one("x", column, pa.timestamp("us", zone), ROW["local"])
    (data,) = opened(AvroConverter(schema=given), schema).convert(rows)

    assert read(data, given)["x"].replace(tzinfo=None) == ROW["local"]


def test_a_time_that_python_has_no_form_for_is_written() -> None:
    """The year 33,658, beside a number of 32 bits, of which it is checked whether it has become infinity."""
    instant = {"type": "long", "logicalType": "timestamp-micros"}
    fields = [{"name": "x", "type": instant}, {"name": "y", "type": "float", "default": 0.0}]
    schema, rows = one("x", t.LongType(), pa.int64(), 10**18)
    given = {"type": "record", "name": "r", "fields": fields}

    assert len(list(opened(AvroConverter(schema=given), schema).convert(rows))) == 1


def test_structs_whose_paths_look_alike() -> None:
    """``a.b`` and ``a_b``: names of records are unique, and as they were where nothing is alike."""
    x = t.StructType([t.StructField("x", t.LongType())])
    alike = t.StructType(
        [
            t.StructField("a", t.StructType([t.StructField("b", x)])),
            t.StructField("a_b", x),
            t.StructField("a_b_2", t.ArrayType(x)),
            t.StructField("a_b_2_item", x),
        ]
    )
    arrow = pa.struct([("x", pa.int64())])
    row = {"a": {"b": {"x": 1}}, "a_b": {"x": 2}, "a_b_2": [{"x": 3}], "a_b_2_item": {"x": 4}}
    types = [pa.struct([("b", arrow)]), arrow, pa.list_(arrow), arrow]
    rows = batch(row, schema=pa.schema(list(zip(row, types, strict=True))))
    (data,) = opened(AvroConverter(), alike).convert(rows)
    names = [field["type"][0].get("name") for field in avro_schema(alike)["fields"]]

    assert read(data, avro_schema(alike)) == row
    assert names == [
        "topLevelRecord_a",
        "topLevelRecord_a_b_2",
        None,
        "topLevelRecord_a_b_2_item_2",
    ]


def test_a_field_inside_a_column_is_not_dropped() -> None:
    """A schema that lacks it fits no row."""
    inner = {"type": "record", "name": "inner", "fields": [{"name": "a", "type": "long"}]}
    given = {"type": "record", "name": "r", "fields": [{"name": "x", "type": inner}]}
    spark = t.StructType([t.StructField("a", t.LongType()), t.StructField("b", t.LongType())])
    schema, rows = one("x", spark, pa.struct([("a", pa.int64()), ("b", pa.int64())]), {"a": 1, "b": 2})
    with pytest.raises(InvalidRecordError):
        list(opened(AvroConverter(schema=given), schema).convert(rows))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "record", "name": "x"},
        {"type": "record", "fields": []},
        {**GIVEN, "fields": [{"name": "n", "type": "lng"}]},
    ],
)
def test_what_is_no_schema_is_refused(schema: dict[str, Any]) -> None:
    """With the library's reason."""
    with pytest.raises(OptionError, match="it is not an Avro schema: "):
        AvroConverter(schema=schema)


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra."""
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(OptionError, match=r"pip install 'pyspark-sluice\[avro\]'"):
        AvroConverter()
    JsonConverter()


def test_timestamps_before_1970() -> None:
    """And their microseconds."""
    before = datetime(1901, 2, 3, 4, 5, 6, 7, tzinfo=timezone.utc)
    schema, rows = one("at", t.TimestampType(), pa.timestamp("us", "UTC"), before)
    (data,) = opened(AvroConverter(), schema).convert(rows)

    assert read(data, avro_schema(schema))["at"] - before == timedelta(0)
