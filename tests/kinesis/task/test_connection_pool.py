"""Connections to agents that are kept from one range to the next."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from sluice.channels.channel import Address, Channel
from sluice.kinesis.task.connection_pool import ConnectionPool

AGENT = Address("127.0.0.1", 4000, b"k", b"start")
SUCCESSOR = Address("127.0.0.1", 4001, b"k", b"start")


class Network:
    """Opens connections; `ends` are the agents' ends of them."""

    def __init__(self) -> None:
        self.opened: list[tuple[Address, float]] = []
        self.ours: list[Channel] = []
        self.ends: list[socket.socket] = []

    def open(self, address: Address, timeout: float) -> Channel:
        ours, theirs = socket.socketpair()
        self.opened.append((address, timeout))
        self.ours.append(Channel(ours))
        self.ends.append(theirs)
        return self.ours[-1]


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    for channel, end in zip(network.ours, network.ends, strict=True):
        channel.close()
        end.close()


def is_closed(end: socket.socket) -> bool:
    end.setblocking(False)
    try:
        return end.recv(1) == b""
    except ConnectionResetError:
        return True
    except BlockingIOError:
        return False


def test_a_released_connection_is_used_again(network: Network) -> None:
    """For the same agent only."""
    pool = ConnectionPool(network.open)
    first = pool.acquire(AGENT, timeout=3.0)
    pool.release(AGENT, first)

    assert pool.acquire(AGENT, timeout=3.0) is first
    assert pool.acquire(AGENT, timeout=3.0) is not first
    pool.release(AGENT, first)
    assert pool.acquire(SUCCESSOR, timeout=5.0) is not first
    assert network.opened == [(AGENT, 3.0), (AGENT, 3.0), (SUCCESSOR, 5.0)]


@pytest.mark.parametrize("last", [b"", b"more"])
def test_a_connection_that_is_broken_or_has_unread_bytes_is_not_used_again(
    network: Network, last: bytes
) -> None:
    """The unread bytes are the answer to another request."""
    pool = ConnectionPool(network.open)
    channel = pool.acquire(AGENT, timeout=3.0)
    pool.release(AGENT, channel)
    network.ends[0].sendall(last)
    network.ends[0].shutdown(socket.SHUT_WR)

    assert pool.acquire(AGENT, timeout=3.0) is not channel
    assert is_closed(network.ends[0])


def test_connections_to_an_agent_that_has_died_are_closed(network: Network) -> None:
    """Its successor listens at another address, and nobody asks for them any more."""
    pool = ConnectionPool(network.open)
    for channel in [pool.acquire(AGENT, timeout=3.0) for _ in range(2)]:
        pool.release(AGENT, channel)
    network.ends[0].shutdown(socket.SHUT_WR)

    pool.acquire(SUCCESSOR, timeout=3.0)

    assert list(map(is_closed, network.ends)) == [True, False, False]


def test_no_more_idle_connections_are_kept_than_the_limit(network: Network) -> None:
    """The agent has a thread for each."""
    pool = ConnectionPool(network.open, limit=1)
    for channel in [pool.acquire(AGENT, timeout=3.0) for _ in range(2)]:
        pool.release(AGENT, channel)

    assert list(map(is_closed, network.ends)) == [False, True]


def test_a_new_connection_may_be_asked_for(network: Network) -> None:
    """Where the idle one turned out to be closed."""
    pool = ConnectionPool(network.open)
    first = pool.acquire(AGENT, timeout=3.0)
    pool.release(AGENT, first)

    assert pool.acquire(AGENT, timeout=3.0, is_new=True) is not first
    assert pool.acquire(AGENT, timeout=3.0) is first
