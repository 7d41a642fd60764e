"""An agent's server, as connections to it see it, over the loopback interface."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from sluice.channels.channel import SPARK_DRIVER, Address, Channel, connect
from sluice.kinesis.agent import range_server
from sluice.kinesis.agent.range_server import RangeServer
from sluice.kinesis.shared.launch import ON_THIS_HOST, AgentPlace
from sluice.kinesis.shared.protocol import DONE, EVENT, JoinHub, ReadRange, Server, encode
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.splits import SplitId

SECRET = b"k" * 32
PATIENT = 120.0
REQUEST = ReadRange(SplitId("clicks", "shardId-0"), IteratorStart("TRIM_HORIZON"), None, "9", 60.0)
JOIN = JoinHub(Server("10.0.0.2", 5000, b"start"))

Read = Callable[[ReadRange], Iterator[bytes]]


def nothing(_request: ReadRange) -> Iterator[bytes]:
    return iter(())


@contextmanager
def connected(
    read: Read = nothing, join: Callable[[Channel, JoinHub], None] | None = None
) -> Iterator[Channel]:
    """A connection to a server that has these two functions."""
    with (
        closing(RangeServer(ON_THIS_HOST, SECRET, read, join)) as server,
        closing(connect(server.address, timeout=PATIENT)) as channel,
    ):
        yield channel


def frames(channel: Channel, count: int) -> list[bytes]:
    return [bytes(channel.receive()) for _ in range(count)]


def test_an_answer_is_the_events_and_a_frame_that_says_done() -> None:
    """A connection may ask for one range after the other."""
    requests = []

    def read(request: ReadRange) -> Iterator[bytes]:
        requests.append(request)
        yield from (b"one", b"two")

    with connected(read) as channel:
        for _ in range(2):
            channel.send(encode(REQUEST))
            assert frames(channel, 3) == [EVENT + b"one", EVENT + b"two", DONE]

    assert requests == [REQUEST, REQUEST]


def test_an_agent_that_has_joined_keeps_no_task_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays for as long as it lives, and is none of the requests that are answered in turn."""
    monkeypatch.setattr(range_server, "_MOST_ANSWERS", 1)
    leave = threading.Event()

    def join(channel: Channel, _request: JoinHub) -> None:
        channel.send(b"welcome")
        leave.wait(PATIENT)

    with (
        closing(RangeServer(ON_THIS_HOST, SECRET, nothing, join)) as server,
        closing(connect(server.address, timeout=PATIENT)) as agent,
        closing(connect(server.address, timeout=PATIENT)) as task,
    ):
        agent.send(encode(JOIN))
        assert frames(agent, 1) == [b"welcome"]
        task.send(encode(REQUEST))
        assert frames(task, 1) == [DONE]
        leave.set()


@pytest.mark.parametrize(
    ("sent", "reason"),
    [(b"\x00\x10\x00\x00", "a frame of 1048576 bytes"), (b"\x00\x00\x00\x04oops", "Invalid|Expected")],
)
def test_a_request_that_makes_no_sense_closes_its_connection_alone(
    sent: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be from a task with another version. No memory is set aside for what it claims to send."""
    with closing(RangeServer(ON_THIS_HOST, SECRET, nothing)) as server:
        with closing(connect(server.address, timeout=PATIENT)) as channel, caplog.at_level(logging.WARNING):
            channel.send_some(sent)
            with pytest.raises((EOFError, ConnectionResetError)):
                channel.receive()
        with closing(connect(server.address, timeout=PATIENT)) as channel:
            channel.send(encode(REQUEST))
            assert frames(channel, 1) == [DONE]

    assert "closed a connection, as a request can't be served" in caplog.text
    assert re.search(reason, caplog.text)


def test_an_error_closes_the_connection_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The task polls; a later request on another connection is served."""

    def read(_request: ReadRange) -> Iterator[bytes]:
        raise KeyError("oops")

    with connected(read) as channel:
        channel.send(encode(REQUEST))
        with pytest.raises((EOFError, ConnectionResetError)):
            channel.receive()

    assert "KeyError: 'oops'" in caplog.text


def test_without_a_thread_the_task_gets_an_answer_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not wait for an answer that nobody gives. The server serves the next one when it can."""

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with closing(RangeServer(ON_THIS_HOST, SECRET, nothing)) as server:
        with closing(connect(server.address, timeout=PATIENT)) as channel, monkeypatch.context() as exhausted:
            exhausted.setattr(threading.Thread, "start", start)
            channel.send(encode(REQUEST))
            with pytest.raises((EOFError, ConnectionResetError)):
                channel.receive()
        with closing(connect(server.address, timeout=PATIENT)) as channel:
            channel.send(encode(REQUEST))
            assert frames(channel, 1) == [DONE]

    assert "no thread to serve a range" in caplog.text


def test_a_task_that_goes_away_lets_go_of_what_it_was_sent() -> None:
    """What is being sent is a part of what the agent holds."""
    let_go = threading.Event()

    def read(_request: ReadRange) -> Iterator[bytes]:
        try:
            while True:
                yield bytes(100_000)
        finally:
            let_go.set()

    with connected(read) as channel:
        channel.send(encode(REQUEST))
        channel.receive()

    assert let_go.wait(PATIENT)


def test_an_agent_may_listen_on_ipv6() -> None:
    """Its address may be one, on a network without the other."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6")
    with (
        closing(RangeServer(AgentPlace("::1", "::1"), SECRET, nothing)) as server,
        closing(connect(server.address, timeout=PATIENT)) as channel,
    ):
        channel.send(encode(REQUEST))
        assert frames(channel, 1) == [DONE]
        assert str(server.address).startswith("[::1]:")


def test_an_agent_may_be_found_elsewhere_than_it_listens() -> None:
    """Behind address translation, or where only tasks know the driver's host. A host that joins is known by
    its address, also where the agent listens on IPv4 and IPv6 at once.
    """
    seen: list[str | None] = []
    joined = threading.Event()

    def join(channel: Channel, _request: JoinHub) -> None:
        seen.append(channel.remote_host)
        joined.set()

    with (
        closing(RangeServer(AgentPlace(SPARK_DRIVER, ""), SECRET, nothing, join)) as server,
        closing(connect(server.address.found_at("127.0.0.2"), timeout=PATIENT)) as channel,
    ):
        channel.send(encode(REQUEST))
        assert frames(channel, 1) == [DONE]
        assert str(server.address).startswith("spark.driver.host:")
        channel.send(encode(JOIN))
        assert joined.wait(PATIENT)
    assert seen == ["127.0.0.1"]


def test_an_agent_takes_a_free_port_of_a_range() -> None:
    """Firewalls are opened for a range, and a host may run agents of several queries."""
    with closing(RangeServer(ON_THIS_HOST, SECRET, nothing)) as other:
        first = other.address.port
        ports = first, min(first + 30, 65_535)
        with closing(RangeServer(ON_THIS_HOST, SECRET, nothing, ports=ports)) as server:
            assert first < server.address.port <= first + 30
        with pytest.raises(OSError, match=f"no port from {first} to {first} is free"):
            RangeServer(ON_THIS_HOST, SECRET, nothing, ports=(first, first))


def test_a_server_that_is_closed_lets_nobody_in() -> None:
    """Its port is free at once."""
    server = RangeServer(ON_THIS_HOST, SECRET, nothing)
    address: Address = server.address
    server.close()

    with pytest.raises(ConnectionRefusedError):
        connect(address, timeout=PATIENT)
    socket.create_server(("127.0.0.1", address.port)).close()
