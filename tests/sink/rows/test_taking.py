"""Entries are taken within a bound in bytes, many at a time where they are small."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from sluice.sink.rows.taking import EntryTaker


def counted(sizes: list[int], made: list[int]) -> Iterator[int]:
    """Entries that are their size; `made` has those that were made."""
    for size in sizes:
        made.append(size)
        yield size


def test_no_more_is_made_than_there_is_room_for() -> None:
    """Where entries are as large as those before them, one may pass the bound."""
    made: list[int] = []
    taken = EntryTaker(list, 100).take(counted([90] * 500, made), 500, 200)

    assert taken.entries == taken.sizes == made == [90, 90, 90]
    assert (taken.largest, taken.total) == (90, 270)


def test_an_entry_that_is_larger_than_the_room_is_taken_alone() -> None:
    """Or it would never be."""
    entries = counted([500, 500], [])
    taker = EntryTaker(list, 1000)

    assert taker.take(entries, 10, 1).entries == [500]
    assert taker.take(entries, 10, 1).entries == [500]
    assert taker.take(entries, 10, 1).entries == []


def test_small_entries_are_taken_many_at_a_time() -> None:
    """After a few pieces. The first large ones behind them may be too many, the next ones are not."""
    made: list[int] = []
    taker = EntryTaker(list, 1000)
    entries = counted([1] * 300 + [600] * 20, made)
    assert len(taker.take(entries, 300, 1000).entries) == 300

    assert taker.take(entries, 9, 1000).entries == [600] * 9
    assert taker.take(entries, 9, 1000).entries == [600, 600]


@given(
    st.lists(st.integers(0, 100), max_size=400),
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 2000)), min_size=1),
)
def test_nothing_is_lost(sizes: list[int], calls: list[tuple[int, int]]) -> None:
    """Entries come in their order, no more than asked for, with their sizes."""
    entries = iter(sizes)
    taker: EntryTaker[int] = EntryTaker(list, 100)
    found: list[int] = []
    for most, room in calls:
        taken = taker.take(entries, most, room)
        assert len(taken.entries) <= most
        assert taken.sizes == taken.entries
        assert sum(taken.sizes) == taken.total
        assert taken.largest == max(taken.sizes, default=0)
        found += taken.entries

    assert [*found, *entries] == sizes
