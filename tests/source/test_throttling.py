"""Reads that the service refuses because of load: waits, never failures."""

from __future__ import annotations

import itertools

import pytest
from memory_log import BROKEN, S0, SECOND, THROTTLED, MemoryLog, failing_reads, new_log, put_many, put_to
from query import Query, check_exactly_once

from sluice.errors import ServiceError
from sluice.source.logs.stream_log import Page
from sluice.source.model.splits import SplitId
from sluice.source.settings import NO_LIMITS, Limits

MIB = 2**20


class LimitedLog(MemoryLog):
    """Lets 2 MiB a second be read of a shard, and refuses its reads for 5 s after a page of 10 MiB.

    https://docs.aws.amazon.com/kinesis/latest/APIReference/API_GetRecords.html
    """

    def __init__(self) -> None:
        super().__init__()
        self.free_at: dict[SplitId, int] = {}
        self.budget: dict[SplitId, tuple[float, float]] = {}  # bytes, and when they were counted
        self.refused = 0

    def get_records(self, split: SplitId, iterator: str, limit: int) -> Page:
        left, counted = self.budget.get(split, (2.0 * MIB, self.monotonic()))
        left = min(2.0 * MIB, left + (self.monotonic() - counted) * 2 * MIB)
        if self.now < self.free_at.get(split, 0) or left <= 0:
            self.calls["GetRecords"] += 1
            self.refused += 1
            raise ServiceError("rate exceeded", operation="GetRecords", throttling=True, retryable=True)
        page = super().get_records(split, iterator, limit)
        size = 0
        kept = 0
        for record in page.records:
            if kept and size + len(record.data) > 10 * MIB:
                break
            size += len(record.data)
            kept += 1
        if kept < len(page.records):
            following = self._iterator(split, int(page.records[kept].sequence_number))
            page = Page(page.records[:kept], following, max(1, page.millis_behind))
        self.budget[split] = left - size, self.monotonic()
        if size > 9 * MIB:
            self.free_at[split] = self.now + 5 * SECOND
        return Page(page.records, page.next_iterator, page.millis_behind, size)


@pytest.mark.parametrize("size", [100 * 1024, MIB, 10 * MIB])
def test_a_backlog_of_large_records_is_read_at_the_limit(size: int) -> None:
    """In no less than four fifths of the shard's 2 MiB/s, planning included."""
    log = LimitedLog()
    log.create("s")
    total = 300 * MIB
    data = bytes(size)
    records = []
    for number in range(total // size):
        records.append(log.put("s", str(number), data))
        log.pass_time(size / MIB)  # a producer may write 1 MiB a second
    log.pass_time(60)
    query = Query(log)
    started = log.monotonic()
    while len(query.numbers()) < len(records):
        query.run_batch()
        log.pass_time(0.1)
    seconds = log.monotonic() - started
    check_exactly_once(query, records)
    assert total / seconds >= 0.8 * 2 * MIB


def test_a_probe_leaves_the_reads_of_a_shard_to_its_task() -> None:
    """A task that follows a plan is not refused because the plan has read a large page."""
    log = LimitedLog()
    log.create("s")
    query = Query(log)
    for number in range(5):
        log.put("s", str(number), bytes(100 * 1024))
    log.pass_time(60)
    query.run_batch()
    query.run_batch()
    assert log.refused == 0


def test_throttling_for_longer_than_the_patience_is_an_error() -> None:
    """A shard that is refused for a quarter of an hour is not read by waiting."""
    log = LimitedLog()
    log.create("s")
    put_many(log, 5)
    query = Query(log)
    query.log_start()
    end = query.plan()
    log.free_at[S0] = log.now + 3600 * SECOND
    with pytest.raises(ServiceError, match="rate exceeded"):
        query.run_planned(end)


@pytest.mark.parametrize("limits", [NO_LIMITS, Limits(records=10**7)])
def test_a_throttled_shard_delays_no_other(limits: Limits) -> None:
    """Another reader leaves it one read in four, and it has a backlog. Planning takes no time for that, and
    the shard gets on as fast as it can be read.
    """
    log = new_log(4)
    for _ in range(50):
        put_to(log, S0, 100)
        log.pass_time(1)
    query = Query(log)
    reads = itertools.count(1)
    log.fault = lambda operation, split: (
        THROTTLED if split == S0 and operation == "GetRecords" and next(reads) % 4 else None
    )
    others = [split for split in log.shards if split != S0]
    query.log_start()
    put = 0
    for _ in range(30):
        put += sum(len(put_to(log, split, 1)) for split in others)
        begun = log.monotonic()
        end = query.plan(limits)
        assert log.monotonic() == begun
        query.run_planned(end)
        read = sum(len(query.by_split().get(split, ())) for split in others)
        assert read >= put - len(others)  # the first records of a backlog may seem to fill a limit
        log.pass_time(1.0)
    assert query.by_split()[S0]


@pytest.mark.parametrize("limits", [NO_LIMITS, Limits(records=100)])
def test_throttling_between_two_failures_is_no_outage(limits: Limits) -> None:
    """Only reads that fail in a row fail the query; a read that is throttled has an answer."""
    log = new_log()
    records = put_many(log, 10)
    query = Query(log)
    query.log_start()
    log.fault = failing_reads(iter([BROKEN, *[THROTTLED] * 20, BROKEN]))
    for _ in range(22):
        query.plan(limits)
        log.pass_time(60)
    query.run_planned(query.plan(limits))
    check_exactly_once(query, records)
