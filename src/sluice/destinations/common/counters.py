"""Counts what request threads do."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

__all__ = ["Counters"]


class Counters:
    """Sums by name, for the figures of a destination. Any thread may add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # adding to a number is not atomic
        self._sums: Counter[str] = Counter()

    def add(self, **numbers: int) -> None:
        """Adds several numbers at once: a concurrent read sees all of them or none."""
        with self._lock:
            self._sums.update(numbers)

    def read(self) -> Mapping[str, float]:
        """The sums so far."""
        with self._lock:
            return dict(self._sums)
