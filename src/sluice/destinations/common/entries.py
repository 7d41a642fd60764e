"""What converters may give a destination, and sizes of text as services count them."""

from __future__ import annotations

from typing import Any, Final

from sluice.errors import SluiceError

__all__ = ["BYTES", "utf8_length", "wrong_entry"]

BYTES: Final = (bytes, bytearray, memoryview)
"""Text in place of these would be stored as other bytes."""


def wrong_entry(destination: str, what: str, given: Any, allowed: str) -> SluiceError:
    """The error for an entry, or a part of it, of a type that the destination does not take."""
    return SluiceError(
        f"destination '{destination}': the converter of 'elementConverter' made {what} of type "
        f"{type(given).__name__}: it must be {allowed}"
    )


def utf8_length(text: str) -> int:
    """The bytes of `text` in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())
