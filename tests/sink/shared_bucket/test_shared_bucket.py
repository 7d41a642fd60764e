"""One token bucket for all tasks of a query: the rate holds after any death, tasks share it, nobody hangs."""

from __future__ import annotations

import logging

import pytest
from bucket_world import World
from hypothesis import given
from hypothesis import strategies as st
from integration.support.servers import held_port
from sink_fakes import FakeDestination, config, rows

from sluice.channels.channel import Address
from sluice.errors import SluiceError
from sluice.query_server.bucket import BucketService
from sluice.query_server.protocol import AcquireTokens, Granted, Join
from sluice.sink import AsyncSinkWriter, RequestInfo
from sluice.sink.rate.token_bucket import TokenUnit
from sluice.sink.shared_bucket import strategy as strategy_module
from sluice.sink.shared_bucket.connection import ServerConnection
from sluice.sink.shared_bucket.strategy import SharedBucketStrategy

UNITS: list[TokenUnit] = ["records", "bytes", "requests"]
EVENTS = st.one_of(
    st.tuples(st.just("start"), st.integers(1, 5)),
    st.tuples(st.just("kill"), st.integers(0, 5)),
    st.tuples(st.just("cut"), st.integers(0, 5)),
    st.tuples(st.just("late"), st.integers(0, 5), st.sampled_from([0.3, 1.5, 4.0, 7.0])),
    st.tuples(st.just("freeze"), st.sampled_from([0.4, 1.0, 2.5, 6.0])),
    st.tuples(st.just("kill server")),
    st.tuples(st.just("next batch"), st.integers(1, 5)),
    st.tuples(st.just("run"), st.sampled_from([0.1, 1.0, 3.0, 8.0])),
)


def play(world: World, event: tuple[object, ...]) -> None:
    match event:
        case ("start", int(size)) if len(world.tasks) < 6:
            world.start_task(size)
        case ("kill", int(index)) if index < len(world.tasks):
            world.kill(world.tasks[index])
        case ("cut", int(index)) if index < len(world.tasks):
            world.tasks[index].connection.is_cut = True
        case ("late", int(index), float(seconds)) if index < len(world.tasks):
            world.tasks[index].late_until = world.now + seconds
        case ("freeze", float(seconds)) if not world.is_dead:
            world.frozen_until = max(world.frozen_until, world.now + seconds)
        case ("kill server",):
            world.kill_server()
        case ("next batch", int(tasks)):
            world.next_batch(tasks, size=5)
        case ("run", float(seconds)):
            world.run(seconds)
        case _:
            pass


@given(
    events=st.lists(EVENTS, max_size=12),
    unit=st.sampled_from(UNITS),
    burst=st.sampled_from([7, 50, 1000]),
    tasks=st.integers(1, 4),
)
def test_no_span_of_time_has_more_than_the_rate_and_a_burst(
    events: list[tuple[object, ...]], unit: TokenUnit, burst: int, tasks: int
) -> None:
    """After any death, delay, freeze or lost connection. Nobody waits for ever while there is a server."""
    world = World(unit=unit, burst=burst)
    world.next_batch(tasks, size=5)
    for event in events:
        play(world, event)
        world.run(0.2)
    sent = world.run(20.0)  # after the longest a task is late and the server stands still

    assert world.excess() <= 1e-3
    assert sent > 0 or world.is_dead or not world.tasks


@pytest.mark.parametrize("unit", UNITS)
def test_tasks_share_the_rate(unit: TokenUnit) -> None:
    """All of it is used, and each of four tasks gets a quarter, also after some have died."""
    world = World(unit=unit, step_seconds=0.01)
    world.next_batch(6)
    world.run(3)
    for task in world.tasks[:2]:
        world.kill(task)
    before = [task.sent for task in world.tasks]
    used = world.run(20)
    shares = [task.sent - sent for task, sent in zip(world.tasks, before, strict=True)]

    assert used >= 0.95 * 20 * world.rate - world.burst
    assert min(shares) >= 0.8 * max(shares)
    assert world.excess() <= 1e-3


def test_a_batch_write_starts_with_a_burst_and_a_stream_without() -> None:
    """Nothing was sent before a batch write. What the last run of a query has sent is not known."""
    sent = []
    for starts_full in (True, False):
        world = World(starts_full=starts_full)
        world.start_task()
        sent.append(world.run(0.5))

    assert sent[0] >= 80
    assert sent[1] <= 50


def test_a_request_larger_than_the_burst_is_sent() -> None:
    """When the bucket is full. Nothing else is sent until it is paid off."""
    world = World(unit="bytes")
    for _ in range(2):
        world.start_task(size=200)

    assert 4 * 200 <= world.run(10) <= 6 * 200
    assert world.excess() <= 150 + 1e-3


def test_nothing_is_sent_while_the_server_stands_still(caplog: pytest.LogCaptureFixture) -> None:
    """Only earlier grants are used. Each task warns once, and says when the server is back."""
    world = World()
    world.next_batch(4)
    world.run(5)
    with caplog.at_level(logging.INFO):
        world.frozen_until = world.now + 60
        assert world.run(60) <= world.burst
        world.run(10)
        assert world.run(10) >= 0.95 * 10 * world.rate

    assert [record.levelname for record in caplog.records] == ["WARNING"] * 4 + ["INFO"] * 4
    assert world.excess() <= 1e-3


@pytest.mark.parametrize("was_there", [True, False])
def test_a_task_without_server_fails(*, was_there: bool) -> None:
    """After maxRetryDuration, in which it has sent nothing; the error says what to check."""
    world = World(patience=60.0)
    task = world.start_task()
    if was_there:
        world.run(5)
    world.kill_server()
    world.run(0.1)
    sent, since = task.sent, world.now
    with pytest.raises(SluiceError, match=r"60 s \(maxRetryDuration\).*refused.*tokenBucketAddress") as error:
        world.run(100)

    assert error.value.retryable
    assert world.now - since == pytest.approx(60, abs=1.0)
    assert task.sent - sent <= world.burst


def test_a_writer_without_server_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the error of the strategy; no entry is sent, and `close` has nothing to wait for."""
    monkeypatch.setattr(strategy_module, "_LEAST_PATIENCE", 1.0)
    destination = FakeDestination()
    with held_port() as port:
        connection = ServerConnection(Address("127.0.0.1", port, b"s" * 32, b"s"))
        bucket = Join("q", 100.0, 50.0, starts_full=True)
        strategy = SharedBucketStrategy(bucket, "records", connection, patience=1.0)
        writer = AsyncSinkWriter(destination, config(), strategy)
        writer.write(rows("abc"))
        with pytest.raises(SluiceError, match=f"127.0.0.1:{port}.*tokenBucketAddress") as error:
            writer.flush()
        with pytest.raises(SluiceError) as again:
            writer.flush()
        writer.close()

    assert again.value is error.value
    assert not destination.requests


@pytest.mark.parametrize("patience", [0.0, 900.0])
def test_should_block_changes_nothing(patience: float) -> None:
    """A writer may ask as often as it likes: only `delay` sends a message."""
    world = World(patience=patience)
    task = world.start_task()
    for _ in range(10):
        assert task.strategy.should_block(RequestInfo(10))

    assert not world.to_server
    assert world.run(10) >= 900


def test_queries_do_not_share() -> None:
    """Each has the whole rate, at one server, which forgets none that is not full."""
    service = BucketService()
    join = {query: Join(query, 100.0, 50.0, starts_full=True) for query in "ab"}
    granted = []
    for connection, query in enumerate("abab"):
        service.handle(connection, join[query], 0.0)
        service.handle(connection, AcquireTokens(50.0), 0.0)
        granted += [message for _, message in service.due(0.0) if isinstance(message, Granted)]
        service.lost(connection, 0.0)

    assert [message.tokens for message in granted] == [50.0, 50.0]
