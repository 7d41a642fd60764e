"""A source declares its columns as text, in any way in which Spark reads it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from pyspark.sql import types as t

import sluice
from sluice.errors import OptionError
from sluice.options import OptionValues
from sluice.source import FiniteRange, FiniteSplit, SplitSource


class Declared(SplitSource):
    """Has the columns that a test wants, and no rows."""

    name = "declared"
    text = ""

    @classmethod
    def from_options(cls, values: OptionValues) -> Declared:
        del values
        return cls()

    def schema(self) -> str:
        return self.text

    def list_splits(self) -> Sequence[FiniteSplit]:
        return []

    def read_range(self, split: FiniteRange) -> Iterator[pa.RecordBatch]:
        del split
        yield from ()


def schema_of(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


INNER = schema_of(B=t.IntegerType(), c=t.LongType())
TEXTS = [
    ("n INT", schema_of(n=t.IntegerType())),
    ("n integer, s STRING", schema_of(n=t.IntegerType(), s=t.StringType())),
    (" n  Long ,\n s string", schema_of(n=t.LongType(), s=t.StringType())),
    ("n short, b byte, x real", schema_of(n=t.ShortType(), b=t.ByteType(), x=t.FloatType())),
    ("int INT, comment string", schema_of(int=t.IntegerType(), comment=t.StringType())),
    ("d decimal, e DEC(5, 1)", schema_of(d=t.DecimalType(10, 0), e=t.DecimalType(5, 1))),
    ("f numeric(3)", schema_of(f=t.DecimalType(3, 0))),
    ("n long NOT NULL COMMENT 'its, number', s string", schema_of(n=t.LongType(), s=t.StringType())),
    ("`my col` long", schema_of(**{"my col": t.LongType()})),
    ("a struct<B: integer, c: LONG>", schema_of(a=INNER)),
    ("a ARRAY<Struct<B:INT,c:BIGINT>>", schema_of(a=t.ArrayType(INNER))),
    ("a map<string, long>", schema_of(a=t.MapType(t.StringType(), t.LongType()))),
    ("at TIMESTAMP, b timestamp_ltz", schema_of(at=t.TimestampType(), b=t.TimestampType())),
]


@pytest.mark.parametrize(("text", "schema"), TEXTS)
@pytest.mark.parametrize("is_loaded", [True, False])
def test_spark_s_reading_of_the_text_is_taken(
    text: str, schema: t.StructType, is_loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to be refused as a schema of the user's own, for the sake of a capital letter."""
    monkeypatch.setattr(Declared, "text", text)
    found = sluice.data_source(Declared)({})
    if is_loaded:
        found.schema()
    there = pickle.loads(pickle.dumps(found))
    there.reader(schema)
    there.streamReader(schema)


@pytest.mark.parametrize(
    "schema", [schema_of(n=t.LongType()), schema_of(N=t.IntegerType()), schema_of(n=t.IntegerType(), m=INNER)]
)
def test_another_schema_is_refused(schema: t.StructType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The columns are the source's."""
    monkeypatch.setattr(Declared, "text", "n INT")
    with pytest.raises(OptionError, match=r"declared: the schema can't be chosen; it is always: n INT"):
        sluice.data_source(Declared)({}).reader(schema)
