"""The queue of entries to send: refused entries that are due come first, new ones behind them."""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

__all__ = ["Batch", "Buffered", "Chunk", "RequestBuffer"]

EntryT = TypeVar("EntryT")


class Buffered(NamedTuple):
    """One entry, and what the writer knows of it."""

    number: int  # its position among all entries of the writer; entries are queued by it
    entry: Any  # of the destination's type; a NamedTuple cannot be generic before Python 3.11
    size: int  # bytes
    arrived: float  # by the writer's clock
    refused_since: float = math.inf  # when it was refused for the first time
    refusals: int = 0  # how often it was not accepted
    due: float = -math.inf  # not sent again before


@dataclass(frozen=True, slots=True)
class Chunk(Generic[EntryT]):
    """Entries that were added together, in order.

    They stay in lists until one is refused: an object for each entry would cost more than everything else
    that is done with it.
    """

    number: int  # of the first entry
    entries: Sequence[EntryT]
    sizes: Sequence[int]
    size: int  # bytes of all entries
    arrived: float

    def split(self, count: int) -> tuple[Chunk[EntryT], Chunk[EntryT]]:
        """The first `count` entries, and the others."""
        sizes = self.sizes[:count]
        size = sum(sizes)
        return (
            Chunk(self.number, self.entries[:count], sizes, size, self.arrived),
            Chunk(
                self.number + count,
                self.entries[count:],
                self.sizes[count:],
                self.size - size,
                self.arrived,
            ),
        )

    def __iter__(self) -> Iterator[Buffered]:
        for position, (entry, size) in enumerate(zip(self.entries, self.sizes, strict=True)):
            yield Buffered(self.number + position, entry, size, self.arrived)


@dataclass(frozen=True, slots=True)
class Batch(Generic[EntryT]):
    """The entries of one request, taken from a buffer in order."""

    returned: Sequence[Buffered]  # were refused before
    chunks: Sequence[Chunk[EntryT]]  # behind them
    count: int
    size: int  # bytes

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[EntryT]:
        return chain((item.entry for item in self.returned), *(chunk.entries for chunk in self.chunks))

    @property
    def items(self) -> list[Buffered]:
        """The entries with their state; a new list each time."""
        return [*self.returned, *chain.from_iterable(self.chunks)]

    def find(self, entries: Collection[EntryT], besides: Sequence[Buffered] = ()) -> Sequence[Buffered]:
        """The items of `entries`, by identity; fewer if the batch has no more of them.

        Args:
            entries: what to find.
            besides: items that were found before, for another reason.
        """
        if not entries:
            return ()
        wanted = Counter(map(id, entries))
        found_before = {item.number for item in besides}
        found: list[Buffered] = []
        for item in self.items:
            if item.number not in found_before and wanted[id(item.entry)]:
                wanted[id(item.entry)] -= 1
                found.append(item)
        return found


class RequestBuffer(Generic[EntryT]):
    """A queue that takes refused entries back at its head, in their original order.

    With several requests in flight, answers come in any order. Entries are put back by their number, so those
    of an earlier request are ahead of those of a later one, whichever was answered first.

    An entry that is put back waits until it is due. Until then others pass it: an entry that keeps failing
    does not hold up the rest. It counts for `len` and `size_in_bytes`, but `head`, `measure` and `take` do
    not see it before `release`.
    """

    def __init__(self) -> None:
        self._new: deque[Chunk[EntryT]] = deque()
        self._returned: deque[Buffered] = deque()  # all numbers are below those in _new
        self._unsorted: list[Buffered] = []
        self._waiting: list[tuple[float, Buffered]] = []  # not due yet; a heap by when they are
        self._count = 0
        self._added = 0
        self.size_in_bytes = 0

    def __len__(self) -> int:
        return self._count

    def add(self, entries: Sequence[EntryT], sizes: Sequence[int], now: float) -> None:
        """Queues new entries, of `sizes` in bytes."""
        if not entries:
            return
        chunk = Chunk(self._added, entries, sizes, sum(sizes), now)
        self._added += len(entries)
        self._count += len(entries)
        self.size_in_bytes += chunk.size
        self._queue(chunk)

    def put_back(self, items: Sequence[Buffered]) -> None:
        """Queues entries again that were taken before; an entry that is due later waits for `release`."""
        for item in items:
            if item.due > -math.inf:
                heapq.heappush(self._waiting, (item.due, item))
            else:
                self._unsorted.append(item)
        self._count += len(items)
        self.size_in_bytes += sum(item.size for item in items)

    def release(self, now: float) -> None:
        """Puts the entries that are due by `now` at the head, in their order."""
        while self._waiting and self._waiting[0][0] <= now:
            self._unsorted.append(heapq.heappop(self._waiting)[1])

    @property
    def next_due(self) -> float:
        """When the next of the entries that wait is due; infinity if none waits."""
        return self._waiting[0][0] if self._waiting else math.inf

    def head(self) -> Buffered | None:
        """The entry that is sent next, which is the oldest of those that are due."""
        self._sort()
        if self._returned:
            return self._returned[0]
        return next(iter(self._new[0])) if self._new else None

    @property
    def has_returned(self) -> bool:
        """Whether any entry was put back, and not taken since."""
        return bool(self._returned or self._unsorted or self._waiting)

    def returned(self) -> Sequence[Buffered]:
        """The entries that were put back, whether they are due or not."""
        self._sort()
        return [*self._returned, *(item for _, item in self._waiting)]

    def measure(self, max_entries: int, max_bytes: int) -> tuple[int, int]:
        """How many entries from the head fit into one request, at least one; and their bytes."""
        self._sort()
        count = total = 0
        for item in self._returned:
            if count and (count >= max_entries or total + item.size > max_bytes):
                return count, total
            count += 1
            total += item.size
        for chunk in self._new:
            if count + len(chunk.sizes) <= max_entries and total + chunk.size <= max_bytes:
                count += len(chunk.sizes)
                total += chunk.size
                continue
            for size in chunk.sizes:
                if count and (count >= max_entries or total + size > max_bytes):
                    return count, total
                count += 1
                total += size
        return count, total

    def take(self, count: int) -> Batch[EntryT]:
        """Removes `count` entries from the head."""
        self._sort()
        returned = [self._returned.popleft() for _ in range(min(count, len(self._returned)))]
        chunks: list[Chunk[EntryT]] = []
        left = count - len(returned)
        while left:
            chunk = self._new.popleft()
            if len(chunk.entries) > left:
                chunk, rest = chunk.split(left)
                self._new.appendleft(rest)
            chunks.append(chunk)
            left -= len(chunk.entries)
        size = sum(item.size for item in returned) + sum(chunk.size for chunk in chunks)
        self._count -= count
        self.size_in_bytes -= size
        return Batch(returned, chunks, count, size)

    def mark_accepted(self, batch: Batch[EntryT], failed: Sequence[Buffered]) -> None:
        """`batch` was accepted, except for `failed`. In this queue no entry waits for another one."""

    def mark_timed_out(self, batch: Batch[EntryT]) -> None:
        """The request of `batch` timed out and is still running."""

    def mark_ended(self, batch: Batch[EntryT]) -> None:
        """The request of `batch`, which had timed out, has ended."""

    def _queue(self, chunk: Chunk[EntryT]) -> None:
        self._new.append(chunk)

    def _sort(self) -> None:
        # Called when the queue is read, not when entries are put back: many answers at once cost one sort.
        # Numbers are unique, so tuples are compared by their first element alone.
        if self._unsorted:
            self._returned = deque(sorted([*self._returned, *self._unsorted]))
            self._unsorted.clear()
