"""The property machine: sources that pass it, and that a source with a fault does not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings

from sluice.source import SplitId
from sluice.source.logs.stream_log import Record
from sluice.source.settings import Limits
from sluice.testing import MemoryLog, MemorySource, QueryRunner, Subject, check_history, histories

RESHARDS = ("split", "merge")


def reshards(log: MemoryLog) -> dict[str, Callable[[int], None]]:
    def opened() -> list[SplitId]:
        shards = [shard for shard in log.shards.values() if shard.ending_sequence is None]
        return [shard.id for shard in sorted(shards, key=lambda shard: shard.hash_range)]

    def split(number: int) -> None:
        log.split(opened()[number % len(opened())])

    def merge(number: int) -> None:
        if len(here := opened()) > 1:
            log.merge(*here[number % (len(here) - 1) :][:2])

    return {"split": split, "merge": merge}


def memory_subject(source: type[MemorySource] = MemorySource, *, empty_every: int = 0) -> Subject:
    log = MemoryLog(empty_every=empty_every)
    log.create("s", 2)
    put: list[Record] = []
    numbers = itertools.count()

    def put_some(count: int) -> None:
        for _ in range(count):
            put.append(log.put("s", f"key-{next(numbers)}"))
            log.pass_time(0.01)

    return Subject(
        source.of(log),
        {"startingPosition": "EARLIEST"},
        put_some,
        lambda: (record.sequence_number for record in put),
        lambda row: row["number"],
        lambda row: row["shard"],
        lambda row: int(row["number"]),
        reshards(log),
        log.pass_time,
    )


@settings(max_examples=15, deadline=None)
@given(history=histories(events=RESHARDS))
@example(history=[("put", 300), ("batch", Limits(records=40), True), ("event", "split", 0), ("put", 50)])
def test_the_log_in_memory_passes(history: list[tuple[Any, ...]]) -> None:
    """Through reshards, restarts and crashes."""
    check_history(memory_subject(empty_every=3), history)


class WithoutTimes(MemorySource):
    """A source whose service does not search by time."""

    def create_log(self, pause: Callable[[float], None]) -> MemoryLog:
        del pause
        self.log.seeks_by_time = False
        return self.log


@settings(max_examples=15, deadline=None)
@given(history=histories(events=RESHARDS))
@example(history=[("put", 300), ("batch", Limits(records=40), True), ("available", Limits(records=40))])
def test_a_log_that_cannot_search_by_time_passes(history: list[tuple[Any, ...]]) -> None:
    """It is read on to the end of a batch."""
    subject = memory_subject(WithoutTimes, empty_every=3)
    get_iterator = WithoutTimes.log.get_iterator

    def refusing(split: SplitId, start: Any) -> str | None:
        assert start.kind != "AT_TIMESTAMP"
        return get_iterator(split, start)

    WithoutTimes.log.get_iterator = refusing  # type: ignore[method-assign]
    check_history(subject, history)


class Forgets(MemorySource):
    """Leaves out a record when it reads a page."""

    def to_record_batch(self, split: SplitId, records: Sequence[Record]) -> pa.RecordBatch:
        return super().to_record_batch(split, records[: max(1, len(records) - 1)])


class Turns(MemorySource):
    """Gives the rows of a page in the wrong order."""

    def to_record_batch(self, split: SplitId, records: Sequence[Record]) -> pa.RecordBatch:
        return super().to_record_batch(split, records[::-1])


class Wanders(MemorySource):
    """Reads something else the second time."""

    times = 0

    def to_record_batch(self, split: SplitId, records: Sequence[Record]) -> pa.RecordBatch:
        Wanders.times += 1
        return super().to_record_batch(split, records if Wanders.times <= 2 else records[:1])


@pytest.mark.parametrize(
    ("source", "rule"),
    [(Forgets, "each record comes once"), (Turns, "come in order"), (Wanders, "when it is read again")],
)
def test_a_source_with_a_fault_does_not_pass(source: type[MemorySource], rule: str) -> None:
    """The machine says which rule is broken."""
    with pytest.raises(AssertionError, match=rule):
        check_history(memory_subject(source), [("put", 40), ("batch", None, False)])


def test_limits_hold_where_there_is_no_search_by_time() -> None:
    """The planner reads further than the batch may go, and cuts back."""
    subject = memory_subject(WithoutTimes)
    subject.put(9000)  # more than the sample that tells how dense they are
    with QueryRunner(WithoutTimes, subject.options) as query:
        sizes = [len(query.run_batch(Limits(records=2500))) for _ in range(2)]
        spans = [query.run_batch(Limits(span=25_000_000))]
    assert all(1250 <= size <= 2500 for size in sizes), sizes
    for rows in spans:
        times = [row["arrival"] for row in rows]
        assert rows
        assert (max(times) - min(times)).total_seconds() <= 25


def test_a_start_at_a_time_without_a_search_by_time() -> None:
    """It is read from the oldest record on, and older records are left out."""
    subject = memory_subject(WithoutTimes, empty_every=3)
    subject.put(300)
    log = WithoutTimes.log
    middle = log.now
    subject.put(50)
    later = [r.sequence_number for shard in log.shards.values() for r in shard.records if r.arrival >= middle]
    options = {"startingPosition": "AT_TIMESTAMP", "startingTimestamp": f"{middle / 1e6:.6f}"}
    with QueryRunner(WithoutTimes, options) as query:
        rows = query.run_until(len(later), wait=log.pass_time)
        assert sorted(row["number"] for row in rows) == sorted(later)
        assert sorted(row["number"] for row in query.read_all()) == sorted(later)
    with QueryRunner(WithoutTimes, {"endingTimestamp": options["startingTimestamp"]}) as query:
        assert len(query.read_all()) == 300
