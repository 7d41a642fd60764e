"""What a converter of the user's gives a destination is checked before it is sent."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from fake_service import OPTIONS, FakeService, answer, read_async_sink
from pyspark.sql.types import LongType, StructField, StructType

from sluice.destinations.dynamodb import DynamoDbWrite
from sluice.destinations.kinesis.converter import KinesisEntry
from sluice.destinations.sqs.converter import SqsMessage
from sluice.errors import SluiceError
from sluice.sink import AsyncSinkWriter, ElementConverter, NoRateLimitingStrategy

WRONG: Any = {"str": "abcd", "int": 7, "bytes": b"abcd", "attributes": {"a": 1}}
SINKS = {
    "kinesis": {"destination": "kinesis", "streamName": "s"},
    "firehose": {"destination": "firehose", "deliveryStream": "s"},
    "sqs": {"destination": "sqs", "queueUrl": "https://sqs.eu-west-1.amazonaws.com/1/q"},
    "dynamodb": {"destination": "dynamodb", "tableName": "orders", "keyColumns": "id"},
}
KEY = {"id": {"S": "1"}}


def write(service: str, entries: list[Any], respond: Any) -> FakeService:
    class Converter(ElementConverter[Any]):
        def open(self, schema: Any, origin: Any) -> None: ...

        def convert(self, _batch: pa.RecordBatch) -> list[Any]:
            return entries

    fake = FakeService(service, respond)
    setup = read_async_sink(OPTIONS | SINKS[service])
    writer = AsyncSinkWriter(setup.destination, setup.config, NoRateLimitingStrategy(), converter=Converter())
    try:
        writer.open(StructType([StructField("x", LongType())]))
        writer.write(pa.record_batch([pa.array([1])], names=["x"]))
        writer.flush()
    finally:
        writer.close()
    return fake


@pytest.mark.parametrize(
    ("service", "entry", "problem"),
    [
        ("kinesis", KinesisEntry(WRONG["str"], "k"), "an entry with data of type str: it must be bytes"),
        (
            "kinesis",
            KinesisEntry(b"abcd", WRONG["int"]),
            "an entry with a partition key of type int: it must be str",
        ),
        ("kinesis", b"abcd", "an entry of type bytes: it must be KinesisEntry"),
        ("firehose", "abcd", "an entry of type str: it must be bytes"),
        ("sqs", SqsMessage(WRONG["bytes"]), "a message with a body of type bytes: it must be str"),
        (
            "sqs",
            SqsMessage("abcd", attributes=WRONG["attributes"]),
            "a message with an attribute of type int",
        ),
        ("sqs", "abcd", "an entry of type str: it must be SqsMessage"),
        (
            "dynamodb",
            DynamoDbWrite("PUT", KEY | {"b": {"B": "abcd"}}, "1", 9),
            "a binary attribute of type str",
        ),
        (
            "dynamodb",
            DynamoDbWrite("PUT", KEY | {"b": {"BS": ["abcd"]}}, "1", 9),
            "a binary attribute of type str",
        ),
        ("dynamodb", KEY, "an entry of type dict: it must be DynamoDbWrite"),
    ],
)
def test_a_wrong_type_is_refused_before_it_is_sent(service: str, entry: Any, problem: str) -> None:
    """Text that happens to be base64 would be stored as other bytes, and count as written."""
    sent: list[Any] = []
    with pytest.raises(SluiceError, match="the converter of 'elementConverter' made " + problem):
        write(service, [entry], lambda *call: sent.append(call))
    assert sent == []


def test_items_with_sets_that_are_left_unprocessed_are_sent_again() -> None:
    """The service's copy has the members in any order, and numbers in any spelling."""
    stored: list[str] = []
    entries = [
        DynamoDbWrite("PUT", {"id": {"S": n}, "s": {"SS": ["a", "b"]}, "n": {"NS": ["1.0", "2"]}}, n, 20)
        for n in "123"
    ]

    def respond(_: str, params: dict[str, Any]) -> Any:
        ((table, writes),) = params["RequestItems"].items()
        left = writes[:1] if not stored else []
        stored.extend(each["PutRequest"]["Item"]["id"]["S"] for each in writes[len(left) :])
        copies = [
            {
                "PutRequest": {
                    "Item": each["PutRequest"]["Item"] | {"s": {"SS": ["b", "a"]}, "n": {"NS": ["2", "1"]}}
                }
            }
            for each in left
        ]
        return answer({"UnprocessedItems": {table: copies} if copies else {}})

    write("dynamodb", entries, respond)
    assert sorted(stored) == ["1", "2", "3"]
