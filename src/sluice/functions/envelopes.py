"""What services and serializers put around data: subscriptions of CloudWatch Logs, headers of registries.

Formats: https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/SubscriptionFilters.html,
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format,
and `AWSSchemaRegistryConstants` of https://github.com/awslabs/aws-glue-schema-registry.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from sluice.aws.wire.mended_text import mended_json
from sluice.functions.columns import BadValueError
from sluice.functions.decompression import decompressed

__all__ = ["Header", "LogEvent", "log_events", "split_header"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)

_GLUE: Final = b"\x03"
_GLUE_LENGTH: Final = 18  # bytes: version, compression, UUID
_GLUE_CODECS: Final = {0: None, 5: "zlib"}
_CONFLUENT: Final = b"\x00"
_CONFLUENT_LENGTH: Final = 5  # bytes: magic, id


class LogEvent(NamedTuple):
    """An event of a log, with what its envelope says."""

    owner: str
    log_group: str
    log_stream: str
    subscription_filters: list[str]
    id: str
    timestamp: datetime
    message: str


class _Event(msgspec.Struct):
    id: str
    timestamp: int
    message: str


class _Envelope(msgspec.Struct, rename="camel"):
    message_type: str
    owner: str
    log_group: str
    log_stream: str
    subscription_filters: list[str]
    log_events: list[_Event]


_decoder: Final = msgspec.json.Decoder(_Envelope)


def log_events(data: bytes) -> list[LogEvent]:
    """The events in an envelope, which may be compressed; none for a control message.

    Raises:
        BadValueError: it is not such an envelope, or its compressed data is damaged.
    """
    text = decompressed(data)
    try:
        try:
            envelope = _decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            envelope = _decoder.decode(mended_json(text))
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadValueError(f"a value is not an envelope of a subscription: {error}") from None
    if envelope.message_type == "CONTROL_MESSAGE":
        return []
    if envelope.message_type != "DATA_MESSAGE":
        raise BadValueError("a value's messageType is neither DATA_MESSAGE nor CONTROL_MESSAGE")
    shared = envelope.owner, envelope.log_group, envelope.log_stream, envelope.subscription_filters
    try:
        return [
            LogEvent(*shared, event.id, _EPOCH + timedelta(milliseconds=event.timestamp), event.message)
            for event in envelope.log_events
        ]
    except OverflowError:
        raise BadValueError("a value has a timestamp that is not in the years 1 to 9999") from None


class Header(NamedTuple):
    """What a header says, and the data behind it."""

    registry: str | None
    schema_id: str | None
    payload: bytes


def split_header(data: bytes) -> Header:
    """The header of a registry's serializer; data without one as it is."""
    if data.startswith(_CONFLUENT) and len(data) >= _CONFLUENT_LENGTH:
        schema_id = int.from_bytes(data[1:_CONFLUENT_LENGTH], "big", signed=True)
        if schema_id >= 0:
            return Header("confluent", str(schema_id), data[_CONFLUENT_LENGTH:])
    if data.startswith(_GLUE) and len(data) >= _GLUE_LENGTH and data[1] in _GLUE_CODECS:
        codec, uuid, payload = _GLUE_CODECS[data[1]], UUID(bytes=data[2:_GLUE_LENGTH]), data[_GLUE_LENGTH:]
        try:
            return Header("glue", str(uuid), decompressed(payload, codec) if codec else payload)
        except BadValueError:
            pass  # so it is other data that begins in the same way
    return Header(None, None, data)
