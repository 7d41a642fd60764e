"""What Sluice adds to the SDK's clients through the SDK's own hooks.

This is the one place that touches requests and answers on their way.

- `keep_fractions`: older SDKs cut timestamps to whole seconds; an ``AT_TIMESTAMP`` iterator or
  subscription would start up to a second early.
- `refuse_damage`: the SDK reads an answer that is cut short as one without any fields, and a
  ``GetRecords`` without ``NextShardIterator`` means "the shard has ended". Records would be lost.
- `sluice.aws.request_bodies`: bodies of large requests, which the library writes itself.
- `sluice.aws.receiving`: pages of records, received in one piece.
- `ParserFactory`: answers that the library reads itself, faster than the SDK does.
"""

from __future__ import annotations

import calendar
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from botocore.parsers import ResponseParserFactory

from sluice.aws.errors import DamagedAnswerError
from sluice.aws.receiving import Receiver
from sluice.aws.request_bodies import insert_body, substitute
from sluice.aws.responses import metadata_of, read_put_record_batch, read_put_records, read_records

__all__ = ["ParserFactory", "install"]

_CONTEXT_KEY: Final = "sluice_timestamp"


def install(client: Any) -> None:
    """Registers the hooks with an SDK client."""
    events = client.meta.events
    service = client.meta.service_model.service_id.hyphenize()
    events.register(f"after-call.{service}", refuse_damage, unique_id="sluice-damage")
    events.register(f"before-parameter-build.{service}", substitute, unique_id="sluice-set-aside")
    events.register(f"before-call.{service}", insert_body, unique_id="sluice-put-in")
    if service == "kinesis":
        Receiver().install(events, "kinesis.GetRecords")
        events.register(
            "before-parameter-build.kinesis.GetShardIterator",
            remember_timestamp,
            unique_id="sluice-timestamp",
        )
        events.register("before-call.kinesis.GetShardIterator", keep_fractions, unique_id="sluice-fractions")
        events.register(
            "before-parameter-build.kinesis.SubscribeToShard",
            remember_position,
            unique_id="sluice-timestamp",
        )
        events.register("before-call.kinesis.SubscribeToShard", keep_fractions, unique_id="sluice-fractions")


def remember_timestamp(*, params: Mapping[str, Any], context: dict[str, Any], **_: Any) -> None:
    """Keeps the exact instant for `keep_fractions`, which sees only the finished body."""
    if isinstance(params.get("Timestamp"), datetime):
        context[_CONTEXT_KEY] = params["Timestamp"]


def remember_position(*, params: Mapping[str, Any], context: dict[str, Any], **_: Any) -> None:
    """As `remember_timestamp`, of a subscription's starting position."""
    position = params.get("StartingPosition")
    if isinstance(position, Mapping):
        remember_timestamp(params=position, context=context)


def keep_fractions(*, params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    """Puts the timestamp into the body as epoch seconds with microseconds."""
    instant: datetime | None = context.get(_CONTEXT_KEY)
    if instant is None:
        return
    micros = calendar.timegm(instant.utctimetuple()) * 1_000_000 + instant.microsecond
    body = json.loads(params["body"])
    body.get("StartingPosition", body)["Timestamp"] = micros / 1_000_000
    params["body"] = json.dumps(body).encode()


def refuse_damage(*, http_response: Any, parsed: dict[str, Any], model: Any, **_: Any) -> None:
    """Raises DamagedAnswerError for a good status whose body is not whole."""
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
    # A chunked answer announces no length. One that parsed to nothing is rare enough to look at twice.
    if len(parsed) <= 1 and model.metadata.get("protocol") == "json" and model.output_shape is not None:
        try:
            whole = isinstance(json.loads(body), dict) if body else not model.output_shape.members
        except ValueError:
            whole = False
        if not whole:
            raise DamagedAnswerError(f"the answer of {len(body)} bytes is not a JSON object")


# --- answers -----------------------------------------------------------------------------------------


def _raw_stream(response: Mapping[str, Any]) -> dict[str, Any]:
    # The SDK would insist on an "initial-response" first and make an object of every field.
    return {"EventStream": response["body"], "ResponseMetadata": metadata_of(response)}


# By the name that the API's model gives the answer's shape: what reads it in the SDK's place, unless it
# gives None.
_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any] | None]]] = {
    "GetRecordsOutput": read_records,
    "PutRecordsOutput": read_put_records,
    "PutRecordBatchOutput": read_put_record_batch,
    "SubscribeToShardOutput": _raw_stream,  # EventStream: the body as urllib3 has it, unread
}


class ParserFactory(ResponseParserFactory):
    """A session's ``response_parser_factory``: the SDK's own, but for good answers in `_READERS`."""

    def create_parser(self, protocol_name: str) -> Any:
        """The parser of a protocol."""
        parser = super().create_parser(protocol_name)
        # An SDK to come may speak another protocol with the same service: that it must read by itself.
        return _Parser(parser) if protocol_name == "json" else parser


class _Parser:
    """Stands before the SDK's parser, which reads all errors and most answers."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser

    def parse(self, response: Mapping[str, Any], shape: Any) -> Any:
        if shape is not None and response["status_code"] < 300 and shape.name in _READERS:
            answer = _READERS[shape.name](response)
            if answer is not None:
                return answer
        return self._parser.parse(response, shape)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)
