"""The schema of rows that come without one: PySpark's, or names and types alone."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from sluice.sink.rows.schema import schema_of_rows

TYPES = [
    (pa.string(), "string"),
    (pa.large_string(), "string"),
    (pa.binary(), "binary"),
    (pa.large_binary(), "binary"),
    (pa.bool_(), "boolean"),
    (pa.int8(), "tinyint"),
    (pa.int16(), "smallint"),
    (pa.int32(), "int"),
    (pa.int64(), "bigint"),
    (pa.float32(), "float"),
    (pa.float64(), "double"),
    (pa.date32(), "date"),
    (pa.null(), "void"),
    (pa.timestamp("us"), "timestamp_ntz"),
    (pa.timestamp("us", tz="UTC"), "timestamp"),
    (pa.decimal128(10, 2), "decimal(10,2)"),
    (pa.list_(pa.int64()), "array<bigint>"),
    (pa.map_(pa.string(), pa.int32()), "map<string,int>"),
    (pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]), "struct<a:bigint,b:array<string>>"),
]


def names_of(schema: Any) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize(("kind", "name"), TYPES, ids=str)
def test_types_are_called_as_spark_calls_them(
    kind: Any, name: str, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With PySpark and without."""
    if not installed:
        monkeypatch.setitem(sys.modules, "pyspark.sql.pandas.types", None)

    assert names_of(schema_of_rows(pa.schema([("x", kind)]))) == [("x", name)]


def test_the_schema_is_pysparks() -> None:
    """Converters ask for its types by their classes."""
    schema: Any = schema_of_rows(
        pa.schema([("id", pa.int64()), pa.field("name", pa.string(), nullable=False)])
    )

    assert schema == StructType([StructField("id", LongType()), StructField("name", StringType(), False)])


def test_a_type_that_spark_lacks_keeps_arrows_name() -> None:
    """The destination says whether it takes it."""
    assert names_of(schema_of_rows(pa.schema([("n", pa.uint64()), ("data", pa.string())]))) == [
        ("n", "uint64"),
        ("data", "string"),
    ]
