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
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from sluice.source.stream_log import AnyRecord

__all__ = [
    "DIGEST_SIZE",
    "MAGIC",
    "PRODUCER_LIBRARY_KEY",
    "Unpacked",
    "UserRecord",
    "deaggregate",
    "hash_key",
    "unpack",
]

_log = logging.getLogger(__name__)

MAGIC: Final = b"\xf3\x89\x9a\xc2"
DIGEST_SIZE: Final = 16
PRODUCER_LIBRARY_KEY: Final = "a"
"""What the Kinesis Producer Library gives every aggregate as partition key; it routes by hash key."""

# How fields of number 1 and 3 start, where they have a length.
_KEYS: Final = 0x0A
_RECORDS: Final = 0x1A
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MAX_UINT64: Final = 2**64 - 1

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


class Unpacked(NamedTuple):
    """The user records of one aggregate, column by column, in their order.

    Attributes:
        hash_keys: explicit ones; None for a record that has none.
    """

    partition_keys: list[str]
    data: list[bytes]
    hash_keys: list[str | None]


def deaggregate(record: AnyRecord, hash_range: tuple[int, int] | None) -> list[UserRecord]:
    """The user records in `record`: itself alone, where it is not aggregated.

    When the producer library learns, after a reshard, that an aggregate has gone to another shard than it
    thought, it sends those of its records again that do not belong there (``Retrier`` in
    https://github.com/awslabs/amazon-kinesis-producer). So of an aggregate of that library, records
    with a hash key outside `hash_range` are left out: they come once more, in their own shard. The vendor's
    consumer library drops the whole aggregate if one record of it is outside (``AggregatorUtil`` in
    https://github.com/awslabs/amazon-kinesis-client). Here those inside are kept: the producer library
    does not always send them again, and a record twice is better than none.

    Other producers send nothing again, and all of their records are kept. An aggregate is taken for the
    producer library's by its partition key, "a", which others have only where the first record in it has
    that key: they name an aggregate after it. Then there is no telling, and everything is kept.

    What looks like an aggregate but is damaged is given as it is, with a warning.

    Args:
        record: as read from a shard.
        hash_range: first and last hash key of that shard, both included; None keeps all records.
    """
    if not record.data.startswith(MAGIC) or len(record.data) <= len(MAGIC) + DIGEST_SIZE:
        return [_alone(record)]
    try:
        keys, data, hash_keys = unpack(record.data)
        left_out = _left_out(record, keys, hash_keys, hash_range)
    except (ValueError, IndexError) as error:
        return [_given_as_it_is(record, str(error))]
    number, arrival = itertools.repeat(record.sequence_number), itertools.repeat(record.arrival)
    columns = zip(number, range(len(keys)), arrival, keys, data, hash_keys, strict=False)
    users = list(map(UserRecord._make, columns))
    return [user for user in users if user.sub_sequence_number not in left_out] if left_out else users


def unpack(data: bytes) -> Unpacked:
    """The user records in the bytes of an aggregate, which start with the magic ones.

    Raises:
        ValueError, IndexError: it is damaged; the message says how.
    """
    message = data[len(MAGIC) : -DIGEST_SIZE]
    if hashlib.md5(message, usedforsecurity=False).digest() != data[-DIGEST_SIZE:]:
        raise ValueError("its checksum is wrong")
    return _user_records(message)


@lru_cache(maxsize=16384)
def hash_key(partition_key: str) -> int:
    """By which a record with this partition key is routed, unless it has an explicit hash key."""
    return int.from_bytes(hashlib.md5(partition_key.encode(), usedforsecurity=False).digest(), "big")


def _left_out(
    record: AnyRecord,
    keys: Sequence[str],
    hash_keys: Sequence[str | None],
    hash_range: tuple[int, int] | None,
) -> set[int]:
    """The places of those that do not belong to the shard, and will come again where they do."""
    if hash_range is None or record.partition_key != PRODUCER_LIBRARY_KEY:
        return set()
    if not keys or keys[0] == PRODUCER_LIBRARY_KEY:
        return set()
    first, last = hash_range
    # Most aggregates have far fewer keys than records.
    distinct = set(zip(keys, hash_keys, strict=True))
    outside = {pair for pair in distinct if not first <= _routed_by(*pair) <= last}
    if not outside:
        return set()
    return {sub for sub, pair in enumerate(zip(keys, hash_keys, strict=True)) if pair in outside}


def _routed_by(partition_key: str, explicit_hash_key: str | None) -> int:
    return hash_key(partition_key) if explicit_hash_key is None else int(explicit_hash_key)


def _alone(record: AnyRecord) -> UserRecord:
    return UserRecord(record.sequence_number, 0, record.arrival, record.partition_key, record.data)


def _given_as_it_is(record: AnyRecord, why: str) -> UserRecord:
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


# --- the protobuf message -----------------------------------------------------------------------------


def _user_records(message: bytes) -> Unpacked:
    """Raises ValueError or IndexError for what is not an AggregatedRecord."""
    keys: list[str] = []
    hash_keys: list[str] = []
    indexes: list[int] = []
    hash_indexes: list[int | None] = []
    data: list[bytes] = []
    at, end = 0, len(message)
    while at < end:
        if message[at] == _KEYS and (stop := at + 2 + message[at + 1]) <= end and message[at + 1] < 0x80:
            keys.append(message[at + 2 : stop].decode())
            at = stop
            continue
        if message[at] != _RECORDS:
            number, value, at = _field(message, at)
            if isinstance(value, bytes) and number in (1, 2):
                (keys if number == 1 else hash_keys).append(value.decode())
            continue
        size = message[at + 1]
        at += 2
        if size >= 0x80:
            size, at = _varint(message, at - 1)
        stop = at + size
        if stop > end:
            raise ValueError("it ends inside a field")
        # What the libraries write, in their order: a partition key, no hash key, data, no tags.
        if (
            size >= 4
            and message[at] == 0x08
            and (index := message[at + 1]) < 0x80
            and message[at + 2] == 0x1A
        ):
            length = message[at + 3]
            first = at + 4
            if length >= 0x80:
                length, first = _varint(message, at + 3)
            if first + length == stop:
                indexes.append(index)
                hash_indexes.append(None)
                data.append(message[first:stop])
                at = stop
                continue
        user = _user_fields(message[at:stop], len(data))
        indexes.append(user[0])
        hash_indexes.append(user[1])
        data.append(user[2])
        at = stop
    _check_indexes(indexes, keys)
    _check_indexes([index for index in hash_indexes if index is not None], hash_keys)
    return Unpacked(
        [keys[index] for index in indexes],
        data,
        [None if index is None else hash_keys[index] for index in hash_indexes],
    )


def _user_fields(message: bytes, sub: int) -> tuple[int, int | None, bytes]:
    """Index of the partition key, of the hash key, and the data.

    Of a field that is there twice, the last counts.
    """
    key_index: int | None = None
    hash_index: int | None = None
    data: bytes | None = None
    at = 0
    while at < len(message):
        number, value, at = _field(message, at)
        if isinstance(value, bytes):
            data = value if number == 3 else data
        elif value is not None and number == 1:
            key_index = value
        elif value is not None and number == 2:
            hash_index = value
    if key_index is None or data is None:
        raise ValueError(f"user record {sub} lacks its partition key or its data")
    return key_index, hash_index, data


def _check_indexes(indexes: Sequence[int], table: Sequence[str]) -> None:
    if indexes and max(indexes) >= len(table):
        raise ValueError(f"a key has index {max(indexes)} in a table of {len(table)}")


def _field(message: bytes, at: int) -> tuple[int, int | bytes | None, int]:
    """The field that starts at `at`: its number, its value, and where it ends.

    The value is a varint as int, anything with a length as bytes, None for what is neither.

    Raises ValueError where the message ends inside a field, IndexError where it ends inside a varint.
    """
    tag, at = _varint(message, at)
    number, wire_type = tag >> 3, tag & 7
    if number == 0:
        raise ValueError("a field has number 0")
    if wire_type == _VARINT:
        value, at = _varint(message, at)
        return number, value, at
    if wire_type == _LENGTH:
        size, at = _varint(message, at)
    elif wire_type in (_FIXED64, _FIXED32):
        size = 8 if wire_type == _FIXED64 else 4
    else:
        raise ValueError(f"a field has wire type {wire_type}")
    stop = at + size
    if stop > len(message):
        raise ValueError("it ends inside a field")
    return number, message[at:stop] if wire_type == _LENGTH else None, stop


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
