"""DynamoDB writes from rows: attributes, keys, deletions, and invalid rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from sluice.destinations.dynamodb import DynamoDbRowConverter, DynamoDbWrite
from sluice.errors import InvalidRecordError, OptionError


def batch(**columns: Any) -> pa.RecordBatch:
    arrays = [values if isinstance(values, pa.Array) else pa.array(values) for values in columns.values()]
    return pa.record_batch(arrays, names=list(columns))


def convert(rows: pa.RecordBatch, *keys: str, operation: str | None = None) -> list[DynamoDbWrite]:
    return list(DynamoDbRowConverter(key_columns=keys, operation_column=operation).convert(rows))


def refused(rows: pa.RecordBatch, *keys: str, operation: str | None = None) -> str:
    with pytest.raises(InvalidRecordError) as caught:
        convert(rows, *keys, operation=operation)
    return str(caught.value)


def items(writes: list[DynamoDbWrite]) -> list[Any]:
    return [write.attributes for write in writes]


def test_every_column_is_an_attribute() -> None:
    """Its name is that of the column. A null makes no attribute."""
    rows = batch(id=["a", "b"], Count=pa.array([1, None], pa.int64()), ok=[True, False])

    assert items(convert(rows)) == [
        {"id": {"S": "a"}, "Count": {"N": "1"}, "ok": {"BOOL": True}},
        {"id": {"S": "b"}, "ok": {"BOOL": False}},
    ]


def test_a_struct_item_alone_is_the_item() -> None:
    """Its fields are the attributes. It may also have an operation column."""
    struct = pa.array([{"id": "a", "n": 1}, {"id": "b", "n": None}])

    assert items(convert(batch(Item=struct))) == [{"id": {"S": "a"}, "n": {"N": "1"}}, {"id": {"S": "b"}}]
    writes = convert(batch(item=struct, op=["PUT", "DELETE"]), "id", operation="op")
    assert items(writes) == [{"id": {"S": "a"}, "n": {"N": "1"}}, {"id": {"S": "b"}}]
    assert [write.operation for write in writes] == ["PUT", "DELETE"]


def test_an_item_among_others_is_an_attribute() -> None:
    """As is a column named item that is no struct."""
    struct = pa.array([{"n": 1}])

    assert items(convert(batch(id=["a"], item=struct))) == [
        {"id": {"S": "a"}, "item": {"M": {"n": {"N": "1"}}}}
    ]
    assert items(convert(batch(item=["a"]))) == [{"item": {"S": "a"}}]


def test_a_null_item_is_refused() -> None:
    """The error has the number of the row."""
    rows = batch(item=pa.array([{"id": "a"}, None], pa.struct([("id", pa.string())])))

    assert "row 1 of a batch of rows (counted from 0): column 'item' is null" in refused(rows)


def test_deletions_have_the_key_alone() -> None:
    """Other columns are ignored, even values that could not be written."""
    rows = batch(id=["a", "b"], n=[1.5, float("nan")], op=["put", "Delete"])
    writes = convert(rows, "id", operation="OP")

    assert [(write.operation, write.attributes) for write in writes] == [
        ("PUT", {"id": {"S": "a"}, "n": {"N": "1.5"}}),
        ("DELETE", {"id": {"S": "b"}}),
    ]


@pytest.mark.parametrize(("value", "what"), [(None, "is null"), ("UPDATE", "is something else")])
def test_operations_are_put_and_delete(value: str | None, what: str) -> None:
    """Any other value is refused."""
    rows = batch(id=["a", "b"], op=pa.array(["PUT", value]))

    assert f"row 1 of a batch of rows (counted from 0): operationColumn {what}" in refused(
        rows, "id", operation="op"
    )


def test_the_last_row_of_a_key_wins() -> None:
    """Only this row of a batch is written, for any operation. The written rows keep their order."""
    rows = batch(
        id=["a", "b", "a", "c", "b"],
        sort=[1, 1, 1, 1, 2],
        v=[0, 1, 2, 3, 4],
        op=["PUT", "PUT", "DELETE", "PUT", "PUT"],
    )
    writes = convert(rows, "id", "sort", operation="op")

    assert [(write.operation, write.attributes["id"]["S"], write.key) for write in writes] == [
        ("PUT", "b", (("S", "b"), ("N", 1))),
        ("DELETE", "a", (("S", "a"), ("N", 1))),
        ("PUT", "c", (("S", "c"), ("N", 1))),
        ("PUT", "b", (("S", "b"), ("N", 2))),
    ]


def test_the_last_row_wins_across_slices() -> None:
    """Also in a batch that is converted in several steps."""
    rows = batch(id=[n % 2500 for n in range(5000)], v=list(range(5000)))

    assert [int(write.attributes["v"]["N"]) for write in convert(rows, "id")] == list(range(2500, 5000))


def test_without_keys_nothing_is_left_out() -> None:
    """The table's key columns are not known."""
    writes = convert(batch(id=["a", "a"]))

    assert [write.key for write in writes] == [None, None]


def test_equal_numbers_are_one_key() -> None:
    """In any notation: -0.0 is 0."""
    assert len(convert(batch(id=[0.0, -0.0, 1.0]), "id")) == 2


@pytest.mark.parametrize("key", [None, ""])
def test_a_key_has_a_value(key: str | None) -> None:
    """DynamoDB would refuse the whole request."""
    what = "null" if key is None else "empty"

    assert f"row 1 of a batch of rows (counted from 0): column 'id' (keyColumns) is {what}" in refused(
        batch(id=pa.array(["a", key])), "id"
    )


def test_a_key_has_at_most_2048_bytes() -> None:
    """In UTF-8."""
    assert convert(batch(id=["x" * 2048]), "id")
    assert "is longer than 2048 bytes" in refused(batch(id=["ü" * 1025]), "id")


def test_a_row_of_nulls_is_refused() -> None:
    """An item needs a key."""
    assert "row 0 of a batch" in (text := refused(batch(a=pa.array([None], pa.string()))))
    assert "every column is null" in text


def test_the_error_of_a_value_names_its_row_and_column() -> None:
    """It does not have the value."""
    text = refused(batch(id=["secret"] * 1500, n=[1.0] * 1499 + [float("inf")]))

    assert "row 1499 of a batch of rows (counted from 0): column 'n' is NaN or infinite" in text
    assert "secret" not in text


@pytest.mark.parametrize("nested", [False, True])
def test_a_time_beyond_the_calendar_is_refused(nested: bool) -> None:
    """Spark's timestamps are not limited to the years 1 to 9999. The error has the number of the row."""
    times = pa.array([0, 2**60], pa.int64()).cast(pa.timestamp("us", "UTC"))
    column = pa.StructArray.from_arrays([times], names=["at"]) if nested else times

    assert (
        "row 1 of a batch of rows (counted from 0): column 'at' has a date or timestamp that is not in"
        in refused(batch(id=["a", "b"], at=column))
    )


def test_sizes_are_kept_with_the_write() -> None:
    """A deletion has the size of its key."""
    writes = convert(batch(id=["a", "b"], v=["12345"] * 2, op=["PUT", "DELETE"]), "id", operation="op")

    assert [write.size for write in writes] == [2 + 1 + 1 + 5, 2 + 1]


def schema(columns: dict[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


ID_AND_VALUE: dict[str, DataType] = {"id": StringType(), "v": LongType()}
TWICE = StructType([StructField("a", BinaryType()), StructField("a", DoubleType())])


def opened(
    columns: dict[str, DataType] | StructType, keys: tuple[str, ...] = (), operation: str | None = None
) -> None:
    rows = columns if isinstance(columns, StructType) else schema(columns)
    DynamoDbRowConverter(key_columns=keys, operation_column=operation).open(rows)


def test_valid_schemas() -> None:
    """Plain columns, with keys and operation, and as one struct."""
    opened(ID_AND_VALUE)
    opened(ID_AND_VALUE | {"Op": StringType()}, ("id", "v"), "op")
    opened({"Item": schema(ID_AND_VALUE), "op": StringType()}, ("id",), "op")


@pytest.mark.parametrize(
    ("columns", "keys", "operation", "message"),
    [
        (ID_AND_VALUE, ("key",), None, "option 'keyColumns' has 'key': this column does not exist"),
        (ID_AND_VALUE, ("ID",), None, "this column does not exist, only 'id', and names of attributes tell"),
        ({"item": schema(ID_AND_VALUE)}, ("item",), None, "option 'keyColumns' has 'item'"),
        (ID_AND_VALUE, ("id",), "op", "option 'operationColumn' is 'op': this column does not exist"),
        (ID_AND_VALUE, ("id",), "v", "column 'v' (operationColumn) is bigint: allowed is string"),
        ({"id": BooleanType()}, ("id",), None, "column 'id' (keyColumns) is boolean: a key is a string,"),
        ({"id": ArrayType(LongType())}, ("id",), None, "column 'id' (keyColumns) is array<bigint>: a key is"),
        ({"id": StringType(), "v": VariantType()}, (), None, "column 'v' has type variant"),
        ({"item": schema({"v": VariantType()})}, (), None, "column 'v' has type variant"),
        ({"op": StringType()}, ("id",), "op", "the rows have no column to write"),
        (TWICE, (), None, "two columns have the same name"),
        ({"item": TWICE}, (), None, "two columns have the same name"),
        ({"item": TWICE, "op": StringType()}, (), "op", "two columns have the same name"),
        (
            {"op": StringType(), "Op": StringType(), "v": LongType()},
            (),
            "op",
            "two columns have the same name",
        ),
        ({"v": TWICE}, (), None, "column 'v' has a struct with two fields of the same name"),
        ({"item": schema({"v": TWICE})}, (), None, "column 'v' has a struct with two fields"),
    ],
)
def test_schemas_that_cannot_work_are_refused(
    columns: Any, keys: tuple[str, ...], operation: str | None, message: str
) -> None:
    """When the query starts, before its first row."""
    with pytest.raises(OptionError) as caught:
        opened(columns, keys, operation)

    assert message in str(caught.value)
