"""Spark values as DynamoDB values, compared with the SDK's own serializer and deserializer."""

from __future__ import annotations

import math
import struct
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from boto3.dynamodb.types import TypeDeserializer
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark

from sluice.destinations.dynamodb.values import (
    UnsupportedValueError,
    canonical,
    serializer,
    size_of_item,
    unsupported_type,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def same(kind: Any, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(st.just(kind), values.map(lambda value: (value, value)))


def as_float(value: float) -> float:
    result: float = struct.unpack("f", struct.pack("f", value))[0]
    return result


in_range = st.floats(allow_nan=False, allow_infinity=False).filter(
    lambda value: value == 0 or 1e-130 <= abs(value) <= 9.99e125
)
in_float_range = st.floats(allow_nan=False, allow_infinity=False, width=32)
decimals = st.decimals(
    min_value=1 - 10**28, max_value=10**28 - 1, places=10, allow_nan=False, allow_infinity=False
)
naive = st.datetimes()
instants = st.datetimes(
    min_value=datetime(1, 1, 3),  # noqa: DTZ001 - Hypothesis wants it so
    max_value=datetime(9999, 12, 29),  # noqa: DTZ001
    timezones=st.just(timezone.utc),
)

scalars = st.one_of(
    same(pa.string(), TEXT),
    same(pa.large_string(), TEXT),
    same(pa.bool_(), st.booleans()),
    st.tuples(st.just(pa.binary()), st.binary(max_size=8).map(lambda value: (value, value))),
    same(pa.int8(), st.integers(-128, 127)),
    same(pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just(pa.float64()), in_range.map(lambda value: (value, Decimal(repr(value))))),
    st.tuples(st.just(pa.decimal128(38, 10)), decimals.map(lambda value: (value, value))),
    st.tuples(st.just(pa.date32()), st.dates().map(lambda value: (value, value.isoformat()))),
    st.tuples(
        st.just(pa.timestamp("us", "UTC")),
        instants.map(lambda at: (at, at.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z")),
    ),
    st.tuples(st.just(pa.timestamp("us")), naive.map(lambda at: (at, at.isoformat(timespec="microseconds")))),
)


@st.composite
def nested(draw: st.DrawFn, depth: int = 3) -> Any:
    """(Arrow type, (value to write, value that is read)). Nulls may be inside, but not at the top."""
    shape = draw(st.sampled_from(["scalar", "list", "map", "struct"])) if depth else "scalar"
    if shape == "scalar":
        return draw(scalars)
    if shape == "struct":
        parts = draw(st.dictionaries(TEXT.filter(bool), nested(depth - 1), min_size=1, max_size=3))
        absent = draw(st.sets(st.sampled_from(sorted(parts))))
        kind = pa.struct([pa.field(name, part[0]) for name, part in parts.items()])
        written = {name: None if name in absent else part[1][0] for name, part in parts.items()}
        read = {name: part[1][1] for name, part in parts.items() if name not in absent}
        return kind, (written, read)
    kind, value = draw(nested(depth - 1))
    several = draw(st.lists(st.sampled_from([value, (None, None)]), max_size=3))
    if shape == "list":
        return pa.list_(kind), ([each[0] for each in several], [each[1] for each in several])
    keys = draw(st.lists(TEXT.filter(bool), min_size=len(several), max_size=len(several), unique=True))
    pairs = list(zip(keys, several, strict=True))
    written_pairs = [(key, each[0]) for key, each in pairs]
    return pa.map_(pa.string(), kind), (written_pairs, {key: each[1] for key, each in pairs})


def read(value: Any) -> Any:
    """The value as the SDK reads it, with bytes in the place of its class for binary values."""

    def plain(each: Any) -> Any:
        if isinstance(each, dict):
            return {key: plain(inner) for key, inner in each.items()}
        if isinstance(each, list):
            return [plain(inner) for inner in each]
        return bytes(each) if hasattr(each, "value") else each

    return plain(TypeDeserializer().deserialize(value))


@given(nested())
def test_what_is_written_is_what_is_read(drawn: Any) -> None:
    """The SDK reads values as the documentation says, at any depth."""
    kind, (written, expected) = drawn
    (value,) = pa.array([written], kind).to_pylist()

    assert read(serializer(kind)(value)) == expected


@given(in_float_range)
def test_floats_are_the_shortest_numbers_that_are_the_same_float(value: float) -> None:
    """0.1 in a float column is 0.1 in the table, and is the same float when it is read."""
    (stored,) = pa.array([value], pa.float32()).to_pylist()
    if stored and abs(stored) < 1e-130:
        return
    text = serializer(pa.float32())(stored)["N"]

    assert as_float(float(text)) == stored
    assert len(text.replace("-", "").replace(".", "").split("e")[0].strip("0")) <= 9


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinities_are_refused(kind: Any, value: float) -> None:
    """In arrays, too."""
    with pytest.raises(UnsupportedValueError, match="NaN or infinite"):
        serializer(kind)(value)
    with pytest.raises(UnsupportedValueError, match="NaN or infinite"):
        serializer(pa.list_(kind))([1.0, value])


@pytest.mark.parametrize("value", [1e126, -1e126, 1e-131, 5e-324, 1.7e308])
def test_numbers_out_of_range_are_refused(value: float) -> None:
    """DynamoDB's numbers go from 1E-130 to 9.99E+125, and their negatives."""
    with pytest.raises(UnsupportedValueError, match="beyond DynamoDB's numbers"):
        serializer(pa.float64())(value)
    assert serializer(pa.float64())(1e125)


def test_decimals_have_38_digits() -> None:
    """As many as Spark's. A wider Arrow decimal is refused if it needs more."""
    widest = Decimal("9" * 38)
    kind = pa.decimal128(38, 0)

    assert serializer(kind)(pa.array([widest], kind)[0].as_py()) == {"N": "9" * 38}
    assert serializer(pa.decimal128(38, 38))(Decimal("1E-38"))["N"] == "0." + "0" * 37 + "1"
    assert serializer(pa.decimal256(76, 0))(Decimal("1" + "0" * 60)) == {"N": "1" + "0" * 60}
    assert serializer(kind)(Decimal("0.00")) == {"N": "0"}
    with pytest.raises(UnsupportedValueError, match="more than 38 digits"):
        serializer(pa.decimal256(76, 0))(Decimal("9" * 39))


def test_timestamps_are_text_that_sorts() -> None:
    """ISO 8601 in UTC, always with microseconds; without Z for a timestamp_ntz. Dates have no time."""
    at = datetime(2026, 11, 21, 12, 0, tzinfo=timezone(timedelta(hours=2)))

    assert serializer(pa.timestamp("us", "UTC"))(at) == {"S": "2026-11-21T10:00:00.000000Z"}
    assert serializer(pa.timestamp("us"))(at.replace(tzinfo=None)) == {"S": "2026-11-21T12:00:00.000000"}
    assert serializer(pa.date32())(date(987, 1, 2)) == {"S": "0987-01-02"}


def test_an_empty_key_of_a_map_is_refused() -> None:
    """An attribute needs a name."""
    with pytest.raises(UnsupportedValueError, match="empty key"):
        serializer(pa.map_(pa.string(), pa.int32()))([("", 1)])


def test_a_value_of_an_unsupported_type_is_refused() -> None:
    """When `open` was not called."""
    with pytest.raises(UnsupportedValueError, match="holds a timedelta"):
        serializer(pa.duration("us"))(timedelta(1))


@pytest.mark.parametrize(
    ("attributes", "size"),
    [
        ({"id": {"S": "abc"}}, 2 + 3),
        ({"ü": {"S": "€"}}, 2 + 3),
        ({"b": {"B": b"\x00\x01"}}, 1 + 2),
        ({"t": {"BOOL": True}, "n": {"NULL": True}}, 1 + 1 + 1 + 1),
        ({"n": {"N": "0"}}, 1 + 1),
        ({"n": {"N": "7"}}, 1 + 2),
        ({"n": {"N": "123"}}, 1 + 3),
        ({"n": {"N": "-123"}}, 1 + 4),
        ({"n": {"N": "0.00120"}}, 1 + 2),
        ({"n": {"N": "1.25e+30"}}, 1 + 3),
        ({"l": {"L": []}}, 1 + 3),
        ({"l": {"L": [{"S": "ab"}, {"NULL": True}]}}, 1 + 3 + (1 + 2) + (1 + 1)),
        ({"m": {"M": {"key": {"S": "v"}}}}, 1 + 3 + (1 + 3 + 1)),
        ({"m": {"M": {"l": {"L": [{"BOOL": True}]}}}}, 1 + 3 + (1 + 1 + 3 + (1 + 1))),
    ],
)
def test_sizes_are_those_the_service_counts(attributes: Any, size: int) -> None:
    """Names and text in UTF-8; numbers by digits; 3 bytes for a list or a map, and 1 for each element."""
    assert size_of_item(attributes) == size


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({"N": "1.0"}, {"N": "1"}, True),
        ({"N": "1e+2"}, {"N": "100"}, True),
        ({"N": "1"}, {"S": "1"}, False),
        ({"B": b"a"}, {"B": bytearray(b"a")}, True),
        ({"M": {"a": {"N": "1"}, "b": {"S": ""}}}, {"M": {"b": {"S": ""}, "a": {"N": "1.00"}}}, True),
        ({"L": [{"N": "1"}, {"N": "2"}]}, {"L": [{"N": "2"}, {"N": "1"}]}, False),
    ],
)
def test_equal_values_have_equal_canonical_forms(one: Any, other: Any, equal: bool) -> None:
    """Although the service may write them differently."""
    assert (canonical(one) == canonical(other)) is equal
    assert len({canonical(one), canonical(other)}) == 2 - equal


DEEP: Any = spark.StringType()
for _ in range(31):
    DEEP = spark.ArrayType(DEEP)


@pytest.mark.parametrize(
    "kind",
    [
        spark.DecimalType(38, 18),
        spark.TimestampNTZType(),
        spark.NullType(),
        spark.VarcharType(3),
        spark.StringType("UNICODE"),
        spark.MapType(spark.StringType(), spark.ArrayType(spark.BinaryType())),
        spark.StructType([spark.StructField("a", spark.FloatType())]),
        DEEP,
    ],
)
def test_types_that_a_table_can_hold(kind: Any) -> None:
    """Most types of Spark, nested up to 32 levels."""
    assert unsupported_type(kind) is None


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (
            spark.DayTimeIntervalType(),
            "has type interval day to second, which DynamoDB does not have",
        ),
        (spark.ArrayType(spark.VariantType()), "has type variant"),
        (
            spark.MapType(spark.IntegerType(), spark.StringType()),
            "has a map with keys of type int: allowed is",
        ),
        (
            spark.StructType(
                [spark.StructField("a", spark.StringType()), spark.StructField("a", spark.LongType())]
            ),
            "two fields of the same name",
        ),
        (spark.StructType([spark.StructField("", spark.StringType())]), "without a name"),
        (spark.ArrayType(DEEP), "is nested deeper than 32 levels"),
    ],
)
def test_types_that_a_table_cannot_hold(kind: Any, why: str) -> None:
    """They are refused when the query starts."""
    assert why in str(unsupported_type(kind))
