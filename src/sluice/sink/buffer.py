"""What waits to be sent, in order: entries that came back at the head, new ones behind them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

from sluice.errors import SluiceError

__all__ = ["Batch", "Buffered", "RequestBuffer", "Run"]

EntryT = TypeVar("EntryT")


class Buffered(NamedTuple):
    """An entry with what the writer has to know about it."""

    number: int  # its place among all entries of the writer, which is its place in any queue
    entry: Any  # of the destination's type; a NamedTuple cannot be generic before Python 3.11
    size: int  # bytes
    arrived: float  # by the writer's clock
    refused_since: float | None = None  # when it was first not accepted


@dataclass(frozen=True, slots=True)
class Run(Generic[EntryT]):
    """Entries that came together and follow one another. They stay side by side, in lists, while all goes
    well: an object for each of them would cost more than everything else that is done with it.
    """

    number: int  # of the first
    entries: Sequence[EntryT]
    sizes: Sequence[int]
    size: int  # bytes of all
    arrived: float

    def split(self, count: int) -> tuple[Run[EntryT], Run[EntryT]]:
        """The first `count` entries, and the others."""
        sizes = self.sizes[:count]
        size = sum(sizes)
        return (
            Run(self.number, self.entries[:count], sizes, size, self.arrived),
            Run(
                self.number + count,
                self.entries[count:],
                self.sizes[count:],
                self.size - size,
                self.arrived,
            ),
        )

    def __iter__(self) -> Iterator[Buffered]:
        for place, (entry, size) in enumerate(zip(self.entries, self.sizes, strict=True)):
            yield Buffered(self.number + place, entry, size, self.arrived)


@dataclass(frozen=True, slots=True)
class Batch(Generic[EntryT]):
    """The entries that were taken from a buffer at a time, in their order."""

    returned: Sequence[Buffered]  # had been given back before
    runs: Sequence[Run[EntryT]]  # behind them
    count: int
    size: int  # bytes

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[EntryT]:
        return chain((item.entry for item in self.returned), *(run.entries for run in self.runs))

    @property
    def items(self) -> list[Buffered]:
        """The entries with what is known of them. Made anew each time."""
        return [*self.returned, *chain.from_iterable(self.runs)]

    def find(self, entries: Sequence[EntryT]) -> Sequence[Buffered]:
        """The items of `entries`: by identity, or by equality where copies came back.

        Raises:
            SluiceError: one of them is not in the batch.
        """
        if not entries:
            return ()
        wanted: dict[int, int] = {}
        for entry in entries:
            wanted[id(entry)] = wanted.get(id(entry), 0) + 1
        matched: list[Buffered] = []
        others: list[Buffered] = []
        for item in self.items:
            left = wanted.get(id(item.entry), 0)
            if left:
                wanted[id(item.entry)] = left - 1
            (matched if left else others).append(item)
        if len(matched) == len(entries):
            return matched
        for entry in entries:
            if wanted[id(entry)]:
                wanted[id(entry)] -= 1
                position = next((n for n, item in enumerate(others) if item.entry == entry), None)
                if position is None:
                    raise SluiceError(
                        "the destination reported an entry as refused that it had not been given"
                    )
                matched.append(others.pop(position))
        return matched


class RequestBuffer(Generic[EntryT]):
    """A queue that takes entries back at its head, in the order they first had.

    With several requests in flight, answers come in any order; entries are put back by their number,
    so that those of an earlier request are before those of a later one whichever answer came first.
    """

    def __init__(self) -> None:
        self._fresh: deque[Run[EntryT]] = deque()
        self._returned: deque[Buffered] = deque()  # all numbers are below those of _fresh
        self._unsorted: list[Buffered] = []
        self._count = 0
        self._added = 0
        self.size_in_bytes = 0

    def __len__(self) -> int:
        return self._count

    def add(self, entries: Sequence[EntryT], sizes: Sequence[int], now: float) -> None:
        if not entries:
            return
        run = Run(self._added, entries, sizes, sum(sizes), now)
        self._added += len(entries)
        self._count += len(entries)
        self.size_in_bytes += run.size
        self._queue(run)

    def give_back(self, items: Sequence[Buffered]) -> None:
        self._unsorted.extend(items)
        self._count += len(items)
        self.size_in_bytes += sum(item.size for item in items)

    def head(self) -> Buffered | None:
        """The entry that goes next, which is also the oldest."""
        self._sort()
        if self._returned:
            return self._returned[0]
        return next(iter(self._fresh[0])) if self._fresh else None

    def returned(self) -> Sequence[Buffered]:
        """What was given back, in order."""
        self._sort()
        return self._returned

    def measure(self, max_entries: int, max_bytes: int) -> int:
        """How many entries from the head on fit into one request, at least one."""
        self._sort()
        count = total = 0
        for item in self._returned:
            if count and (count == max_entries or total + item.size > max_bytes):
                return count
            count += 1
            total += item.size
        for run in self._fresh:
            if count + len(run.sizes) <= max_entries and total + run.size <= max_bytes:
                count += len(run.sizes)
                total += run.size
                continue
            for size in run.sizes:
                if count and (count == max_entries or total + size > max_bytes):
                    return count
                count += 1
                total += size
        return count

    def take(self, count: int) -> Batch[EntryT]:
        """Removes `count` entries from the head."""
        self._sort()
        returned = [self._returned.popleft() for _ in range(min(count, len(self._returned)))]
        runs: list[Run[EntryT]] = []
        left = count - len(returned)
        while left:
            run = self._fresh.popleft()
            if len(run.entries) > left:
                run, rest = run.split(left)
                self._fresh.appendleft(rest)
            runs.append(run)
            left -= len(run.entries)
        size = sum(item.size for item in returned) + sum(run.size for run in runs)
        self._count -= count
        self.size_in_bytes -= size
        return Batch(returned, runs, count, size)

    def accepted(self, batch: Batch[EntryT], failed: Sequence[Buffered]) -> None:
        """Told of a `batch` that was sent and is accepted, but for `failed`. Nothing here waits for it."""

    def _queue(self, run: Run[EntryT]) -> None:
        self._fresh.append(run)

    def _sort(self) -> None:
        # Put off until somebody looks, so that many answers at once cost one sort. Numbers are unique:
        # nothing else of an item is ever compared.
        if self._unsorted:
            self._returned = deque(sorted([*self._returned, *self._unsorted]))
            self._unsorted.clear()
