"""One token bucket for all tasks of a query: the rate holds, tasks share it fairly, nobody waits for ever."""

from __future__ import annotations

import logging
import math

import pytest
from bucket_world import Task, World
from hypothesis import given
from hypothesis import strategies as st

from sluice.query_server.bucket import SHARE_TIME
from sluice.query_server.protocol import AcquireTokens, Granted, Join, Leave, Members
from sluice.query_server.service import IDLE_TIME, BucketService
from sluice.sink import RequestInfo, ResultInfo
from sluice.sink.query_bucket_strategy import fallback_share
from sluice.sink.token_bucket import TokenUnit

EVENTS = st.one_of(
    st.tuples(st.just("start"), st.integers(1, 5)),
    st.tuples(st.just("kill"), st.integers(0, 5)),
    st.tuples(st.just("late"), st.integers(0, 5), st.sampled_from([0.3, 1.5, 4.0, 7.0])),
    st.tuples(st.just("freeze"), st.sampled_from([0.4, 1.0, 2.5, 6.0])),
    st.tuples(st.just("kill server")),
    st.tuples(st.just("next epoch"), st.integers(1, 5)),
    st.tuples(st.just("run"), st.sampled_from([0.1, 1.0, 3.0, 8.0])),
)


def play(world: World, event: tuple[object, ...]) -> None:
    match event:
        case ("start", int(size)) if not world.is_frozen and len(world.tasks) < 6:
            world.start_task(size)
        case ("kill", int(index)) if index < len(world.tasks):
            world.kill(world.tasks[index])
        case ("late", int(index), float(seconds)) if index < len(world.tasks):
            world.tasks[index].late_until = world.now + seconds
        case ("freeze", float(seconds)) if not world.is_dead:
            world.frozen_until = max(world.frozen_until, world.now + seconds)
        case ("kill server",):
            world.kill_server()
        case ("next epoch", int(tasks)) if not world.is_frozen:
            world.next_epoch(tasks, size=5)
        case ("run", float(seconds)):
            world.run(seconds)
        case _:
            pass


@given(
    events=st.lists(EVENTS, max_size=12),
    unit=st.sampled_from(["records", "bytes", "requests"]),
    burst=st.sampled_from([250.0, 1000.0]),
    tasks=st.integers(1, 4),
)
def test_no_window_has_more_than_the_rate_and_a_burst(
    events: list[tuple[object, ...]], unit: TokenUnit, burst: float, tasks: int
) -> None:
    """Whatever dies, is late or stands still: tasks, and the server. No request is larger than a share of the
    burst here.
    """
    world = World(unit=unit, burst=burst)
    world.next_epoch(tasks, size=5)
    for event in events:
        play(world, event)
        world.run(0.2)
    world.run(3.0)

    assert world.excess() <= 1e-3


@given(
    events=st.lists(EVENTS.filter(lambda event: event[0] in {"start", "late", "kill", "run"}), max_size=12),
    unit=st.sampled_from(["records", "bytes", "requests"]),
    burst=st.sampled_from([1.0, 7.0, 50.0]),
    size=st.sampled_from([3, 80]),
)
def test_a_request_larger_than_the_burst_counts_for_itself(
    events: list[tuple[object, ...]], unit: TokenUnit, burst: float, size: int
) -> None:
    """Nothing else is sent with it, and what follows waits until it is paid off. Nobody waits for ever."""
    world = World(unit=unit, burst=burst)
    world.next_epoch(2, size=size)
    for event in events:
        play(world, event)
        world.run(0.2)
    sent = len(world.sends)
    world.run(15.0)  # after the longest a task is late, two large requests

    larger = max([tokens - burst for _, tokens in world.sends], default=0.0)
    assert world.excess() <= max(larger, 0.0) + 1e-3
    assert len(world.sends) > sent or not world.tasks


@pytest.mark.parametrize("unit", ["records", "bytes", "requests"])
def test_tasks_share_the_rate(unit: TokenUnit) -> None:
    """All of it is used, and each of four tasks gets a quarter."""
    world = World(unit=unit, step_seconds=0.01)
    world.next_epoch(4)
    world.run(20)

    assert sum(task.sent for task in world.tasks) >= 0.95 * 20 * world.rate - world.burst
    assert min(task.sent for task in world.tasks) >= 0.8 * max(task.sent for task in world.tasks)
    assert world.excess() <= 1e-3


def test_a_task_that_starts_late_gets_its_share() -> None:
    """After it has come, no task has more than another."""
    world = World()
    first = world.start_task()
    world.run(10)
    second = world.start_task()
    before = first.sent
    world.run(10)

    assert second.sent == pytest.approx(first.sent - before, rel=0.2)
    assert before > 900


def test_a_batch_write_starts_with_a_burst_and_a_stream_without() -> None:
    """Nothing was sent before a batch write. What the last run of a query has sent is not known."""
    sent = []
    for streaming in (False, True):
        world = World(streaming=streaming)
        task = world.start_task()
        world.run(0.5)
        sent.append(task.sent)

    assert sent[0] >= 80
    assert sent[1] <= 50


@pytest.mark.parametrize("unit", ["bytes"])
def test_a_request_larger_than_the_burst_is_sent(unit: TokenUnit) -> None:
    """When the bucket is full; it is paid off before the next one."""
    world = World(unit=unit)
    task = world.start_task(size=200)
    world.run(10)

    assert 4 * 200 <= task.sent <= 5 * 200 + 200


def test_tokens_of_a_dead_task_are_lost_and_its_place_is_not() -> None:
    """What it held counts as used; the others go on at the full rate."""
    world = World()
    world.next_epoch(3)
    world.run(3)
    world.kill(world.tasks[0])
    before = sum(task.sent for task in world.tasks)
    world.run(10)

    assert sum(task.sent for task in world.tasks) - before >= 0.95 * 10 * world.rate - 20


@pytest.mark.parametrize("has_read_it", [False, True])
def test_tokens_of_a_late_task_come_back(*, has_read_it: bool) -> None:
    """A task is granted the whole burst and stands still: the others go on after a while. When it is back, it
    does not use what they have had, whether it knew of its tokens before or finds the answer waiting.
    """
    world = World(streaming=False)
    late = world.start_task(size=50)
    other = world.start_task(size=50)
    world.run(1.0)
    if has_read_it:
        late.pauses = True
        world.run(1.5)
        assert not late.strategy.should_block(RequestInfo(50))
    before = other.sent
    late.late_until = world.now + 7
    late.pauses = False
    world.run(20)

    assert other.sent - before >= 0.3 * 20 * world.rate
    assert world.excess() <= 1e-3


def test_without_server_each_task_goes_on_at_its_share(caplog: pytest.LogCaptureFixture) -> None:
    """Killed in the middle: within 2 s tasks go on, at 4 of 5 parts of the rate, with one warning each."""
    world = World()
    world.next_epoch(4)
    world.run(5)
    world.kill_server()
    before = sum(task.sent for task in world.tasks)
    with caplog.at_level(logging.WARNING):
        world.run(20)

    sent = sum(task.sent for task in world.tasks) - before
    assert 0.7 * 20 * world.rate <= sent <= 0.8 * 20 * world.rate + world.burst
    assert world.excess() <= 1e-3
    assert len(caplog.records) == 4
    assert "tokenBucketAddress" in caplog.text


def test_tasks_come_back_to_the_server() -> None:
    """It stood still for longer than tasks wait for it: meanwhile and afterwards the rate holds."""
    world = World()
    world.next_epoch(4)
    world.run(5)
    world.frozen_until = world.now + 4
    world.run(15)
    before = sum(task.sent for task in world.tasks)
    world.run(10)

    assert sum(task.sent for task in world.tasks) - before >= 0.95 * 10 * world.rate
    assert world.excess() <= 1e-3


@pytest.mark.parametrize("has_answers", [False, True])
def test_a_task_that_never_waits_comes_back_to_the_server(*, has_answers: bool) -> None:
    """It sends less than its share, so that the writer never asks it how long to wait for tokens."""
    world = World()
    task = world.start_task()
    world.run(5)
    world.frozen_until = world.now + 4
    world.run(3)
    task.late_until = math.inf
    world.run(4)
    assert not world.connections
    strategy, slow = task.strategy, RequestInfo(1)
    for _ in range(5):
        world.run(2)
        if has_answers:
            strategy.register_completed_request(ResultInfo(0, 1))
        elif not strategy.should_block(slow):
            strategy.register_in_flight_request(slow)
        else:
            strategy.delay(slow)

    assert world.service.has_tasks


def fall_back(world: World) -> None:
    """The server stands still until all tasks go on without it, and is there again."""
    world.frozen_until = world.now + 2.5
    world.run(3)
    assert not world.connections


def end(world: World) -> None:
    """All tasks are done, and others of the same epoch follow."""
    for task in world.tasks:
        task.strategy.close()
    world.tasks.clear()


def sent_by(world: World, task: Task, seconds: float) -> float:
    before = task.sent
    world.run(seconds)
    return task.sent - before


@pytest.mark.parametrize("frozen", [0.0, 70.0])
def test_shares_of_tasks_that_have_ended_are_given_to_others(frozen: float) -> None:
    """A batch write has one epoch. They end before they can connect again; those that follow have the whole
    rate after a minute, in which the server was there.
    """
    world = World(streaming=False)
    for _ in range(3):
        for _ in range(4):
            world.start_task()
        world.run(3)
        fall_back(world)
        end(world)
    task = world.start_task()
    assert sent_by(world, task, 20) <= 20 * 0.05 * world.rate
    world.frozen_until = world.now + frozen
    world.run(frozen)
    assert world.service._queries["q"].bucket._fallback_shares
    world.run(SHARE_TIME - 10)

    assert sent_by(world, task, 10) >= 0.95 * 10 * world.rate
    assert world.excess() <= 1e-3


def test_a_task_that_ends_gives_its_share_back() -> None:
    """As soon as it can be told, because the next attempt to connect is due."""
    world = World(streaming=False)
    ending, other = world.start_task(), world.start_task()
    world.run(3)
    fall_back(world)
    ending.late_until = math.inf  # it waits for its last answers
    world.run(5)
    assert world.service._queries["q"].connections.keys() == {"2"}
    world.tasks.remove(ending)
    ending.strategy.close()
    world.run(1)

    assert sent_by(world, other, 10) >= 0.95 * 10 * world.rate
    assert world.excess() <= 1e-3


def test_a_share_that_others_may_have_is_not_used() -> None:
    """A task had no rows for longer than the server keeps its share. It connects before it sends."""
    world = World(burst=500.0)
    idle, other = world.start_task(), world.start_task()
    world.run(20)
    fall_back(world)
    idle.late_until = world.now + SHARE_TIME + 20
    world.run(SHARE_TIME + 10)
    assert sent_by(world, other, 9) >= 0.95 * 9 * world.rate
    world.is_connecting = True
    assert sent_by(world, idle, 4) == 0
    world.is_connecting = False

    assert sent_by(world, idle, 10) >= 0.4 * 10 * world.rate
    assert world.excess() <= 1e-3


def test_a_share_is_used_again_where_the_server_is_not_found() -> None:
    """After the time that an attempt to connect takes, with the one that comes before it."""
    world = World()
    idle = world.start_task()
    world.run(5)
    fall_back(world)
    idle.late_until = world.now + 30
    world.is_connecting = True
    assert sent_by(world, idle, 30 + 10) == 0

    assert sent_by(world, idle, 10) >= 0.4 * 10 * world.rate


def test_a_server_that_stood_still_gives_no_tokens_for_that_time() -> None:
    """Its tasks have gone on without it, and used them."""
    world = World(burst=2000.0, streaming=False)
    world.next_epoch(2)
    world.run(8)  # after the burst
    world.frozen_until = world.now + 6
    world.run(15)

    assert world.excess() <= 1e-3
    assert sum(task.sent for task in world.tasks) >= 2000 + 0.8 * 25 * world.rate


def test_a_server_that_was_never_there() -> None:
    """All tasks together keep to the rate, though none of them knows how many there are."""
    world = World(is_dead=True)
    for _ in range(20):
        world.start_task()
    world.run(30)

    assert all(task.sent for task in world.tasks)
    assert 0.8 * 30 * world.rate <= sum(task.sent for task in world.tasks) <= 30 * world.rate
    assert world.excess() <= 20  # a record for each task


@given(known=st.integers(0, 30), all_tasks=st.integers(1, 500))
def test_shares_are_never_more_than_the_rate(known: int, all_tasks: int) -> None:
    """Those of tasks that know how many there are, and those of tasks that know nothing."""
    told = sum(fallback_share(known, partition) for partition in range(known))
    untold = sum(fallback_share(0, partition) for partition in range(known, all_tasks))

    assert told + untold <= 1 + 1e-9


def test_a_task_whose_rows_come_late_connects_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """It waits for its connection from its first request on, not from its start. Nothing is out of order."""
    world = World()
    task = world.start_task()
    world.now += 30
    world.is_connecting = True
    task.strategy.delay(RequestInfo(10))
    world.is_connecting = False
    world.run(10)

    assert not caplog.records
    assert task.sent >= 900


def test_should_block_changes_nothing() -> None:
    """A writer may ask as often as it likes: only `delay` sends a message."""
    world = World()
    task = world.start_task()
    for _ in range(10):
        assert task.strategy.should_block(RequestInfo(10))

    assert not world.to_server
    assert not world.connections


def test_a_task_that_connects_again_is_the_same() -> None:
    """Before the server has noticed the end of the first connection: what comes on that one says nothing any
    more, and its end ends nothing. What the task held counts as used.
    """
    service = BucketService(100.0, 50.0, 0.0)
    join = Join("q", "0", "t", True)
    service.handle(1, join, 0.0)
    service.handle(1, AcquireTokens(50.0), 0.0)
    assert (1, Granted(50.0)) in service.due(0.0)
    service.handle(2, join, 0.0)
    service.handle(1, AcquireTokens(10.0), 0.0)
    assert service.due(0.0) == [(2, Members(1))]
    service.lost(1, 0.0)
    service.handle(2, AcquireTokens(20.0), 0.1)
    assert (2, Granted(20.0)) in service.due(0.21)  # of those that came since then
    assert service.has_tasks


def test_two_queries_do_not_share() -> None:
    """Each has the whole rate, at one server."""
    service = BucketService(100.0, 50.0, 0.0)
    for connection, query in ((1, "a"), (2, "b")):
        service.handle(connection, Join(query, "0", "t", True), 0.0)
        service.handle(connection, AcquireTokens(50.0), 0.0)

    granted = [message for _, message in service.due(0.0) if isinstance(message, Granted)]
    assert [message.tokens for message in granted] == [50.0, 50.0]


def test_a_server_is_idle_when_its_tasks_are_gone() -> None:
    """Not while a task is connected, however long it says nothing."""
    service = BucketService(100.0, 50.0, 0.0)
    service.handle(1, Join("a", "0", "t", False), 0.0)
    service.due(2 * IDLE_TIME)
    assert not service.is_idle(2 * IDLE_TIME)
    service.handle(1, Leave(0.0), 2 * IDLE_TIME)
    service.due(3 * IDLE_TIME - 1)
    assert not service.is_idle(3 * IDLE_TIME - 1)
    service.due(3 * IDLE_TIME)
    assert service.is_idle(3 * IDLE_TIME)
