"""How positions in a log compare.

A position is text. Text of digits alone compares as a number, whatever its length; all other text compares by
its bytes. A log uses one of the two in a split.
"""

from __future__ import annotations

from typing import Final

__all__ = ["LONGEST_TEXT", "checked_number", "sequence_of"]

LONGEST_TEXT: Final = 128
"""Bytes of a position that is not a number, at most."""


def sequence_of(position: str) -> int:
    """A number to compare the position by.

    Raises:
        ValueError: the position is neither digits nor text of 1 to `LONGEST_TEXT` bytes.
    """
    if position.isdecimal():
        return int(position)
    encoded = position.encode()
    if not 0 < len(encoded) <= LONGEST_TEXT:
        raise ValueError(f"a position has 1 to {LONGEST_TEXT} bytes: {position!r}")
    return int.from_bytes(encoded.ljust(LONGEST_TEXT, b"\0"), "big")


def checked_number(text: object) -> str:
    """A position that was logged.

    Raises:
        ValueError: it is not a position.
    """
    if not isinstance(text, str):
        raise ValueError(f"not a sequence number: {text!r}")  # noqa: TRY004 - as any other wrong value
    sequence_of(text)
    return text
