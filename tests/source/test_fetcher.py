"""Ranges read side by side: the order within each, bounded memory, and no thread left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from sluice.source.logs.stream_log import Record
from sluice.source.model.offsets import HORIZON, Closed, SplitRange
from sluice.source.model.splits import SplitId
from sluice.source.reading import fetcher
from sluice.source.reading.fetcher import fetch_side_by_side, prefetch

RANGES = [SplitRange(SplitId("s", f"shard-{index}"), HORIZON, Closed()) for index in range(5)]


def page(number: int) -> list[Record]:
    """A page of one record."""
    return [Record(str(number), 0, "k", b"")]


def join_fetchers() -> None:
    """Waits until no fetcher runs."""
    for thread in threading.enumerate():
        if thread.name.startswith("sluice-fetch"):
            thread.join(60)
            assert not thread.is_alive()


def test_pages_of_a_range_come_in_order() -> None:
    """Those of different ranges may come mixed."""

    def read(split_range: SplitRange, pause: Callable[[float], None]) -> Iterator[Sequence[Record]]:
        del split_range, pause
        yield from (page(number) for number in range(50))

    seen: dict[SplitId, list[str]] = {}
    for split_range, records in fetch_side_by_side(RANGES, read):
        seen.setdefault(split_range.split, []).extend(r.sequence_number for r in records)
    assert seen == {r.split: [str(number) for number in range(50)] for r in RANGES}
    join_fetchers()


def test_a_range_is_read_at_most_two_pages_ahead() -> None:
    """Its fetcher waits until the consumer takes a page, so memory is bounded."""
    given = 0

    def read(split_range: SplitRange, pause: Callable[[float], None]) -> Iterator[Sequence[Record]]:
        nonlocal given
        del split_range, pause
        for number in range(100):
            given += 1
            yield page(number)

    taken = 0
    for _ in fetch_side_by_side(RANGES[:1], read):
        # One page is being consumed, one waits, and `given` is raised before a page is handed over.
        assert given <= taken + 2
        taken += 1
    assert taken == 100
    join_fetchers()


def test_ranges_are_read_at_the_same_time() -> None:
    """Every range is begun before any ends."""
    begun = threading.Barrier(len(RANGES), timeout=60)

    def read(split_range: SplitRange, pause: Callable[[float], None]) -> Iterator[Sequence[Record]]:
        del split_range, pause
        begun.wait()
        yield page(1)

    assert len(list(fetch_side_by_side(RANGES, read))) == len(RANGES)
    join_fetchers()


def test_one_fetcher_reads_all_ranges_while_pages_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other: threads that all have pages to give wait for each other."""
    monkeypatch.setattr(fetcher, "_NEXT_FETCHER_AFTER", 60.0)
    threads = set()

    def read(split_range: SplitRange, pause: Callable[[float], None]) -> Iterator[Sequence[Record]]:
        del split_range, pause
        threads.add(threading.get_ident())
        yield page(1)
        yield page(2)

    found = [split_range for split_range, _ in fetch_side_by_side(RANGES, read, at_once=1)]

    assert found == [each for each in RANGES for _ in range(2)]
    assert len(threads) == 1
    join_fetchers()


def test_a_range_without_pages_does_not_hold_up_the_others() -> None:
    """The next one is begun when no page has come for a moment."""
    is_last_read = threading.Event()

    def read(split_range: SplitRange, pause: Callable[[float], None]) -> Iterator[Sequence[Record]]:
        del pause
        if split_range is RANGES[-1]:
            yield page(1)
            is_last_read.set()
        else:
            assert is_last_read.wait(60)
            yield page(1)

    found = [split_range for split_range, _ in fetch_side_by_side(RANGES, read, at_once=2)]

    assert found[0] is RANGES[-1]
    assert len(found) == len(RANGES)
    join_fetchers()


def test_the_first_error_is_raised_and_stops_all_fetchers() -> None:
    """The others stop at their next pause."""

    def read(split_range: SplitRange, pause: Callable[[float], None]) -> Iterator[Sequence[Record]]:
        if split_range is RANGES[0]:
            raise OSError("cut")
        while True:
            yield page(1)
            pause(0.001)

    def consume() -> None:
        for _ in fetch_side_by_side(RANGES, read):
            pass

    with pytest.raises(OSError, match="cut"):
        consume()
    join_fetchers()


def test_a_consumer_that_leaves_stops_all_fetchers() -> None:
    """Even one in a long pause. Spark closes a reader whose task is killed or needs no more rows."""

    def read(split_range: SplitRange, pause: Callable[[float], None]) -> Iterator[Sequence[Record]]:
        del split_range
        while True:
            yield page(1)
            pause(3600)

    pages = fetch_side_by_side(RANGES, read)
    next(pages)
    pages.close()  # type: ignore[attr-defined]
    join_fetchers()


def test_what_is_no_range_is_read_ahead_as_well() -> None:
    """The record batches of a task whose source is no log."""

    def read(pause: Callable[[float], None]) -> Iterator[int]:
        pause(0.0)
        yield from range(100)

    assert list(prefetch(read)) == list(range(100))
    join_fetchers()
