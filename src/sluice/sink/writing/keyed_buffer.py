"""A queue for destinations with an ordering key: entries with equal keys do not overtake one another."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import TypeVar

from sluice.errors import SluiceError
from sluice.sink.writing.buffer import Batch, Buffered, Chunk, RequestBuffer

__all__ = ["KeyedBuffer"]

EntryT = TypeVar("EntryT")


class KeyedBuffer(RequestBuffer[EntryT]):
    """Holds entries with one key back until the entry before them has been accepted.

    Any entry of a request may be refused while other requests are in flight, and a service does not undo what
    follows a refused entry. So of the entries with one key no two are in one request, nor in flight at the
    same time. A request that timed out counts as in flight until it has ended: the service may still carry it
    out, after its entries were accepted in another request.

    Entries held back count for `len` and `size_in_bytes`, but `head`, `measure` and `take` do not see them:
    while only such entries are left, there is nothing to send.

    Args:
        key: the ordering key of an entry; None if it may be sent at any time. Called once for each entry.
        name: the destination's, for messages.
    """

    def __init__(self, key: Callable[[EntryT], Hashable | None], name: str) -> None:
        super().__init__()
        self._key = key
        self._name = name
        # By number, until it is accepted. By then the destination may have changed the entry: under another
        # key, it would leave those held back behind it where they are.
        self._keys: dict[int, Hashable] = {}
        # By key, the entries held back, as chunks of one entry. A key is here from when its first entry is
        # queued until its last one is accepted.
        self._held_back: dict[Hashable, deque[Chunk[EntryT]]] = {}
        self._released: list[Chunk[EntryT]] = []
        # By number: requests with the entry that timed out and still run.
        self._still_running: Counter[int] = Counter()
        self._accepted: set[int] = set()  # numbers: only such a request holds the next entry back

    def mark_accepted(self, batch: Batch[EntryT], failed: Sequence[Buffered]) -> None:
        """`batch` was accepted, except for `failed`: releases the entries next in order."""
        refused = {item.number for item in failed}
        for item in batch.items:
            if item.number in refused or item.number not in self._keys:
                continue
            if self._still_running[item.number]:
                self._accepted.add(item.number)
            else:
                self._release_next(item.number)

    def mark_timed_out(self, batch: Batch[EntryT]) -> None:
        self._still_running.update(item.number for item in batch.items)

    def mark_ended(self, batch: Batch[EntryT]) -> None:
        for item in batch.items:
            self._still_running[item.number] -= 1
            if not self._still_running[item.number]:
                del self._still_running[item.number]
                if item.number in self._accepted:
                    self._accepted.remove(item.number)
                    self._release_next(item.number)

    def _release_next(self, number: int) -> None:
        """Releases the entry behind this one."""
        key = self._keys.pop(number)
        held_back = self._held_back[key]
        if held_back:
            self._released.append(held_back.popleft())
        else:
            del self._held_back[key]

    def _queue(self, chunk: Chunk[EntryT]) -> None:
        for number, entry, size, arrived, *_ in chunk:
            single = Chunk(number, (entry,), (size,), size, arrived)
            key = self._key(entry)
            if key is None:
                self._new.append(single)
                continue
            self._keys[number] = key
            if self._is_known(key):
                self._held_back[key].append(single)
            else:
                self._held_back[key] = deque()
                self._new.append(single)

    def _is_known(self, key: Hashable) -> bool:
        """Whether an entry with this key is queued or sent, and not accepted yet."""
        try:
            return key in self._held_back
        except TypeError as error:
            raise SluiceError(
                f"{self._name}: ordering_key returned a value of type {type(key).__name__}, which cannot be "
                "hashed: allowed are text, bytes, numbers and tuples of these, and None for no order"
            ) from error

    def _sort(self) -> None:
        super()._sort()
        if self._released:
            # By number, so that the oldest entry is sent first: time in the buffer is bounded.
            self._new = deque(sorted([*self._new, *self._released], key=attrgetter("number")))
            self._released.clear()
