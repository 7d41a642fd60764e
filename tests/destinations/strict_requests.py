"""What the vendor's API references forbid in a request, for the fakes of Firehose, SQS, DynamoDB and Kinesis.

https://docs.aws.amazon.com/firehose/latest/APIReference/API_PutRecordBatch.html
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html
https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_BatchWriteItem.html
https://docs.aws.amazon.com/kinesis/latest/APIReference/API_PutRecords.html
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

__all__ = ["violation"]

MIB: Final = 2**20
_XML: Final = re.compile("[\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")

Parameters = Mapping[str, Any]


def violation(operation: str, parameters: Parameters) -> str | None:
    """The rule that a request breaks; None if the service would accept it."""
    check = _CHECKS.get(operation)
    try:
        if check is not None:
            check(parameters)
    except _ForbiddenError as error:
        return f"{operation}: {error}"
    return None


class _ForbiddenError(Exception):
    pass


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise _ForbiddenError(what)


def _fields(found: Parameters, required: set[str], optional: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    _demand(required <= found.keys(), f"of {sorted(required)} there are {sorted(found)}")
    _demand(found.keys() <= required | optional, f"nobody knows {sorted(found.keys() - required - optional)}")


def _put_record_batch(request: Parameters) -> None:
    _fields(request, {"DeliveryStreamName", "Records"})
    _demand(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", request["DeliveryStreamName"]) is not None, "the name")
    for record in request["Records"]:
        _fields(record, {"Data"})
    sizes = [len(base64.b64decode(record["Data"], validate=True)) for record in request["Records"]]
    _demand(1 <= len(sizes) <= 500, f"{len(sizes)} records")
    _demand(max(sizes) <= 1000 * 1024, f"a record of {max(sizes)} bytes")
    _demand(sum(sizes) <= 4 * MIB, f"{sum(sizes)} bytes")


def _send_message_batch(request: Parameters) -> None:
    _fields(request, {"QueueUrl", "Entries"})
    entries, is_fifo = request["Entries"], request["QueueUrl"].endswith(".fifo")
    _demand(1 <= len(entries) <= 10, f"{len(entries)} messages")
    ids = [entry["Id"] for entry in entries]
    _demand(len({*ids}) == len(ids), "two messages with one id")
    _demand(all(re.fullmatch(r"[A-Za-z0-9_-]{1,80}", each) for each in ids), "an id")
    total = 0
    for entry in entries:
        _fields(
            entry,
            {"Id", "MessageBody"} | ({"MessageGroupId"} if is_fifo else set()),
            {"MessageGroupId", "MessageAttributes"}
            | ({"MessageDeduplicationId"} if is_fifo else {"DelaySeconds"}),
        )
        total += _message_size(entry)
    _demand(total <= MIB, f"{total} bytes")


def _message_size(entry: Parameters) -> int:
    body = entry["MessageBody"]
    _demand(
        bool(body) and _XML.fullmatch(body) is not None, "a body is empty, or has characters that XML has not"
    )
    _demand(0 <= entry.get("DelaySeconds", 0) <= 900, "a delay")
    for key in ("MessageGroupId", "MessageDeduplicationId"):
        _demand(re.fullmatch("[!-~]{1,128}", entry.get(key, "-")) is not None, key)
    attributes = entry.get("MessageAttributes", {})
    _demand(len(attributes) <= 10, f"{len(attributes)} attributes")
    size = len(body.encode())
    for name, value in attributes.items():
        _fields(value, {"DataType", "StringValue"})
        _demand(bool(value["StringValue"]), f"attribute {name} is empty")
        size += sum(len(part.encode()) for part in (name, value["DataType"], value["StringValue"]))
    return size


def _batch_write_item(request: Parameters) -> None:
    _fields(request, {"RequestItems"})
    writes = [each for table in request["RequestItems"].values() for each in table]
    _demand(1 <= len(writes) <= 25, f"{len(writes)} writes")
    for write in writes:
        _demand(len(write) == 1, "a write is one put or one delete")
        ((kind, body),) = write.items()
        _fields(body, {"PutRequest": {"Item"}, "DeleteRequest": {"Key"}}[kind])
        ((_, attributes),) = body.items()
        _demand(bool(attributes), "a write without attributes")
        for value in attributes.values():
            _attribute(value)


def _attribute(value: Parameters) -> None:
    _demand(len(value) == 1, f"{sorted(value)} is no attribute of one type")
    ((kind, held),) = value.items()
    if kind in ("SS", "NS", "BS"):
        _demand(bool(held) and len({*held}) == len(held), "a set is empty, or has a member twice")
    elif kind == "N":
        digits = held.upper().partition("E")[0].lstrip("-").replace(".", "").strip("0")
        _demand(len(digits) <= 38, f"the number {held}")
    elif kind in ("L", "M"):
        for each in held.values() if kind == "M" else held:
            _attribute(each)
    else:
        _demand(kind in ("S", "B", "BOOL", "NULL"), f"no attribute has the type {kind}")


def _put_records(request: Parameters) -> None:
    _demand(len({"StreamName", "StreamARN"} & request.keys()) >= 1, "no stream")
    _fields(request, {"Records"}, {"StreamName", "StreamARN", "StreamId"})
    records = request["Records"]
    _demand(1 <= len(records) <= 500, f"{len(records)} records")
    for record in records:
        _fields(record, {"Data", "PartitionKey"}, {"ExplicitHashKey"})
        _demand(bool(record["PartitionKey"]), "an empty key")
        explicit = record.get("ExplicitHashKey", "0")
        _demand(
            re.fullmatch("0|([1-9][0-9]{0,38})", explicit) is not None and int(explicit) < 2**128,
            "a hash key",
        )


_CHECKS: Final[Mapping[str, Callable[[Parameters], None]]] = {
    "PutRecordBatch": _put_record_batch,
    "SendMessageBatch": _send_message_batch,
    "BatchWriteItem": _batch_write_item,
    "PutRecords": _put_records,
}
