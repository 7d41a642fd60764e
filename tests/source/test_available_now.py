"""Reads that end: runs of ``Trigger.AvailableNow``, and batch reads."""

from __future__ import annotations

import itertools

import pytest
from integration.model import KinesisModel, Laws, ManualClock
from integration.model.log import ModelLog
from memory_log import BROKEN, S0, SECOND, THROTTLED, failing_reads, new_log, put_many
from query import Query, check_exactly_once, new_reader, read_range, through_json

from sluice.errors import ServiceError
from sluice.source.logs.stream_log import Record
from sluice.source.settings import NO_LIMITS, Limits


def test_a_run_ends_with_the_records_that_were_there_at_its_start() -> None:
    """It follows a reshard, and leaves later records to the next run."""
    log = new_log(2)
    query = Query(log)
    records = put_many(log, 5_000)
    log.split(S0)
    records += put_many(log, 500)
    query.enumerator.stop_at_available()
    while query.run_batch(Limits(records=700)) is not None:
        put_many(log, 50)
        log.pass_time(1)
    check_exactly_once(query, records)


@pytest.mark.parametrize("limits", [NO_LIMITS, Limits(records=7)])
@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_run_right_after_a_reshard_has_the_records_of_the_children(
    limits: Limits, seed: int, *, is_new: bool
) -> None:
    """They were there at its start, though for some moments no listing has the children."""
    log = ModelLog(KinesisModel(Laws(), ManualClock(), seed))
    (first,) = log.create("s")
    log.pass_time(10)
    query = Query(log)
    records = put_to_model(log, 20)
    if not is_new:
        query.run_to_end()
    left = log.split(first)
    records += put_to_model(log, 20)
    log.split(left[0])
    records += put_to_model(log, 20)
    query.enumerator.stop_at_available()
    query.run_while_new(limits)
    check_exactly_once(query, records)


def put_to_model(log: ModelLog, count: int) -> list[Record]:
    return [log.put("s", f"key-{number}") for number in range(count)]


@pytest.mark.parametrize("limits", [Limits(records=100), Limits(records=1000), Limits(bytes=300)])
@pytest.mark.parametrize("gap", [0.0, 0.2])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_run_does_not_end_because_no_read_is_due(limits: Limits, gap: float, shards: int) -> None:
    """Triggers come faster than reads of a shard are due. Such reads wait for a moment instead."""
    log = new_log(shards)
    query = Query(log)
    records = put_many(log, 3_000, per_second=100)
    query.enumerator.stop_at_available()
    calls = log.calls["GetRecords"]
    while query.run_batch(limits) is not None:
        log.pass_time(gap)
    check_exactly_once(query, records)
    assert log.calls["GetRecords"] - calls < 2 * len(query.batches) * shards + 40 * shards


def test_a_run_does_not_end_because_reads_fail() -> None:
    """Neither throttling nor errors that pass end a run before its target."""
    limits = Limits(records=1000)
    log = new_log()
    query = Query(log)
    records = put_many(log, 3_000, per_second=100)
    query.enumerator.stop_at_available()
    assert query.run_batch(limits) is not None
    refusals = iter([THROTTLED] * 5 + [BROKEN] * 5)

    while True:
        log.fault = failing_reads(refusals)
        end = query.plan(limits)
        log.fault = None  # tasks read without faults
        if through_json(end) == query.offsets[-1]:
            break
        query.run_planned(end)
    assert next(refusals, None) is None
    check_exactly_once(query, records)


def test_a_run_waits_for_reads_that_fail_when_it_begins() -> None:
    """Where it looks for its target; those that fail for a minute are an outage."""
    log = new_log()
    query = Query(log)
    records = put_many(log, 3_000, per_second=100)
    query.log_start()
    query.enumerator.stop_at_available()
    log.fault = failing_reads(iter([THROTTLED] * 50 + [BROKEN] * 10))
    end = query.plan()
    log.fault = None
    query.run_planned(end)
    check_exactly_once(query, records)

    query.enumerator.stop_at_available()
    log.fault = failing_reads(itertools.repeat(BROKEN))
    with pytest.raises(ServiceError, match="500"):
        query.plan()
    log.fault = None
    records += put_many(log, 500)
    query.run_planned(query.plan())
    records_of_next_run = put_many(log, 500)
    assert query.run_batch() is None
    check_exactly_once(query, records)
    query.restart()
    query.run_to_end()
    check_exactly_once(query, records + records_of_next_run)


@pytest.mark.parametrize("limits", [Limits(may_be_last=True), Limits(records=10**6, may_be_last=True)])
@pytest.mark.parametrize("age", [0.0, 1.0, 60.0, 7200.0])
@pytest.mark.parametrize("count", [0, 1, 101, 3_000, 30_000])
def test_a_run_of_one_batch_ends_at_the_tip(count: int, age: float, limits: Limits) -> None:
    """That of ``Trigger.Once``, and before Spark 4.2 that of ``AvailableNow``."""
    log = new_log(2)
    query = Query(log)
    records = put_many(log, count, per_second=5000)
    log.pass_time(age)
    query.run_batch(limits)
    check_exactly_once(query, records)


@pytest.mark.parametrize("limits", [Limits(may_be_last=True), Limits(records=10**6, may_be_last=True)])
def test_a_run_of_one_batch_waits_for_throttled_shards(limits: Limits) -> None:
    """No later batch takes the rest."""
    log = new_log(2)
    query = Query(log)
    records = put_many(log, 3_000, per_second=100)
    log.fault = failing_reads(iter([THROTTLED] * 20))
    query.run_batch(limits)
    check_exactly_once(query, records)


# --- batch reads --------------------------------------------------------------------------------------


def read_bounded(query: Query, before: int | None = None) -> list[Record]:
    reader = new_reader(query.log)
    return [record for each in query.enumerator.bounded(before) for record in read_range(reader, each)]


@pytest.mark.parametrize("age", [0.0, 1.0, 60.0, 7200.0])
@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 3_000, 30_000])
def test_a_batch_read_ends_exactly_at_the_tip(count: int, age: float) -> None:
    """However many records there are, and however old."""
    log = new_log(2)
    records = put_many(log, count, per_second=5000)
    log.pass_time(age)
    assert sorted(read_bounded(Query(log))) == sorted(records)


@pytest.mark.parametrize("left_out", ["parent", "children", "child", "family", "all"])
def test_a_batch_read_finds_what_a_listing_leaves_out(left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lists no second time while it reads: shards that others show to be there are listed again."""
    log = new_log(2)
    records = put_many(log, 100)
    log.split(S0)
    records += put_many(log, 100)
    every = log.list_splits("s")
    parent, children = every[:1], [split for split in every if split.parents]
    hidden = {
        "parent": parent,
        "children": children,
        "child": children[:1],
        "family": [*parent, *children],
        "all": every,
    }[left_out]
    listings = iter([[split for split in every if split not in hidden]] * 2)
    monkeypatch.setattr(log, "list_splits", lambda _stream: next(listings, every))

    assert sorted(read_bounded(Query(log))) == sorted(records)


@pytest.mark.parametrize("offset", [-5.0, 0.0, 0.25, 1.0, 2.999, 3.0, 100.0])
def test_a_batch_read_ends_exactly_at_a_time(offset: float) -> None:
    """It leaves out records that arrived at that time or later, in open and in closed shards."""
    log = new_log(2)
    begin = log.now
    records = put_many(log, 1500, per_second=1000)
    log.split(S0)
    records += put_many(log, 1500, per_second=1000)
    log.pass_time(60)
    end = begin + int(offset * SECOND)
    expected = [record for record in records if record.arrival < end]
    assert sorted(read_bounded(Query(log), end)) == sorted(expected)


@pytest.mark.parametrize("seed", range(12))
def test_records_put_a_moment_before_are_read(seed: int) -> None:
    """Also where a page ends before all of it: in a stream of one burst."""
    for ends in ("batch read", "run", "batch"):
        laws = Laws(portion_records=20, listing_gaps=0.0)
        log = ModelLog(KinesisModel(laws, ManualClock(), seed))
        log.create("s", 2)
        records = [log.put("s", f"key-{number}") for number in range(300)]
        query = Query(log)
        if ends == "batch read":
            assert len(read_bounded(query)) == len(records)
            continue
        if ends == "batch":
            query.run_batch(Limits(may_be_last=True))
        else:
            query.enumerator.stop_at_available()
            while query.run_batch() is not None:
                pass
        check_exactly_once(query, records)
