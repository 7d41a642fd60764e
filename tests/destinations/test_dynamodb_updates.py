"""Destination dynamodb: sets, updates, and conditions on items."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from fake_service import OPTIONS, FakeService, answer, read_async_sink, refusal, write_all
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from sluice.destinations import read_sink
from sluice.destinations.dynamodb import DynamoDbDestination, DynamoDbRowConverter, DynamoDbWrite
from sluice.destinations.dynamodb.values import size_of_item
from sluice.errors import InvalidRecordError, OptionError

KEYED = {"destination": "dynamodb", "tableName": "orders", "keyColumns": "id"}
UPDATE = KEYED | {"writeMode": "update"}
NEWER = KEYED | {"condition": "attribute_not_exists(id) OR #version < :version"}


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values) for values in columns.values()], names=list(columns))


def cancelled(*reasons: str) -> Any:
    text = "Transaction cancelled, please refer cancellation reasons for specific reasons"
    return refusal("TransactionCanceledException", f"{text} [{', '.join(reasons)}]")


# --- sets ----------------------------------------------------------------------------------------------


def converted(rows: pa.RecordBatch, *sets: str) -> list[dict[str, Any]]:
    made = DynamoDbRowConverter(key_columns=["id"], set_columns=sets)
    return [dict(write.attributes) for write in made.convert(rows)]


def test_arrays_become_sets() -> None:
    """Equal members come once. DynamoDB has no empty set, so it is left out."""
    rows = batch(
        id=["a", "b", "c"],
        s=[["x", "y", "x"], [], None],
        n=[[Decimal("1.0"), Decimal("1.5"), Decimal("1.0")], [Decimal("2.0")], []],
        b=[[b"\x00"], [b"\x00", b"\x01"], None],
        l=[["x"], [], None],
    )
    assert converted(rows, "s", "n", "b") == [
        {
            "id": {"S": "a"},
            "s": {"SS": ["x", "y"]},
            "n": {"NS": ["1.0", "1.5"]},
            "b": {"BS": [b"\x00"]},
            "l": {"L": [{"S": "x"}]},
        },
        {"id": {"S": "b"}, "n": {"NS": ["2.0"]}, "b": {"BS": [b"\x00", b"\x01"]}, "l": {"L": []}},
        {"id": {"S": "c"}},
    ]


def test_a_set_has_no_null() -> None:
    with pytest.raises(InvalidRecordError, match=r"column 's' is a set with a null"):
        converted(batch(id=["a"], s=[["x", None]]), "s")


def test_members_count() -> None:
    assert size_of_item({"s": {"SS": ["abc", "d"]}, "n": {"NS": ["12"]}}) == 1 + 3 + 2 + 4 + 1 + 3 + 1 + 2


def schema(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    "element", [t.StringType(), t.DecimalType(38, 2), t.BinaryType(), t.DoubleType(), t.DateType()]
)
def test_arrays_of_these_are_sets(element: t.DataType) -> None:
    DynamoDbRowConverter(set_columns=["s"]).open(schema(id=t.StringType(), s=t.ArrayType(element)))


@pytest.mark.parametrize(
    "kind",
    [
        t.ArrayType(t.BooleanType()),
        t.ArrayType(t.ArrayType(t.StringType())),
        t.ArrayType(t.StructType([t.StructField("a", t.LongType())])),
        t.MapType(t.StringType(), t.StringType()),
        t.StringType(),
    ],
    ids=lambda kind: kind.simpleString(),
)
def test_other_columns_are_no_sets(kind: t.DataType) -> None:
    with pytest.raises(OptionError, match=r"column 's' is .*: a set is an array of strings, numbers"):
        DynamoDbRowConverter(set_columns=["s"]).open(schema(id=t.StringType(), s=kind))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"set_columns": ["x"]}, "option 'setColumns' has 'x': this column does not exist"),
        ({"condition": "v < :x"}, "option 'condition' has 'x': this column does not exist"),
    ],
)
def test_columns_that_options_name_must_exist(more: Any, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        DynamoDbRowConverter(key_columns=["id"], **more).open(schema(id=t.StringType(), v=t.LongType()))


# --- requests ------------------------------------------------------------------------------------------


def sent(options: dict[str, str], *batches: pa.RecordBatch) -> list[Any]:
    service = FakeService("dynamodb", lambda _, __: answer({}))
    write_all(options, *batches)
    assert {operation for operation, _ in service.calls} == {"TransactWriteItems"}
    return [item for _, request in service.calls for item in request["TransactItems"]]


def test_an_update_sets_what_is_not_null() -> None:
    rows = batch(id=["a", "b"], v=[1, None], data=[b"\x00", b"\x01"])
    assert sent(UPDATE, rows) == [
        {
            "Update": {
                "TableName": "orders",
                "Key": {"id": {"S": "a"}},
                "UpdateExpression": "SET #sluice_1 = :sluice_1, #sluice_2 = :sluice_2",
                "ExpressionAttributeNames": {"#sluice_1": "v", "#sluice_2": "data"},
                "ExpressionAttributeValues": {
                    ":sluice_1": {"N": "1"},
                    ":sluice_2": {"B": base64.b64encode(b"\x00").decode()},
                },
            }
        },
        {
            "Update": {
                "TableName": "orders",
                "Key": {"id": {"S": "b"}},
                "UpdateExpression": "SET #sluice_1 = :sluice_1",
                "ExpressionAttributeNames": {"#sluice_1": "data"},
                "ExpressionAttributeValues": {":sluice_1": {"B": base64.b64encode(b"\x01").decode()}},
            }
        },
    ]


def test_conditions_have_the_values_of_their_rows() -> None:
    rows = batch(id=["a", "b"], version=[1, 2], op=["PUT", "DELETE"])
    condition = {
        "TableName": "orders",
        "ConditionExpression": "attribute_not_exists(id) OR #version < :version",
        "ExpressionAttributeNames": {"#version": "version"},
    }
    assert sent(NEWER | {"operationColumn": "op"}, rows) == [
        {
            "Put": {
                **condition,
                "Item": {"id": {"S": "a"}, "version": {"N": "1"}},
                "ExpressionAttributeValues": {":version": {"N": "1"}},
            }
        },
        {
            "Delete": {
                **condition,
                "Key": {"id": {"S": "b"}},
                "ExpressionAttributeValues": {":version": {"N": "2"}},
            }
        },
    ]


@pytest.mark.parametrize(
    ("options", "columns", "why"),
    [
        (UPDATE, {"v": [None]}, "every column but the key is null, and writeMode is update"),
        (NEWER, {"version": [None]}, r"column 'version' \(condition\) is null"),
    ],
)
def test_rows_that_say_nothing_are_invalid(options: dict[str, str], columns: Any, why: str) -> None:
    rows = batch(id=["a"], **{name: pa.array(values, pa.int64()) for name, values in columns.items()})
    with pytest.raises(InvalidRecordError, match=why):
        write_all(options, rows)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"writeMode": "merge"}, "option 'writeMode' is 'merge': allowed is .*put.*update"),
        ({"writeMode": "update", "keyColumns": None}, "option 'writeMode' needs 'keyColumns'"),
        ({"condition": "v < :v", "keyColumns": None}, "option 'condition' needs 'keyColumns'"),
        ({"setColumns": "a,a"}, "option 'setColumns' is 'a,a'"),
        ({"setColumns": "id"}, "option 'setColumns' has 'id', which is one of 'keyColumns' as well"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, str | None], why: str) -> None:
    given_options = {name: value for name, value in (KEYED | options).items() if value is not None}
    with pytest.raises(OptionError, match=why):
        read_sink(given_options)


# --- cancelled transactions ----------------------------------------------------------------------------


def test_rows_whose_condition_does_not_hold_are_left_out() -> None:
    """They are counted, and the others of the request are written at once."""
    answers = iter([cancelled("None", "ConditionalCheckFailed", "None"), answer({})])
    service = FakeService("dynamodb", lambda _, __: next(answers))
    figures = write_all(NEWER, batch(id=["a", "b", "c"], version=[1, 2, 3]))

    again = [item["Put"]["Item"]["id"]["S"] for item in service.calls[1][1]["TransactItems"]]
    assert again == ["a", "c"]
    assert figures.destination == {"conditionFailed": 1}


def test_a_conflict_is_tried_again() -> None:
    answers = iter(
        [
            cancelled("TransactionConflict", "None"),
            cancelled("None", "ProvisionedThroughputExceeded"),
            refusal("TransactionInProgressException"),
            answer({}),
        ]
    )
    service = FakeService("dynamodb", lambda _, __: next(answers))
    figures = write_all(UPDATE, batch(id=["a", "b"], v=[1, 2]))

    assert len(service.calls) == 4
    assert figures.refused_by_code["ProvisionedThroughputExceededException"] == 2


def test_an_item_that_is_refused_costs_no_other() -> None:
    answers = iter([cancelled("None", "ValidationError"), answer({})])
    service = FakeService("dynamodb", lambda _, __: next(answers))
    made = read_async_sink(OPTIONS | UPDATE).destination
    assert isinstance(made, DynamoDbDestination)
    writes = [DynamoDbWrite("UPDATE", {"id": {"S": key}, "v": {"N": "1"}}, key, 10) for key in "ab"]
    result = made.submit(writes)

    assert not result.failed
    assert [each.entry for each in result.rejected] == writes[1:]
    assert [len(request["TransactItems"]) for _, request in service.calls] == [2, 1]


class VersionedTable:
    """Keeps newer items, and cancels transactions now and then."""

    def __init__(self, faults: Sequence[str]) -> None:
        self._faults = iter(faults)
        self.items: dict[str, dict[str, int]] = {}

    def respond(self, _: str, request: dict[str, Any]) -> Any:
        actions = [(kind, fields) for each in request["TransactItems"] for kind, fields in each.items()]
        keys = [self._key(*each) for each in actions]
        if len(set(keys)) < len(keys):
            return refusal("ValidationException", "Transaction request cannot include multiple operations")
        fault = next(self._faults, "None")
        if fault == "lost":
            self._apply(actions)
            return refusal("InternalServerError", status=500)
        if fault != "None":
            return cancelled(fault, *["None"] * (len(keys) - 1))
        reasons = self._apply(actions)
        return answer({}) if {*reasons} == {"None"} else cancelled(*reasons)

    def _apply(self, actions: Sequence[tuple[str, Any]]) -> list[str]:
        holds = [self._holds(*each) for each in actions]
        if all(holds):
            for kind, fields in actions:
                key, names = self._key(kind, fields), fields["ExpressionAttributeNames"]
                item = self.items.setdefault(key, {})
                for part in fields["UpdateExpression"].removeprefix("SET ").split(", "):
                    name, value = part.split(" = ")
                    item[names[name]] = int(fields["ExpressionAttributeValues"][value]["N"])
        return ["None" if each else "ConditionalCheckFailed" for each in holds]

    def _holds(self, kind: str, fields: Any) -> bool:
        known = self.items.get(self._key(kind, fields), {}).get("version", -1)
        return known < int(fields["ExpressionAttributeValues"][":version"]["N"])

    @staticmethod
    def _key(kind: str, fields: Any) -> str:
        return str((fields["Item"] if kind == "Put" else fields["Key"])["id"]["S"])


NUMBER = st.none() | st.integers(-(2**70), 2**70)


@settings(max_examples=50)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(0, 9), NUMBER, NUMBER),
        max_size=30,
    ),
    faults=st.lists(st.sampled_from(["None", "TransactionConflict", "ThrottlingError", "lost"]), max_size=10),
)
def test_newer_versions_win_and_columns_add_up(rows: list[Any], faults: list[str]) -> None:
    """For any refusals, each row that is newer than its item sets its columns, in the order of rows."""
    expected: dict[str, dict[str, int]] = {}
    for key, version, x, y in rows:
        item = expected.setdefault(key, {})
        if item.get("version", -1) < version:
            item |= {name: n for name, n in (("version", version), ("x", x), ("y", y)) if n is not None}
    table = VersionedTable(faults)
    FakeService("dynamodb", table.respond)
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    kinds = [pa.string(), pa.int64(), pa.decimal128(38), pa.decimal128(38)]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
    options = NEWER | {"writeMode": "update", "maxBatchSize": "3"}
    write_all(options, pa.record_batch(arrays, names=["id", "version", "x", "y"]))

    assert table.items == expected
