"""Writes the records of a request in JSON, as `msgspec` does, with another base64.

pybase64 uses the CPU's vector instructions. Of 500 records, each of 1 KiB takes 0.4 us instead of 0.8, and of
10 KiB 2 us instead of 8. For short records the call for each of them costs more than it saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import pybase64

from sluice.destinations.kinesis.converter import KinesisEntry

__all__ = ["encode_entries"]

_LONG: Final = 400
"""Bytes of data of a record, on average, from which on pybase64 is faster."""
_encode: Final = msgspec.json.Encoder().encode


def encode_entries(entries: Sequence[KinesisEntry]) -> bytes:
    """The entries as a JSON array of records, as the API wants them."""
    if not entries or sum(len(entry.data) for entry in entries) < _LONG * len(entries):
        return _encode(entries)
    base64 = pybase64.b64encode
    parts: list[bytes] = []
    for entry in entries:
        parts += (b',{"Data":"', base64(entry.data), b'","PartitionKey":', _encode(entry.partition_key))
        if entry.explicit_hash_key is not None:
            parts += (b',"ExplicitHashKey":', _encode(entry.explicit_hash_key))
        parts.append(b"}")
    parts[0] = b'[{"Data":"'
    parts.append(b"]")
    return b"".join(parts)
