"""Pushed splits that end, vanish or belong to a stream that was created again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from memory_log import S0, MemoryLog, new_log, put_many
from memory_subscriptions import MemoryAgent
from query import Query, check_exactly_once, pushed_query, wait_for_subscriptions

from sluice.errors import DataLossError
from sluice.source.logs.stream_log import Record
from sluice.source.model.offsets import Closed, Position
from sluice.source.model.splits import SplitId
from sluice.source.settings import Limits
from sluice.source.state.subscriptions import SubscriptionProgress


def test_a_pushed_split_ends_before_it_is_listed_as_closed() -> None:
    """Its children are listed at once and read in the next batch."""
    log = new_log()
    query, _ = pushed_query(log)
    records = put_many(log, 10)
    wait_for_subscriptions(query)
    records += put_many(log, 10)
    children = log.split(S0)
    records += put_many(log, 30)
    assert list(query.run_batch() or ()) == [S0]
    assert query.position_of(S0) == {"closed": True}
    assert set(query.run_batch() or ()) == set(children)
    check_exactly_once(query, records)


@pytest.mark.parametrize("limits", [Limits(), Limits(records=1_000)])
def test_a_closed_split_whose_subscription_does_not_tell_its_end_is_probed(
    limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subscription goes on to say that it is at the tip. The probe finds the end, and the children are
    read.
    """
    log = new_log()
    query, agent = pushed_query(log)
    progress_with_end = agent.subscriptions.progress

    def progress_without_end(split: SplitId, position: Position) -> SubscriptionProgress | None:
        given = progress_with_end(split, position)
        return None if given is None else replace(given, has_ended=False)

    monkeypatch.setattr(agent.subscriptions, "progress", progress_without_end)
    records = put_many(log, 10)
    wait_for_subscriptions(query)
    records += put_many(log, 10)
    query.run_batch(limits)
    log.split(S0)
    records += put_many(log, 30)
    for _ in range(20):
        query.run_batch(limits)
        log.pass_time(5)
    check_exactly_once(query, records)


# --- splits that vanish -------------------------------------------------------------------------------


def query_with_ended_split(*, events: int = 1_000) -> tuple[Query, MemoryAgent, list[Record]]:
    """A query that has read a part of a pushed split, which has ended meanwhile."""
    log = new_log()
    query, agent = pushed_query(log, event_size=5, events=events)
    records = put_many(log, 10)
    wait_for_subscriptions(query)
    records += put_many(log, 10)
    log.split(S0)
    records += put_many(log, 30)
    query.run_batch(Limits(records=5))
    return query, agent, records


def vanish(query: Query) -> None:
    """The split is neither listed nor readable, and the last listing is too old to be used again."""
    query.log.expire(S0)
    query.log.pass_time(20)


def test_a_split_that_has_vanished_is_read_to_its_end_from_its_subscription() -> None:
    """Some services drop a split with its records when it closes. The agent has buffered them."""
    query, _, records = query_with_ended_split()
    log = query.log
    assert isinstance(log, MemoryLog)
    shard = log.shards[S0]
    vanish(query)
    done = len(query.batches)
    start, end = query.last_end, query.plan()
    assert query.enumerator.ranges(start, end)[0].split == S0
    assert end.position(S0) == Closed()
    log.shards[S0] = shard  # for the publisher, which reads the log; the listing is not made again
    query.run_planned(end)
    query.log.expire(S0)
    query.run_to_end()
    records += put_many(log, 5)
    query.run_to_end()
    check_exactly_once(query, records)
    assert len(query.batches) > done + 1
    assert query.position_of(S0)["closed"] is True


def test_a_split_that_has_vanished_while_its_agent_is_silent_is_waited_for() -> None:
    """When the agent speaks again, it says that it has all of it."""
    query, agent, _ = query_with_ended_split()
    query.run_batch()
    vanish(query)
    agent.subscriptions.silent_until = query.log.monotonic() + 20
    assert query.plan().position(S0) == Closed()


def test_a_split_that_has_vanished_with_its_subscription_is_a_loss() -> None:
    """Nobody has its records any more."""
    query, agent, _ = query_with_ended_split()
    vanish(query)
    agent.subscriptions.lose()
    with pytest.raises(DataLossError, match="vanished"):
        query.run_batch()


def test_a_split_that_has_vanished_before_all_was_pushed_is_a_loss() -> None:
    """The subscription does not say that the split has ended."""
    query, agent, _ = query_with_ended_split(events=1)
    vanish(query)
    assert not agent.subscriptions.subscriptions[S0].has_ended
    with pytest.raises(DataLossError, match="vanished"):
        query.run_batch()


def test_a_split_that_neither_publishers_nor_polling_can_read_is_a_loss() -> None:
    """The task reports it; the batch does not come out shorter."""
    query, _, _ = query_with_ended_split()
    vanish(query)
    with pytest.raises(DataLossError, match="is gone"):
        query.run_batch()


def test_a_stream_that_was_created_again_keeps_nothing_of_the_old_subscriptions() -> None:
    """Their splits have the names of the new stream's."""
    log = new_log(2)
    query, _ = pushed_query(log, fail=False)
    put_many(log, 10)
    wait_for_subscriptions(query)
    log.merge(*log.shards)
    query.run_batch()
    log.delete("s")
    log.pass_time(60)
    log.create("s")
    done = len(query.batches)
    records = put_many(log, 5)
    query.run_to_end()
    assert query.rows_since(done) == records
    assert all(list(offsets["streams"]["s"]) == [S0.shard] for offsets in query.offsets[done + 1 :])
