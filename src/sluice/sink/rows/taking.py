"""Takes entries from a converter within bounds in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, TypeVar

__all__ = ["EntryTaker", "TakenEntries", "measured"]

EntryT = TypeVar("EntryT")

# Entries of one piece that are not known to fit. With more of them a sudden run of large entries would take
# more memory; with fewer, the bound would cost more than a few percent of all that is done with an entry.
_LONGEST_PIECE: Final = 256


@dataclass(slots=True)
class TakenEntries(Generic[EntryT]):
    """Entries, and their sizes in bytes.

    Attributes:
        largest: the largest size.
        total: of all sizes.
    """

    entries: list[EntryT]
    sizes: list[int]
    largest: int = 0
    total: int = 0


def measured(entries: list[EntryT], sizes: list[int]) -> TakenEntries[EntryT]:
    """All of these entries, even if there is no room."""
    return TakenEntries(entries, sizes, max(sizes, default=0), sum(sizes))


class EntryTaker(Generic[EntryT]):
    """Takes entries and their sizes, until they fill the room that is left.

    How large an entry is, is known once it is made, and to look at each by itself is slow. So entries are
    made in pieces: of as many as fit whatever their size, or of as many as fit twice if they are as large as
    those before them.

    Args:
        sizes_of: the sizes of entries, in bytes.
        limit: of the size of an entry; a larger one is refused later.
    """

    def __init__(self, sizes_of: Callable[[Sequence[EntryT]], list[int]], limit: int) -> None:
        self._sizes_of = sizes_of
        self._limit = limit
        self._longest = 1  # of the next piece, as far as its entries are not known to fit
        self._largest = 0  # entry of the last piece

    def take(self, entries: Iterator[EntryT], most: int, room: int) -> TakenEntries[EntryT]:
        """Takes at most that many, and no more once they have `room` bytes: the last ones may have more."""
        taken: TakenEntries[EntryT] = TakenEntries([], [])
        while (missing := most - len(taken.entries)) and taken.total < room:
            left = room - taken.total
            likely = min(self._longest, left // (2 * self._largest or 1))
            length = int(min(missing, max(1, likely, left // self._limit)))  # sizes may be fractions
            piece = list(islice(entries, length))
            if not piece:
                break
            sizes = self._sizes_of(piece)
            self._largest = max(sizes)
            self._longest = min(2 * length, _LONGEST_PIECE)
            taken.largest = max(taken.largest, self._largest)
            taken.entries += piece
            taken.sizes += sizes
            taken.total += sum(sizes)
        return taken
