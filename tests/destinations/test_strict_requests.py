"""What the fakes refuse: a check that takes everything would find nothing."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from strict_requests import violation

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
MIB = 2**20


def firehose(*sizes: int) -> dict[str, Any]:
    data = [base64.b64encode(bytes(size)).decode() for size in sizes]
    return {"DeliveryStreamName": "d", "Records": [{"Data": each} for each in data]}


def sqs(*entries: dict[str, Any], fifo: bool = False) -> dict[str, Any]:
    filled = [{"Id": str(place), "MessageBody": "x", **each} for place, each in enumerate(entries)]
    return {"QueueUrl": QUEUE + (".fifo" if fifo else ""), "Entries": filled}


def dynamodb(*items: dict[str, Any]) -> dict[str, Any]:
    return {"RequestItems": {"t": [{"PutRequest": {"Item": item}} for item in items]}}


def kinesis(count: int = 1, **changes: Any) -> dict[str, Any]:
    return {"StreamName": "s", "Records": [{"Data": "", "PartitionKey": "k", **changes}] * count}


FORBIDDEN = [
    ("PutRecordBatch", firehose()),
    ("PutRecordBatch", firehose(*[1] * 501)),
    ("PutRecordBatch", firehose(1000 * 1024 + 1)),
    ("PutRecordBatch", firehose(*[900_000] * 5)),
    ("SendMessageBatch", sqs()),
    ("SendMessageBatch", sqs(*[{}] * 11)),
    ("SendMessageBatch", sqs({"Id": "1"}, {})),
    ("SendMessageBatch", sqs({"MessageBody": "x" * MIB}, {})),
    ("SendMessageBatch", sqs({"MessageBody": ""})),
    ("SendMessageBatch", sqs({"MessageBody": "\ufffe"})),
    ("SendMessageBatch", sqs({"MessageDeduplicationId": "d"})),
    ("SendMessageBatch", sqs({}, fifo=True)),
    ("SendMessageBatch", sqs({"MessageGroupId": "g", "DelaySeconds": 1}, fifo=True)),
    ("SendMessageBatch", sqs({"DelaySeconds": 901})),
    ("BatchWriteItem", dynamodb(*[{"id": {"S": "a"}}] * 26)),
    ("BatchWriteItem", dynamodb({})),
    ("BatchWriteItem", dynamodb({"id": {"S": "a"}, "n": {"N": "1" * 39}})),
    ("BatchWriteItem", dynamodb({"id": {"S": "a"}, "n": {"L": [{"NS": ["1", "1"]}]}})),
    ("BatchWriteItem", dynamodb({"id": {"S": "a", "N": "1"}})),
    ("PutRecords", kinesis(0)),
    ("PutRecords", kinesis(501)),
    ("PutRecords", kinesis(PartitionKey="")),
    ("PutRecords", kinesis(ExplicitHashKey=str(2**128))),
    ("PutRecords", kinesis(SequenceNumberForOrdering="1")),
]


@pytest.mark.parametrize(("operation", "request_"), FORBIDDEN)
def test_what_a_service_forbids_is_found(operation: str, request_: dict[str, Any]) -> None:
    assert violation(operation, request_) is not None


@pytest.mark.parametrize(
    ("operation", "request_"),
    [
        ("PutRecordBatch", firehose(*[8_000] * 500)),
        ("SendMessageBatch", sqs({"DelaySeconds": 900, "MessageGroupId": "g"}, {})),
        ("SendMessageBatch", sqs({"MessageGroupId": "g", "MessageDeduplicationId": "d"}, fifo=True)),
        ("BatchWriteItem", dynamodb({"id": {"S": ""}, "n": {"N": "-0.000" + "1" * 38}, "m": {"M": {}}})),
        ("PutRecords", kinesis(500, ExplicitHashKey=str(2**128 - 1))),
        ("ListShards", {"StreamName": "s"}),
    ],
)
def test_what_a_service_takes_is_fine(operation: str, request_: dict[str, Any]) -> None:
    assert violation(operation, request_) is None
