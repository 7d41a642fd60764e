"""Rows become JSON documents."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from fake_endpoint import rows
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from sluice.destinations.http import HttpRowConverter
from sluice.errors import InvalidRecordError, OptionError


def convert(bodies: list[Any], kind: Any = None, *, lines: bool = False) -> list[bytes]:
    return list(HttpRowConverter(lines=lines).convert(rows(bodies, kind)))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_documents_are_sent_as_they_are(kind: Any) -> None:
    """Of text and of bytes: numbers keep their digits, and fields their order."""
    bodies = ['{"b":1.50,"a":"grün"}', "[]", "null", '"x"', "12345678901234567890.0"]
    given = (
        bodies if pa.types.is_string(kind) or pa.types.is_large_string(kind) else [b.encode() for b in bodies]
    )

    assert convert(given, kind) == [body.encode() for body in bodies]
    assert convert([f'{{"n":{n}}}' for n in range(3000)])[2999] == b'{"n":2999}'


def test_a_line_has_no_line_break_inside() -> None:
    """In an array it may have one."""
    body = ' {"a":\r\n "x\\n"} \n'

    assert convert([body], lines=True) == [b'{"a":"x\\n"}']
    assert convert([body]) == [b'{"a":\r\n "x\\n"}']


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (None, "column 'body' is null"),
        (b'{"secret":1', "column 'body' is not JSON: Input data was truncated"),
        (b"", "column 'body' is not JSON"),
        (b"{'secret':1}", "column 'body' is not JSON"),
        (b'{"a":1}{"secret":2}', "column 'body' is not JSON: .*trailing characters"),
        (b'{"a":NaN}', "column 'body' is not JSON"),
        (b'{"a":"\xff"}', "column 'body' is not UTF-8 at byte 6"),
        (b"[" * 100_000, "column 'body' is not JSON"),
    ],
)
def test_a_row_that_is_no_document_is_refused(body: Any, why: str) -> None:
    """With its number, and none of its data: an endpoint would refuse the whole request for it."""
    with pytest.raises(InvalidRecordError, match=f"row 1 of a batch .*: {why}") as caught:
        convert([b"1", body], pa.binary())
    assert "secret" not in str(caught.value)


def test_columns_are_checked() -> None:
    """Before any row."""
    with pytest.raises(OptionError, match=r"destination 'http' takes the column body: .* is required"):
        HttpRowConverter(lines=False).open(StructType([StructField("data", StringType())]))
    with pytest.raises(OptionError, match="column 'body' is int: allowed is string or binary"):
        HttpRowConverter(lines=False).open(StructType([StructField("Body", IntegerType())]))
    HttpRowConverter(lines=False).open(StructType([StructField("BODY", StringType())]))
