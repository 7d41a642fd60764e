"""Simple Queue Service: rows become messages, in batches, through ``SendMessageBatch``.

Limits: https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import msgspec

from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.regions import service_of
from sluice.aws.wire.request_bodies import PreparedParameter
from sluice.destinations.common.batch_call import NO_RESULT, BatchCall, Refusal
from sluice.destinations.common.compression import COMPRESSION, restored
from sluice.destinations.common.entries import utf8_length, wrong_entry
from sluice.destinations.common.parted_requests import AwsDestination
from sluice.destinations.sqs.converter import SqsMessage, SqsRowConverter
from sluice.options import Option, OptionValues, matching, redact_url
from sluice.sink import SinkLimits

__all__ = ["SqsDestination"]

_MIB: Final = 1024 * 1024
_STRING: Final = "String"
_PLACEHOLDER: Final = ({"Id": "0", "MessageBody": "-"},)
# SQS marks these as the sender's fault, although they pass.
_TRANSIENT: Final = frozenset({"KmsThrottled", "RequestThrottled"})
_REGION: Final = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d")
_GLOBAL: Final = ("queue.amazonaws.com", "us-east-1")
"""The oldest form of a host, which has no region in it."""

QUEUE_URL = Option(
    "queueUrl",
    replace(
        matching(
            "url",
            "a queue's URL such as https://sqs.eu-west-1.amazonaws.com/123456789012/orders",
            r"https?://[^\s/@?#]+/([^\s?#]+/)?[a-zA-Z0-9_-]{1,80}(\.fifo)?",
        ),
        redact=redact_url,
    ),
    None,
    "URL of the queue; the URL of a FIFO queue ends in `.fifo`. If `region` is not set, the URL's region "
    "is used.",
    required=True,
)


_COMPRESSION: Final = replace(
    COMPRESSION,
    description=" Compressed bodies are in base64.",
)


class _Success(msgspec.Struct, rename="pascal"):
    id: str


class _Failure(msgspec.Struct, rename="pascal"):
    id: str
    code: str = ""
    message: str = ""
    sender_fault: bool = False


class _Results(msgspec.Struct, rename="pascal"):
    successful: list[_Success] = []
    failed: list[_Failure] = []


class SqsDestination(AwsDestination[SqsMessage]):
    """Sends messages to a queue.

    A FIFO queue keeps the order in which it accepts the messages of a group. So `ordering_key` is the message
    group: the next message of a group is sent when the one before it has been accepted.

    Args:
        connection: how to reach the service.
        queue_url: the URL of the queue.
        compression: of the bodies.

    Attributes:
        ordering_key: the group of a message; None for a standard queue.
    """

    OPTIONS: ClassVar[Sequence[Option[Any]]] = (QUEUE_URL, _COMPRESSION)
    LIMITS: ClassVar[SinkLimits] = SinkLimits(
        max_batch_size=10,
        max_batch_size_in_bytes=_MIB,
        max_record_size_in_bytes=_MIB,
        max_buffered_requests=5000,
    )

    def __init__(self, connection: ConnectionConfig, queue_url: str, compression: str = "none") -> None:
        connection = _at_queue(connection, queue_url)
        self._url = queue_url
        self._compression = compression
        self._fifo = queue_url.endswith(".fifo")
        name = queue_url.rpartition("/")[2]
        super().__init__(BatchCall(connection, "sqs", "SendMessageBatch", name, transient=_TRANSIENT))
        self.name = f"sqs queue '{name}'"
        self.ordering_key = _group if self._fifo else None

    @classmethod
    def from_options(cls, values: OptionValues, connection: ConnectionConfig) -> SqsDestination | None:
        """See `DestinationClass.from_options`."""
        url = values.get(QUEUE_URL)
        if url is None:
            return None
        region = _region_of(url)
        if region and connection.region not in (None, region) and connection.endpoint_url is None:
            values.reject_value(
                QUEUE_URL,
                f"that queue is in {region}, and 'region' is {connection.region!r}: leave 'region' out, or "
                "give 'endpointUrl' as well",
            )
        return cls(connection, url, values.require(COMPRESSION))

    def create_converter(self) -> SqsRowConverter:
        return SqsRowConverter(fifo=self._fifo, compression=self._compression)

    def size_in_bytes(self, entry: SqsMessage) -> int:
        """The bytes of the body, and of each attribute's name, type and value, as UTF-8.

        Raises:
            SluiceError: the entry is no message, or a part of it no text.
        """
        if not isinstance(entry, SqsMessage):
            raise wrong_entry("sqs", "an entry", entry, "SqsMessage")
        if not isinstance(entry.body, str):
            raise wrong_entry("sqs", "a message with a body", entry.body, "str")
        size = utf8_length(entry.body)
        for name, value in (entry.attributes or {}).items():
            if not isinstance(value, str):
                raise wrong_entry("sqs", "a message with an attribute", value, "str")
            size += len(name) + len(_STRING) + utf8_length(value)
        return size

    def unpacked(self, entry: SqsMessage) -> Sequence[object]:
        """The message; if it was compressed, its fields with the body as ``data``, as it was before."""
        if self._compression == "none":
            return (entry,)
        fields = entry._asdict()
        try:
            body = base64.b64decode(fields.pop("body"), validate=True)
        except ValueError:
            return (entry,)  # of an `elementConverter`
        return ({"data": restored(body, self._compression), **fields},)

    def send_part(self, entries: Sequence[SqsMessage]) -> list[Refusal | None]:
        answer = self.call(
            QueueUrl=self._url,
            Entries=PreparedParameter(
                [_as_request_entry(n, entry) for n, entry in enumerate(entries)], _PLACEHOLDER
            ),
        )
        with self.call.reading():
            results = msgspec.convert(answer, _Results)
        numbers = {str(n): n for n in range(len(entries))}
        refused: dict[int, Refusal | None] = {n: Refusal(NO_RESULT, "", "retry") for n in numbers.values()}
        try:
            for accepted in results.successful:
                if refused[numbers[accepted.id]] is None:
                    raise KeyError(accepted.id)  # noqa: TRY301 - named twice
                refused[numbers[accepted.id]] = None
            for failure in results.failed:
                refused[numbers[failure.id]] = self._refusal(failure)
        except KeyError as error:
            raise self.call.damaged_answer(f"a result for no message: {error}") from None
        return list(refused.values())

    def _refusal(self, failure: _Failure) -> Refusal:
        """Reads one failure. A sender's fault will be refused again, unless it is throttling."""
        verdict = self.call.verdict(failure.code)
        if verdict == "retry" and failure.sender_fault and not self.call.is_transient(failure.code):
            verdict = "reject"
        return Refusal(failure.code, failure.message, verdict)


def _region_of(queue_url: str) -> str | None:
    """The region of a queue, by every form of URL that AWS documents; None for hosts that are not AWS' own.

    https://docs.aws.amazon.com/general/latest/gr/sqs-service.html
    """
    host = urlsplit(queue_url).hostname or ""
    if service_of(host) != "sqs":
        return None
    if host == _GLOBAL[0]:
        return _GLOBAL[1]
    return next((label for label in host.split(".") if _REGION.fullmatch(label)), None)


def _at_queue(connection: ConnectionConfig, queue_url: str) -> ConnectionConfig:
    """With the region of the queue, and its host where the SDK would call another one.

    The SDK does not call the host in a queue's URL, but the region's own: private links, FIPS and dual stack
    would be passed by.
    """
    region = _region_of(queue_url)
    if region is None or connection.endpoint_url is not None:
        return connection
    connection = replace(connection, region=connection.region or region)
    parts = urlsplit(queue_url)
    host = parts.hostname or ""
    if host.startswith("vpce-") or "-fips." in host or host.endswith(".api.aws"):
        return replace(connection, endpoint_url=f"{parts.scheme}://{parts.netloc}")
    return connection


def _group(entry: SqsMessage) -> str | None:
    return entry.message_group_id


def _as_request_entry(number: int, message: SqsMessage) -> dict[str, Any]:
    entry: dict[str, Any] = {"Id": str(number), "MessageBody": message.body}
    if message.message_group_id is not None:
        entry["MessageGroupId"] = message.message_group_id
    if message.message_deduplication_id is not None:
        entry["MessageDeduplicationId"] = message.message_deduplication_id
    if message.delay_seconds is not None:
        entry["DelaySeconds"] = message.delay_seconds
    if message.attributes:
        entry["MessageAttributes"] = {
            name: {"DataType": _STRING, "StringValue": value} for name, value in message.attributes.items()
        }
    return entry
