"""Decodes large answers with a typed decoder, because the SDK's own parser takes most of the time of a call.

A reader here either decodes an answer to what the SDK would have made of it, or returns None, and the SDK
reads it: where a field is null or of an unexpected type, or the body is damaged. So answers are accepted,
refused and understood as by the SDK. Fields that the library does not use are left out.

The SDK cannot read CBOR from Kinesis. A page in CBOR that cannot be read here is damaged, and an error in
CBOR is shown to the SDK in JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from sluice.aws.errors import DamagedCborError
from sluice.aws.wire.cbor import Decoder, is_cbor
from sluice.aws.wire.long_records import read_page
from sluice.aws.wire.pages import PageReader, find_many, take_records
from sluice.aws.wire.records import WireRecord

__all__ = [
    "Outcome",
    "error_in_json",
    "keep_page",
    "metadata_of",
    "outcomes_of",
    "read_put_record_batch",
    "read_put_records",
    "read_records",
]

T = TypeVar("T")


class Outcome(msgspec.Struct, rename="pascal", gc=False):
    """What became of one entry of a batch: it was accepted if it has an id and no error code.

    Attributes:
        error_code, error_message: why the entry was refused.
        shard_id: where the entry is; of a stream only.
        id: what the service has given to the entry that it accepted. Each service has its own name for it.
    """

    error_code: str | None = None
    error_message: str | None = None
    shard_id: str | None = None
    id: str | None = None


class _PutRecordsOutcome(Outcome, gc=False):
    id: str | None = msgspec.field(default=None, name="SequenceNumber")


class _PutRecordBatchOutcome(Outcome, gc=False):
    id: str | None = msgspec.field(default=None, name="RecordId")


# By the field of the answer that holds them.
_OUTCOMES: Final[Mapping[str, Any]] = {
    "Records": list[_PutRecordsOutcome],
    "RequestResponses": list[_PutRecordBatchOutcome],
}


def outcomes_of(answer: Mapping[str, Any], name: str) -> list[Outcome]:
    """The outcomes in the field `name` of an answer, whether the library or the SDK has read it.

    Raises:
        msgspec.ValidationError: the field holds something else.
    """
    outcomes: list[Any] = answer.get(name) or []
    if outcomes and not isinstance(outcomes[0], Outcome):  # the SDK has read all of them
        converted: list[Outcome] = msgspec.convert(outcomes, _OUTCOMES[name])
        return converted
    return outcomes


class _Page(msgspec.Struct, rename="pascal"):
    records: list[WireRecord]
    millis_behind_latest: int
    next_shard_iterator: str | None = None


class _PutRecords(msgspec.Struct, rename="pascal"):
    records: list[_PutRecordsOutcome]


class _PutRecordBatch(msgspec.Struct, rename="pascal"):
    request_responses: list[_PutRecordBatchOutcome]


def _decoder(kind: type[T]) -> Callable[[bytes], T]:
    decoder = msgspec.json.Decoder(kind)

    def decode(body: bytes) -> T:
        if not body.isascii():
            body.decode()  # msgspec does not look into fields that it leaves out; the SDK does
        return decoder.decode(body)

    return decode


_page_reader: Final = PageReader(_Page, partial(read_page, _decoder(_Page)), take_records, find_many)
_decode_put_records: Final = _decoder(_PutRecords)
_decode_put_record_batch: Final = _decoder(_PutRecordBatch)


def read_records(response: Mapping[str, Any]) -> dict[str, Any] | None:
    """Reads a ``GetRecords`` answer, with ``Records`` as `WireRecord`; None for the SDK to read it.

    Raises:
        DamagedCborError: the answer is in CBOR, and damaged.
    """
    page = _decoded(_page_reader.read, response)
    if page is None:
        return None
    answer = {
        "Records": page.records,
        "MillisBehindLatest": page.millis_behind_latest,
        "ResponseMetadata": metadata_of(response),
    }
    if page.next_shard_iterator is not None:
        answer["NextShardIterator"] = page.next_shard_iterator
    return answer


def keep_page(response: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves the body of a ``GetRecords`` answer as it came: the caller reads it."""
    return {"Body": response["body"], "ResponseMetadata": metadata_of(response)}


def read_put_records(response: Mapping[str, Any]) -> dict[str, Any] | None:
    """Reads a ``PutRecords`` answer, with ``Records`` as `Outcome`; None for the SDK to read it."""
    answer = _decoded(_decode_put_records, response)
    if answer is None:
        return None
    return {"Records": answer.records, "ResponseMetadata": metadata_of(response)}


def read_put_record_batch(response: Mapping[str, Any]) -> dict[str, Any] | None:
    """Reads a ``PutRecordBatch`` answer, ``RequestResponses`` as `Outcome`; None for the SDK to read it."""
    answer = _decoded(_decode_put_record_batch, response)
    if answer is None:
        return None
    return {"RequestResponses": answer.request_responses, "ResponseMetadata": metadata_of(response)}


def error_in_json(response: Mapping[str, Any]) -> Mapping[str, Any]:
    """An error as the SDK can read it: in JSON where it is in CBOR, and in UTF-8 where it is text.

    A server that takes CBOR for text may quote it.

    Raises:
        DamagedCborError: it is in CBOR, and damaged.
    """
    body = response["body"]
    if response["status_code"] < 300 or not isinstance(body, bytes):
        return response
    if is_cbor(body):
        return {**response, "body": msgspec.json.encode(Decoder(body).decode())}
    return {**response, "body": body.decode(errors="replace").encode()}


def metadata_of(response: Mapping[str, Any]) -> dict[str, Any]:
    """The ``ResponseMetadata`` that the SDK adds to every answer."""
    headers = {name.lower(): value for name, value in response["headers"].items()}
    metadata = {"HTTPStatusCode": response["status_code"], "HTTPHeaders": headers}
    if "x-amzn-requestid" in headers:
        metadata["RequestId"] = headers["x-amzn-requestid"]
    return metadata


def _decoded(decode: Callable[[bytes], T], response: Mapping[str, Any]) -> T | None:
    body = response["body"]
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if is_cbor(body):
            raise DamagedCborError(f"the answer is not what it should be: {error}") from None
        return None
