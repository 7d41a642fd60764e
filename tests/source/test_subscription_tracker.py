"""Batches whose ends are taken from subscriptions, and whose rows are pushed: as exact as by polling."""

from __future__ import annotations

import functools
import logging
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import STEP, Machine
from memory_log import SECOND, MemoryLog
from memory_subscriptions import ALL_FAULTS, NO_FAULTS, Faults, MemoryAgent, Subscription
from query import Query, at_horizon, check_exactly_once, through_json
from test_batches import S0, latest, put_many, put_to

from sluice.errors import DataLossError
from sluice.source.admission import Limits
from sluice.source.enumerator import InitialPositions
from sluice.source.offsets import After, Closed, Offsets, Position
from sluice.source.splits import SplitId
from sluice.source.stream_log import Record
from sluice.source.subscriptions import SubscriptionProgress


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10_000),
    shards=st.integers(1, 4),
    event_size=st.sampled_from([1, 7, 500]),
    events=st.sampled_from([1, 3, 1_000]),
    faults=st.sampled_from([NO_FAULTS, ALL_FAULTS]),
    fault_rate=st.sampled_from([0.0, 0.0, 0.05]),
    steps=st.lists(STEP, max_size=25),
)
def test_every_record_arrives_once_in_order_in_its_batch(  # noqa: PLR0917 - Hypothesis names them
    seed: int,
    shards: int,
    event_size: int,
    events: int,
    faults: Faults,
    fault_rate: float,
    steps: list[tuple[object, ...]],
) -> None:
    """Whatever subscriptions and publishers do: all records, once, in order; and by polling the same rows."""
    agent = functools.partial(MemoryAgent, event_size=event_size, events=events, faults=faults, seed=seed)
    machine = Machine(seed, shards, 10_000, fault_rate, agent)
    for step in steps:
        machine.step(step)
    machine.fault_rate = 0.0
    machine.log.pass_time(20)
    machine.query.run_to_end(idle_triggers=6, step=12.0)
    check_exactly_once(machine.query, machine.records)
    for index, rows in enumerate(machine.query.batches):
        assert machine.query.read(index, by_polling=True) == rows
        assert machine.query.read(index) == rows


# --- where batches end --------------------------------------------------------------------------------


def pushed_query(
    log: MemoryLog,
    *,
    initial: InitialPositions = at_horizon,
    fail: bool = True,
    event_size: int = 50,
    events: int = 1_000,
    faults: Faults = NO_FAULTS,
) -> tuple[Query, MemoryAgent]:
    agent = MemoryAgent(log, event_size=event_size, events=events, faults=faults)
    return Query(log, ["s"], initial=initial, fail=fail, agent=agent), agent


def settle(query: Query) -> None:
    """Reads what is there, and lets subscriptions that are due come up."""
    for _ in range(3):
        query.run_batch()
        query.log.pass_time(5)


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


# --- limits and targets -------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 30, 100, 500])
def test_limits_are_passed_by_at_most_a_mark(limit: int) -> None:
    """A batch ends where marks are: what it holds beyond the limit is less than one of them."""
    log = MemoryLog()
    log.create("s", 2)
    query, agent = pushed_query(log, event_size=40)
    put_many(log, 4)
    settle(query)
    done, calls = len(query.batches), log.calls["GetRecords"]
    put_many(log, 1200)
    agent.subscriptions.rng.seed(1)
    while query.run_batch(Limits(records=limit)) is not None:
        pass
    sizes = [sum(map(len, batch.values())) for batch in query.batches[done:]]
    assert sum(sizes) == 1200
    assert max(sizes) <= limit + 40
    assert len(sizes) <= 1200 // max(1, limit - 40) + 1 if limit > 40 else len(sizes) >= 1200 // 40
    assert log.calls["GetRecords"] == calls


def test_byte_limit_counts_all_that_a_mark_stands_for() -> None:
    """The bytes of a mark are those of all its records."""
    log = MemoryLog()
    log.create("s")
    query, _ = pushed_query(log, event_size=10)
    put_many(log, 4)
    settle(query)
    done = len(query.batches)
    for index in range(500):
        log.put("s", f"{index:04d}", b"x" * 96)
        log.pass_time(0.001)
    while query.run_batch(Limits(bytes=10_000)) is not None:
        pass
    sizes = [len(batch[S0]) for batch in query.batches[done:]]
    assert sum(sizes) == 500
    assert max(sizes) <= 110
    assert len(sizes) <= 6


@pytest.mark.parametrize("event_size", [1, 20, 2_000])
def test_time_span_holds_however_coarse_the_marks(event_size: int) -> None:
    """A mark that stands for more time than allowed ends no batch: its split is looked at."""
    log = MemoryLog()
    log.create("s", 2)
    query, _ = pushed_query(log, event_size=event_size)
    put_many(log, 4)
    settle(query)
    done = len(query.batches)
    records = put_many(log, 600, per_second=20)
    query.run_to_end(Limits(span=5 * SECOND))
    sizes = []
    for batch in query.batches[done:]:
        arrivals = [record.arrival for rows in batch.values() for record in rows]
        assert not arrivals or max(arrivals) - min(arrivals) <= 5 * SECOND
        sizes.append(len(arrivals))
    assert sum(sizes) == len(records)


def test_mark_of_unknown_length_does_not_pass_for_a_short_one() -> None:
    """Where a mark does not say when its first record came, a limit of time is kept by looks."""
    log = MemoryLog()
    log.create("s")
    query, agent = pushed_query(log, event_size=2_000)
    put_many(log, 4)
    settle(query)
    known = agent.subscriptions.progress

    def unknowing(split: SplitId, position: Position) -> SubscriptionProgress | None:
        given = known(split, position)
        return given and replace(given, cut_points=[point._replace(since=None) for point in given.cut_points])

    agent.subscriptions.progress = unknowing  # type: ignore[method-assign]
    put_many(log, 400, per_second=20)
    done = len(query.batches)
    query.run_to_end(Limits(span=5 * SECOND))
    assert max(len(batch[S0]) for batch in query.batches[done:]) <= 100
    assert sum(len(batch[S0]) for batch in query.batches[done:]) == 400


@pytest.mark.parametrize("limits", [Limits(), Limits(records=50), Limits(span=SECOND)])
@pytest.mark.parametrize("faults", [NO_FAULTS, Faults(lag=0.7), Faults(lose=0.5)])
def test_available_now_takes_what_was_there_and_no_more(limits: Limits, faults: Faults) -> None:
    """A mark beyond the target ends a batch at the target; marks that are late do not end the run."""
    log = MemoryLog()
    log.create("s", 2)
    query, _ = pushed_query(log, event_size=40, events=2, faults=faults)
    records = put_many(log, 20)
    settle(query)
    records += put_many(log, 700, per_second=200)
    query.enumerator.stop_at_available()
    while query.run_batch(limits) is not None:
        put_many(log, 10)
        log.pass_time(5)
    check_exactly_once(query, records)


def test_expected_counts_all_that_marks_stand_for() -> None:
    """What a range is said to hold is what it holds, or a little more."""
    log = MemoryLog()
    log.create("s")
    query, _ = pushed_query(log, event_size=100)
    put_many(log, 4)
    settle(query)
    put_many(log, 1000)
    start = Offsets.from_json(query.offsets[-1])
    (split_range,) = query.enumerator.ranges(start, query.enumerator.advance(start))
    assert split_range.expected == 1000


# --- reshards -----------------------------------------------------------------------------------------


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


# --- hints --------------------------------------------------------------------------------------------


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


# --- consumers ----------------------------------------------------------------------------------------


def test_registered_consumers_are_carried_along() -> None:
    """An end holds the consumers of its start and those registered since, and nothing else changes."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"])
    put_many(log, 3)
    query.enumerator.registered = {"s": "arn:one"}
    assert query.enumerator.initial().consumers == {"s": "arn:one"}
    query.run_batch()
    assert query.offsets[-1]["consumers"] == {"s": "arn:one"}
    query.restart()
    put_many(log, 3)
    log.pass_time(5)
    query.run_batch()
    assert query.offsets[-1]["consumers"] == {"s": "arn:one"}
    query.enumerator.registered = {"s": "arn:two"}
    log.pass_time(5)
    assert query.run_batch() is None
    put_many(log, 3)
    log.pass_time(5)
    query.run_batch()
    assert query.offsets[-1]["consumers"] == {"s": "arn:two"}
