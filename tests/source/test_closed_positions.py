"""A log of numbers whose splits are divided: a split that is listed as closed ends at its tip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from value_source import ValueSource

from sluice.source import IteratorStart, Limits, PositionLog, Split, SplitId, ValueRecord
from sluice.source.logs.checked_log import CheckedLog
from sluice.testing import QueryRunner, Subject, check_history


@dataclass
class Store:
    """The splits, and the numbers of their records.

    Attributes:
        at_bounds: called once, when the bounds are known, and before they are given, behind a read.
    """

    splits: dict[str, Split] = field(default_factory=dict)
    numbers: dict[str, list[int]] = field(default_factory=dict)
    listings: int = 0
    at_bounds: Callable[[], None] | None = None
    is_read: bool = False

    def open(self, *parents: str) -> str:
        name = f"split-{len(self.splits)}"
        self.splits[name] = Split(SplitId("numbers", name), parents)
        self.numbers[name] = []
        return name

    def put(self, split: str, count: int = 1) -> None:
        first = 1 + max((n for numbers in self.numbers.values() for n in numbers), default=0)
        self.numbers[split] += range(first, first + count)

    def divide(self, split: str) -> list[str]:
        last = self.numbers[split][-1:] or [0]
        self.splits[split] = replace(self.splits[split], ending_sequence=str(last[0]))
        return [self.open(split), self.open(split)]


class Numbers(PositionLog):
    """Reads a `Store`, as a user would write it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list_splits(self, stream: str) -> Sequence[Split]:
        del stream
        self._store.listings += 1
        return list(self._store.splits.values())

    def bounds(self, split: SplitId) -> tuple[int, int]:
        numbers = self._store.numbers[split.shard]
        found = (numbers[0], numbers[-1] + 1) if numbers else (1, 1)
        if self._store.at_bounds is not None and self._store.is_read:
            happen, self._store.at_bounds = self._store.at_bounds, None
            happen()
        return found

    def read(self, split: SplitId, number: int, limit: int) -> tuple[Sequence[Any], int]:
        found = [n for n in self._store.numbers[split.shard] if n >= number][:limit]
        self._store.is_read = True
        return [ValueRecord(str(n), 1_000_000 * n, n) for n in found], found[-1] + 1 if found else number


class NumbersSource(ValueSource):
    """Two records a page."""

    name = "numbers"
    LOG = Numbers
    page_limit = 2


OPTIONS = {"startingPosition": "EARLIEST", "splitDiscoveryInterval": "1ms"}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    monkeypatch.setattr(NumbersSource, "store", store, raising=False)
    return store


@pytest.mark.parametrize("limits", [None, Limits(records=3)])
def test_children_are_read_behind_a_closed_split(store: Store, limits: Limits | None) -> None:
    """Through limits, crashes and restarts, and in a batch read. It used to be read for ever."""
    opened = [store.open()]

    def divide(_: int) -> None:
        opened.extend(store.divide(opened.pop(0)))

    def put(count: int) -> None:
        for split in opened:
            store.put(split, count)

    subject = Subject(
        NumbersSource,
        OPTIONS,
        put,
        expected=lambda: [n for numbers in store.numbers.values() for n in numbers],
        identity=lambda row: row["value"],
        split=lambda row: row["split"],
        position=lambda row: row["value"],
        events={"divide": divide},
    )
    batch = ("batch", limits, True)
    steps = [("put", 5), batch, ("event", "divide", 0), batch, ("put", 3), batch, ("restart",), batch]
    query = check_history(subject, [*steps, ("event", "divide", 0), ("put", 2), ("available", limits)])
    place = {row["split"]: place for place, row in reversed(list(enumerate(query.rows)))}
    for split in store.splits.values():
        for parent in split.parents:
            last = max(n for n, row in enumerate(query.rows) if row["split"] == parent)
            assert split.id.shard not in place or last < place[split.id.shard]


def test_what_comes_while_a_split_is_closed_is_read(store: Store) -> None:
    """A page that was read before a listing showed the split as closed is not the last one."""
    split = SplitId("numbers", store.open())
    store.put(split.shard, 2)
    log = CheckedLog(Numbers(store), "numbers")
    log.list_splits("numbers")

    def close() -> None:
        store.put(split.shard)
        store.divide(split.shard)
        log.list_splits("numbers")

    store.at_bounds = close
    iterator = log.get_iterator(split, IteratorStart("AT_SEQUENCE_NUMBER", "1"))
    pages = []
    while iterator is not None:
        pages.append(log.get_records(split, iterator, 10))
        iterator = pages[-1].next_iterator
    assert [[each.value for each in page.records] for page in pages] == [[1, 2], [3]]


def test_an_open_split_is_not_listed_by_tasks(store: Store) -> None:
    """A listing for each range would double the calls of a source that reads near the tip."""
    split = store.open()
    store.put(split, 3)
    with QueryRunner(NumbersSource, {**OPTIONS, "splitDiscoveryInterval": "1h"}) as query:
        query.run_batch()
        before = store.listings
        assert query.read(0) == query.rows
        assert store.listings == before
