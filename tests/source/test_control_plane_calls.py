"""Calls that AWS limits for a whole account: how many a query makes. The table is in docs/limits.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from memory_log import MemoryLog, put_to
from query import Query, at_horizon, at_latest

from sluice.source.logs.stream_log import StreamInfo
from sluice.source.model.splits import SplitId


class Counted(MemoryLog):
    """Counts the descriptions of streams, and listings."""

    def __init__(self) -> None:
        super().__init__()
        self.described = self.listings = 0

    def describe(self, stream: str) -> StreamInfo:
        self.described += 1
        return super().describe(stream)

    def list_splits(self, stream: str) -> Any:
        self.listings += 1
        return super().list_splits(stream)


def put_to_all(log: MemoryLog) -> None:
    for split in list(log.shards):
        if log.shards[split].ending_sequence is None:
            put_to(log, split, 1)


@pytest.mark.parametrize("initial", [at_horizon, at_latest], ids=["TRIM_HORIZON", "LATEST"])
@pytest.mark.parametrize("shards", [1, 100, 1000])
def test_a_stream_is_described_once_a_run(shards: int, initial: Callable[..., Any]) -> None:
    """By planner and tasks together, with ranges that start at a time, and with reshards."""
    log = Counted()
    log.create("s", shards)
    query = Query(log, initial=initial)
    query.run_batch()
    log.pass_time(1)
    put_to_all(log)
    query.run_batch()
    log.split(SplitId("s", min(log.shards).shard))
    for _ in range(3):
        log.pass_time(30)
        put_to_all(log)
        query.run_batch()

    assert query.numbers()
    assert log.described == 1
    assert log.listings <= 2 + 4 * 3  # the first ones, every ten seconds, and again for children

    query.restart()
    log.pass_time(1)
    query.read(-1)
    put_to_all(log)
    query.run_batch()
    assert log.described == 2


def test_a_batch_read_describes_a_stream_once() -> None:
    log = Counted()
    log.create("s", 100)
    put_to_all(log)
    ranges = Query(log).enumerator.bounded()

    assert len(ranges) == 100
    assert all(each.expiry is not None for each in ranges)  # so no task asks
    assert log.described == 1


@pytest.fixture(params=[1, 3])
def recreated(request: pytest.FixtureRequest) -> Query:
    log = Counted()
    log.create("s", 2)
    put_to_all(log)
    query = Query(log, fail=False)
    query.run_to_end()
    log.pass_time(60)
    log.delete("s")
    log.create("s", request.param)
    put_to_all(log)
    return query


def test_a_stream_that_was_made_anew_is_described_again(recreated: Query) -> None:
    """Its shards have the same ids, and begin elsewhere."""
    before = len(recreated.numbers())
    recreated.run_to_end()

    assert len(recreated.numbers()) > before
    assert recreated.last_end.created["s"] == recreated.log.describe("s").created
