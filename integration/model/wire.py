"""Requests and answers as bytes: codecs, and the framing of event streams.

A codec is all that knows how values are written. Times are seconds with a fraction in the model; the fields
that hold them are in `TIMES`, for codecs that write them otherwise (CBOR: tag 1 with milliseconds).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, Protocol
from zlib import crc32

import msgspec
import pybase64
from botocore.parsers import ResponseParserError

from integration.model import cbor
from integration.model.errors import ModelError

TIMES: Final = frozenset(
    {
        "ApproximateArrivalTimestamp",
        "ConsumerCreationTimestamp",
        "StreamCreationTimestamp",
        "Timestamp",
    }
)


class Codec(Protocol):
    """How values are written. One object serves all connections."""

    @property
    def content_type(self) -> str:
        """Of requests and answers."""

    @property
    def event_content_type(self) -> str:
        """Of the payloads of events."""

    def decode(self, body: bytes) -> dict[str, Any]:
        """A request."""

    def encode(self, value: Mapping[str, Any]) -> bytes:
        """An answer, an event or an error."""


class JsonCodec:
    """AWS JSON 1.1: data in base64, times as seconds."""

    content_type = "application/x-amz-json-1.1"
    event_content_type = "application/json"

    def decode(self, body: bytes) -> dict[str, Any]:
        try:
            request = msgspec.json.decode(body or b"{}")
            for entry in (request, *request.get("Records", ())):
                if "Data" in entry:
                    entry["Data"] = pybase64.b64decode(entry["Data"], validate=True)
        except (ValueError, TypeError, AttributeError) as error:
            raise ModelError("SerializationException", str(error)) from None
        if not isinstance(request, dict):
            raise ModelError("SerializationException", "not an object")
        return request

    def encode(self, value: Mapping[str, Any]) -> bytes:
        return msgspec.json.encode(value)


class CborCodec:
    """CBOR as the service and the vendor's JVM SDKs write it: see `integration.model.cbor`."""

    content_type = "application/x-amz-cbor-1.1"
    event_content_type = "application/x-amz-cbor-1.1"

    def decode(self, body: bytes) -> dict[str, Any]:
        try:
            request = cbor.decode(body)
        except (ResponseParserError, UnicodeDecodeError, RecursionError) as error:
            raise ModelError("SerializationException", str(error)) from None
        if not isinstance(request, dict):
            raise ModelError("SerializationException", "not a map")
        return request

    def encode(self, value: Mapping[str, Any]) -> bytes:
        return cbor.encode(value, TIMES)


CODECS: Final[Mapping[str, Codec]] = {codec.content_type: codec for codec in (JsonCodec(), CborCodec())}
"""By the content type of requests."""


def event_frame(kind: str, payload: bytes, codec: Codec) -> bytes:
    """One event: https://smithy.io/2.0/aws/amazon-eventstream.html."""
    return _frame(
        {":event-type": kind, ":content-type": codec.event_content_type, ":message-type": "event"}, payload
    )


def error_frame(error: ModelError, codec: Codec) -> bytes:
    headers = {
        ":exception-type": error.code,
        ":content-type": codec.event_content_type,
        ":message-type": "exception",
    }
    return _frame(headers, codec.encode({"message": error.message}))


def _frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    block = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack("!H", len(value)) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(block) + len(payload), len(block))
    start = prelude + struct.pack("!I", crc32(prelude)) + block
    return start + payload + struct.pack("!I", crc32(payload, crc32(start)))
