"""A log that has positions starts and ends at them, for any times of its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from value_source import ValueSource

from sluice.errors import DataLossError, ServiceError
from sluice.instants import iso_instant
from sluice.source import After, IteratorStart, Limits, PositionLog, Split, SplitId, ValueRecord
from sluice.source.probing.probe import ProbeSettings
from sluice.testing import QueryRunner

SECOND = 1_000_000
SIZE = 300_000
"""Bytes of a record: so few make a page that planning skips most of a long log."""


class Store:
    """One split, with the numbers and times of its records, which may have any. Its clock is set by tests.

    Attributes:
        low: the number of the oldest record that has not expired.
        next: the number of the next record.
        reads: how often the log was read.
        is_closed: the split gets no more records. It has a child without records.
    """

    def __init__(self) -> None:
        self.now = 1_700_000_000 * SECOND
        self.passed = 0.0
        self.records: list[tuple[int, int]] = []
        self.low = 0
        self.next = 0
        self.reads = 0
        self.is_closed = False

    def put(self, *ages: int, skip: int = 0) -> list[int]:
        """Writes a record of each age (seconds; below 0: its time is in the future). Returns their numbers.

        Args:
            skip: numbers that are left out before each of them.
        """
        for age in ages:
            self.next += skip
            self.records.append((self.next, self.now - age * SECOND))
            self.next += 1
        return [number for number, _ in self.records[len(self.records) - len(ages) :]]

    def expire(self, low: int) -> None:
        self.low = low
        self.records = [each for each in self.records if each[0] >= low]

    def sleep(self, seconds: float) -> None:
        self.passed += seconds
        self.now += int(seconds * SECOND)

    def monotonic(self) -> float:
        return self.passed


class Times(PositionLog):
    """Finds no records by time."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def server_time(self) -> int:
        return self.store.now

    def list_splits(self, stream: str) -> Sequence[Split]:
        if not self.store.is_closed:
            return [Split(SplitId(stream, "0"))]
        parent = Split(SplitId(stream, "0"), ending_sequence=str(self.store.next))
        return [parent, Split(SplitId(stream, "1"), ("0",))]

    def bounds(self, split: SplitId) -> tuple[int, int]:
        return (self.store.low, self.store.next) if split.shard == "0" else (0, 0)

    def read(self, split: SplitId, number: int, limit: int) -> tuple[Sequence[Any], int]:
        self.store.reads += 1
        if split.shard != "0":
            return (), number
        found = [each for each in self.store.records if each[0] >= number][:limit]
        records = [ValueRecord(str(number), at, number, SIZE) for number, at in found]
        return records, found[-1][0] + 1 if found else self.store.next


class SeekingTimes(Times):
    """Finds the first record of a time, as Kafka does."""

    seeks_by_time = True

    def find_time(self, split: SplitId, instant: int) -> int | None:
        if split.shard != "0":
            return None
        return next((number for number, at in self.store.records if at >= instant), None)


class TimesSource(ValueSource):
    """Reads a `Store`."""

    name = "times"
    LOG = Times

    def probe_settings(self) -> ProbeSettings:
        return ProbeSettings(pause=self.store.sleep, clock=self.store.monotonic)


class SeekingSource(TimesSource):
    """Its log finds records by time."""

    LOG = SeekingTimes


SOURCES = pytest.mark.parametrize("source", [TimesSource, SeekingSource], ids=["reading", "seeking"])
AGES = st.lists(st.sampled_from([-3600, -5, -1, 0, 1, 5, 60, 3600]), max_size=8)
LIMITS = st.sampled_from([None, Limits(records=2), Limits(span=2 * SECOND)])


def query(source: type[TimesSource], store: Store, **options: str) -> QueryRunner:
    source.store = store
    return QueryRunner(source, options)


def read_on(running: QueryRunner, store: Store, limits: Limits | None = None) -> list[int]:
    """Runs batches until nothing is new for some seconds."""
    idle = 0
    while idle < 4:
        idle = 0 if running.run_batch(limits) else idle + 1
        store.sleep(1.0)
    return [row["value"] for row in running.rows]


@SOURCES
@given(before=AGES, later=st.lists(AGES, max_size=3), skip=st.integers(0, 2), limits=LIMITS)
def test_latest_is_every_record_that_is_written_after_the_start(
    source: type[TimesSource], before: list[int], later: list[list[int]], skip: int, limits: Limits | None
) -> None:
    """None of those before, and all after it, also where the query restarts before its first batch."""
    store = Store()
    store.put(*before, skip=skip)
    with query(source, store, startingPosition="LATEST") as running:
        assert running.run_batch(limits) == []
        expected = []
        for ages in later:
            store.sleep(0.5)
            expected += store.put(*ages, skip=skip)
            running.restart()
            store.sleep(0.5)
            running.run_batch(limits, crash=True)
        assert read_on(running, store, limits) == expected


def test_a_start_at_the_end_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one at the oldest record is, of which no call asks anything."""
    store, bounds = Store(), SeekingTimes.bounds
    refusals = [
        ServiceError("slow", operation="bounds", target="times/0", throttling=throttling, retryable=True)
        for throttling in (True, True, False)
    ]

    def refusing(log: SeekingTimes, split: SplitId) -> tuple[int, int]:
        if refusals:
            raise refusals.pop()
        return bounds(log, split)

    monkeypatch.setattr(SeekingTimes, "bounds", refusing)
    store.put(5, 4)
    with query(SeekingSource, store) as running:
        assert running.run_batch() == []
        later = store.put(0)
        assert read_on(running, store) == later


@SOURCES
def test_an_instant_of_an_older_checkpoint_is_still_read(source: type[TimesSource]) -> None:
    """It has no number: the first record of that time comes first."""
    store = Store()
    store.put(60, 50)
    with query(source, store, startingPosition="LATEST") as running:
        running.run_batch()
        (start,) = running.offsets
        assert start["streams"]["times"]["0"].pop("number") == "2"
        store.sleep(5.0)
        expected = store.put(1, 0)
        running.restart()
        assert read_on(running, store) == expected


@SOURCES
@pytest.mark.parametrize("option", ["true", "false"])
def test_records_that_expire_after_the_start_are_a_loss(source: type[TimesSource], option: str) -> None:
    """Although the query has read none, and no time says so. Expired records from before are none."""
    store = Store()
    store.put(0, 0)
    with query(source, store, startingPosition="LATEST", failOnDataLoss=option) as running:
        running.run_batch()
        store.expire(2)
        running.restart()
        assert running.run_batch() == []
        store.put(0, 0, 0)
        store.expire(3)
        running.restart()
        if option == "true":
            with pytest.raises(DataLossError, match="times/0: number 2 is not there any more; the oldest"):
                running.run_batch()
        else:
            assert read_on(running, store) == [3, 4]


class NamingTimes(Times):
    """Writes its positions in words, and knows what was deleted."""

    split_name = "lane"
    deleted: ClassVar[int] = -1  # the greatest number

    @classmethod
    def format_position(cls, number: str) -> str:
        return f"no. {number}"

    def is_complete_from(self, split: SplitId, start: IteratorStart) -> bool:
        del split
        return int(start.sequence_number or 0) >= self.deleted


class NamingSource(TimesSource):
    LOG = NamingTimes


def test_what_a_log_says_of_deleted_records_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that was read may be deleted, if no other was. Errors have the log's own words."""
    store = Store()
    store.put(5, 4, 3)
    with query(NamingSource, store, startingPosition="EARLIEST") as running:
        assert len(running.run_batch()) == 3
        store.records.pop()
        store.put(0)
        monkeypatch.setattr(NamingTimes, "deleted", 2)
        running.restart()
        assert read_on(running, store)[3:] == [3]
        store.records.pop()
        store.put(0)
        monkeypatch.setattr(NamingTimes, "deleted", 4)
        running.restart()
        with pytest.raises(DataLossError, match=r"lane times/0: record no\. 3, .* record now is no\. 4"):
            running.run_batch()


@SOURCES
def test_records_that_expire_when_they_were_read_are_no_loss(source: type[TimesSource]) -> None:
    """All that are left are unread, by their numbers."""
    store = Store()
    store.put(5, 4, 3)
    with query(source, store, startingPosition="EARLIEST") as running:
        assert len(running.run_batch()) == 3
        store.expire(3)
        running.restart()
        store.put(0)
        assert read_on(running, store) == [0, 1, 2, 3]


@SOURCES
def test_a_start_that_is_not_written_yet_is_of_another_log(source: type[TimesSource]) -> None:
    """The stream was emptied, and begins anew."""
    store = Store()
    store.put(0, 0)
    with query(source, store, startingPosition="LATEST") as running:
        running.run_batch()
        running.restart()
        store.records, store.next = [], 0
        store.put(0)
        with pytest.raises(DataLossError, match="number 2 has not been written yet; the next one is 1"):
            running.run_batch()


@SOURCES
@given(before=AGES, later=st.lists(AGES, max_size=2), age=st.sampled_from([-5, 0, 1, 5, 60]), limits=LIMITS)
def test_a_start_at_a_time_is_the_first_record_of_that_time(
    source: type[TimesSource], before: list[int], later: list[list[int]], age: int, limits: Limits | None
) -> None:
    """Later records are read with any times. Where the log finds records by time and has none yet, all
    that are written after the start come.
    """
    store = Store()
    store.put(*before)
    instant = min(store.now, store.now - age * SECOND)
    options = {"startingPosition": "AT_TIMESTAMP", "startingTimestamp": iso_instant(instant)}
    written = len(before)
    with query(source, store, **options) as running:
        running.run_batch(limits)
        for ages in later:
            store.sleep(0.5)
            store.put(*ages)
            running.restart()
            running.run_batch(limits, crash=True)
        found = read_on(running, store, limits)
    is_pinned = source is SeekingSource or age <= 0
    known = store.records[:written] if is_pinned else store.records
    first = next((number for number, at in known if at >= instant and age > 0), len(known))
    assert found == list(range(first, store.next))


ANY_TIME = st.sampled_from([-7200, -3600, -5, 0, 1, 5, 60, 3600])


@SOURCES
@given(
    ages=st.lists(ANY_TIME, max_size=12),
    skip=st.integers(0, 2),
    start=st.sampled_from(["EARLIEST", "LATEST"]) | ANY_TIME,
    end=st.none() | ANY_TIME,
    is_closed=st.booleans(),
)
def test_a_batch_read_is_from_position_to_position(
    source: type[TimesSource],
    ages: list[int],
    skip: int,
    start: str | int,
    end: int | None,
    *,
    is_closed: bool,
) -> None:
    """A time is the position of the first record that has it, or a later one. Records after it are read, or
    left out, with any times.
    """
    store = Store()
    numbers = store.put(*ages, skip=skip)
    store.is_closed = is_closed
    options = {"startingPosition": str(start)}
    first, last = 0 if start == "EARLIEST" else len(ages), len(ages)
    if isinstance(start, int):
        instant = min(store.now, store.now - start * SECOND)
        if end is not None and end > start:
            return  # refused: see test_batch_bounds.py
        given = iso_instant(store.now - start * SECOND)
        options = {"startingPosition": "AT_TIMESTAMP", "startingTimestamp": given}
        if instant < store.now:
            first = next((n for n, (_, at) in enumerate(store.records) if at >= instant), last)
    if end is not None:
        until = store.now - end * SECOND
        options["endingTimestamp"] = iso_instant(until)
        last = next((n for n, (_, at) in enumerate(store.records) if at >= until), last)

    with query(source, store, **options) as running:
        assert [row["value"] for row in running.read_all()] == numbers[first:last]


@SOURCES
@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("age", [3600, 0, -3600])
def test_the_tip_is_a_position(source: type[TimesSource], count: int, age: int) -> None:
    """A record of the future does not end a batch read, or a run over existing records."""
    store = Store()
    numbers = store.put(*[60] * count, age, *[60] * count)
    with query(source, store, startingPosition="EARLIEST") as running:
        assert [row["value"] for row in running.read_all()] == numbers
        assert [row["value"] for row in running.run_available()] == numbers


@SOURCES
@pytest.mark.parametrize(("unused", "reads"), [(0, 8), (100, 50)])
def test_the_tip_of_a_long_log_is_found_without_reading_it(
    source: type[TimesSource], unused: int, reads: int
) -> None:
    """However many records are before it, or numbers without a record, as those of an aborted transaction."""
    store = Store()
    store.put(*[60] * 500)
    store.next += unused
    with query(source, store, startingPosition="EARLIEST"):
        (found,), _ = source.configured({}, streaming=False).plan_bounded()
    assert found.end == After("499")
    assert store.reads < reads
