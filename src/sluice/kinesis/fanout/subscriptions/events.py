"""Events of a subscription (``SubscribeToShardEvent``), from JSON to what the library works with.

Two readings of the same bytes: the head says what an event holds without touching the data, for who
keeps it and passes it on; the page is the whole, for who makes rows of it.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from sluice.aws.errors import DamagedAnswerError, translate
from sluice.aws.long_records import read_page
from sluice.aws.records import Seconds, WireRecord
from sluice.errors import ServiceError
from sluice.instants import micros_from_seconds
from sluice.source.stream_log import Page

__all__ = ["EventHead", "decode_head", "decode_page"]

_T = TypeVar("_T")


class EventHead(msgspec.Struct):
    """What an event says, but for keys and data.

    Attributes:
        numbers: the records' sequence numbers, in order; as long as `arrivals`.
        arrivals: when each record arrived (microseconds).
        continuation: where to read on; None where the service gave none.
        millis_behind: how far the event's end is from the tip, in ms; only 0 means the tip.
        has_ended: the shard is closed, and this was its last event.
        skipped: records at the head of the payload that are left out of `numbers`: whoever set this has
            had them from an earlier event.
    """

    numbers: list[str]
    arrivals: list[int]
    continuation: str | None
    millis_behind: int
    has_ended: bool
    skipped: int = 0


class _Outline(msgspec.Struct, rename="pascal", gc=False):
    sequence_number: str
    approximate_arrival_timestamp: Seconds


class _Event(msgspec.Struct, rename="pascal"):
    continuation_sequence_number: str | None = None
    millis_behind_latest: int = 0
    child_shards: list[msgspec.Raw] | None = None

    @property
    def has_ended(self) -> bool:
        # The service sends children instead of a continuation; some emulators send both. Without either
        # nothing says where to read on, which its documentation has for the end of a shard only.
        return bool(self.child_shards) or not self.continuation_sequence_number


class _HeadEvent(_Event):
    records: list[_Outline] | None = None


class _PageEvent(_Event):
    records: list[WireRecord] | None = None


_head_decoder: Final = msgspec.json.Decoder(_HeadEvent)
_page_decoder: Final = msgspec.json.Decoder(_PageEvent)


def decode_head(payload: memoryview | bytes, *, target: str = "") -> EventHead:
    """Reads all of an event but keys and data.

    Args:
        target: what an error names as the source of the event.

    Raises:
        ServiceError: retryable; the payload is not an event.
    """
    try:
        event = _head_decoder.decode(payload)
        records = _present(event, event.records)
        return EventHead(
            [record.sequence_number for record in records],
            [micros_from_seconds(record.approximate_arrival_timestamp) for record in records],
            event.continuation_sequence_number or None,
            event.millis_behind_latest,
            event.has_ended,
        )
    except (msgspec.DecodeError, ValueError, OverflowError) as error:
        raise _damaged(error, target) from None


def decode_page(payload: memoryview | bytes, *, target: str = "") -> Page:
    """Reads an event as the page that polling would have given, `next_iterator` being its continuation.

    Args:
        target: what an error names as the source of the event.

    Raises:
        ServiceError: retryable; the payload is not an event.
    """
    try:
        event = read_page(_page_decoder.decode, payload)
        records = _present(event, event.records)
    except (msgspec.DecodeError, ValueError, OverflowError) as error:
        raise _damaged(error, target) from None
    # An emulator ends a shard with children and a continuation; one without any has ended as well.
    next_iterator = None if event.has_ended else event.continuation_sequence_number
    return Page(records, next_iterator, event.millis_behind_latest)


def _present(event: _Event, records: list[_T] | None) -> list[_T]:
    # An object with nothing that an event has is some other answer, not the end of a shard.
    if records is None and event.has_ended and not event.child_shards:
        raise ValueError("neither records nor a continuation")
    return records or []


def _damaged(error: Exception, target: str) -> ServiceError:
    damage = DamagedAnswerError(f"the event is not what it should be: {error}")
    return translate(damage, operation="SubscribeToShard", target=target, endpoint=None)
