"""Sequence numbers as the service makes them: 56 digits that tell shard, place and second.

In hexadecimal they are ``2``, the second in which the shard was created (9 digits), one digit of the shard's
index, the place in the shard (16), two zeros, the second of the record (9), the shard's index (8) and ``2``,
the version. Numbers of a shard rise with the place; those of a child are greater than those of its parents,
because it was created in a later second. https://github.com/mhart/kinesalite/blob/master/db/index.js
"""

from __future__ import annotations

from typing import Final, NamedTuple

LAST_PLACE: Final = 2**63 - 1
"""The place in a closed shard's EndingSequenceNumber."""

_VERSION: Final = 2
_TOP: Final = 2 << 184


class Decoded(NamedTuple):
    """What a number says. `created` is in seconds since the epoch."""

    created: int
    shard: int
    place: int


def encode(created: int, shard: int, place: int, second: int) -> str:
    """The number of a place of a shard."""
    return str(
        _TOP
        | (created & 0xFFFFFFFFF) << 148
        | (shard & 0xF) << 144
        | place << 80
        | (second & 0xFFFFFFFFF) << 36
        | shard << 4
        | _VERSION
    )


def decode(text: str) -> Decoded | None:
    """What a number says; None where it is not one of the service."""
    if not (text.isascii() and text.isdigit()) or len(text) != 56:
        return None
    number = int(text)
    shard = number >> 4 & 0xFFFFFFFF
    if number >> 184 != _TOP >> 184 or number & 0xF != _VERSION or number >> 144 & 0xF != shard & 0xF:
        return None
    return Decoded(number >> 148 & 0xFFFFFFFFF, shard, number >> 80 & 0xFFFFFFFFFFFFFFFF)
