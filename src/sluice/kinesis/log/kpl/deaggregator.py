"""Unpacks aggregated records into user records. The format is in `sluice.kinesis.log.kpl.format`."""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from sluice.kinesis.log.kpl.format import (
    CHECKSUM_SIZE,
    DATA,
    MAGIC,
    PARTITION_KEY_INDEX,
    PARTITION_KEY_TABLE,
    PRODUCER_LIBRARY_KEY,
    RECORDS,
)
from sluice.source.logs.stream_log import AnyRecord

__all__ = ["Unpacked", "UserRecords", "deaggregate", "hash_key", "unpack"]

_log = logging.getLogger(__name__)

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MAX_UINT64: Final = 2**64 - 1

_MAX_EXPANSION: Final = 4096
"""The most bytes of all user records' partition keys together, as a multiple of the message's size.

User records refer to their partition key by an index, so a message of 1 MiB can expand to 43 GB of keys. As a
partition key has at most 1,024 bytes (256 characters) and a user record at least 6, producers that keep to
the service's limits stay below 171; not all of them check the length of their keys."""

_CACHED_KEY: Final = 256
"""The longest partition key (characters) that Kinesis takes. Longer ones are not kept in the cache."""

_HASH_KEY_DIGITS: Final = 39  # 2^128 - 1 has as many

_damaged = itertools.count(1)


class UserRecords(NamedTuple):
    """The user records in one record of a shard, column by column, in their order.

    Attributes:
        places: the place of each inside the aggregated record, counted from 0; 0 for a plain record.
        hash_keys: explicit hash keys; None for a user record without one.
    """

    places: Sequence[int]
    partition_keys: Sequence[str]
    data: Sequence[bytes]
    hash_keys: Sequence[str | None]


class Unpacked(NamedTuple):
    """The user records of one aggregated record, column by column, in their order.

    Attributes:
        hash_keys: explicit hash keys; None for a user record without one.
    """

    partition_keys: list[str]
    data: list[bytes]
    hash_keys: list[str | None]


def deaggregate(
    record: AnyRecord, hash_range: tuple[int, int] | None, shard: object = "a shard"
) -> UserRecords:
    """The user records in `record`; a plain record is its only user record.

    After a reshard, some user records of an aggregated record may belong to another shard. The Kinesis
    Producer Library notices and sends these user records again (``Retrier`` in
    https://github.com/awslabs/amazon-kinesis-producer). So from its aggregated records, user records with a
    hash key outside `hash_range` are left out. Amazon's consumer library drops the whole aggregated record
    (``AggregatorUtil`` in https://github.com/awslabs/amazon-kinesis-client). Here the user records inside are
    kept: the producer library does not always send them again, and a record twice is better than none.

    Other producers send nothing again, so all of their user records are kept. The producer library gives its
    aggregated records the partition key "a"; others use that of the first user record. If the first user
    record also has the partition key "a", the producer is unknown, and all user records are kept.

    A damaged aggregated record is returned as a plain one, with a warning. So is one whose partition keys
    would take more than `_MAX_EXPANSION` times its size.

    Args:
        record: as read from a shard.
        hash_range: first and last hash key of that shard, both included; None keeps all user records.
        shard: names the shard in the warning.
    """
    if not record.data.startswith(MAGIC) or len(record.data) <= len(MAGIC) + CHECKSUM_SIZE:
        return _plain_record(record)
    try:
        keys, data, hash_keys = unpack(record.data)
        left_out = _left_out(record, keys, hash_keys, hash_range)
    except (ValueError, IndexError) as error:
        return _damaged_record(record, shard, str(error))
    places = range(len(keys))
    if not left_out:
        return UserRecords(places, keys, data, hash_keys)
    kept = [place for place in places if place not in left_out]
    return UserRecords(
        kept,
        [keys[place] for place in kept],
        [data[place] for place in kept],
        [hash_keys[place] for place in kept],
    )


def unpack(data: bytes) -> Unpacked:
    """The user records in the data of an aggregated record, which starts with the magic number.

    Raises:
        ValueError, IndexError: the data is damaged; the message says how.
    """
    message = data[len(MAGIC) : -CHECKSUM_SIZE]
    if hashlib.md5(message, usedforsecurity=False).digest() != data[-CHECKSUM_SIZE:]:
        raise ValueError("its checksum is wrong")
    return _user_records(message)


@lru_cache(maxsize=16384)
def hash_key(partition_key: str) -> int:
    """The hash key by which Kinesis routes a record with this partition key: the key's MD5 as a number."""
    return int.from_bytes(hashlib.md5(partition_key.encode(), usedforsecurity=False).digest(), "big")


def _left_out(
    record: AnyRecord,
    keys: Sequence[str],
    hash_keys: Sequence[str | None],
    hash_range: tuple[int, int] | None,
) -> set[int]:
    """The places of the user records that the producer library sends again to their own shard."""
    if hash_range is None or record.partition_key != PRODUCER_LIBRARY_KEY:
        return set()
    if not keys or keys[0] == PRODUCER_LIBRARY_KEY:
        return set()
    first, last = hash_range
    # Most aggregated records have far fewer keys than user records.
    distinct = set(zip(keys, hash_keys, strict=True))
    outside = {pair for pair in distinct if not first <= _routed_by(*pair) <= last}
    if not outside:
        return set()
    return {sub for sub, pair in enumerate(zip(keys, hash_keys, strict=True)) if pair in outside}


def _routed_by(partition_key: str, explicit_hash_key: str | None) -> int:
    if explicit_hash_key is None:
        # A producer chooses its keys: very long ones must not fill the cache.
        return (hash_key if len(partition_key) <= _CACHED_KEY else hash_key.__wrapped__)(partition_key)
    if len(explicit_hash_key) > _HASH_KEY_DIGITS:
        raise ValueError(f"an explicit hash key has {len(explicit_hash_key)} characters")
    return int(explicit_hash_key)


def _plain_record(record: AnyRecord) -> UserRecords:
    return UserRecords((0,), (record.partition_key,), (record.data,), (None,))


def _damaged_record(record: AnyRecord, shard: object, why: str) -> UserRecords:
    # A producer may damage all of its records, so only the 1st, 2nd, 4th, 8th, ... are logged.
    count = next(_damaged)
    if count & (count - 1) == 0:
        _log.warning(
            "%s: record %s starts like an aggregated record, but %s; its row gets the data as it is "
            "(%d such records in this process)",
            shard,
            record.sequence_number,
            why,
            count,
        )
    return _plain_record(record)


# --- the protobuf message -----------------------------------------------------------------------------


def _user_records(message: bytes) -> Unpacked:
    """Reads an AggregatedRecord. Raises ValueError or IndexError for other bytes."""
    # Locals, as the loop runs once for each user record.
    key_table, records, key_index, data_field = PARTITION_KEY_TABLE, RECORDS, PARTITION_KEY_INDEX, DATA
    keys: list[str] = []
    hash_keys: list[str] = []
    indexes: list[int] = []
    hash_indexes: list[int | None] = []
    data: list[bytes] = []
    at, end = 0, len(message)
    while at < end:
        if message[at] == key_table and (stop := at + 2 + message[at + 1]) <= end and message[at + 1] < 0x80:
            keys.append(message[at + 2 : stop].decode())
            at = stop
            continue
        if message[at] != records:
            number, value, at = _read_field(message, at)
            if isinstance(value, bytes) and number in (1, 2):
                (keys if number == 1 else hash_keys).append(value.decode())
            continue
        size = message[at + 1]
        at += 2
        if size >= 0x80:
            size, at = _read_varint(message, at - 1)
        stop = at + size
        if stop > end:
            raise ValueError("it ends inside a field")
        # A user record as most producers write it: a partition key and data, in this order.
        if (
            size >= 4
            and message[at] == key_index
            and (index := message[at + 1]) < 0x80
            and message[at + 2] == data_field
        ):
            length = message[at + 3]
            first = at + 4
            if length >= 0x80:
                length, first = _read_varint(message, at + 3)
            if first + length == stop:
                indexes.append(index)
                hash_indexes.append(None)
                data.append(message[first:stop])
                at = stop
                continue
        user = _read_record(message[at:stop], len(data))
        indexes.append(user[0])
        hash_indexes.append(user[1])
        data.append(user[2])
        at = stop
    _check_indexes(indexes, keys)
    _check_indexes([index for index in hash_indexes if index is not None], hash_keys)
    _check_expansion(indexes, keys, _MAX_EXPANSION * len(message))
    return Unpacked(
        [keys[index] for index in indexes],
        data,
        [None if index is None else hash_keys[index] for index in hash_indexes],
    )


def _read_record(message: bytes, sub: int) -> tuple[int, int | None, bytes]:
    """Index of the partition key, index of the hash key, and data of the user record at place `sub`.

    If a field occurs more than once, the last one counts, as in protobuf.
    """
    key_index: int | None = None
    hash_index: int | None = None
    data: bytes | None = None
    at = 0
    while at < len(message):
        number, value, at = _read_field(message, at)
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


def _check_expansion(indexes: Sequence[int], keys: Sequence[str], most: int) -> None:
    if len(indexes) * max(map(len, keys), default=0) * 4 <= most:  # UTF-8 takes at most 4 bytes a character
        return
    size = sum(count * len(keys[index].encode()) for index, count in Counter(indexes).items())
    if size > most:
        raise ValueError(f"the partition keys of its {len(indexes)} user records would take {size} bytes")


def _read_field(message: bytes, at: int) -> tuple[int, int | bytes | None, int]:
    """The field that starts at `at`: its number, its value, and where it ends.

    The value is an int for a varint, bytes for a field with a length, None for a field of fixed size.

    Raises:
        ValueError: the message ends inside the field.
        IndexError: the message ends inside a varint.
    """
    tag, at = _read_varint(message, at)
    number, wire_type = tag >> 3, tag & 7
    if number == 0:
        raise ValueError("a field has number 0")
    if wire_type == _VARINT:
        value, at = _read_varint(message, at)
        return number, value, at
    if wire_type == _LENGTH:
        size, at = _read_varint(message, at)
    elif wire_type in (_FIXED64, _FIXED32):
        size = 8 if wire_type == _FIXED64 else 4
    else:
        raise ValueError(f"a field has wire type {wire_type}")
    stop = at + size
    if stop > len(message):
        raise ValueError("it ends inside a field")
    return number, message[at:stop] if wire_type == _LENGTH else None, stop


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
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
