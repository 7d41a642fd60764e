"""SQS messages from rows: columns, types, characters, and invalid rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from sluice.destinations.sqs import SqsMessage, SqsRowConverter
from sluice.errors import InvalidRecordError, OptionError

PAIRS = pa.map_(pa.string(), pa.string())


def convert(*, fifo: bool = False, **columns: Any) -> list[SqsMessage]:
    arrays = {
        name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()
    }
    batch = pa.record_batch(list(arrays.values()), names=list(arrays))
    return list(SqsRowConverter(fifo=fifo).convert(batch))


def refused(*, fifo: bool = False, **columns: Any) -> str:
    with pytest.raises(InvalidRecordError) as caught:
        convert(fifo=fifo, **columns)
    return str(caught.value)


def attributes(*maps: dict[str, str | None] | None) -> Any:
    return pa.array([None if each is None else list(each.items()) for each in maps], PAIRS)


def test_the_columns() -> None:
    """Names are compared without regard to case. Nulls are left out."""
    assert convert(
        fifo=True,
        BODY=["a", "b"],
        MessageGroupId=["g", "h"],
        messagededuplicationid=pa.array(["d", None]),
        Attributes=attributes({"kind": "x"}, None),
        other=[1, 2],
    ) == [SqsMessage("a", "g", "d", None, {"kind": "x"}), SqsMessage("b", "h")]
    assert convert(body=["a", "b"], delaySeconds=pa.array([900, None], pa.int16())) == [
        SqsMessage("a", delay_seconds=900),
        SqsMessage("b"),
    ]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_a_binary_body_is_utf_8(kind: Any) -> None:
    """Other bytes are refused; the error has the position of the first bad byte."""
    assert convert(body=pa.array(["grün €".encode()], kind)) == [SqsMessage("grün €")]
    assert "row 1 of a batch" in (message := refused(body=pa.array([b"a", b"ab\xff"], kind)))
    assert "column 'body' is not UTF-8 at byte 2" in message


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_characters_are_those_of_the_service(text: str) -> None:
    """Tab, line feed, carriage return, U+0020 to U+D7FF, U+E000 to U+FFFD, and all above U+FFFF."""

    def allowed(code: int) -> bool:
        return code in (9, 10, 13) or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code > 0xFFFF

    if all(allowed(ord(each)) for each in text):
        assert convert(body=[text]) == [SqsMessage(text)]
        assert convert(body=["a"], attributes=attributes({"k": text})) == [
            SqsMessage("a", attributes={"k": text})
        ]
    else:
        assert "which SQS does not take" in refused(body=[text])
        assert "which SQS does not take" in refused(body=["a"], attributes=attributes({"k": text}))


@pytest.mark.parametrize("bad", ["\x00", "\x0b", "\x1f", "\ufffe", "\uffff"])
def test_characters_that_a_queue_does_not_take_are_named(bad: str) -> None:
    """With code and position, without the rest of the text."""
    message = refused(body=["secret", f"secret{bad}"])

    assert (
        f"row 1 of a batch of rows (counted from 0): column 'body' has U+{ord(bad):04X} at character 6"
        in message
    )
    assert "secret" not in message


@pytest.mark.parametrize(("body", "message"), [(None, "'body' is null"), ("", "'body' is empty")])
def test_a_message_without_a_body_is_refused(body: str | None, message: str) -> None:
    """The error has the number of the row, also in a batch that is converted in several steps."""
    assert message in (text := refused(body=["a"] * 1500 + [body]))
    assert "row 1500 of a batch" in text


def test_a_group_is_required_by_a_fifo_queue_alone() -> None:
    """In a standard queue it is optional."""
    groups = pa.array(["g", None])

    assert [each.message_group_id for each in convert(body=["a", "b"], messageGroupId=groups)] == ["g", None]
    assert "row 1 of a batch" in (text := refused(fifo=True, body=["a", "b"], messageGroupId=groups))
    assert "column 'messageGroupId' is null" in text


@pytest.mark.parametrize("column", ["messageGroupId", "messageDeduplicationId"])
@pytest.mark.parametrize("value", ["", "a b", "ü", "x" * 129, "a\n"])
def test_ids_that_a_queue_does_not_take_are_refused(column: str, value: str) -> None:
    """All but 1 to 128 letters, digits or punctuation of ASCII."""
    columns = {"messageGroupId": ["g"]} | {column: [value]}

    assert f"column '{column}' ({len(value)} characters)" in refused(fifo=True, body=["a"], **columns)
    columns[column] = ["!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~aZ09"]
    assert convert(fifo=True, body=["a"], **columns)


@pytest.mark.parametrize("delay", [-1, 901])
def test_delays_end_at_fifteen_minutes(delay: int) -> None:
    """0 to 900 seconds."""
    assert convert(body=["a"], delaySeconds=[0])[0].delay_seconds == 0
    assert "column 'delaySeconds' is not from 0 to 900" in refused(body=["a"], delaySeconds=[delay])


@pytest.mark.parametrize(
    "name",
    ["", "a b", ".a", "a.", "a..b", "AWS.x", "aws.x", "Amazon.x", "amazon.x", "ü", "\u212aey", "x" * 257],
)
def test_names_of_attributes(name: str) -> None:
    """Rules of SQS. The prefixes 'AWS.' and 'Amazon.' are reserved."""
    assert "column 'attributes' has a name" in refused(body=["a"], attributes=attributes({name: "v"}))


def test_attributes_that_fit() -> None:
    """At most ten. An empty map is left out."""
    ten: dict[str, str | None] = {f"n.{n}_x-y": "v" for n in range(9)}
    ten["awsome"] = "v"

    assert convert(body=["a"], attributes=attributes(dict(ten)))[0].attributes == ten
    assert convert(body=["a"], attributes=attributes({}))[0].attributes is None
    assert "has 11 entries" in refused(body=["a"], attributes=attributes(ten | {"more": "v"}))


@pytest.mark.parametrize(("value", "what"), [("", "empty"), (None, "null")])
def test_attributes_have_values(value: str | None, what: str) -> None:
    """SQS refuses empty values."""
    assert f"has a value that is {what}" in refused(body=["a"], attributes=attributes({"k": value}))


def schema(**columns: Any) -> Any:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


STANDARD = {
    "body": StringType(),
    "messageGroupId": StringType(),
    "delaySeconds": LongType(),
    "attributes": MapType(StringType(), StringType()),
    "other": BinaryType(),
}
FIFO = {"Body": BinaryType(), "messagegroupid": StringType(), "messageDeduplicationId": StringType()}


def test_valid_schemas() -> None:
    """Columns with other names are ignored."""
    SqsRowConverter(fifo=False).open(schema(**STANDARD))
    SqsRowConverter(fifo=True).open(schema(**FIFO))


@pytest.mark.parametrize(
    ("fifo", "columns", "message"),
    [
        (False, {"value": StringType()}, "column 'body' (string or binary) is required"),
        (False, {"body": LongType()}, "column 'body' is bigint: allowed is string or binary"),
        (
            False,
            STANDARD | {"delaySeconds": StringType()},
            "column 'delaySeconds' is string: allowed is int or",
        ),
        (
            False,
            STANDARD | {"attributes": MapType(StringType(), IntegerType())},
            "column 'attributes' is map<string,int>: allowed is map<string,string>",
        ),
        (
            False,
            STANDARD | {"messageDeduplicationId": StringType()},
            "'messageDeduplicationId' is for FIFO queues",
        ),
        (False, {"body": StringType(), "BODY": StringType()}, "column 'body' exists twice"),
        (True, {"body": StringType()}, "a FIFO queue needs column 'messageGroupId' (string)"),
        (True, FIFO | {"delaySeconds": IntegerType()}, "a FIFO queue takes no column 'delaySeconds'"),
    ],
)
def test_schemas_that_cannot_work_are_refused(fifo: bool, columns: dict[str, Any], message: str) -> None:
    """When the query starts, before its first row."""
    with pytest.raises(OptionError) as caught:
        SqsRowConverter(fifo=fifo).open(schema(**columns))

    assert message in str(caught.value)
