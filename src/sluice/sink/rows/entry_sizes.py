"""The sizes of entries, as the destination counts them, found to be numbers of bytes before they are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from sluice.errors import SluiceError

__all__ = ["EntrySizeError", "EntrySizes"]

EntryT = TypeVar("EntryT")


class EntrySizeError(SluiceError, TypeError):
    """`size_in_bytes` of a destination returned something else than a number of bytes."""


class EntrySizes(Generic[EntryT]):
    """Calls `size_in_bytes` of a destination.

    The writer decides by comparisons how many entries there is room for. NaN is neither more nor less than
    anything, so rows would be left out without an error.

    Args:
        size_of: the size of an entry, in bytes.
        name: the destination's, for messages.
    """

    def __init__(self, size_of: Callable[[EntryT], int], name: str) -> None:
        self._size_of = size_of
        self._name = name

    def __call__(self, entries: Sequence[EntryT]) -> list[int]:
        """The sizes of `entries`.

        Raises:
            EntrySizeError: not each of them has one.
        """
        sizes = list(map(self._size_of, entries))
        if len(sizes) < len(entries):  # `map` has taken the error for the end of its entries
            raise self._mistake("no size for an entry (it raised StopIteration)")
        try:
            # Three passes in C cost less than one look at each size in Python. A sum with NaN in it is NaN.
            if not sizes or (min(sizes) >= 0 and sum(sizes) >= 0):
                return sizes
        except TypeError:
            pass
        wrong = (shown for size in sizes if (shown := _shown(size)) is not None)
        raise self._mistake(next(wrong, "sizes that cannot be compared"))

    def _mistake(self, given: str) -> EntrySizeError:
        return EntrySizeError(f"{self._name}: size_in_bytes returned {given}: allowed are bytes, from 0")


def _shown(size: Any) -> str | None:
    """A size as messages show it, without data of the user's; None if it is allowed."""
    try:
        if size >= 0:
            return None
    except TypeError:
        return "None" if size is None else f"a value of type {type(size).__name__}"
    return str(size)
