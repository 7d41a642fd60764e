"""Unpacking of aggregated records: many user records in one, as the Kinesis Producer Library writes them.

The format (https://github.com/awslabs/amazon-kinesis-producer/blob/master/aggregation-format.md) is four
magic bytes, a protobuf message, and the MD5 of that message::

    message AggregatedRecord {
      repeated string partition_key_table = 1;
      repeated string explicit_hash_key_table = 2;
      repeated Record records = 3;
    }
    message Record {
      required uint64 partition_key_index = 1;
      optional uint64 explicit_hash_key_index = 2;
      required bytes data = 3;
      repeated Tag tags = 4;
    }

That is little enough to be read by hand, without the protobuf runtime, of which Spark brings its own.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from sluice.source.log import Record

__all__ = ["MAGIC", "UserRecord", "deaggregate"]

_log = logging.getLogger(__name__)

MAGIC: Final = b"\xf3\x89\x9a\xc2"
_DIGEST_SIZE: Final = 16
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MAX_UINT64: Final = 2**64 - 1
# What the Kinesis Producer Library gives every aggregate as partition key; it routes by hash key.
_PRODUCER_LIBRARY_KEY: Final = "a"

_damaged = itertools.count(1)


class UserRecord(NamedTuple):
    """A record as its producer wrote it.

    Attributes:
        sequence_number: of the record it came in.
        sub_sequence_number: its place inside that record, counted from 0; 0 when it came alone.
        arrival: of the record it came in (microseconds since the epoch).
        explicit_hash_key: what it was routed by instead of its partition key, when it was aggregated so.
    """

    sequence_number: str
    sub_sequence_number: int
    arrival: int
    partition_key: str
    data: bytes
    explicit_hash_key: str | None = None


def deaggregate(record: Record, hash_range: tuple[int, int] | None) -> list[UserRecord]:
    """The user records in `record`: itself alone, where it is not aggregated.

    When the producer library learns, after a reshard, that an aggregate has gone to another shard than it
    thought, it sends those of its records again that do not belong there. So of an aggregate of that
    library, records with a hash key outside `hash_range` are left out: they come once more, in their own
    shard. Other producers send nothing again, and all of their records are kept. (The vendor's consumer
    library drops the whole aggregate in both cases, and loses records.)

    What looks like an aggregate but is damaged is given as it is, with a warning.

    Args:
        record: as read from a shard.
        hash_range: first and last hash key of that shard, both included; None keeps all records.
    """
    data = record.data
    if not data.startswith(MAGIC) or len(data) <= len(MAGIC) + _DIGEST_SIZE:
        return [_alone(record)]
    message = data[len(MAGIC) : -_DIGEST_SIZE]
    if hashlib.md5(message, usedforsecurity=False).digest() != data[-_DIGEST_SIZE:]:
        return [_given_as_it_is(record, "its checksum is wrong")]
    try:
        users = list(_user_records(record, message))
        if hash_range is not None and record.partition_key == _PRODUCER_LIBRARY_KEY:
            first, last = hash_range
            users = [user for user in users if first <= _hash_key(user) <= last]
    except (ValueError, IndexError) as error:
        return [_given_as_it_is(record, str(error))]
    return users


def _alone(record: Record) -> UserRecord:
    return UserRecord(record.sequence_number, 0, record.arrival, record.partition_key, record.data)


def _given_as_it_is(record: Record, why: str) -> UserRecord:
    # A producer that damages one record may damage them all: the log gets the 1st, 2nd, 4th, 8th, ...
    count = next(_damaged)
    if count & (count - 1) == 0:
        _log.warning(
            "record %s looks aggregated, but %s: given as it is (%d such so far)",
            record.sequence_number,
            why,
            count,
        )
    return _alone(record)


def _hash_key(user: UserRecord) -> int:
    if user.explicit_hash_key is not None:
        return int(user.explicit_hash_key)
    return int.from_bytes(hashlib.md5(user.partition_key.encode(), usedforsecurity=False).digest(), "big")


# --- the protobuf message -----------------------------------------------------------------------------


def _user_records(record: Record, message: bytes) -> Iterator[UserRecord]:
    """Raises ValueError or IndexError for what is not an AggregatedRecord."""
    repeated: dict[int, list[bytes]] = {1: [], 2: [], 3: []}
    for number, value in _fields(message):
        if isinstance(value, bytes) and number in repeated:
            repeated[number].append(value)
    partition_keys = [key.decode() for key in repeated[1]]
    hash_keys = [key.decode() for key in repeated[2]]
    for sub, inner in enumerate(repeated[3]):
        key_index, hash_index, data = _user_fields(inner)
        if key_index is None or data is None:
            raise ValueError(f"user record {sub} lacks its partition key or its data")
        yield UserRecord(
            record.sequence_number,
            sub,
            record.arrival,
            _entry(partition_keys, key_index),
            data,
            None if hash_index is None else _entry(hash_keys, hash_index),
        )


def _user_fields(message: bytes) -> tuple[int | None, int | None, bytes | None]:
    """Partition key index, explicit hash key index and data; of what is there twice, the last counts."""
    key_index: int | None = None
    hash_index: int | None = None
    data: bytes | None = None
    for number, value in _fields(message):
        if isinstance(value, bytes):
            data = value if number == 3 else data
        elif number == 1:
            key_index = value
        elif number == 2:
            hash_index = value
    return key_index, hash_index, data


def _entry(table: Sequence[str], index: int) -> str:
    if index >= len(table):
        raise ValueError(f"a key has index {index} in a table of {len(table)}")
    return table[index]


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field: a varint as int, anything with a length as bytes. Others are skipped.

    Raises ValueError where the message ends inside a field, IndexError where it ends inside a varint.
    """
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        number, wire_type = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("a field has number 0")
        if wire_type == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire_type == _LENGTH:
            size, at = _varint(message, at)
        elif wire_type in (_FIXED64, _FIXED32):
            size = 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"a field has wire type {wire_type}")
        if at + size > end:
            raise ValueError("it ends inside a field")
        if wire_type == _LENGTH:
            yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number that starts at `at`, and where it ends."""
    byte = message[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while byte >= 0x80:
        at += 1
        byte = message[at]
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift > 70:
            raise ValueError("a number is too long")
    return value & _MAX_UINT64, at + 1
