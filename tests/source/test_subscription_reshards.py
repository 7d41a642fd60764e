"""Reshards of splits that are pushed, and splits and streams that go while they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from memory_log import S0, MemoryLog, put_many
from memory_subscriptions import MemoryAgent
from query import (
    Query,
    check_exactly_once,
    pushed_query,
    settle,
    through_json,
)

from sluice.errors import DataLossError
from sluice.source.admission import Limits
from sluice.source.offsets import Closed, Offsets, Position
from sluice.source.splits import SplitId
from sluice.source.stream_log import Record
from sluice.source.subscriptions import SubscriptionProgress


def test_end_of_a_split_that_is_pushed() -> None:
    """The end is known before shards are listed again; children come in a batch of their own, at once."""
    log = MemoryLog()
    log.create("s")
    query, _ = pushed_query(log)
    records = put_many(log, 10)
    settle(query)
    records += put_many(log, 10)
    children = log.split(S0)
    records += put_many(log, 30)
    assert list(query.run_batch() or ()) == [S0]
    assert query.offsets[-1]["streams"]["s"][S0.shard] == {"closed": True}
    assert set(query.run_batch() or ()) == set(children)
    check_exactly_once(query, records)


@pytest.mark.parametrize("limits", [Limits(), Limits(records=1_000)])
def test_subscription_that_does_not_tell_the_end(limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    """A split is listed as closed, and its subscription goes on to say that it is at the tip: a look finds
    the end, and the children are read.
    """
    log = MemoryLog()
    log.create("s")
    query, agent = pushed_query(log)
    known = agent.subscriptions.progress

    def without_end(split: SplitId, position: Position) -> SubscriptionProgress | None:
        given = known(split, position)
        return None if given is None else replace(given, has_ended=False)

    monkeypatch.setattr(agent.subscriptions, "progress", without_end)
    records = put_many(log, 10)
    settle(query)
    records += put_many(log, 10)
    query.run_batch(limits)
    log.split(S0)
    records += put_many(log, 30)
    for _ in range(20):
        query.run_batch(limits)
        log.pass_time(5)
    check_exactly_once(query, records)


def vanished(*, fail: bool, events: int = 1_000) -> tuple[Query, MemoryAgent, list[Record]]:
    """A split that was pushed to its end, and is neither listed nor readable when that is noticed."""
    log = MemoryLog()
    log.create("s")
    query, agent = pushed_query(log, fail=fail, event_size=5, events=events)
    records = put_many(log, 10)
    settle(query)
    records += put_many(log, 10)
    log.split(S0)
    records += put_many(log, 30)
    query.run_batch(Limits(records=5))
    return query, agent, records


def test_split_that_has_gone_is_read_to_its_end_from_what_was_pushed() -> None:
    """Some services drop a split with its records when it closes: a subscription has them still."""
    query, _, records = vanished(fail=True)
    shard = query.log.shards[S0]
    query.log.expire(S0)
    query.log.pass_time(20)
    done = len(query.batches)
    # The publisher still has the records, though neither listing nor polling know of them.
    start = Offsets.from_json(query.offsets[-1])
    end = query.enumerator.advance(start)
    assert [r.split for r in query.enumerator.ranges(start, end)] == [S0]
    assert end.position(S0) == Closed()
    query.offsets.append(through_json(end))
    query.log.shards[S0] = shard
    query.batches.append(query.read(-1))
    query.log.expire(S0)
    query.run_to_end()
    records += put_many(query.log, 5)
    query.run_to_end()
    check_exactly_once(query, records)
    assert len(query.batches) > done + 2
    assert S0.shard not in query.offsets[-1]["streams"]["s"]


def test_split_that_has_gone_with_its_subscription_is_a_loss() -> None:
    """Nobody has the records any more, and that is said."""
    query, agent, _ = vanished(fail=True)
    query.log.expire(S0)
    query.log.pass_time(20)
    agent.subscriptions.lose()
    with pytest.raises(DataLossError, match="vanished"):
        query.run_batch()


def test_split_that_was_not_pushed_to_its_end_is_a_loss() -> None:
    """Of a split that has gone, some records were never pushed: that is no reason to keep silent."""
    query, agent, _ = vanished(fail=True, events=1)
    query.log.expire(S0)
    query.log.pass_time(20)
    progress = agent.subscriptions.progress(S0, Offsets.from_json(query.offsets[-1]).position(S0))
    assert progress is not None
    assert not progress.has_ended
    with pytest.raises(DataLossError, match="vanished"):
        query.run_batch()


def test_split_that_has_gone_between_planning_and_reading_is_a_loss() -> None:
    """What no publisher and no poll can read is reported by the task; the batch is not just shorter."""
    query, _, _ = vanished(fail=True)
    query.log.expire(S0)
    query.log.pass_time(20)
    with pytest.raises(DataLossError, match="is gone"):
        query.run_batch()


def test_recreated_stream_does_not_keep_what_was_pushed_of_the_old_one() -> None:
    """A subscription to a deleted stream says nothing of its successor."""
    log = MemoryLog()
    both = log.create("s", 2)
    query, _ = pushed_query(log, fail=False)
    put_many(log, 10)
    settle(query)
    log.merge(*both)
    query.run_batch()
    log.delete("s")
    log.pass_time(60)
    log.create("s")
    done = len(query.batches)
    records = put_many(log, 5)
    query.run_to_end()
    assert [r for batch in query.batches[done:] for rows in batch.values() for r in rows] == records
    assert all(list(offsets["streams"]["s"]) == [S0.shard] for offsets in query.offsets[done + 1 :])
