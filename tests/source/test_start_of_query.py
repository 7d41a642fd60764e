"""What the starting position means for a query that has a checkpoint."""

from __future__ import annotations

import pytest
from memory_log import MemoryLog
from query import Query, at_latest

from sluice.kinesis.starting_positions import PerShard, initial_positions
from sluice.source.offsets import After, Closed
from sluice.source.splits import SplitId
from sluice.source.stream_log import IteratorStart


def two_streams() -> MemoryLog:
    log = MemoryLog()
    log.create("a")
    log.create("b")
    for _ in range(100):
        log.put("b", "old")
    log.pass_time(3600)
    return log


def started_with_one(log: MemoryLog) -> Query:
    query = Query(log, ["a"], initial=at_latest)
    query.run_batch()
    log.pass_time(2)
    log.put("a", "x")
    query.run_to_end()
    return query


def test_a_stream_that_is_added_starts_where_the_query_says() -> None:
    """At the latest here, and not at the oldest record as a shard does that opens later."""
    log = two_streams()
    query = started_with_one(log)
    query.streams = ["a", "b"]
    query.restart()
    query.run_batch()
    log.pass_time(60)
    query.restart()  # the start of the added stream has been logged, though it had no record
    record = log.put("b", "new")
    query.run_to_end()
    assert [r for split, rows in query.by_split().items() for r in rows if split.stream == "b"] == [record]


def test_the_first_batch_of_an_added_stream_is_read_again_from_the_same_place() -> None:
    log = two_streams()
    query = started_with_one(log)
    query.streams = ["a", "b"]
    query.restart()
    end = query.plan()
    query.log_end(end)
    query.batches.append(query.read(-1))
    log.pass_time(10)
    record = log.put("b", "new")
    query.run_batch(crash=True)
    assert query.rows_since(len(query.batches) - 1) == [record]


def test_sequence_numbers_of_a_stream_that_is_there_already_do_not_matter() -> None:
    """Their shards may have expired long ago, while the option still names them."""
    log = two_streams()
    query = started_with_one(log)
    query.streams = ["a", "b"]
    gone = SplitId("a", "shardId-000000000099")
    start = IteratorStart("AT_SEQUENCE_NUMBER", sequence_number="1")
    query.initial = initial_positions(PerShard({gone: start}))
    query.restart()
    query.run_to_end()
    assert sum(len(rows) for split, rows in query.by_split().items() if split.stream == "b") == 100


@pytest.mark.parametrize(("given", "is_reported"), [("LATEST", False), ("TRIM_HORIZON", True)])
def test_a_starting_position_that_was_changed_is_reported(
    given: str, *, is_reported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not move the query, so the log says what it would take."""
    log = two_streams()
    query = Query(log, ["a"], initial=at_latest, starting="LATEST")
    query.run_batch()
    log.put("a", "x")
    query.run_to_end()
    query.starting = given
    query.restart()
    query.run_to_end()
    told = "started at LATEST, and the starting position TRIM_HORIZON that is given now"
    assert caplog.text.count(told) == is_reported


def test_a_start_at_the_end_of_a_shard_leaves_it_out() -> None:
    """Its children are read from their first record on: what another consumer has finished stays finished."""
    log = MemoryLog()
    (parent,) = log.create("s")
    log.put("s", "old")
    children = log.split(parent)
    for n in range(20):
        log.put("s", f"key-{n}")
    query = Query(log, initial=initial_positions(PerShard({parent: Closed()})))

    query.run_to_end()

    assert set(query.by_split()) == set(children)
    assert sum(map(len, query.by_split().values())) == 20


def test_a_start_inside_an_aggregated_record_begins_with_that_record() -> None:
    """Which of its rows are left out is the decoder's business, by the number that the range begins with."""
    log = MemoryLog()
    (split,) = log.create("s")
    first, second = log.put("s", "a"), log.put("s", "b")
    query = Query(log, initial=initial_positions(PerShard({split: After(first.sequence_number, 3)})))

    query.run_to_end()

    assert query.by_split()[split] == [first, second]
