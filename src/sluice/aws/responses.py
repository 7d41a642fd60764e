"""Answers that the library reads itself, by type, because the SDK's own reading is what takes the time.

A reader here either reads an answer as the SDK would have read it, or not at all: whatever is not as
expected (a field that is null or of another type, a damaged body) is left to the SDK. So nothing is
accepted, refused or understood otherwise than by the SDK; only the objects in it are other ones.

Fields of the answers that the library does not use are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from sluice.aws.long_records import read_page
from sluice.aws.records import WireRecord

__all__ = [
    "Outcome",
    "metadata_of",
    "outcomes_of",
    "read_put_record_batch",
    "read_put_records",
    "read_records",
]

T = TypeVar("T")


class Outcome(msgspec.Struct, rename="pascal", gc=False):
    """What became of one entry of a batch; without a code it was accepted."""

    error_code: str | None = None
    error_message: str | None = None
    shard_id: str | None = None

    @classmethod
    def of(cls, outcome: Mapping[str, Any]) -> Outcome:
        """The same of the SDK's reading."""
        return cls(outcome.get("ErrorCode"), outcome.get("ErrorMessage"), outcome.get("ShardId"))


def outcomes_of(answer: Mapping[str, Any], name: str) -> list[Outcome]:
    """The outcomes that an answer has under `name`, whether the library or the SDK has read it."""
    outcomes: list[Any] = answer.get(name) or []
    if outcomes and not isinstance(outcomes[0], Outcome):  # one reader has read all of them
        return list(map(Outcome.of, outcomes))
    return outcomes


class _Page(msgspec.Struct, rename="pascal"):
    records: list[WireRecord]
    millis_behind_latest: int
    next_shard_iterator: str | None = None


class _PutRecords(msgspec.Struct, rename="pascal"):
    records: list[Outcome]


class _PutRecordBatch(msgspec.Struct, rename="pascal"):
    request_responses: list[Outcome]


def _decoder(kind: type[T]) -> Callable[[bytes], T]:
    decoder = msgspec.json.Decoder(kind)

    def decode(body: bytes) -> T:
        if not body.isascii():
            body.decode()  # text in fields that are left out must be text as well
        return decoder.decode(body)

    return decode


_decode_page: Final = partial(read_page, _decoder(_Page))
_decode_put_records: Final = _decoder(_PutRecords)
_decode_put_record_batch: Final = _decoder(_PutRecordBatch)


def read_records(response: Mapping[str, Any]) -> dict[str, Any] | None:
    """A ``GetRecords`` answer, its ``Records`` being `WireRecord`; None for the SDK to read it."""
    page = _decoded(_decode_page, response)
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


def read_put_records(response: Mapping[str, Any]) -> dict[str, Any] | None:
    """A ``PutRecords`` answer, its ``Records`` being `Outcome`; None for the SDK to read it."""
    answer = _decoded(_decode_put_records, response)
    if answer is None:
        return None
    return {"Records": answer.records, "ResponseMetadata": metadata_of(response)}


def read_put_record_batch(response: Mapping[str, Any]) -> dict[str, Any] | None:
    """A ``PutRecordBatch`` answer, its ``RequestResponses`` being `Outcome`; None for the SDK to read it."""
    answer = _decoded(_decode_put_record_batch, response)
    if answer is None:
        return None
    return {"RequestResponses": answer.request_responses, "ResponseMetadata": metadata_of(response)}


def metadata_of(response: Mapping[str, Any]) -> dict[str, Any]:
    """What the SDK says of every answer."""
    headers = {name.lower(): value for name, value in response["headers"].items()}
    metadata = {"HTTPStatusCode": response["status_code"], "HTTPHeaders": headers}
    if "x-amzn-requestid" in headers:
        metadata["RequestId"] = headers["x-amzn-requestid"]
    return metadata


def _decoded(decode: Callable[[bytes], T], response: Mapping[str, Any]) -> T | None:
    try:
        return decode(response["body"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
