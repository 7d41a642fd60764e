"""Batches over a stream: exact, replayable, parents before children, within limits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from machine import STEP, Machine
from memory_log import SECOND, MemoryLog, hash_key
from query import Query, check_exactly_once, make_enumerator, read_plain, through_json

from sluice.errors import DataLossError, OptionError, ServiceError
from sluice.source.admission import Limits
from sluice.source.data_loss import DataLossPolicy
from sluice.source.offsets import After, AtTime, Closed, Offsets, Position, SplitRange, before
from sluice.source.reader import RangeReader, ReadSettings
from sluice.source.splits import Split, SplitId
from sluice.source.stream_log import Record

S0 = SplitId("s", "shardId-000000000000")


def latest(splits: Iterable[Split], now: int) -> Mapping[SplitId, Position]:
    return {split.id: AtTime(now, pinned=now) for split in splits}


def put_to(log: MemoryLog, split: SplitId, count: int) -> list[Record]:
    """Puts records to one split."""
    low, high = log.shards[split].hash_range
    keys = (key for key in map(str, itertools.count()) if low <= hash_key(key) <= high)
    return [log.put(split.stream, key) for key in itertools.islice(keys, count)]


def put_many(log: MemoryLog, count: int, *, per_second: float = 1000.0, stream: str = "s") -> list[Record]:
    records = []
    for index in range(count):
        records.append(log.put(stream, f"key-{index}"))
        log.pass_time(1 / per_second)
    return records


# --- finding the end ----------------------------------------------------------------------------------


def test_quiet_shard_ends_at_its_last_record() -> None:
    """A page that ends at the tip gives the cut: its last record."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"])
    records = put_many(log, 5)
    assert query.run_batch() == {S0: records}
    assert query.offsets[-1]["streams"]["s"][S0.shard]["after"] == records[-1].sequence_number


def test_nothing_new_is_the_same_offset() -> None:
    """Without news the planner gives back the very offset it was given, so Spark makes no batch."""
    log = MemoryLog()
    log.create("s", 3)
    query = Query(log, ["s"])
    put_many(log, 10)
    query.run_to_end()
    for _ in range(100):
        log.pass_time(5)
        assert query.run_batch() is None


def test_asked_often_the_planner_answers_from_memory() -> None:
    """Spark asks some 90 times a second; a quiet shard is read at most once a second."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"])
    put_many(log, 3)
    query.run_batch()
    calls = log.calls["GetRecords"]
    for _ in range(900):
        query.run_batch()
        log.pass_time(1 / 90)
    assert log.calls["GetRecords"] - calls <= 11


def test_busy_shard_is_cut_with_two_calls_whatever_the_rate() -> None:
    """A full glance and one record a moment ago: no more is read to plan a batch of 50,000."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"])
    records = put_many(log, 50_000, per_second=10_000)
    rows = query.run_batch()
    assert rows is not None
    assert log.limits[:2] == [100, 1]
    assert len(rows[S0]) >= 40_000 - 1
    query.run_to_end()
    check_exactly_once(query, records)


def test_old_backlog_is_taken_whole_without_walking_through_it() -> None:
    """Records that all arrived hours ago: the last is found by bisecting time, not by reading all."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"])
    records = put_many(log, 100_000, per_second=1000)
    log.pass_time(3 * 3600)
    limits_before = len(log.limits)
    end = query.enumerator.advance(query.enumerator.initial())
    position = end.position(S0)
    assert isinstance(position, After)
    assert position.sequence == int(records[-1].sequence_number)
    assert sum(log.limits[limits_before:]) < 30_000


def test_closed_shard_ends_without_a_look() -> None:
    """A closed shard's end is known: no record is read to plan it, and the children come after."""
    log = MemoryLog()
    log.create("s")
    records = put_many(log, 250)
    children = log.split(S0)
    records += put_many(log, 100)
    query = Query(log, ["s"])
    first = query.run_batch()
    assert first is not None
    assert list(first) == [S0]
    assert log.calls["GetShardIterator"] == 1  # the task's
    query.run_to_end()
    assert {split for batch in query.batches[1:] for split in batch} == set(children)
    check_exactly_once(query, records)


def test_empty_pages_in_mid_shard_are_not_the_tip() -> None:
    """An empty page that is behind the tip is read past, by planner and task alike."""
    log = MemoryLog(empty_every=2)
    log.create("s", 2)
    query = Query(log, ["s"], page_limit=10)
    records = put_many(log, 500)
    query.run_to_end()
    check_exactly_once(query, records)


def test_short_pages_are_not_the_tip() -> None:
    """A page cut short by its bytes holds fewer records than asked for, with more behind them."""
    log = MemoryLog(page_size=10)
    log.create("s", 2)
    query = Query(log, ["s"])
    records = put_many(log, 500)
    rows = query.run_batch()
    assert rows is not None
    assert sum(map(len, rows.values())) == 40  # a glance and a sample of each shard, ten records a page
    query.run_to_end()
    check_exactly_once(query, records)


def test_empty_page_at_a_point_in_time_is_not_the_tip() -> None:
    """The record at a time may come behind empty pages; giving up there would bisect for nothing."""
    log = MemoryLog(empty_every=2)
    log.create("s")
    query = Query(log, ["s"])
    put_many(log, 50_000, per_second=10_000)
    query.enumerator.advance(query.enumerator.initial())
    assert log.limits == [100, 1, 1]


def test_what_comes_while_shards_are_listed_is_not_missed() -> None:
    """LATEST is the time before the listing, not after it."""
    log = MemoryLog()
    log.create("s")
    log.pass_time(5)
    put_during: list[Record] = []
    list_splits = log.list_splits

    def slowly(stream: str) -> Sequence[Split]:
        if not put_during:
            put_during.append(log.put("s", "key"))
            log.pass_time(3)
        return list_splits(stream)

    log.list_splits = slowly  # type: ignore[method-assign]
    query = Query(log, ["s"], initial=latest)
    query.run_to_end()
    check_exactly_once(query, put_during)


def test_idle_for_hours_then_one_record() -> None:
    """The kept iterator expires, its record too, and yet a record that comes then is no data loss."""
    log = MemoryLog()
    log.create("s", 2)
    query = Query(log, ["s"])
    records = put_many(log, 20)
    query.run_to_end()
    for _ in range(60):
        log.pass_time(1800)
        query.run_batch()
    log.retention = 24 * 3600.0
    for shard in list(log.shards):
        log.trim(shard, 1000)
    log.pass_time(10)
    records += put_many(log, 4)
    query.run_to_end()
    check_exactly_once(query, records)


def test_throttled_planner_waits_and_goes_on() -> None:
    """Throttling during planning never fails a query: the shard is left where it is for now."""
    refusals = iter([True] * 50)
    throttled = ServiceError("slow down", operation="GetRecords", retryable=True, throttling=True)
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"])
    records = put_many(log, 10)
    log.fault = lambda operation, _: throttled if operation == "GetRecords" and next(refusals, None) else None
    for _ in range(200):
        assert query.run_batch() is None
        log.pass_time(1)
        if next(refusals, None) is None:
            break
    query.run_to_end()
    check_exactly_once(query, records)


def test_failures_that_last_fail_the_query() -> None:
    """A shard that can't be looked at for a minute is an outage that somebody must hear of."""
    broken = ServiceError("500 from s", operation="GetRecords", retryable=True)
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"])
    log.fault = lambda operation, _: broken if operation == "GetRecords" else None

    def run_for_ten_minutes() -> None:
        for _ in range(600):
            query.run_batch()
            log.pass_time(1)

    with pytest.raises(ServiceError, match="500 from s"):
        run_for_ten_minutes()


def test_iterator_that_expires_between_two_pages_is_replaced() -> None:
    """A task whose iterator expires goes on right behind the last record it delivered."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"], page_limit=10)
    records = put_many(log, 95)
    reads = iter(range(1000))

    def expire(operation: str, _: SplitId) -> Exception | None:
        if operation == "GetRecords" and next(reads) % 3 == 2:
            log.expire_iterators()
        return None

    log.fault = expire
    query.run_to_end()
    check_exactly_once(query, records)


# --- positions ----------------------------------------------------------------------------------------


def test_latest_is_pinned_once() -> None:
    """LATEST means the moment the query first started, whenever its first batch comes to be read."""
    log = MemoryLog()
    log.create("s")
    put_many(log, 10)
    log.pass_time(1)
    query = Query(log, ["s"], initial=latest)
    assert query.enumerator.initial() == query.enumerator.initial()
    query.offsets.append(query.enumerator.initial().to_json())
    log.pass_time(30)
    records = put_many(log, 10)
    log.pass_time(30)
    query.restart()
    query.run_to_end()
    check_exactly_once(query, records)


def test_the_first_batch_comes_again_with_its_own_start() -> None:
    """Spark logs where the first batch ends, and asks again for its start: LATEST has not moved."""
    log = MemoryLog()
    log.create("s")
    put_many(log, 10)
    log.pass_time(1)
    query = Query(log, ["s"], initial=latest)
    query.offsets.append(through_json(query.enumerator.initial()))
    records = put_many(log, 10)
    rows = query.run_batch()
    log.pass_time(30)
    query.restart()
    query.offsets[0] = through_json(query.enumerator.initial())
    assert query.read(-1) == rows
    assert query.run_batch() is None
    check_exactly_once(query, records)
    records += put_many(log, 10)
    query.run_to_end()
    assert "start" not in query.offsets[-1]
    check_exactly_once(query, records)


def test_shards_born_later_start_at_the_horizon() -> None:
    """LATEST skips what was there, not what a reshard brings."""
    log = MemoryLog()
    log.create("s")
    put_many(log, 10)
    log.pass_time(1)
    query = Query(log, ["s"], initial=latest)
    query.run_batch()
    records = put_many(log, 3)
    log.split(S0)
    records += put_many(log, 40)
    query.run_to_end()
    check_exactly_once(query, records)


def test_start_at_a_sequence_number_includes_it() -> None:
    """`before` a record is the position that has it as the first one to come."""
    log = MemoryLog()
    log.create("s")
    records = put_many(log, 10)
    start = records[4].sequence_number
    query = Query(log, ["s"], initial=lambda splits, _: {split.id: before(start) for split in splits})
    query.run_to_end()
    check_exactly_once(query, records[4:])


def test_checkpoint_of_another_stream_is_refused() -> None:
    """Offsets of a stream that is not read are a mistake, named with both streams."""
    log = MemoryLog()
    log.create("s")
    log.create("other")
    offsets = Query(log, ["other"]).enumerator.initial()
    with pytest.raises(OptionError, match=r"other.*streamName.*names s"):
        Query(log, ["s"]).enumerator.advance(offsets)


def test_stream_that_does_not_exist() -> None:
    """A missing stream is reported when the query starts."""
    with pytest.raises(ServiceError, match="no stream ghost"):
        Query(MemoryLog(), ["ghost"]).enumerator.initial()


def test_a_range_that_ends_before_it_starts_is_an_error() -> None:
    """Offsets that no planner logged do not keep a task reading for ever."""
    log = MemoryLog()
    log.create("s")
    records = put_many(log, 10)
    log.pass_time(5)
    backwards = SplitRange(S0, AtTime(log.now), After(records[-1].sequence_number))
    data_loss = DataLossPolicy(log, fail=True, now=log.server_time)
    with pytest.raises(ServiceError, match="without it"):
        list(RangeReader(log, data_loss, ReadSettings(100, 0.2, log.sleep)).read(backwards))


# --- limits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shards", "limit"), [(1, 100), (1, 5_000), (4, 1_000), (4, 40_000), (1, 30_000)])
def test_record_limit_is_passed_by_at_most_a_page_a_shard(shards: int, limit: int) -> None:
    """Over an even backlog a batch holds about the limit, and never a page a shard more."""
    log = MemoryLog()
    log.create("s", shards)
    query = Query(log, ["s"])
    count = min(120_000, 12 * limit)
    records = put_many(log, count, per_second=2000)
    query.run_to_end(Limits(records=limit))
    sizes = [sum(map(len, batch.values())) for batch in query.batches]
    assert max(sizes) <= limit + (0.02 * limit if limit <= 1000 else 10_000) * shards
    assert len([size for size in sizes if size]) >= count // limit
    assert max(sizes) >= limit * 0.7
    check_exactly_once(query, records)


def test_byte_limit() -> None:
    """The same for bytes."""
    log = MemoryLog()
    log.create("s", 2)
    query = Query(log, ["s"])
    records = []
    for index in range(3000):
        records.append(log.put("s", f"key-{index}", b"x" * 1000))
        log.pass_time(0.001)
    query.run_to_end(Limits(bytes=100_000))
    sizes = [sum(len(r.data) for records in batch.values() for r in records) for batch in query.batches]
    assert max(sizes) <= 100_000 + 2 * 1_000
    assert len(sizes) >= 30
    check_exactly_once(query, records)


def test_limit_below_what_arrived_at_one_time() -> None:
    """Hundreds of records with one time of arrival can still be taken a few at a time."""
    log = MemoryLog()
    log.create("s", 2)
    query = Query(log, ["s"])
    records = [log.put("s", f"key-{index}") for index in range(60)]
    query.run_to_end(Limits(records=7))
    assert max(sum(map(len, batch.values())) for batch in query.batches) <= 7
    check_exactly_once(query, records)


def test_time_span_holds_on_every_shard() -> None:
    """No batch covers more arrival time than allowed, through gaps and dense stretches."""
    log = MemoryLog()
    log.create("s", 3)
    query = Query(log, ["s"])
    records = []
    rng = random.Random(5)
    for _ in range(60):
        for index in range(rng.choice([1, 5, 200])):
            records.append(log.put("s", f"key-{rng.random()}-{index}"))
            log.pass_time(rng.random() * 0.2)
        log.pass_time(rng.choice([0, 1, 30, 100]))
    query.run_to_end(Limits(span=10 * SECOND))
    for batch in query.batches:
        arrivals = [record.arrival for records in batch.values() for record in records]
        assert not arrivals or max(arrivals) - min(arrivals) <= 10 * SECOND
    check_exactly_once(query, records)


def test_a_cut_right_before_a_record_is_logged_again_as_it_is() -> None:
    """A split that waits at such a cut while others move on keeps the number of its next record."""
    log = MemoryLog()
    log.create("s", 2)
    query = Query(log, ["s"])
    records = put_many(log, 6000)
    query.run_batch(Limits(span=4 * SECOND))
    waiting = [p for p in query.offsets[-1]["streams"]["s"].values() if "next" in p]
    assert waiting
    throttled = ServiceError("slow down", operation="GetRecords", retryable=True, throttling=True)
    for split in log.shards:
        query.restart()
        log.pass_time(30)
        log.fault = lambda _, asked, split=split: throttled if asked == split else None
        end = query.enumerator.advance(Offsets.from_json(query.offsets[-1]))
        log.fault = None
        query.offsets.append(end.to_json())
        query.batches.append(query.read(-1))
    query.run_to_end()
    check_exactly_once(query, records)


def test_available_now_ends_with_what_was_there() -> None:
    """What arrives while the run is under way is left for the next one."""
    log = MemoryLog()
    log.create("s", 2)
    query = Query(log, ["s"])
    records = put_many(log, 5_000)
    log.split(S0)
    records += put_many(log, 500)
    query.enumerator.stop_at_available()
    while query.run_batch(Limits(records=700)) is not None:
        put_many(log, 50)
        log.pass_time(1)
    check_exactly_once(query, records)


@pytest.mark.parametrize("limits", [Limits(records=100), Limits(records=1000), Limits(bytes=300)])
@pytest.mark.parametrize("gap", [0.0, 0.2])
@pytest.mark.parametrize("shards", [1, 2])
def test_available_now_does_not_end_for_want_of_a_look(limits: Limits, gap: float, shards: int) -> None:
    """Batches come faster than looks are due; the run ends all the same where it should, paced."""
    log = MemoryLog()
    log.create("s", shards)
    query = Query(log, ["s"])
    records = put_many(log, 3_000, per_second=100)
    query.enumerator.stop_at_available()
    begun, slept = log.calls["GetRecords"], log.slept
    while query.run_batch(limits) is not None:
        log.pass_time(gap)
    check_exactly_once(query, records)
    assert log.calls["GetRecords"] - begun < 2 * len(query.batches) * shards + 40 * shards
    assert gap or log.slept > slept


def test_available_now_waits_while_it_is_refused() -> None:
    """Neither throttling nor a failure that passes makes a run end with what it has read so far."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"])
    records = put_many(log, 3_000, per_second=100)
    query.enumerator.stop_at_available()
    assert query.run_batch(Limits(records=1000)) is not None
    slow_down = ServiceError("slow down", operation="GetRecords", retryable=True, throttling=True)
    broken = ServiceError("500", operation="GetRecords", retryable=True)
    refusals = iter([slow_down] * 5 + [broken] * 5)

    def refuse(operation: str, _: SplitId) -> Exception | None:
        return next(refusals, None) if operation == "GetRecords" else None

    while True:
        log.fault = refuse  # only the planner is refused
        end = query.enumerator.advance(Offsets.from_json(query.offsets[-1]), Limits(records=1000))
        log.fault = None
        if end.to_json() == query.offsets[-1]:
            break
        query.offsets.append(through_json(end))
        query.batches.append(query.read(-1))
    assert next(refusals, None) is None
    check_exactly_once(query, records)


# --- reads that end -----------------------------------------------------------------------------------


def bounded(query: Query, before: int | None = None) -> list[Record]:
    data_loss = DataLossPolicy(query.log, fail=True, now=query.log.server_time)
    reader = RangeReader(query.log, data_loss, ReadSettings(10_000, 0.2, query.log.sleep))
    return [record for each in query.enumerator.bounded(before) for record in read_plain(reader, each)]


@pytest.mark.parametrize("age", [0.0, 1.0, 60.0, 7200.0])
@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 3_000, 30_000])
def test_batch_read_ends_exactly_at_the_tip(count: int, age: float) -> None:
    """What was there when the read was planned: all of it, however much and however old; no more."""
    log = MemoryLog()
    log.create("s", 2)
    records = put_many(log, count, per_second=5000)
    log.pass_time(age)
    query = Query(log, ["s"])
    assert sorted(bounded(query)) == sorted(records)


@pytest.mark.parametrize("offset", [-5.0, 0.0, 0.25, 1.0, 2.999, 3.0, 100.0])
def test_batch_read_ends_before_a_time(offset: float) -> None:
    """An end at a time leaves out what arrived at or after it, in open and in closed shards."""
    log = MemoryLog()
    log.create("s", 2)
    begin = log.now
    records = put_many(log, 1500, per_second=1000)
    log.split(S0)
    records += put_many(log, 1500, per_second=1000)
    log.pass_time(60)
    end = begin + int(offset * SECOND)
    expected = [record for record in records if record.arrival < end]
    assert sorted(bounded(Query(log, ["s"]), end)) == sorted(expected)


# --- data loss ----------------------------------------------------------------------------------------


def stopped_query(*, fail: bool) -> tuple[MemoryLog, Query, list[Record]]:
    """A query that has read ten records, was stopped, and missed ten more."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"], fail=fail)
    put_many(log, 10)
    query.run_batch()
    log.pass_time(30 * 3600)
    query.restart()
    return log, query, put_many(log, 10)


@pytest.mark.parametrize("unknown", [None, {"missing": True}, {"invalid_argument": True}])
def test_trimmed_records_fail_the_query(unknown: dict[str, bool] | None) -> None:
    """What expired between two batches is named, and the query fails; services say it in their own ways."""
    log, query, _ = stopped_query(fail=True)
    log.unknown_number = unknown
    log.trim(S0, 15)
    with pytest.raises(DataLossError, match=r"s/shardId-000000000000: record \d+.* is gone.*failOnDataLoss"):
        query.run_batch()


def test_trimmed_records_are_logged_and_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """With failOnDataLoss false the query goes on with the oldest record there is."""
    log, query, missed = stopped_query(fail=False)
    log.trim(S0, 15)
    query.run_to_end()
    assert query.batches[-1] == {S0: missed[5:]}
    assert "data loss" in caplog.text


def test_trimmed_with_nothing_left_fails_the_query() -> None:
    """An empty shard whose last known record is gone may have lost what came after it."""
    log, query, _ = stopped_query(fail=True)
    log.trim(S0, 1000)
    with pytest.raises(DataLossError, match="holds no record now"):
        query.run_batch()


def test_record_gone_before_its_time_is_a_loss() -> None:
    """No proof by time holds where a record is missing that retention should still keep."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"])
    put_many(log, 10)
    query.run_to_end()
    log.pass_time(3600)
    query.restart()
    put_many(log, 1)
    log.trim(S0, 10)
    with pytest.raises(DataLossError, match="is gone"):
        query.run_batch()


def test_records_trimmed_between_planning_and_reading() -> None:
    """A logged batch that can no longer be read whole fails; it never comes out shorter."""
    log, query, _ = stopped_query(fail=True)
    query.offsets.append(query.enumerator.advance(Offsets.from_json(query.offsets[-1])).to_json())
    log.trim(S0, 15)
    with pytest.raises(DataLossError):
        query.read(-1)
    log.trim(S0, 5)
    with pytest.raises(DataLossError):
        query.read(-1)


def test_recreated_stream_fails_or_is_read_from_its_start(caplog: pytest.LogCaptureFixture) -> None:
    """A stream deleted and created again is another stream, whatever its name and shards."""
    for fail in (True, False):
        log, query, _ = stopped_query(fail=fail)
        log.delete("s")
        log.pass_time(60)
        log.create("s")
        records = put_many(log, 5)
        if fail:
            with pytest.raises(DataLossError, match="deleted and created again"):
                query.run_batch()
        else:
            query.run_to_end()
            assert [r for batch in query.batches[1:] for rows in batch.values() for r in rows] == records
            assert "deleted and created again" in caplog.text


def test_recreated_stream_that_was_read_before_it_was_noticed() -> None:
    """Between two listings records of the new stream are taken for the old one's; they are not read again."""
    log, query, _ = stopped_query(fail=False)
    query.run_to_end()
    query.enumerator.discover()
    log.delete("s")
    log.pass_time(1)
    log.create("s")
    records = put_many(log, 30)
    done = len(query.batches)
    assert query.run_batch() == {S0: records}
    log.pass_time(30)
    records += put_many(log, 5)
    query.run_to_end()
    assert [r for batch in query.batches[done:] for rows in batch.values() for r in rows] == records


def test_idle_split_of_a_run_that_ends() -> None:
    """A run of what is available also writes down which splits were idle, for when their records expire."""
    log = MemoryLog()
    idle, busy = log.create("s", 2)
    records = put_to(log, idle, 5) + put_to(log, busy, 5)
    query = Query(log, ["s"])
    query.run_to_end()
    log.pass_time(20 * 3600)
    query.restart()
    records += put_to(log, busy, 5)
    query.enumerator.stop_at_available()
    query.run_to_end(idle_triggers=1)
    log.pass_time(5 * 3600)
    log.trim(idle, 5)
    query.restart()
    records += put_to(log, idle, 5)
    query.enumerator.stop_at_available()
    query.run_to_end(idle_triggers=1)
    check_exactly_once(query, records)


def test_latest_outlives_the_retention() -> None:
    """A split that has had no record since the start, for longer than records are kept, has lost none."""
    log = MemoryLog()
    idle, busy = log.create("s", 2)
    query = Query(log, ["s"], initial=latest)
    query.run_batch()
    records: list[Record] = []
    for _ in range(3):
        log.pass_time(13 * 3600)
        query.run_to_end(idle_triggers=3)
        records += put_to(log, busy, 5)
        query.run_to_end(idle_triggers=3)
    query.restart()
    records += put_to(log, idle, 5)
    query.run_to_end()
    check_exactly_once(query, records)


def test_latest_that_was_not_looked_at_is_not_proven() -> None:
    """A split whose start expired while the query was stopped may have had records."""
    log = MemoryLog()
    idle, _ = log.create("s", 2)
    query = Query(log, ["s"], initial=latest)
    query.offsets.append(through_json(query.enumerator.initial()))
    log.pass_time(25 * 3600)
    query.restart()
    put_to(log, idle, 5)
    with pytest.raises(DataLossError, match="older than the stream's retention"):
        query.run_to_end()


def test_stream_that_is_away_for_long_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """With failOnDataLoss false a deleted stream is no end: its successor is read when it comes."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"], fail=False)
    put_many(log, 10)
    query.run_batch()
    log.delete("s")
    for _ in range(300):
        assert query.run_batch() is None
        log.pass_time(2)
    log.create("s")
    records = put_many(log, 5)
    query.run_to_end()
    assert [r for batch in query.batches[1:] for rows in batch.values() for r in rows] == records
    assert "could not be listed" in caplog.text


def test_vanished_shard() -> None:
    """A shard that is no longer listed before it was drained is a loss."""
    for fail in (True, False):
        log, query, _ = stopped_query(fail=fail)
        log.split(S0)
        records = put_many(log, 20)
        log.expire(S0)
        if fail:
            with pytest.raises(DataLossError, match="vanished"):
                query.run_batch()
        else:
            query.run_to_end()
            assert query.numbers()[10:] == [int(r.sequence_number) for r in records]


def test_drained_parent_may_expire() -> None:
    """A finished shard stays in the offset until it is no longer listed; that is no loss."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"])
    records = put_many(log, 10)
    log.split(S0)
    query.run_to_end()
    assert query.offsets[-1]["streams"]["s"][S0.shard] == {"closed": True}
    log.expire(S0)
    log.pass_time(60)
    records += put_many(log, 10)
    query.run_to_end()
    assert S0.shard not in query.offsets[-1]["streams"]["s"]
    check_exactly_once(query, records)


def test_expired_start_that_was_pinned() -> None:
    """A first batch that was planned and could not run until its start expired fails."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"], initial=latest)
    query.offsets.append(query.enumerator.initial().to_json())
    put_many(log, 10)
    log.pass_time(2)
    query.offsets.append(query.enumerator.advance(Offsets.from_json(query.offsets[-1])).to_json())
    log.pass_time(48 * 3600)
    with pytest.raises(DataLossError, match="older than the stream's retention"):
        query.read(-1)


# --- everything at once -------------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10_000),
    shards=st.integers(1, 4),
    empty_every=st.sampled_from([0, 0, 2, 3]),
    page_size=st.sampled_from([3, 10_000, 10_000]),
    page_limit=st.sampled_from([1, 7, 10_000]),
    fault_rate=st.sampled_from([0.0, 0.0, 0.05]),
    steps=st.lists(STEP, max_size=25),
)
# Looks of a batch with limits had come beyond the target of the run that followed.
@example(
    seed=127,
    shards=2,
    empty_every=0,
    page_size=3,
    page_limit=1,
    fault_rate=0.05,
    steps=[
        ("put", 1, 0.0),
        ("split", 0),
        ("available", Limits()),
        ("put", 85, 0.0),
        ("put", 300, 0.1),
        ("split", 0),
        ("batch", Limits(), False),
        ("put", 1, 0.0),
        ("put", 181, 0.0),
        ("batch", Limits(records=40), False),
        ("available", Limits()),
    ],
)
def test_every_record_arrives_once_in_order_in_its_batch(  # noqa: PLR0917 - Hypothesis names them
    seed: int,
    shards: int,
    empty_every: int,
    page_size: int,
    page_limit: int,
    fault_rate: float,
    steps: list[tuple[object, ...]],
) -> None:
    """Whatever is put, resharded, throttled, restarted and limited: all records, once, in order.

    And a batch read again from the log, by a reader that knows nothing else, has the same rows.
    """
    machine = Machine(seed, shards, page_limit, fault_rate, empty_every=empty_every, page_size=page_size)
    for step in steps:
        machine.step(step)
    machine.fault_rate = 0.0
    machine.log.pass_time(20)
    machine.query.run_to_end(idle_triggers=4, step=12.0)
    check_exactly_once(machine.query, machine.records)
    for index, rows in enumerate(machine.query.batches):
        assert machine.query.read(index) == rows


def test_the_closed_position_is_not_read() -> None:
    """A pair of equal offsets is an empty batch, as Spark 4.0 asks for on a restart."""
    log = MemoryLog()
    log.create("s")
    enumerator = make_enumerator(log, ["s"])
    offsets = Offsets({S0: Closed()}, {}, frozenset({"s"}))
    assert enumerator.ranges(offsets, offsets) == []
