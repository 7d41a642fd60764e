"""Rows with values that Python or JSON cannot hold: each is delivered or becomes a dead letter."""

from __future__ import annotations

import json
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fake_service import OPTIONS, FakeService, answer, read_async_sink

from sluice.sink import AsyncSinkWriter, NoRateLimitingStrategy, Origin
from sluice.sink.letters.dead_letters import LocalDeadLetterQueue

FAR = 1_700_000_000_000 * 1_000_000  # milliseconds that were read as seconds
KEYED = {"destination": "dynamodb", "tableName": "orders", "keyColumns": "id"}
SQS = {"destination": "sqs", "queueUrl": "https://sqs.eu-west-1.amazonaws.com/1/q"}
FIFO = {"destination": "sqs", "queueUrl": "https://sqs.eu-west-1.amazonaws.com/1/q.fifo"}
KINESIS = {"destination": "kinesis", "streamName": "orders"}


def not_utf8(*values: bytes | None) -> pa.Array:
    """A column of strings as Spark makes it of ``cast(data AS string)``."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


def times(*micros: int) -> pa.Array:
    return pa.array(micros, pa.timestamp("us", "UTC"))


def accept(operation: str, parameters: dict[str, Any]) -> Any:
    """Every entry of a request is accepted."""
    if operation == "SendMessageBatch":
        return answer({"Successful": [{"Id": each["Id"]} for each in parameters["Entries"]], "Failed": []})
    if operation == "PutRecords":
        taken = {"SequenceNumber": "1", "ShardId": "shardId-000000000000"}
        return answer({"FailedRecordCount": 0, "Records": [taken] * len(parameters["Records"])})
    return answer({"UnprocessedItems": {}})


# Three rows each, of which the second cannot be written.
ROWS: dict[str, tuple[dict[str, str], dict[str, pa.Array], str]] = {
    "dynamodb, a far timestamp": (
        KEYED,
        {"id": pa.array(["a", "b", "c"]), "at": times(0, FAR, 0)},
        "column 'at' has a date or timestamp that is not in the years 1 to 9999",
    ),
    "dynamodb, a far key": (
        KEYED,
        {"id": pa.array([0, 2**30, 1], pa.date32()), "n": pa.array([1, 2, 3])},
        "column 'id' has a date or timestamp that is not in the years 1 to 9999",
    ),
    "dynamodb, NaN": (
        KEYED,
        {"id": pa.array(["a", "b", "c"]), "n": pa.array([1.0, math.nan, 1.0])},
        "column 'n' is NaN or infinite",
    ),
    "dynamodb, no UTF-8": (
        KEYED,
        {"id": not_utf8(b"a", b"\xff", b"c"), "n": pa.array([1, 2, 3])},
        "column 'id' is not UTF-8 at byte 0",
    ),
    "dynamodb, no UTF-8 in an operation": (
        KEYED | {"operationColumn": "op"},
        {"id": pa.array(["a", "b", "c"]), "op": not_utf8(b"PUT", b"\xff", b"DELETE")},
        "column 'operationColumn' is not UTF-8 at byte 0",
    ),
    "sqs, no UTF-8": (SQS, {"body": not_utf8(b"a", b"b\xff", b"c")}, "column 'body' is not UTF-8 at byte 1"),
    "sqs, no UTF-8 in a group": (
        FIFO,
        {
            "body": pa.array(["a", "b", "c"]),
            "messageGroupId": not_utf8(b"g", b"\xff", b"g"),
            "messageDeduplicationId": pa.array(["1", "2", "3"]),
            "score": pa.array([1.0, math.nan, 2.0]),
        },
        "column 'messageGroupId' is not UTF-8",
    ),
    "sqs, no UTF-8 in an attribute": (
        SQS,
        {
            "body": pa.array(["a", "b", "c"]),
            "attributes": pa.MapArray.from_arrays(
                pa.array([0, 1, 2, 3], pa.int32()), pa.array(["k"] * 3), not_utf8(b"v", b"\xff", b"w")
            ),
        },
        "column 'attributes' is not UTF-8",
    ),
    "kinesis, no UTF-8 in a key": (
        KINESIS,
        {"data": pa.array([b"a", b"b", b"c"]), "partitionKey": not_utf8(b"k", b"k\xff", b"k")},
        "column 'partitionKey' is not UTF-8 at byte 1",
    ),
    "kinesis, half a character in a key": (
        KINESIS,
        {"data": pa.array([b"a", b"b", b"c"]), "partitionKey": not_utf8(b"k", b"k\xe2\x82", None)},
        "column 'partitionKey' is not UTF-8 at byte 1",
    ),
    "kinesis, no UTF-8 in a hash key": (
        KINESIS,
        {"data": pa.array([b"a", b"b", b"c"]), "explicitHashKey": not_utf8(b"1", b"\xff", b"2")},
        "column 'explicitHashKey' is not UTF-8 at byte 0",
    ),
    "kinesis, a far timestamp as JSON": (
        KINESIS | {"elementConverter": "sluice.sink.converters:JsonConverter"},
        {"partitionKey": pa.array(["a", "b", "c"]), "at": times(0, FAR, 0)},
        "the row cannot be written as JSON: OverflowError",
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_that_cannot_be_written_is_a_dead_letter(name: str, tmp_path: Path) -> None:
    """Its neighbours are delivered, and its dead letter is JSON for strict readers."""
    options, columns, reason = ROWS[name]
    setup = read_async_sink(OPTIONS | options)
    FakeService(options["destination"], accept)
    letters = LocalDeadLetterQueue(tmp_path, Origin("d"))
    writer = AsyncSinkWriter(
        setup.destination,
        setup.config,
        NoRateLimitingStrategy(),
        dead_letters=letters,
        converter=setup.create_converter and setup.create_converter(),
    )
    with closing(writer):
        writer.write(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)))
        writer.flush()
    (file,) = tmp_path.rglob("*.jsonl")
    (letter,) = file.read_text().splitlines()

    assert (writer.figures.records, writer.figures.dead_letters) == (2, 1)
    found = json.loads(letter, parse_constant=pytest.fail)["reason"]
    assert reason in found
    assert "counted from 0" not in found
