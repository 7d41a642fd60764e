"""Decodes the events of a subscription (``SubscribeToShardEvent``), and pages of ``GetRecords``.

A polling agent passes on pages as a subscribing agent passes on events. The two differ in how to
continue: an event names a sequence number, and a page an iterator.

The same event is read in two ways. An agent, which passes it on, only reads its head, without keys and data.
A task reads the whole event as a page, like a page from polling. Events are in JSON or in CBOR, as the
subscription requested; the first byte shows which.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec

from sluice.aws.errors import DamagedAnswerError, translate
from sluice.aws.wire.cbor import is_cbor
from sluice.aws.wire.long_records import read_page
from sluice.aws.wire.pages import PageReader, data_size, find_many, take_records
from sluice.aws.wire.record_bounds import RecordBounds
from sluice.aws.wire.records import Seconds, WireRecord
from sluice.errors import ServiceError
from sluice.instants import micros_from_seconds
from sluice.source.logs.stream_log import Page

__all__ = ["EventHead", "decode_head", "decode_page"]


class EventHead(msgspec.Struct):
    """An event without partition keys and data.

    Attributes:
        numbers: the sequence numbers of the records, in order.
        arrivals: when each of these records arrived (microseconds).
        continuation: where to continue reading: ``ContinuationSequenceNumber`` of an event,
            ``NextShardIterator`` of a page; None if the service returned none.
        millis_behind: how far the end of the event is from the tip of the shard (milliseconds). Only 0 means
            the tip.
        has_ended: the shard is closed, and this is its last event.
        skipped: number of records at the start of the payload that `numbers` omits because they were in an
            earlier event.
    """

    numbers: list[str]
    arrivals: list[int]
    continuation: str | None
    millis_behind: int
    has_ended: bool
    skipped: int = 0


class _RecordHead(msgspec.Struct, rename="pascal", gc=False):
    sequence_number: str
    approximate_arrival_timestamp: Seconds


class _Event(msgspec.Struct, rename="pascal"):
    continuation_sequence_number: str | None = None
    next_shard_iterator: str | None = None
    millis_behind_latest: int = 0
    child_shards: list[Any] | None = None

    @property
    def continuation(self) -> str | None:
        return self.continuation_sequence_number or self.next_shard_iterator or None

    @property
    def has_ended(self) -> bool:
        # At the end of a shard the service sends children and no continuation; some emulators send both. An
        # event without either is an end too: the API documents a missing continuation for that case alone.
        # A page of `GetRecords` is the last one if and only if it names no iterator.
        if self.next_shard_iterator:
            return False
        return bool(self.child_shards) or not self.continuation_sequence_number


class _HeadEvent(_Event):
    records: list[_RecordHead] | None = None


class _PageEvent(_Event):
    records: list[WireRecord] | None = None


_decode_head: Final = msgspec.json.Decoder(_HeadEvent).decode
_decode_page: Final = msgspec.json.Decoder(_PageEvent).decode
_head_reader: Final = PageReader(_HeadEvent, _decode_head, RecordBounds.heads)
_page_reader: Final = PageReader(_PageEvent, partial(read_page, _decode_page), take_records, find_many)


def decode_head(payload: memoryview | bytes, *, target: str = "") -> EventHead:
    """Decodes an event without its partition keys and data.

    Args:
        target: ``stream/shard``, for errors.

    Raises:
        ServiceError: retryable; the payload is not an event.
    """
    try:
        event = _head_reader.read(payload)
        return EventHead(
            *_numbers_and_arrivals(_records(event, event.records)),
            event.continuation,
            event.millis_behind_latest,
            event.has_ended,
        )
    except (msgspec.DecodeError, DamagedAnswerError, ValueError, OverflowError) as error:
        raise _damaged(error, target) from None


def decode_page(payload: memoryview | bytes, *, target: str = "") -> Page:
    """Decodes an event as a page, like a page from polling. Its `next_iterator` is the event's continuation.

    Args:
        target: ``stream/shard``, for errors.

    Raises:
        ServiceError: retryable; the payload is not an event.
    """
    try:
        event = _page_reader.read(payload)
        records = _records(event, event.records)
    except (msgspec.DecodeError, DamagedAnswerError, ValueError, OverflowError) as error:
        raise _damaged(error, target) from None
    next_iterator = None if event.has_ended else event.continuation
    size = data_size(len(payload), len(records), is_cbor=is_cbor(payload))
    return Page(records, next_iterator, event.millis_behind_latest, size)


def _numbers_and_arrivals(records: Sequence[Any]) -> tuple[list[str], list[int]]:
    if isinstance(records, tuple):  # of `RecordBounds.heads`
        numbers, arrivals = records
        return numbers, arrivals
    return (
        [record.sequence_number for record in records],
        [micros_from_seconds(record.approximate_arrival_timestamp) for record in records],
    )


def _records(event: _Event, records: Sequence[Any] | None) -> Sequence[Any]:
    # An object with neither records nor a continuation is not an event.
    if records is None and event.has_ended and not event.child_shards:
        raise ValueError("neither records nor a continuation")
    return records or []


def _damaged(error: Exception, target: str) -> ServiceError:
    damage = DamagedAnswerError(f"the event can't be decoded: {error}")
    return translate(damage, operation="SubscribeToShard", target=target, endpoint=None)
