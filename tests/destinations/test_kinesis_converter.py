"""Kinesis records from rows: columns, types, keys, and invalid rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from sluice.destinations.kinesis import KinesisEntry, KinesisRowConverter
from sluice.errors import InvalidRecordError, OptionError
from sluice.sink.letters.dead_letters import DeadLetter, dead_letter_of_entry


def convert(**columns: Any) -> list[KinesisEntry]:
    arrays = {
        name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()
    }
    batch = pa.record_batch(list(arrays.values()), names=list(arrays))
    return list(KinesisRowConverter().convert(batch))


def refused(**columns: Any) -> str:
    with pytest.raises(InvalidRecordError) as caught:
        convert(**columns)
    return str(caught.value)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_binary_data_is_sent_as_it_is(kind: Any) -> None:
    """Empty data, too."""
    entries = convert(data=pa.array([b"\x00\xff", b""], kind), partitionKey=["k", "l"])

    assert entries == [KinesisEntry(b"\x00\xff", "k"), KinesisEntry(b"", "l")]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_text_is_sent_as_utf_8(kind: Any) -> None:
    """A string column becomes its UTF-8 bytes."""
    assert convert(data=pa.array(["grün"], kind), partitionKey=["k"])[0].data == "grün".encode()


def test_a_missing_partition_key_is_random() -> None:
    """Without the column, or if it is null, each record gets its own key."""
    keys = [entry.partition_key for entry in convert(data=["x"] * 3000)]
    assert len(set(keys)) == 3000

    mixed = convert(data=["x"] * 3, partitionKey=pa.array(["mine", None, None]))
    assert mixed[0].partition_key == "mine"
    assert mixed[1].partition_key != mixed[2].partition_key
    assert all(entry.partition_key for entry in convert(data=["x"], partitionKey=pa.nulls(1, pa.string())))


def test_explicit_hash_keys_are_passed_on() -> None:
    """From 0 to 2^128-1, decimal. If it is null, the partition key selects the shard."""
    largest = str(2**128 - 1)
    entries = convert(data=["a", "b", "c"], explicitHashKey=["0", largest, None])

    assert [entry.explicit_hash_key for entry in entries] == ["0", largest, None]


def test_null_data_is_refused_with_its_row() -> None:
    """The error has the number of the row and none of its data."""
    assert "row 1030 of a batch" in refused(data=["a"] * 1030 + [None])


@pytest.mark.parametrize("key", ["", "k" * 257])
def test_partition_keys_that_are_empty_or_too_long_are_refused(key: str) -> None:
    """A key has 1 to 256 characters. The message says how to make a long one short."""
    message = refused(data=["secret"] * 2, partitionKey=["fine", key])

    assert f"row 1 of a batch of rows (counted from 0): column 'partitionKey' has {len(key)}" in message
    assert "sha2(partitionKey, 256)" in message
    assert "secret" not in message


@pytest.mark.parametrize("key", ["", "-1", "abc", "1.5", "01", " 1", "٣", str(2**128), "9" * 40])
def test_bad_hash_keys_are_refused(key: str) -> None:
    """Everything but a decimal number below 2^128."""
    message = refused(data=["a", "b"], explicitHashKey=pa.array([None, key]))

    assert "row 1 of a batch" in message
    assert "explicitHashKey" in message


def schema(**columns: Any) -> Any:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_valid_schemas() -> None:
    """Columns with other names are ignored, as in Spark's Kafka sink."""
    for data in (BinaryType(), StringType()):
        KinesisRowConverter().open(
            schema(Data=data, partitionkey=StringType(), explicitHashKey=StringType(), other=LongType())
        )


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"value": StringType()},
            (
                "column 'data' (binary or string) is required: "
                'selectExpr("to_json(struct(*)) AS data") makes it of all columns'
            ),
        ),
        ({}, "column 'data' (binary or string) is required"),
        (
            {"data": IntegerType()},
            "column 'data' is int: allowed is binary or string; CAST(data AS STRING) makes one of it",
        ),
        ({"data": StructType([])}, "allowed is binary or string; to_json(data) makes one of it"),
        (
            {"data": BinaryType(), "partitionKey": LongType()},
            "column 'partitionKey' is bigint: allowed is string",
        ),
        (
            {"data": BinaryType(), "explicitHashKey": LongType()},
            "column 'explicitHashKey' is bigint: allowed is string",
        ),
        ({"data": BinaryType(), "DATA": BinaryType()}, "column 'data' exists twice"),
    ],
)
def test_schemas_that_cannot_work_are_refused(columns: dict[str, Any], message: str) -> None:
    """When the query starts, before its first row."""
    with pytest.raises(OptionError) as caught:
        KinesisRowConverter().open(schema(**columns))

    assert message in str(caught.value)


def test_an_entry_becomes_a_dead_letter_field_by_field() -> None:
    """Its data, and the keys under the names of the columns."""
    dead_letter = dead_letter_of_entry(KinesisEntry(b"\x00a", "k", "7"), "why")

    assert dead_letter == DeadLetter("why", b"\x00a", {"partitionKey": "k", "explicitHashKey": "7"})
    assert dead_letter_of_entry(KinesisEntry(b"", "k"), "why").attributes == {"partitionKey": "k"}
