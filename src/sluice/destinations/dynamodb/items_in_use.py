"""The items that requests of this process are writing."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable
from typing import Final

__all__ = ["ItemsInUse", "items_in_use"]


class ItemsInUse:
    """Lets one request at a time write an item.

    A request that has timed out, or whose task has failed, may still run. If its older item landed after a
    newer one, it would stay in the table.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_use: set[tuple[Hashable, Hashable]] = set()

    def acquire(self, table: Hashable, keys: Iterable[Hashable]) -> frozenset[Hashable]:
        """Marks items as being written; returns the keys of those that no other request is writing.

        Args:
            table: where the items are.
            keys: of the items.
        """
        with self._lock:
            free = frozenset(key for key in keys if (table, key) not in self._in_use)
            self._in_use.update((table, key) for key in free)
            return free

    def release(self, table: Hashable, keys: Iterable[Hashable]) -> None:
        """The request that has acquired these items has ended, with any outcome."""
        with self._lock:
            self._in_use.difference_update((table, key) for key in keys)


# Global to the process: Spark makes the destination anew for each task and each of its attempts.
items_in_use: Final = ItemsInUse()
