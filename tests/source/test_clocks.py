"""Wall clocks that are wrong, and what goes by a monotonic clock instead."""

from __future__ import annotations

import pytest
from memory_log import BROKEN, MemoryLog, failing_reads, new_log, put_many
from query import Query, check_exactly_once

from sluice.errors import ServiceError


@pytest.mark.parametrize("step", [-1800.0, -5.0, 5.0, 1800.0])
def test_a_clock_that_is_set_stops_nothing(step: float) -> None:
    """Neither reads nor the listing of shards wait until a clock that was set back has caught up."""
    log = new_log()
    query = Query(log)
    records = put_many(log, 20)
    query.run_to_end()
    log.set_clock(step)
    log.split(next(iter(log.shards)))
    records += put_many(log, 20)
    query.run_to_end(empty_triggers=15)
    check_exactly_once(query, records)


def fail_once(log: MemoryLog, query: Query) -> None:
    log.fault = failing_reads(iter([BROKEN]))
    query.run_batch()
    log.fault = None


def test_failures_far_apart_are_no_outage() -> None:
    """Two reads that fail minutes apart, with none tried in between, have not failed for minutes."""
    log = new_log()
    query = Query(log)
    query.run_batch()
    for _ in range(4):
        log.pass_time(100)
        fail_once(log, query)


@pytest.mark.parametrize("seconds", [0, 40, 240])
def test_failures_without_a_pause_are_an_outage(seconds: int) -> None:
    """Reads that fail for a quarter of an hour fail the query; also where each takes minutes."""
    log = new_log()
    query = Query(log)
    query.run_batch()

    def fail(operation: str, _request: object) -> Exception | None:
        if operation != "GetRecords":
            return None
        log.pass_time(seconds)
        return BROKEN

    log.fault = fail
    with pytest.raises(ServiceError, match="500"):
        query.run_to_end(empty_triggers=1000)
