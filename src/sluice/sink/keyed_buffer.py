"""A queue for destinations where some entries must not overtake others: one lane for each key."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import TypeVar

from sluice.sink.buffer import Batch, Buffered, RequestBuffer, Run

__all__ = ["KeyedBuffer"]

EntryT = TypeVar("EntryT")


class KeyedBuffer(RequestBuffer[EntryT]):
    """Of the entries with one key only the first may be sent; the next waits until it is accepted.

    That is the only way to keep an order when any entry of a request may be refused, other requests
    are on their way, and the service does not undo what came after a refused entry. So two entries of
    a key are never in one request, nor in two requests that are under way.

    Entries that wait for another one count for `len` and `size_in_bytes`, but are not seen by `head`,
    `measure` and `take`: there is nothing to send while only such entries are left.

    Args:
        key: the lane of an entry; None for one that may go at any time.
    """

    def __init__(self, key: Callable[[EntryT], Hashable | None]) -> None:
        super().__init__()
        self._key = key
        # A lane is there while its first entry waits to be sent or is under way. Runs here have one entry.
        self._lanes: dict[Hashable, deque[Run[EntryT]]] = {}
        self._released: list[Run[EntryT]] = []

    def accepted(self, batch: Batch[EntryT], failed: Sequence[Buffered]) -> None:
        """Lets those go that waited for what was accepted; those behind `failed` go on waiting."""
        refused = {item.number for item in failed}
        for item in batch.items:
            key = self._key(item.entry)
            if key is None or item.number in refused:
                continue
            lane = self._lanes[key]
            if lane:
                self._released.append(lane.popleft())
            else:
                del self._lanes[key]

    def _queue(self, run: Run[EntryT]) -> None:
        for number, entry, size, arrived, _ in run:
            alone = Run(number, (entry,), (size,), size, arrived)
            key = self._key(entry)
            if key is None:
                self._fresh.append(alone)
            elif key in self._lanes:
                self._lanes[key].append(alone)
            else:
                self._lanes[key] = deque()
                self._fresh.append(alone)

    def _sort(self) -> None:
        super()._sort()
        if self._released:
            # By number, so that what has waited longest goes first: time in the buffer is bounded.
            self._fresh = deque(sorted([*self._fresh, *self._released], key=attrgetter("number")))
            self._released.clear()
