"""Reads that end: runs of what is available, and batch reads."""

from __future__ import annotations

import pytest
from memory_log import S0, SECOND, MemoryLog, put_many
from query import (
    Query,
    check_exactly_once,
    read_plain,
    through_json,
)

from sluice.errors import ServiceError
from sluice.source.admission import Limits
from sluice.source.data_loss import DataLossPolicy
from sluice.source.offsets import Offsets
from sluice.source.reader import RangeReader, ReadSettings
from sluice.source.splits import SplitId
from sluice.source.stream_log import Record


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


# --- batch reads ---------------------------------------------------------------------------------------


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
