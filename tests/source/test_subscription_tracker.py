"""Batches whose ends are taken from subscriptions: as exact as those that probes find."""

from __future__ import annotations

import logging

import pytest
from memory_log import S0, SECOND, MemoryLog, put_many, put_to
from memory_subscriptions import Subscription
from query import (
    check_exactly_once,
    latest,
    pushed_query,
    settle,
)

from sluice.errors import DataLossError
from sluice.source.admission import Limits
from sluice.source.offsets import After, Offsets
from sluice.source.stream_log import Record


@pytest.mark.parametrize("limits", [Limits(), Limits(records=10**6), Limits(span=3600 * SECOND)])
def test_pushed_split_is_never_looked_at(limits: Limits) -> None:
    """Once subscriptions are up, neither planning nor reading asks the service for records."""
    log = MemoryLog()
    log.create("s", 3)
    query, _ = pushed_query(log)
    records = put_many(log, 20)
    settle(query)
    calls = log.calls["GetRecords"]
    for _ in range(20):
        more = put_many(log, 10)
        rows = query.run_batch(limits)
        assert rows is not None
        assert sorted(r for batch in rows.values() for r in batch) == more
        records += more
        assert query.run_batch(limits) is None
    assert log.calls["GetRecords"] == calls
    check_exactly_once(query, records)


@pytest.mark.parametrize("limits", [Limits(), Limits(records=10**6), Limits(span=3600 * SECOND)])
def test_pushed_split_that_is_not_at_its_tip_is_not_looked_at_either(limits: Limits) -> None:
    """A batch ends at the last mark there is, even where the limits would allow more."""
    log = MemoryLog()
    log.create("s", 2)
    query, _ = pushed_query(log, event_size=10, events=1)
    put_many(log, 4)
    settle(query)
    calls = log.calls["GetRecords"]
    put_many(log, 500)
    while query.run_batch(limits) is not None:
        pass
    assert len(query.numbers()) == 504
    assert len(query.batches) > 500 // 20
    assert log.calls["GetRecords"] == calls


def test_splits_at_their_targets_are_followed_still() -> None:
    """A run that stops at what is available keeps the subscriptions of those that have got there."""
    log = MemoryLog()
    one, other = log.create("s", 2)
    query, agent = pushed_query(log)
    put_to(log, one, 1)
    put_to(log, other, 40)
    query.enumerator.stop_at_available()
    while query.run_batch(Limits(records=4)) is not None:
        pass
    assert all(followed.keys() == {one, other} for followed in agent.subscriptions.followed)


def test_ends_are_numbers_of_records_with_their_hints() -> None:
    """What a batch's end says is what a look would have said: the record, its arrival, the idle time."""
    log = MemoryLog()
    log.create("s")
    query, _ = pushed_query(log)
    put_many(log, 3)
    settle(query)
    records = put_many(log, 3)
    log.pass_time(2)
    query.run_batch()
    last = records[-1]
    assert query.offsets[-1]["streams"]["s"][S0.shard] == {
        "after": last.sequence_number,
        "arrival": last.arrival // 1000,
        "idle": log.now // 1000,
    }


def test_lost_subscriptions_cost_no_record(caplog: pytest.LogCaptureFixture) -> None:
    """Looks go on behind the last mark; each change is logged once a shard."""
    caplog.set_level(logging.INFO, "sluice")
    log = MemoryLog()
    log.create("s")
    query, agent = pushed_query(log)
    records = put_many(log, 20)
    settle(query)
    records += put_many(log, 200)
    query.run_batch(Limits(records=100))
    agent.subscriptions.lose()
    agent.subscriptions.is_down = True
    # What was pushed is known still: the rest of it is planned without a look.
    calls = log.calls["GetRecords"]
    end = query.enumerator.advance(Offsets.from_json(query.offsets[-1]))
    position = end.position(S0)
    assert isinstance(position, After)
    assert position.number == records[-1].sequence_number
    assert log.calls["GetRecords"] == calls
    for _ in range(20):
        records += put_many(log, 5)
        query.run_batch()
        log.pass_time(3)
    assert log.calls["GetRecords"] > calls
    agent.subscriptions.is_down = False
    query.run_to_end()
    check_exactly_once(query, records)
    changes = [r.message for r in caplog.records if "subscription" in r.message]
    assert len(changes) == 3
    assert ["no subscription" in change for change in changes] == [False, True, False]


def test_expired_position_is_judged_by_polling() -> None:
    """A subscription that starts behind the record asked for covers nothing, and the loss is reported."""
    log = MemoryLog()
    log.create("s")
    query, _ = pushed_query(log)
    put_many(log, 10)
    settle(query)
    log.pass_time(30 * 3600)
    query.restart()
    put_many(log, 10)
    log.trim(S0, 15)
    with pytest.raises(DataLossError, match="is gone"):
        settle(query)


def test_subscription_from_further_back() -> None:
    """An agent that starts from an older position gives marks that are done: they are no batch's end."""
    log = MemoryLog()
    log.create("s")
    query, agent = pushed_query(log, event_size=3, events=2)
    records = put_many(log, 60)
    query.run_to_end()
    agent.subscriptions.lose()
    agent.subscriptions.subscriptions[S0] = Subscription(
        After(records[5].sequence_number), int(records[5].sequence_number)
    )
    for _ in range(30):
        records += put_many(log, 1)
        query.run_batch()
    query.run_to_end()
    check_exactly_once(query, records)
    assert agent.subscriptions.subscriptions[S0].start == After(records[5].sequence_number)


def test_subscription_that_is_far_behind_is_not_waited_for() -> None:
    """Looks took a whole backlog; a subscription that has yet to get through it says nothing of the tip."""
    log = MemoryLog()
    log.create("s")
    query, agent = pushed_query(log, event_size=10, events=1)
    records = put_many(log, 10_000)
    log.pass_time(30)
    query.run_batch()
    assert len(query.numbers()) == len(records)
    log.pass_time(30)
    first = After(records[0].sequence_number)
    agent.subscriptions.subscriptions[S0] = Subscription(first, first.sequence)
    records += put_many(log, 5)
    calls = log.calls["GetRecords"]
    assert query.run_batch() is None
    log.pass_time(2)
    assert query.run_batch() is None
    assert log.calls["GetRecords"] == calls  # it may only be a moment late
    log.pass_time(4)
    rows = query.run_batch()
    assert rows is not None
    check_exactly_once(query, records)


def test_a_batch_that_is_run_again_is_followed_from_its_start() -> None:
    """After a restart the agent hears of the batch that comes again; later only plans tell it where to be."""
    log = MemoryLog()
    log.create("s", 2)
    query, agent = pushed_query(log)
    records = put_many(log, 20)
    settle(query)
    records += put_many(log, 20)
    start = Offsets.from_json(query.offsets[-1])
    query.run_batch(crash=True)
    assert agent.subscriptions.followed == [start.positions]
    end = Offsets.from_json(query.offsets[-1])
    assert query.run_batch() is None
    query.enumerator.ranges(start, end)
    assert agent.subscriptions.followed == [start.positions, end.positions]
    query.run_to_end()
    check_exactly_once(query, records)


def test_an_empty_batch_that_is_run_again_follows_nothing() -> None:
    """Spark 4.0 asks for an empty batch first: that says nothing of where to be."""
    log = MemoryLog()
    log.create("s")
    query, agent = pushed_query(log)
    put_many(log, 5)
    start, end = query.enumerator.initial(), query.enumerator.advance(query.enumerator.initial())
    query.restart()
    query.enumerator.ranges(end, end)
    assert agent.subscriptions.followed == []
    query.enumerator.ranges(start, end)
    assert agent.subscriptions.followed == [start.positions]


def test_closing_closes_the_frontier() -> None:
    """The subscriptions are the enumerator's to end."""
    log = MemoryLog()
    log.create("s")
    query, agent = pushed_query(log)
    query.enumerator.close()
    assert agent.subscriptions.is_closed


# --- hints ---------------------------------------------------------------------------------------------


def test_pushed_split_that_was_idle_until_its_records_expired() -> None:
    """What a subscription says of idle hours counts as much as looks do: a later restart finds no loss."""
    log = MemoryLog()
    idle, busy = log.create("s", 2)
    query, _ = pushed_query(log)
    records = put_to(log, idle, 5) + put_to(log, busy, 5)
    settle(query)
    for _ in range(30):
        log.pass_time(3600)
        records += put_to(log, busy, 1)
        query.run_batch()
    log.trim(idle, 100)
    query.restart()
    records += put_to(log, idle, 3)
    query.run_to_end()
    check_exactly_once(query, records)


def test_quiet_hours_before_a_batch_are_logged_with_it() -> None:
    """The task that reads the first record after idle hours learns from the end that nothing was lost."""
    log = MemoryLog()
    log.create("s")
    query, _ = pushed_query(log)
    records = put_many(log, 5)
    settle(query)
    for _ in range(30):
        log.pass_time(3600)
        assert query.run_batch() is None
    quiet = log.now
    log.trim(S0, 100)
    log.pass_time(1)
    records += put_many(log, 5)
    query.run_batch()
    assert query.offsets[-1]["streams"]["s"][S0.shard]["quiet"] == quiet // 1000
    check_exactly_once(query, records)


def test_latest_outlives_the_retention_when_pushed() -> None:
    """A start at a time without records, watched by a subscription alone, is no loss when it expires."""
    log = MemoryLog()
    idle, busy = log.create("s", 2)
    query, agent = pushed_query(log, initial=latest)
    records: list[Record] = []
    settle(query)
    calls = log.calls["GetRecords"]
    for _ in range(60):
        log.pass_time(3600)
        records += put_to(log, busy, 1)
        query.run_batch()
    assert idle in agent.subscriptions.subscriptions
    assert log.calls["GetRecords"] == calls
    query.restart()
    records += put_to(log, idle, 5)
    query.run_to_end()
    check_exactly_once(query, records)
