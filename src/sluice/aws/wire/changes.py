"""Records of DynamoDB Streams as the service sends them: decoded once, images left as the JSON they came in.

The planner looks at numbers, times and sizes alone, and tasks hand the images on as text. So no
Python objects are made of attribute values.

https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_streams_GetRecords.html
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from sluice.aws.errors import DamagedAnswerError
from sluice.aws.wire.mended_text import mended_json
from sluice.aws.wire.records import Seconds
from sluice.aws.wire.responses import metadata_of
from sluice.instants import micros_from_datetime, micros_from_seconds

__all__ = ["Change", "ChangeRecord", "as_json", "changes_of", "read_changes"]

_ABSENT: Final = msgspec.Raw()


class Change(msgspec.Struct, rename="pascal", gc=False):
    """The field ``dynamodb`` of a record.

    Attributes:
        approximate_creation_date_time: seconds since the epoch; the service cuts them to whole ones.
        keys, new_image, old_image: JSON in DynamoDB's form; empty if the record has none.
        size_bytes: what the service counts for the record.
    """

    sequence_number: str
    approximate_creation_date_time: Seconds
    keys: msgspec.Raw = _ABSENT
    new_image: msgspec.Raw = _ABSENT
    old_image: msgspec.Raw = _ABSENT
    size_bytes: int = 0
    stream_view_type: str | None = None


class ChangeRecord(msgspec.Struct, gc=False):
    """One record: a change of one item.

    Attributes:
        user_identity: JSON; empty unless the service itself made the change, as it does for time to live.
    """

    dynamodb: Change
    event_id: str | None = msgspec.field(name="eventID", default=None)
    event_name: str | None = msgspec.field(name="eventName", default=None)
    user_identity: msgspec.Raw = msgspec.field(name="userIdentity", default=_ABSENT)

    @property
    def sequence_number(self) -> str:
        """As the service writes it: decimal digits."""
        return self.dynamodb.sequence_number

    @property
    def arrival(self) -> int:
        """When the change was made, about, in microseconds since the epoch."""
        return micros_from_seconds(self.dynamodb.approximate_creation_date_time)

    @property
    def size(self) -> int:
        """Bytes, as the service counts them."""
        return self.dynamodb.size_bytes


class _Page(msgspec.Struct, rename="pascal"):
    records: list[ChangeRecord]
    next_shard_iterator: str | None = None


_decoder: Final = msgspec.json.Decoder(_Page)


def read_changes(response: Mapping[str, Any]) -> dict[str, Any]:
    """Reads a ``GetRecords`` answer of DynamoDB Streams, with ``Records`` as `ChangeRecord`.

    Raises:
        DamagedAnswerError: the body is not what the service sends.
    """
    try:
        page = _read_page(response["body"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedAnswerError(f"the answer is not what it should be: {error}") from None
    answer: dict[str, Any] = {"Records": page.records, "ResponseMetadata": metadata_of(response)}
    if page.next_shard_iterator is not None:
        answer["NextShardIterator"] = page.next_shard_iterator
    return answer


def _read_page(body: bytes) -> _Page:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decoder.decode(mended_json(body))


def changes_of(answer: Mapping[str, Any]) -> list[ChangeRecord]:
    """The records of an answer, whether the library or the SDK has read it."""
    records: list[Any] = answer["Records"]
    if records and not isinstance(records[0], ChangeRecord):  # an SDK that speaks another protocol
        return list(map(_of_sdk, records))
    return records


def _of_sdk(record: Mapping[str, Any]) -> ChangeRecord:
    change = record["dynamodb"]
    return ChangeRecord(
        Change(
            change["SequenceNumber"],
            micros_from_datetime(change["ApproximateCreationDateTime"]) / 1_000_000,
            as_json(change.get("Keys")),
            as_json(change.get("NewImage")),
            as_json(change.get("OldImage")),
            change.get("SizeBytes", 0),
            change.get("StreamViewType"),
        ),
        record.get("eventID"),
        record.get("eventName"),
        as_json(record.get("userIdentity")),
    )


def as_json(value: Any) -> msgspec.Raw:
    """An item, or another value, of the SDK as the service would send it; empty for None."""
    return _ABSENT if value is None else msgspec.Raw(msgspec.json.encode(_sendable(value)))


def _sendable(value: Any) -> Any:
    """A value of the SDK as JSON has it: bytes are base64."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {name: _sendable(inner) for name, inner in value.items()}
    return [_sendable(inner) for inner in value] if isinstance(value, list) else value
