"""What a custom converter may give a destination: text in place of bytes would be stored as other bytes."""

from __future__ import annotations

from typing import Any, Final

from sluice.errors import SluiceError

__all__ = ["BYTES", "wrong_entry"]

BYTES: Final = (bytes, bytearray, memoryview)


def wrong_entry(destination: str, what: str, given: Any, allowed: str) -> SluiceError:
    """The error for an entry, or a part of it, of a type that the destination does not take."""
    return SluiceError(
        f"destination '{destination}': the converter of 'elementConverter' made {what} of type "
        f"{type(given).__name__}: it must be {allowed}"
    )
