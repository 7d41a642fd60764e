"""Checks the answers of a log: without the checks, records out of order would be misread silently."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, ClassVar, Final, NoReturn, TypeVar

from sluice.errors import SluiceError, SourceRuleError
from sluice.source.logs.stream_log import IteratorStart, Page, StreamInfo, StreamLog
from sluice.source.model.positions import sequence_of
from sluice.source.model.splits import Split, SplitId

__all__ = ["CheckedLog"]

_LISTING_INTERVAL: Final = 1.0
"""Seconds between two listings of a task that waits for its split to be closed."""


ResultT = TypeVar("ResultT")


class CheckedLog(StreamLog):
    """A `StreamLog` with checked answers. Its iterators also hold the last number that was read.

    Threads may share it: it calls a log that is not thread-safe from one thread at a time, and never
    calls a closed log. If a log's closed splits end at their tips, the page at such a tip has no
    iterator here.

    Args:
        source: name of the source, for errors.

    Attributes:
        has_numbers: whether the log has `number_of`.
    """

    is_thread_safe: ClassVar[bool] = True

    def __init__(self, log: StreamLog, source: str) -> None:
        self._log = log
        self._source = source
        self.seeks_by_time = log.seeks_by_time
        self.split_name = log.split_name
        self.format_position = log.format_position  # type: ignore[method-assign]
        self.has_numbers = type(log).number_of is not StreamLog.number_of
        self._turn = contextlib.nullcontext() if log.is_thread_safe else threading.RLock()
        self._is_over = False
        self._closed: frozenset[SplitId] = frozenset()
        self._next_listing = -math.inf

    def describe(self, stream: str) -> StreamInfo:
        return self._ask(self._log.describe, stream)

    def list_splits(self, stream: str) -> Sequence[Split]:
        """Raises SourceRuleError if a split is listed twice, under another stream, or as its own ancestor."""
        splits = self._ask(self._log.list_splits, stream)
        seen: set[SplitId] = set()
        for split in splits:
            self._check_names(split)
            if split.id.stream != stream:
                self._reject(split.id, f"list_splits({stream!r}) lists splits of that stream alone")
            if split.id in seen:
                self._reject(split.id, "a split is listed once, and ids are never used again")
            seen.add(split.id)
        try:
            TopologicalSorter({split.id: split.parent_ids for split in splits}).prepare()
        except CycleError as error:  # each would wait for the other
            self._reject(error.args[1][0], "a split does not descend from itself")
        if self._log.closed_splits_end_at_tip:  # not needed elsewhere, and it grows with each reshard
            self._closed |= {split.id for split in splits if split.is_closed}
        self._next_listing = math.inf  # the planner lists by itself
        return splits

    def get_iterator(self, split: SplitId, start: IteratorStart) -> str | None:
        iterator = self._ask(self._log.get_iterator, split, start)
        return None if iterator is None else f"|{iterator}"

    def number_of(self, split: SplitId, start: IteratorStart) -> str | None:
        return self._ask(self._log.number_of, split, start)

    def is_complete_from(self, split: SplitId, start: IteratorStart) -> bool:
        return self._ask(self._log.is_complete_from, split, start)

    def get_records(self, split: SplitId, iterator: str, limit: int) -> Page:
        """Raises SourceRuleError if records are out of order or repeated, or the page is behind the tip."""
        last, _, inner = iterator.partition("|")
        is_closed = split in self._closed  # checked before the read: then no record follows the page
        page = self._ask(self._log.get_records, split, inner, limit)
        self._check_page(split, page, last)
        if page.next_iterator is None:
            return page
        if self._log.closed_splits_end_at_tip and page.millis_behind == 0:
            if is_closed:
                return replace(page, next_iterator=None)
            if not page.records:
                self._look_whether_closed(split)
        if page.records:
            last = page.records[-1].sequence_number
        return replace(page, next_iterator=f"{last}|{page.next_iterator}")

    def server_time(self) -> int:
        return self._ask(self._log.server_time)

    def close(self) -> None:
        with self._turn:
            self._is_over = True
            self._log.close()

    def _ask(self, method: Callable[..., ResultT], *args: Any) -> ResultT:
        with self._turn:
            if self._is_over:  # a thread may not have noticed yet
                raise SluiceError(f"source {self._source}: its log is closed")
            return method(*args)

    def _look_whether_closed(self, split: SplitId) -> None:
        """Checks whether an empty page is the end of a split. A task does this itself, because it lists
        no splits.
        """
        if time.monotonic() < self._next_listing:
            return
        splits = {each.id: each for each in self._ask(self._log.list_splits, split.stream)}
        if split not in splits or splits[split].is_closed:
            self._closed |= {split}
        self._next_listing = time.monotonic() + _LISTING_INTERVAL

    def _check_names(self, split: Split) -> None:
        """Rejects names that are not text: the offset log would change them, and nothing would be read."""
        if not all(isinstance(name, str) for name in split.id):
            self._reject(split.id, f"the names of splits are text; it is {tuple(split.id)!r}")
        parents: Any = split.parents  # text is a sequence of one-letter names, too
        if isinstance(parents, str) or not all(isinstance(parent, str) for parent in parents):
            self._reject(split.id, f"parents are a tuple of names; they are {parents!r}")

    def _check_page(self, split: SplitId, page: Page, last: str) -> None:
        if page.millis_behind < 0:
            self._reject(
                split, f"millis_behind is 0 at the tip, and more before it; it was {page.millis_behind}"
            )
        if not page.records:
            return
        first, newest = page.records[0].sequence_number, page.records[-1].sequence_number
        if not isinstance(first, str):
            self._reject(split, f"positions are text; a record has the sequence_number {first!r}")
        if last and sequence_of(first) <= sequence_of(last):
            self._reject(split, f"positions rise; after record {last} came record {first}")
        if sequence_of(newest) < sequence_of(first) or (newest == first and len(page.records) > 1):
            self._reject(split, f"positions rise; a page goes from record {first} to record {newest}")
        if not self._log.pages_are_sorted:
            self._check_each(split, page.records)

    def _check_each(self, split: SplitId, records: Sequence[Any]) -> None:
        before, last = "", -1
        for record in records:
            if (number := sequence_of(record.sequence_number)) <= last:
                self._reject(
                    split, f"positions rise; after record {before} came record {record.sequence_number}"
                )
            before, last = record.sequence_number, number

    def _reject(self, split: SplitId, rule: str) -> NoReturn:
        raise SourceRuleError(f"source {self._source}, split {split}: {rule}")
