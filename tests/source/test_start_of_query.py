"""The meaning of the starting position, for a new query and for one with a checkpoint."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from integration.model import KinesisModel, Laws, ManualClock, ModelLog
from memory_log import S0, SECOND, MemoryLog, new_log, put_many
from query import Query, at_latest, check_exactly_once, new_enumerator, new_reader, read_range

from sluice.kinesis.options.starting_positions import AtTimestamp, PerShard, ending_instant, initial_positions
from sluice.source.logs.stream_log import IteratorStart, Record
from sluice.source.model.offsets import After, Closed
from sluice.source.model.splits import Split, SplitId


def hide_once(log: MemoryLog, hidden: Collection[SplitId], monkeypatch: pytest.MonkeyPatch) -> None:
    """The next listing of their stream leaves some shards out."""
    list_splits = log.list_splits
    left = [hidden]

    def list_some(stream: str) -> Sequence[Split]:
        left_out = left.pop() if stream == "s" and left else ()
        return [split for split in list_splits(stream) if split.id not in left_out]

    monkeypatch.setattr(log, "list_splits", list_some)


@pytest.mark.parametrize("hidden", ["parent", "children", "family", "all"])
@pytest.mark.parametrize("is_added", [False, True])
def test_a_shard_that_the_first_listing_lacks_starts_where_the_query_says(
    hidden: str, monkeypatch: pytest.MonkeyPatch, *, is_added: bool
) -> None:
    """And not at its oldest record, as a shard does that opens later."""
    log = new_log(2)
    log.create("t")
    put_many(log, 10)
    children = log.split(S0)
    put_many(log, 10)
    log.pass_time(60)
    query = Query(log, ["t"] if is_added else ["s", "t"], initial=at_latest)
    if is_added:
        query.run_batch()
        query.streams = ["s", "t"]
        query.restart()
    family = {"parent": [S0], "children": children, "family": [S0, *children], "all": log.shards}
    hide_once(log, family[hidden], monkeypatch)
    query.run_batch()
    log.pass_time(1)
    records = put_many(log, 5)
    query.run_to_end()
    check_exactly_once(query, records)


def test_a_shard_that_the_first_listing_lacks_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no unknown one."""
    log = new_log()
    put_many(log, 10)
    log.split(S0)
    records = put_many(log, 10)
    last = log.records(S0)[-1].sequence_number
    start = PerShard({S0: IteratorStart("AFTER_SEQUENCE_NUMBER", sequence_number=last)})
    hide_once(log, [S0], monkeypatch)
    query = Query(log, initial=initial_positions(start))
    query.run_to_end()
    check_exactly_once(query, records)


CHANGE = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 20)),
    st.tuples(st.just("split"), st.integers(0, 100)),
    st.tuples(st.just("merge"), st.integers(0, 100)),
    st.tuples(st.just("wait"), st.sampled_from([1, 3, 60])),
    st.tuples(st.just("read"), st.just(0)),
)


@given(
    seed=st.integers(0, 2**32),
    laws=st.builds(
        Laws,
        listing_gaps=st.sampled_from([0.0, 0.5]),
        listing_delay=st.sampled_from([0.0, 2.0]),
        arrival_disorder=st.just(0.0),
    ),
    shards=st.integers(1, 3),
    changes=st.lists(CHANGE, max_size=12),
    later=st.lists(CHANGE, max_size=6),
)
def test_latest_is_every_record_from_the_start_on_and_none_before(
    seed: int,
    laws: Laws,
    shards: int,
    changes: Sequence[tuple[str, int]],
    later: Sequence[tuple[str, int]],
) -> None:
    """For any omissions of the listings, which have gaps where others have read."""
    log = ModelLog(KinesisModel(laws, ManualClock(), seed))
    log.create("s", shards)
    log.pass_time(10)
    rng = random.Random(seed)

    def take(changes: Sequence[tuple[str, int]]) -> list[Record]:
        records: list[Record] = []
        for change, number in changes:
            shards = [shard for shard in log.shards.values() if shard.ending_sequence is None]
            shards.sort(key=lambda shard: shard.hash_range)
            index = number % max(1, len(shards) - 1)
            match change:
                case "put":
                    records += [log.put("s", str(rng.random())) for _ in range(number)]
                case "wait":
                    log.pass_time(number)
                case "split":
                    log.split(shards[index].id)
                case "merge" if len(shards) > 1:
                    log.merge(shards[index].id, shards[index + 1].id)
                case "read":
                    Query(log).run_to_end(empty_triggers=1)
        return records

    take(changes)
    log.pass_time(0.1)
    query = Query(log, initial=at_latest)
    query.log_start()
    log.pass_time(0.1)
    records = take(later)
    query.run_to_end(step=3.0)
    check_exactly_once(query, records)


@given(
    seed=st.integers(0, 2**32),
    pauses=st.lists(st.sampled_from([0, 500, 1000, 3000]), max_size=30),
    cuts=st.sets(st.integers(-2000, 40_000), min_size=1, max_size=4),
)
def test_reads_of_adjoining_times_have_each_record_once(seed: int, pauses: list[int], cuts: set[int]) -> None:
    """In the read of its arrival. Times may be finer than the milliseconds that the service counts in.

    Args:
        pauses: between two records (microseconds).
        cuts: between two reads (microseconds from the first record on).
    """
    log = ModelLog(KinesisModel(Laws(arrival_disorder=0.0), ManualClock(), seed))
    log.create("s", 2)
    log.pass_time(10)
    begin = log.now
    records: list[Record] = []
    for pause in pauses:
        records.append(log.put("s", str(len(records)), arrival=log.now // 1000 * 1000))
        log.pass_time(pause / SECOND)
    log.pass_time(60)
    bounds = [begin - SECOND, *(begin + cut for cut in sorted(cuts)), begin + 30 * SECOND]
    reader = new_reader(log)
    for since, until in itertools.pairwise(bounds):
        enumerator = new_enumerator(log, ["s"], initial=initial_positions(AtTimestamp(since)))
        ranges = enumerator.bounded(ending_instant(AtTimestamp(until)))
        found = [record for each in ranges for record in read_range(reader, each)]
        assert sorted(found) == sorted(each for each in records if since <= each.arrival < until)


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


def test_sequence_numbers_of_an_existing_stream_do_not_matter() -> None:
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
    told = "started at LATEST, and the starting position TRIM_HORIZON applies only"
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
