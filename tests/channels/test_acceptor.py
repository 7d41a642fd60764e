"""Connections to an agent: those of tasks are kept for their requests, and nobody else's keep anybody out."""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.channels.acceptor import Acceptor
from sluice.channels.channel import Address, Channel
from sluice.channels.handshake import ANSWER_BYTES, ClientHandshake

HERE = Address("10.0.0.1", 4000, b"s" * 32, b"start")
STRANGERS = 128


class FakeListener:
    """Gives the connections, and raises the errors, that a test puts into it."""

    def __init__(self) -> None:
        self.outcomes: deque[socket.socket | OSError] = deque()
        self._readable, self._writable = socket.socketpair()

    def put(self, outcome: socket.socket | OSError) -> None:
        self.outcomes.append(outcome)
        self._writable.send(b"c")

    def accept(self) -> tuple[socket.socket, object]:
        if not self.outcomes:
            raise BlockingIOError
        self._readable.recv(1)
        outcome = self.outcomes.popleft()
        if isinstance(outcome, OSError):
            raise outcome
        return outcome, None

    def fileno(self) -> int:
        return self._readable.fileno()

    def close(self) -> None:
        self._readable.close()
        self._writable.close()
        for outcome in self.outcomes:
            if isinstance(outcome, socket.socket):
                outcome.close()


class Bench:
    """An acceptor without its thread, and the other ends of its connections."""

    def __init__(self) -> None:
        self.now = 100.0
        self.listener = FakeListener()
        self.requested: list[Channel] = []
        self.acceptor = Acceptor(self.listener, HERE, self.requested.append, lambda: self.now)
        self._ends: list[socket.socket] = []

    def stranger(self) -> socket.socket:
        """Somebody connects, and says nothing yet."""
        ours, theirs = socket.socketpair()
        ours.settimeout(60.0)
        self._ends.append(ours)
        self.listener.put(theirs)
        return ours

    def hello(self) -> tuple[socket.socket, ClientHandshake]:
        """A task connects, and says what it says first."""
        task = ClientHandshake(HERE.secret, HERE.binding)
        connection = self.stranger()
        connection.send(task.hello())
        return connection, task

    def settle(self) -> None:
        """Handles all that has come."""
        for _ in range(4 + len(self.listener.outcomes)):
            self.acceptor.step(0)

    def finish(self, connection: socket.socket, task: ClientHandshake) -> None:
        connection.send(task.prove(connection.recv(ANSWER_BYTES)))

    def task(self) -> socket.socket:
        """A task connects, and the handshake is done."""
        connection, task = self.hello()
        self.settle()
        self.finish(connection, task)
        self.settle()
        return connection

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.acceptor.step(0)

    def close(self) -> None:
        self.acceptor.close()
        for each in self._ends:
            each.close()
        for channel in self.requested:
            channel.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def is_closed(end: socket.socket) -> bool:
    """Whether the acceptor has closed its end."""
    readable, _, _ = select.select([end], [], [], 0)
    try:
        return bool(readable) and not end.recv(1024)
    except ConnectionResetError:
        return True


def serves(bench: Bench, connection: socket.socket) -> bool:
    """Whether a request on the connection is handed out."""
    before = len(bench.requested)
    connection.send(b"request")
    bench.settle()
    return len(bench.requested) == before + 1


def test_a_connection_is_handed_out_when_a_request_begins(bench: Bench) -> None:
    """And again when it was given back. None of the request's bytes is taken."""
    connection = bench.task()
    assert bench.requested == []

    assert serves(bench, connection)
    assert bench.requested[0]._socket.recv(100) == b"request"
    connection.send(b"another")
    bench.settle()
    assert len(bench.requested) == 1  # the first one is being answered

    bench.acceptor.watch(bench.requested[0])
    bench.settle()
    assert len(bench.requested) == 2


def test_ten_thousand_connections_keep_no_task_out(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """They are dropped, the oldest first; the log has a line a minute. Those of tasks stay."""
    idle = bench.task()
    slow, slow_task = bench.hello()
    bench.settle()
    open_strangers: deque[socket.socket] = deque()
    with caplog.at_level(logging.WARNING):
        for number in range(10_000):
            open_strangers.append(bench.stranger())
            if number % 30 == 0:
                bench.settle()
            if len(open_strangers) > STRANGERS + 60:
                dropped = open_strangers.popleft()
                assert is_closed(dropped)
                dropped.close()
            if number % 1000 == 500:
                assert serves(bench, bench.task())
    bench.settle()

    assert sum(not is_closed(each) for each in open_strangers) == STRANGERS
    bench.finish(slow, slow_task)
    bench.settle()
    assert serves(bench, slow)
    assert serves(bench, idle)
    assert len(caplog.messages) == 1
    assert "port 4000: closed a connection that did not prove the query's secret" in caplog.text
    with caplog.at_level(logging.WARNING):
        bench.pass_time(60.0)
    assert "more since the last such line)" in caplog.messages[1]


def test_a_connection_that_trickles_is_closed_after_five_seconds(bench: Bench) -> None:
    """The time is for the whole handshake, not for each byte of it."""
    connection = bench.stranger()
    bench.settle()
    for _ in range(5):
        assert not is_closed(connection)
        connection.send(b"n")
        bench.pass_time(1.0)

    assert is_closed(connection)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n" * 5, b"\xff" * 64, bytes(64)])
def test_noise_is_closed_at_once(bench: Bench, said: bytes) -> None:
    """A port scanner, or a program that means another port."""
    connection = bench.stranger()
    connection.send(said)
    bench.settle()

    assert is_closed(connection)


@pytest.mark.parametrize("is_greeted", [True, False])
def test_a_task_that_does_not_wait_for_a_process_that_hung_is_no_stranger(
    bench: Bench, caplog: pytest.LogCaptureFixture, *, is_greeted: bool
) -> None:
    """Its connection is accepted when it has gone; a warning would tell of somebody without the secret."""
    before = len(list(Path("/dev/fd").iterdir()))
    connection, _ = bench.hello()
    if is_greeted:
        bench.settle()
    connection.close()
    with caplog.at_level(logging.WARNING):
        bench.settle()
        bench.pass_time(60.0)

    assert caplog.messages == []
    assert len(list(Path("/dev/fd").iterdir())) == before


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EPERM, errno.EPROTO])
def test_a_failed_attempt_to_accept_is_not_the_last(
    bench: Bench, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    """It is logged once. The next attempt comes after a pause, in which the thread does not spin."""
    greeted, _ = bench.hello()
    bench.settle()
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            bench.listener.put(OSError(code, os.strerror(code)))
            bench.acceptor.step(0)
            waiting, _ = bench.hello()
            bench.acceptor.step(0)
            assert len(bench.listener.outcomes) == 1
            bench.pass_time(0.1)
            bench.settle()
            assert waiting.recv(ANSWER_BYTES)

    assert not is_closed(greeted)
    assert len(caplog.messages) == 1
    assert os.strerror(code) in caplog.text
    assert "next attempt in 0.1 s" in caplog.text


def test_without_descriptors_the_least_useful_connection_is_closed(bench: Bench) -> None:
    """A stranger's connection, or else the one that has been idle for longest; its task opens another one."""
    idle = [bench.task(), bench.task()]
    bench.pass_time(1.0)
    stranger = bench.stranger()
    bench.settle()
    for expected in (stranger, *idle):
        assert not is_closed(expected)
        bench.listener.put(OSError(errno.EMFILE, "Too many open files"))
        bench.settle()
        assert is_closed(expected)

    assert serves(bench, bench.task())


def test_an_idle_connection_ages_out(bench: Bench) -> None:
    """After a minute by a clock that is never set; the minute begins anew with each request."""
    first, second = bench.task(), bench.task()
    bench.pass_time(40.0)
    assert serves(bench, second)
    bench.requested[0]._socket.recv(100)
    bench.acceptor.watch(bench.requested[0])
    bench.settle()
    bench.pass_time(20.0)

    assert is_closed(first)
    assert not is_closed(second)
    bench.pass_time(40.0)
    assert is_closed(second)


def test_the_thread_serves_and_ends(bench: Bench) -> None:
    """It sleeps until something comes, also a connection that is given back."""
    bench.acceptor.start()
    connection, task = bench.hello()
    bench.finish(connection, task)
    connection.send(b"request")
    wait_until(lambda: bool(bench.requested))
    bench.acceptor.watch(bench.requested[0])
    wait_until(lambda: len(bench.requested) == 2)

    bench.acceptor.close()
    assert not bench.acceptor._thread.is_alive()


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        select.select([], [], [], 0.001)
