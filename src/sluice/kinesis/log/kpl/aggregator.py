"""Packs user records into aggregated records. The format is in `sluice.kinesis.log.kpl.format`."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

from sluice.kinesis.log.kpl.format import (
    CHECKSUM_SIZE,
    DATA,
    HASH_KEY_INDEX,
    HASH_KEY_TABLE,
    MAGIC,
    PARTITION_KEY_INDEX,
    PARTITION_KEY_TABLE,
    RECORDS,
)

__all__ = ["Aggregator"]

_FIXED_SIZE: Final = len(MAGIC) + CHECKSUM_SIZE

_PARTITION_KEY_TABLE: Final = bytes([PARTITION_KEY_TABLE])
_HASH_KEY_TABLE: Final = bytes([HASH_KEY_TABLE])
_RECORDS: Final = bytes([RECORDS])
_PARTITION_KEY_INDEX: Final = bytes([PARTITION_KEY_INDEX])
_HASH_KEY_INDEX: Final = bytes([HASH_KEY_INDEX])
_DATA: Final = bytes([DATA])


class Aggregator:
    """One aggregated record while it is filled.

    Args:
        limit: the most bytes of the aggregated record, with magic number and checksum.

    Attributes:
        count: user records so far.
        size: bytes of the aggregated record so far, exactly.
    """

    __slots__ = (
        "_hash_key_table",
        "_hash_keys",
        "_key_table",
        "_keys",
        "_limit",
        "_records",
        "count",
        "size",
    )

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._keys: dict[str, int] = {}
        self._hash_keys: dict[str, int] = {}
        self._key_table: list[bytes] = []
        self._hash_key_table: list[bytes] = []
        self._records: list[bytes] = []
        self.count = 0
        self.size = _FIXED_SIZE

    def add(self, partition_key: str, data: bytes, hash_key: str | None = None) -> bool:
        """Adds a user record, unless the aggregated record would exceed the limit.

        Args:
            partition_key: any text that UTF-8 can encode.
            hash_key: an explicit hash key, in decimal.

        Returns:
            Whether it was added.
        """
        if hash_key is not None:
            return self._add_with_hash_key(partition_key, data, hash_key)
        length = len(data)
        index = self._keys.get(partition_key)
        if index is None:
            index = len(self._keys)
            entry = _table_entry(_PARTITION_KEY_TABLE, partition_key)
            head = _head(index, length)
            size = self.size + len(entry) + len(head) + length
            if size > self._limit:
                return False
            self._keys[partition_key] = index
            self._key_table.append(entry)
        else:
            head = _head(index, length)
            size = self.size + len(head) + length
            if size > self._limit:
                return False
        self._records.append(head)
        self._records.append(data)
        self.size = size
        self.count += 1
        return True

    def _add_with_hash_key(self, partition_key: str, data: bytes, hash_key: str) -> bool:
        index = self._keys.get(partition_key, len(self._keys))
        hash_index = self._hash_keys.get(hash_key, len(self._hash_keys))
        keys = [_table_entry(_PARTITION_KEY_TABLE, partition_key)] if index == len(self._keys) else []
        hash_keys = [_table_entry(_HASH_KEY_TABLE, hash_key)] if hash_index == len(self._hash_keys) else []
        head = _head(index, len(data), hash_index)
        size = self.size + sum(map(len, keys + hash_keys)) + len(head) + len(data)
        if size > self._limit:
            return False
        self._keys[partition_key] = index
        self._hash_keys[hash_key] = hash_index
        self._key_table += keys
        self._hash_key_table += hash_keys
        self._records += (head, data)
        self.size = size
        self.count += 1
        return True

    def seal(self) -> bytes:
        """The data of the aggregated record."""
        message = b"".join([*self._key_table, *self._hash_key_table, *self._records])
        return b"%b%b%b" % (MAGIC, message, hashlib.md5(message, usedforsecurity=False).digest())


def _table_entry(field: bytes, text: str) -> bytes:
    value = text.encode()
    return field + _varint(len(value)) + value


# Cached, because most records of a stream have one of few lengths and one of the first keys.
@lru_cache(maxsize=65536)
def _head(key: int, length: int, hash_key: int | None = None) -> bytes:
    """The bytes before the data of a user record: its size, the indexes of its keys, the size of its data."""
    inner = _PARTITION_KEY_INDEX + _varint(key)
    if hash_key is not None:
        inner += _HASH_KEY_INDEX + _varint(hash_key)
    inner += _DATA + _varint(length)
    return _RECORDS + _varint(len(inner) + length) + inner


def _varint(value: int) -> bytes:
    return _SHORT_VARINTS[value] if value < len(_SHORT_VARINTS) else _encode_varint(value)


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT_VARINTS: Final = [_encode_varint(value) for value in range(1024)]
