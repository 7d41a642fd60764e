"""Spark asks for news about 90 times a second: a check that can find none does next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
from memory_log import S0, THROTTLED, MemoryLog, new_log, put_many
from query import Query, check_exactly_once, pushed_query, wait_for_subscriptions

from sluice.source.model.splits import Split, SplitId

SHARDS = 64


class Counted:
    """What a planner is asked, and what its threads do."""

    def __init__(self, query: Query) -> None:
        planner: Any = query.enumerator._planner
        self.plans = 0
        self.in_threads = 0
        self._plan, self._threads = planner.plan, planner.pool._threads
        planner.plan, planner.pool._threads = self.plan, self

    def plan(self, *args: Any) -> Any:
        self.plans += 1
        return self._plan(*args)

    def map(self, work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        items = list(items)
        self.in_threads += len(items)
        return map(work, items)

    def shutdown(self, **how: bool) -> None:
        self._threads.shutdown(**how)


def look_often(query: Query, seconds: float, times: int) -> None:
    for _ in range(times):
        assert query.run_batch() is None
        query.log.pass_time(seconds / times)


def test_splits_are_looked_at_when_one_may_be_read() -> None:
    """A second after it was read the last time."""
    log = new_log(SHARDS)
    query = Query(log)
    records = put_many(log, 200)
    query.run_to_end()
    counted = Counted(query)
    look_often(query, 9.5, 900)
    assert 8 <= counted.plans <= 20
    assert counted.in_threads <= 20 * SHARDS

    records += put_many(log, 200)
    query.run_to_end()
    check_exactly_once(query, records)


def test_without_news_no_pushed_split_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their subscriptions say at once when there is news, and are looked at once a second even so."""
    log = new_log(SHARDS)
    query, agent = pushed_query(log)
    records = put_many(log, 200)
    wait_for_subscriptions(query)
    assert query.run_batch() is None
    counted, asked = Counted(query), []
    for name in ("follow", "progress"):
        monkeypatch.setattr(agent.subscriptions, name, lambda *_, name=name: asked.append(name))
    look_often(query, 0.9, 81)
    assert (counted.plans, asked) == (0, [])
    monkeypatch.undo()
    log.pass_time(0.2)
    look_often(query, 0.9, 81)
    assert (counted.plans, counted.in_threads) == (1, 0)
    records += put_many(log, 7)
    assert query.run_batch()
    check_exactly_once(query, records)


def read_no_more(query: Query) -> None:
    """No split may be read for an hour, as far as the planner knows."""
    for state in query.enumerator._splits.states.values():
        state.reads.schedule(query.log.monotonic() + 3600)
    query.log.pass_time(2)
    assert query.run_batch() is None


def test_pushed_records_are_not_waited_for() -> None:
    """A split may be pushed that was probed a moment ago."""
    log = new_log(4)
    query, _ = pushed_query(log)
    put_many(log, 20)
    wait_for_subscriptions(query)
    read_no_more(query)
    for _ in range(3):
        assert query.run_batch() is None
    put_many(log, 7)
    query.run_batch()
    assert query.sizes_since(0)[-1] == 7


def test_another_listing_ends_the_quiet() -> None:
    """A shard that has opened is read at once, whenever the others may be read."""
    log = new_log(4)
    query = Query(log)
    put_many(log, 20)
    query.run_to_end()
    read_no_more(query)
    log.split(open_split(log))
    log.pass_time(11)  # in parallel to planning, the splits are listed again
    put_many(log, 50)
    for _ in range(3):
        query.run_batch()
        log.pass_time(1)
    assert any(query.sizes_since(1))


class ChildlessLog(MemoryLog):
    """Lists no child, as a listing may that comes too soon."""

    def list_splits(self, stream: str) -> Sequence[Split]:
        return [split for split in super().list_splits(stream) if not split.parents]


@pytest.mark.parametrize("is_pushed", [False, True])
def test_a_listing_may_say_no_more_than_that_a_split_is_closed(*, is_pushed: bool) -> None:
    """Then it is read to its end."""
    log = ChildlessLog()
    log.create("s", 1)
    query = pushed_query(log)[0] if is_pushed else Query(log)
    put_many(log, 20)
    query.run_to_end()
    log.split(S0)
    log.pass_time(60)
    query.run_to_end()
    assert query.position_of(S0) == {"closed": True}


@pytest.mark.parametrize("change", ["split", "throttled", "restart", "available"])
def test_news_ends_the_quiet(change: str) -> None:
    """Through anything in between."""
    log = new_log(4)
    query = Query(log)
    records = put_many(log, 50)
    query.run_to_end()
    look_often(query, 0.2, 20)
    if change == "throttled":
        log.fault = failing_once()
    if change == "split":
        log.split(open_split(log))
    if change == "restart":
        query.restart()
    records += put_many(log, 50)
    if change == "available":
        query.enumerator.stop_at_available()
        while query.run_batch() is not None:
            pass
        assert len(query.rows_since(0)) == 100
        query.restart()
    query.run_to_end()
    check_exactly_once(query, records)


def open_split(log: MemoryLog) -> SplitId:
    return next(each.id for each in log.shards.values() if each.ending_sequence is None)


def failing_once() -> Callable[[str, Any], Exception | None]:
    errors = iter([THROTTLED])
    return lambda operation, _: next(errors, None) if operation == "GetRecords" else None
