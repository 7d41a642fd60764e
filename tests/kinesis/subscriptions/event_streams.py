"""Event-stream messages and events, encoded as the service encodes them."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32


def message(headers: Mapping[str, str], payload: bytes = b"") -> bytes:
    """One whole message."""
    block = b"".join(
        struct.pack("!B", len(name.encode()))
        + name.encode()
        + struct.pack("!BH", 7, len(value.encode()))
        + value.encode()
        for name, value in headers.items()
    )
    return framed(block, payload)


def framed(block: bytes, payload: bytes) -> bytes:
    """A message with these bytes as its headers."""
    prelude = struct.pack("!II", 16 + len(block) + len(payload), len(block))
    head = prelude + struct.pack("!I", crc32(prelude)) + block + payload
    return head + struct.pack("!I", crc32(head))


def event_message(event: Mapping[str, Any] | bytes, kind: str = "SubscribeToShardEvent") -> bytes:
    payload = event if isinstance(event, bytes) else json.dumps(event).encode()
    headers = {":message-type": "event", ":event-type": kind, ":content-type": "application/json"}
    return message(headers, payload)


def exception_message(code: str, text: str = "no") -> bytes:
    headers = {":message-type": "exception", ":exception-type": code, ":content-type": "application/json"}
    return message(headers, json.dumps({"message": text}).encode())


INITIAL = event_message(b"{}", "initial-response")


def record(
    number: int | str, data: bytes = b"data", key: str = "key", arrival: float = 1.5
) -> dict[str, Any]:
    return {
        "SequenceNumber": str(number),
        "ApproximateArrivalTimestamp": arrival,
        "Data": base64.b64encode(data).decode(),
        "PartitionKey": key,
        "EncryptionType": "NONE",
    }


def event(
    records: Sequence[int | Mapping[str, Any]] = (),
    continuation: int | str | None = None,
    millis_behind: int = 0,
    children: Sequence[str] = (),
) -> dict[str, Any]:
    """An event; without a `continuation` given, an open shard's is that of its last record."""
    made = [record(each) if isinstance(each, int) else dict(each) for each in records]
    if continuation is None and made and not children:
        continuation = made[-1]["SequenceNumber"]
    return {
        "Records": made,
        "ContinuationSequenceNumber": None if continuation is None else str(continuation),
        "MillisBehindLatest": millis_behind,
        "ChildShards": [
            {"ShardId": child, "ParentShards": ["shard"], "HashKeyRange": {}} for child in children
        ]
        or None,
    }
