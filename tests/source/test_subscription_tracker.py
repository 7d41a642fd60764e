"""Batches that end at the subscriptions' positions: as exact as those whose ends probes find."""

from __future__ import annotations

import logging

import pytest
from memory_log import S0, SECOND, new_log, put_many, put_to
from memory_subscriptions import HEARTBEAT, Subscription
from query import at_latest, check_exactly_once, pushed_query, wait_for_subscriptions

from sluice.errors import DataLossError
from sluice.source.logs.stream_log import Record
from sluice.source.model.offsets import After
from sluice.source.settings import Limits

LOOSE_LIMITS = [Limits(), Limits(records=10**6), Limits(span=3600 * SECOND)]


@pytest.mark.parametrize("limits", LOOSE_LIMITS)
def test_a_pushed_split_is_not_read(limits: Limits) -> None:
    """Once it has a subscription, neither planning nor reading calls GetRecords."""
    log = new_log(3)
    query, _ = pushed_query(log)
    records = put_many(log, 20)
    wait_for_subscriptions(query)
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


@pytest.mark.parametrize("limits", LOOSE_LIMITS)
def test_a_pushed_split_behind_its_tip_is_not_read_either(limits: Limits) -> None:
    """A batch ends at the last cut point, even where the limits would allow more."""
    log = new_log(2)
    query, _ = pushed_query(log, event_size=10, events=1)
    put_many(log, 4)
    wait_for_subscriptions(query)
    calls = log.calls["GetRecords"]
    put_many(log, 500)
    query.run_while_new(limits)
    assert len(query.numbers()) == 504
    assert len(query.batches) > 500 // 20
    assert log.calls["GetRecords"] == calls


def test_splits_at_their_targets_keep_their_subscriptions() -> None:
    """A run of the available records continues with the other splits."""
    log = new_log(2)
    one, other = log.shards
    query, agent = pushed_query(log)
    put_to(log, one, 1)
    put_to(log, other, 40)
    query.enumerator.stop_at_available()
    query.run_while_new(Limits(records=4))
    assert all(followed.keys() == {one, other} for followed in agent.subscriptions.followed)


def test_an_end_holds_the_hints_that_a_probe_would_have_given() -> None:
    """The record, its arrival, and when no record lay behind it: no event has come since."""
    log = new_log()
    query, _ = pushed_query(log)
    put_many(log, 3)
    wait_for_subscriptions(query)
    records = put_many(log, 3)
    log.pass_time(2)
    query.run_batch()
    last = records[-1]
    assert query.position_of(S0) == {
        "after": last.sequence_number,
        "arrival": last.arrival // 1000,
        "idle": last.arrival // 1000,
    }


def test_probes_continue_where_a_lost_subscription_stopped(caplog: pytest.LogCaptureFixture) -> None:
    """Each change is logged once a shard."""
    caplog.set_level(logging.INFO, "sluice")
    log = new_log()
    query, agent = pushed_query(log)
    records = put_many(log, 20)
    wait_for_subscriptions(query)
    records += put_many(log, 200)
    query.run_batch(Limits(records=100))
    agent.subscriptions.lose()
    agent.subscriptions.is_down = True
    # The cut points that were pushed are still known: a batch up to the last of them needs no probe.
    calls = log.calls["GetRecords"]
    position = query.plan().position(S0)
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
    changes = [r.message for r in caplog.records if "subscri" in r.message]
    assert len(changes) == 3
    assert ["no subscription" in change for change in changes] == [False, True, False]


def test_a_subscription_that_starts_behind_the_position_covers_nothing() -> None:
    """The records between may have expired. Polling finds the loss and reports it."""
    log = new_log()
    query, _ = pushed_query(log)
    put_many(log, 10)
    wait_for_subscriptions(query)
    log.pass_time(30 * 3600)
    query.restart()
    put_many(log, 10)
    log.trim(S0, 15)
    with pytest.raises(DataLossError, match="is gone"):
        wait_for_subscriptions(query)


def test_cut_points_before_the_position_end_no_batch() -> None:
    """A subscription that starts before the position brings such cut points first."""
    log = new_log()
    query, agent = pushed_query(log, event_size=3, events=2)
    records = put_many(log, 60)
    query.run_to_end()
    agent.subscriptions.lose()
    older = After(records[5].sequence_number)
    agent.subscriptions.subscriptions[S0] = Subscription(
        older, older.sequence, opened_at=log.now, heard_at=log.now
    )
    for _ in range(30):
        records += put_many(log, 1)
        query.run_batch()
    query.run_to_end()
    check_exactly_once(query, records)
    assert agent.subscriptions.subscriptions[S0].start == older


def test_a_subscription_that_is_far_behind_is_not_waited_for() -> None:
    """Probes took a whole backlog. A subscription that still pushes it knows nothing of the tip."""
    log = new_log()
    query, agent = pushed_query(log, event_size=10, events=1)
    records = put_many(log, 10_000)
    log.pass_time(30)
    query.run_batch()
    assert len(query.numbers()) == len(records)
    log.pass_time(30)
    first = After(records[0].sequence_number)
    agent.subscriptions.subscriptions[S0] = Subscription(
        first, first.sequence, opened_at=log.now, heard_at=log.now
    )
    records += put_many(log, 5)
    assert query.run_batch()
    check_exactly_once(query, records)


def test_after_a_restart_subscriptions_start_where_the_batch_that_is_read_again_does() -> None:
    """Once a batch has been planned, only plans say where they start."""
    log = new_log(2)
    query, agent = pushed_query(log)
    records = put_many(log, 20)
    wait_for_subscriptions(query)
    records += put_many(log, 20)
    start = query.last_end
    query.run_batch(crash=True)
    assert agent.subscriptions.followed == [start.positions]
    end = query.last_end
    assert query.run_batch() is None
    query.enumerator.ranges(start, end)
    assert agent.subscriptions.followed == [start.positions, end.positions]
    query.run_to_end()
    check_exactly_once(query, records)


def test_an_empty_batch_after_a_restart_opens_no_subscription() -> None:
    """Spark 4.0 and 4.1 ask for one first. It does not say which splits there are."""
    log = new_log()
    query, agent = pushed_query(log)
    put_many(log, 5)
    start, end = query.enumerator.initial(), query.enumerator.advance(query.enumerator.initial())
    query.restart()
    query.enumerator.ranges(end, end)
    assert agent.subscriptions.followed == []
    query.enumerator.ranges(start, end)
    assert agent.subscriptions.followed == [start.positions]


def test_the_enumerator_closes_the_subscriptions() -> None:
    """They end with the query."""
    query, agent = pushed_query(new_log())
    query.enumerator.close()
    assert agent.subscriptions.is_closed


# --- hints --------------------------------------------------------------------------------------------


def test_a_pushed_split_that_was_caught_up_until_its_records_expired_has_lost_none() -> None:
    """What its subscription said is logged, and holds after a restart without subscriptions."""
    log = new_log(2)
    idle, busy = log.shards
    query, _ = pushed_query(log)
    records = put_to(log, idle, 5) + put_to(log, busy, 5)
    wait_for_subscriptions(query)
    for _ in range(30):
        log.pass_time(3600)
        records += put_to(log, busy, 1)
        query.run_batch()
    log.trim(idle, 100)
    query.restart()
    records += put_to(log, idle, 3)
    query.run_to_end()
    check_exactly_once(query, records)


def test_a_batch_after_idle_hours_logs_until_when_no_record_lay_behind_its_start() -> None:
    """The task that reads it learns from its end that nothing was lost."""
    log = new_log()
    query, _ = pushed_query(log)
    records = put_many(log, 5)
    wait_for_subscriptions(query)
    for _ in range(30):
        log.pass_time(3600)
        assert not query.run_batch()
    caught_up_at = log.now
    log.trim(S0, 100)
    log.pass_time(1)
    records += put_many(log, 5)
    query.run_batch()
    assert query.position_of(S0)["quiet"] == (caught_up_at - HEARTBEAT) // 1000
    check_exactly_once(query, records)


def test_a_pushed_start_at_the_latest_may_expire_while_the_query_runs() -> None:
    """The subscription alone shows that no record came since that time."""
    log = new_log(2)
    idle, busy = log.shards
    query, agent = pushed_query(log, initial=at_latest)
    records: list[Record] = []
    wait_for_subscriptions(query)
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
