"""Counts of the reads of each split, by tasks and on the driver host, where they are added up. Tasks also
report another reader of the query's consumer, which only a reading task can notice.
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
        polled, pushed: records that tasks polled, and records that were pushed to them (FLIP-128's record
            publishers), before deaggregation.
        bytes: of their data, about.
        refused: reads of tasks, of the planner and of polling agents that the service refused because of
            load.
        retries: calls that were repeated because they were refused or failed.
    """

    polled: int = 0
    pushed: int = 0
    bytes: int = 0
    refused: int = 0
    retries: int = 0

    def add(self, other: SplitFigures) -> None:
        """Adds what was read elsewhere, or later."""
        self.polled += other.polled
        self.pushed += other.pushed
        self.bytes += other.bytes
        self.refused += other.refused
        self.retries += other.retries


class ReadFigures:
    """The figures of several splits. Thread-safe. They belong to their process: a pickled copy is empty."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._splits: dict[SplitId, SplitFigures] = {}
        self._contested: frozenset[str] = frozenset()

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadFigures, ()

    def count_page(self, split: SplitId, records: int, size: int, *, is_pushed: bool) -> None:
        """A task has read records of its range."""
        read = SplitFigures(bytes=size)
        if is_pushed:
            read.pushed = records
        else:
            read.polled = records
        self.merge({split: read})

    def count_call(self, split: SplitId, *, refused: int, retries: int) -> None:
        """A call has ended: attempts that were refused because of load, and attempts that were repeated."""
        if refused or retries:
            self.merge({split: SplitFigures(refused=refused, retries=retries)})

    def merge(self, others: Mapping[SplitId, SplitFigures]) -> None:
        """Adds the figures of others."""
        with self._lock:
            for split, figures in others.items():
                known = self._splits.pop(split, None) or SplitFigures()
                known.add(figures)
                self._splits[split] = known  # the last one was read last

    def keep(self, most: int) -> None:
        """Forgets the splits that have not been read for the longest time, if there are more than `most`.

        Each reshard adds shards, and nothing tells when the figures of an old one are no longer needed.
        """
        with self._lock:
            for split in list(self._splits)[: max(0, len(self._splits) - most)]:
                del self._splits[split]

    def mark_contested(self, names: Iterable[str]) -> None:
        """A reader outside this query has taken over the source of pushed records, such as a consumer."""
        with self._lock:
            self._contested |= {*names}

    @property
    def contested(self) -> frozenset[str]:
        """All arguments of `mark_contested`."""
        return self._contested

    def take(self) -> dict[SplitId, SplitFigures]:
        """The figures since `take` was called last, by split."""
        with self._lock:
            taken, self._splits = self._splits, {}
            return taken

    def splits(self) -> dict[SplitId, SplitFigures]:
        """A copy of the figures so far, by split."""
        with self._lock:
            return {split: replace(figures) for split, figures in self._splits.items()}
