"""The hooks that the library registers with SDK clients: they change requests before they are sent, and
answers before they are parsed.

https://botocore.amazonaws.com/v1/documentation/api/latest/topics/events.html
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from botocore.parsers import ResponseParserFactory

from sluice.aws.errors import DamagedAnswerError
from sluice.aws.wire.changes import read_changes
from sluice.aws.wire.items import read_scan
from sluice.aws.wire.request_bodies import insert_body, substitute
from sluice.aws.wire.responses import (
    error_in_json,
    keep_page,
    metadata_of,
    read_put_record_batch,
    read_put_records,
    read_records,
)
from sluice.aws.wire.sdk_deadlines import limit_requests
from sluice.aws.wire.wire_format import CborRequests

__all__ = ["ParserFactory", "install"]


def install(client: Any, wire_format: str = "json") -> None:
    """Registers the hooks with an SDK client. Events of other services than the client's never come.

    Args:
        wire_format: how records are asked for, see `ConnectionConfig`.
    """
    service = client.meta.service_model.service_id.hyphenize()
    cbor = CborRequests(wire_format, client.meta.endpoint_url)
    hooks = (
        # Parameters that the library writes.
        (f"before-parameter-build.{service}", substitute),
        (f"before-call.{service}", insert_body),
        # Answers that are cut short.
        (f"after-call.{service}", refuse_damaged_answer),
        # Records in CBOR, after what changes the body in JSON.
        ("before-call.kinesis.GetRecords", cbor.convert),
        ("before-call.kinesis.SubscribeToShard", cbor.convert),
        ("needs-retry.kinesis.GetRecords", cbor.fall_back),
        ("needs-retry.kinesis.SubscribeToShard", cbor.fall_back),
    )
    for event, hook in hooks:
        client.meta.events.register(event, hook)
    limit_requests(client)


def refuse_damaged_answer(*, http_response: Any, parsed: dict[str, Any], model: Any, **_: Any) -> None:
    """Raises DamagedAnswerError for an answer with a good status whose body is not whole.

    The SDK reads such a body as an answer without fields. A ``GetRecords`` answer without
    ``NextShardIterator`` means that the shard has ended, so its later records would be lost.
    """
    if http_response.status_code >= 300 or model.has_streaming_output or model.has_event_stream_output:
        return
    if model.http.get("method") == "HEAD":
        return
    body = http_response.content
    announced = http_response.headers.get("content-length", "")
    if (
        announced.isdigit()
        and int(announced) != len(body)
        and "content-encoding" not in http_response.headers
    ):
        raise DamagedAnswerError(f"the answer has {len(body)} of {announced} bytes")
    # A chunked answer announces no length. One without fields is rare, so it is worth decoding twice.
    if len(parsed) <= 1 and model.metadata.get("protocol") == "json":
        _check_without_fields(body, model.output_shape)


def _check_without_fields(body: bytes, shape: Any) -> None:
    try:
        fields = json.loads(body or b"{}")
    except ValueError:
        fields = None
    is_object = isinstance(fields, dict) and bool(body or not (shape and shape.members))
    if shape is not None and not is_object:
        raise DamagedAnswerError(f"the answer of {len(body)} bytes is not a JSON object")
    if isinstance(fields, dict) and "__type" in fields:  # as gateways answer that stand before the service
        raise DamagedAnswerError(
            f"the answer has a good status and an error, {fields['__type']}: {fields.get('message', '')}"
        )


# --- answers -----------------------------------------------------------------------------------------


def _unread_stream(response: Mapping[str, Any]) -> dict[str, Any]:
    """The body as urllib3 has it. The SDK would wait for an "initial-response" and parse every event."""
    return {"EventStream": response["body"], "ResponseMetadata": metadata_of(response)}


# Shape of the answer, as the API's model names it, to its reader. A reader returns None if the SDK has to
# read the answer.
_Reader = Callable[[Mapping[str, Any]], "dict[str, Any] | None"]
_Readers = Mapping[str, _Reader]
_READERS: Final[_Readers] = {
    "GetRecordsOutput": read_records,
    "PutRecordsOutput": read_put_records,
    "PutRecordBatchOutput": read_put_record_batch,
    "ScanOutput": read_scan,
    "SubscribeToShardOutput": _unread_stream,
}


def _reader_of(shape: Any, readers: _Readers) -> _Reader | None:
    # Kinesis and DynamoDB Streams call their answers by the same name.
    if shape.name == "GetRecordsOutput" and "MillisBehindLatest" not in shape.members:
        return read_changes
    return readers.get(shape.name)


class ParserFactory(ResponseParserFactory):
    """A session's ``response_parser_factory``: the SDK's own, with `_READERS` before its JSON parser.

    Args:
        keeps_pages: see `ConnectionConfig`.
    """

    def __init__(self, *, keeps_pages: bool = False) -> None:
        super().__init__()
        self._readers: _Readers = {**_READERS, "GetRecordsOutput": keep_page} if keeps_pages else _READERS

    def create_parser(self, protocol_name: str) -> Any:
        """The parser of a protocol."""
        parser = super().create_parser(protocol_name)
        # A later SDK may speak another protocol with the same service: the readers know JSON only.
        return _Parser(parser, self._readers) if protocol_name == "json" else parser


class _Parser:
    """Stands before the SDK's parser, which reads all errors and most answers."""

    def __init__(self, parser: Any, readers: _Readers) -> None:
        self._parser = parser
        self._readers = readers

    def parse(self, response: Mapping[str, Any], shape: Any) -> Any:
        read = None if shape is None else _reader_of(shape, self._readers)
        if read is not None and response["status_code"] < 300:
            answer = read(response)
            if answer is not None:
                return answer
        readable = error_in_json(response)
        try:
            parsed = self._parser.parse(readable, shape)
        except Exception as error:  # noqa: BLE001 - it raises anything for JSON of another form
            if response["status_code"] >= 300:
                return self._parser.parse({**readable, "body": b"{}"}, shape)  # its status is known
            raise DamagedAnswerError(f"the answer is not what it should be: {error!r}") from None
        if parsed is None:
            raise DamagedAnswerError("the answer is null")
        return parsed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)
