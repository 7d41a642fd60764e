"""What waits to be sent, in order: entries that came back at the head, new ones behind them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any, Generic, NamedTuple, TypeVar

__all__ = ["Buffered", "RequestBuffer"]

EntryT = TypeVar("EntryT")


class Buffered(NamedTuple):
    """An entry with what the writer has to know about it."""

    number: int  # its place among all entries of the writer, which is its place in any queue
    entry: Any  # of the destination's type; a NamedTuple cannot be generic before Python 3.11
    size: int  # bytes
    arrived: float  # by the writer's clock
    refused_since: float | None  # when it was first not accepted


class RequestBuffer(Generic[EntryT]):
    """A queue that takes entries back at its head, in the order they first had.

    With several requests in flight, answers come in any order; entries are put back by their number,
    so that those of an earlier request are before those of a later one whichever answer came first.
    """

    def __init__(self) -> None:
        self._fresh: deque[Buffered] = deque()
        self._returned: deque[Buffered] = deque()  # all numbers are below those of _fresh
        self._unsorted: list[Buffered] = []
        self._added = 0
        self.size_in_bytes = 0

    def __len__(self) -> int:
        return len(self._fresh) + len(self._returned) + len(self._unsorted)

    def add(self, entries: Sequence[EntryT], sizes: Sequence[int], now: float) -> None:
        numbers = range(self._added, self._added + len(entries))
        # One call for the whole chunk: this is the only per-record work between converter and request.
        self._fresh.extend(map(Buffered, numbers, entries, sizes, repeat(now), repeat(None)))
        self._added += len(entries)
        self.size_in_bytes += sum(sizes)

    def give_back(self, items: Sequence[Buffered]) -> None:
        self._unsorted.extend(items)
        self.size_in_bytes += sum(item.size for item in items)

    def head(self) -> Buffered | None:
        """The entry that goes next, which is also the oldest."""
        self._sort()
        if self._returned:
            return self._returned[0]
        return self._fresh[0] if self._fresh else None

    def returned(self) -> Sequence[Buffered]:
        """What was given back, in order."""
        self._sort()
        return self._returned

    def measure(self, max_entries: int, max_bytes: int) -> tuple[int, int]:
        """How many entries from the head on fit into one request, at least one, and their bytes."""
        self._sort()
        count = total = 0
        for item in chain(self._returned, self._fresh):
            if count and (count == max_entries or total + item.size > max_bytes):
                break
            count += 1
            total += item.size
        return count, total

    def take(self, count: int) -> list[Buffered]:
        """Removes `count` entries from the head."""
        self._sort()
        returned = min(count, len(self._returned))
        items = [self._returned.popleft() for _ in range(returned)]
        items += [self._fresh.popleft() for _ in range(count - returned)]
        self.size_in_bytes -= sum(item.size for item in items)
        return items

    def accepted(self, items: Sequence[Buffered], failed: Sequence[Buffered]) -> None:
        """Told of `items` that were sent and are accepted, but for `failed`. Nothing here waits for them."""

    def _sort(self) -> None:
        # Put off until somebody looks, so that many answers at once cost one sort. Numbers are unique:
        # nothing else of an item is ever compared.
        if self._unsorted:
            self._returned = deque(sorted([*self._returned, *self._unsorted]))
            self._unsorted.clear()
