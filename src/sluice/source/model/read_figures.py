"""Counts reads by split, in tasks and on the driver host, which adds them up.

Tasks also report another reader of the query's consumer, because only a reading task can notice it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sluice.source.model.splits import SplitId

__all__ = ["ReadFigures", "SplitFigures"]


@dataclass(slots=True)
class SplitFigures:
    """What was read of one split.

    Attributes:
        polled, pushed: records that tasks polled or received (FLIP-128), before deaggregation.
        bytes: approximate size of their data.
        refused: reads of tasks, the planner and polling agents that the service refused because of load.
        retries: calls that were repeated after a refusal or failure.
    """

    polled: int = 0
    pushed: int = 0
    bytes: int = 0
    refused: int = 0
    retries: int = 0

    def add(self, other: SplitFigures) -> None:
        self.polled += other.polled
        self.pushed += other.pushed
        self.bytes += other.bytes
        self.refused += other.refused
        self.retries += other.retries


class ReadFigures:
    """The figures of several splits. Thread-safe. A pickled copy is empty."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._splits: dict[SplitId, SplitFigures] = {}
        self._contested: frozenset[str] = frozenset()

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadFigures, ()

    def count_page(self, split: SplitId, records: int, size: int, *, is_pushed: bool) -> None:
        """Counts records that a task has read."""
        read = SplitFigures(bytes=size)
        if is_pushed:
            read.pushed = records
        else:
            read.polled = records
        self.merge({split: read})

    def count_call(self, split: SplitId, *, refused: int, retries: int) -> None:
        """Counts the attempts of a call that were refused because of load, and the repeated attempts."""
        if refused or retries:
            self.merge({split: SplitFigures(refused=refused, retries=retries)})

    def merge(self, others: Mapping[SplitId, SplitFigures]) -> None:
        with self._lock:
            for split, figures in others.items():
                known = self._splits.pop(split, None) or SplitFigures()
                known.add(figures)
                self._splits[split] = known  # moved to the end: read last

    def keep(self, most: int) -> None:
        """Forgets the least recently read splits beyond `most`, because each reshard adds shards."""
        with self._lock:
            for split in list(self._splits)[: max(0, len(self._splits) - most)]:
                del self._splits[split]

    def mark_contested(self, names: Iterable[str]) -> None:
        """Records that a reader outside this query has taken over the source of pushed records (a
        consumer).
        """
        with self._lock:
            self._contested |= {*names}

    @property
    def contested(self) -> frozenset[str]:
        """All arguments of `mark_contested`."""
        return self._contested

    def take(self) -> dict[SplitId, SplitFigures]:
        """Returns the figures since the last call of `take`, by split."""
        with self._lock:
            taken, self._splits = self._splits, {}
            return taken

    def splits(self) -> dict[SplitId, SplitFigures]:
        """Returns a copy of the figures, by split."""
        with self._lock:
            return {split: replace(figures) for split, figures in self._splits.items()}
