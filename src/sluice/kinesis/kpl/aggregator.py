"""Packing of user records into aggregates, in the format that `sluice.kinesis.kpl.deaggregator` reads."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

from sluice.kinesis.kpl.deaggregator import DIGEST_SIZE, MAGIC

__all__ = ["Packer"]

_FIXED: Final = len(MAGIC) + DIGEST_SIZE


class Packer:
    """One aggregate, while it is filled. Its size is exact at any time, so that it never passes its limit.

    Args:
        limit: bytes that the aggregate may have, its magic and its checksum included.
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
        self.size = _FIXED

    def add(self, partition_key: str, data: bytes, hash_key: str | None = None) -> bool:
        """Takes a record, unless there is no room for it: then nothing is changed.

        Args:
            partition_key: may be any text that has a form in UTF-8.
            hash_key: an explicit one, in decimal.

        Returns:
            Whether it was taken.
        """
        if hash_key is not None:
            return self._add_with_hash_key(partition_key, data, hash_key)
        length = len(data)
        index = self._keys.get(partition_key)
        if index is None:
            index = len(self._keys)
            entry = _table_entry(b"\x0a", partition_key)
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
        keys = [_table_entry(b"\x0a", partition_key)] if index == len(self._keys) else []
        hash_keys = [_table_entry(b"\x12", hash_key)] if hash_index == len(self._hash_keys) else []
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
        """The aggregate."""
        message = b"".join([*self._key_table, *self._hash_key_table, *self._records])
        return b"%b%b%b" % (MAGIC, message, hashlib.md5(message, usedforsecurity=False).digest())


def _table_entry(tag: bytes, text: str) -> bytes:
    value = text.encode()
    return tag + _varint(len(value)) + value


# Records of one stream are much alike: most have one of a few lengths and one of the first keys.
@lru_cache(maxsize=65536)
def _head(key: int, length: int, hash_key: int | None = None) -> bytes:
    """What stands before a record's data: its own size, the indexes of its keys, the size of the data."""
    inner = b"\x08" + _varint(key)
    if hash_key is not None:
        inner += b"\x10" + _varint(hash_key)
    inner += b"\x1a" + _varint(length)
    return b"\x1a" + _varint(len(inner) + length) + inner


def _varint(value: int) -> bytes:
    return _SHORT[value] if value < len(_SHORT) else _encoded(value)


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT: Final = [_encoded(value) for value in range(1024)]
