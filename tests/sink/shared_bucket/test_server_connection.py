"""A task's connection to the server: the writer survives any failure of it, and knows the reason."""

from __future__ import annotations

import socket
import threading

import pytest

from sluice.channels.channel import Address, Channel
from sluice.sink.shared_bucket import connection as connection_module
from sluice.sink.shared_bucket.connection import ServerConnection


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def connect(connection: ServerConnection) -> bool:
    """Makes an attempt if one is due, and waits for its end. Returns whether there is a connection."""
    connection.connect()
    for thread in threading.enumerate():
        if thread.name == "sluice-query-server":
            thread.join()
    return connection._channel is not None


@pytest.mark.filterwarnings("error")  # also about a thread that dies
def test_a_host_that_is_no_name_is_a_problem_like_any_other() -> None:
    connection = ServerConnection(Address("driver..example", 1, b"", b""), Clock())

    assert not connect(connection)
    assert connection.problem.startswith("driver..example:1: ")


def test_half_of_a_message_holds_up_the_writer_for_half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does the server. Then the connection has ended."""
    ours, theirs = socket.socketpair()

    def connect_at_once(_: Address, *, timeout: float) -> Channel:
        ours.settimeout(timeout)
        return Channel(ours)

    monkeypatch.setattr(connection_module, "connect", connect_at_once)
    connection = ServerConnection(Address("driver.example", 1, b"", b""), Clock())
    assert connect(connection)
    timeout = ours.gettimeout()
    assert timeout is not None
    assert timeout <= 0.5
    ours.settimeout(0.01)  # the test does not wait for as long
    with theirs:
        theirs.sendall(b"\0\0\0\x10ab")
        assert not connection.receive()
    assert not connection.connect()
    assert connection.problem == "driver.example:1: timed out"
