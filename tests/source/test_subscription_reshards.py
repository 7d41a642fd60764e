"""Pushed splits that end, or belong to a stream that was created again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from memory_log import S0, new_log, put_many
from query import check_exactly_once, pushed_query, wait_for_subscriptions

from sluice.source.model.offsets import Position
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
    """The subscription still says that it is at the tip. The probe finds the end, and the children are
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
