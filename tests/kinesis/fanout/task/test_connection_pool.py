"""Connections that are kept between ranges."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from sluice.kinesis.fanout.channel import Address, Channel
from sluice.kinesis.fanout.task.connection_pool import ConnectionPool

AGENT = Address("127.0.0.1", 4000, b"k")
SUCCESSOR = Address("127.0.0.1", 4001, b"k")


class Network:
    """Opens pool to nobody in particular; `ends` are the agents'."""

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


def test_what_was_kept_is_taken_again(network: Network) -> None:
    """Of its own agent only."""
    pool = ConnectionPool(network.open)
    first = pool.acquire(AGENT, timeout=3.0)
    pool.release(AGENT, first)

    assert pool.acquire(AGENT, timeout=3.0) is first
    assert pool.acquire(AGENT, timeout=3.0) is not first
    pool.release(AGENT, first)
    assert pool.acquire(SUCCESSOR, timeout=5.0) is not first
    assert network.opened == [(AGENT, 3.0), (AGENT, 3.0), (SUCCESSOR, 5.0)]


@pytest.mark.parametrize("last", [b"", b"more"])
def test_one_that_has_broken_or_is_not_done_is_not_taken(network: Network, last: bytes) -> None:
    """What is said on it now was not asked for by whoever would take it."""
    pool = ConnectionPool(network.open)
    channel = pool.acquire(AGENT, timeout=3.0)
    pool.release(AGENT, channel)
    network.ends[0].sendall(last)
    network.ends[0].shutdown(socket.SHUT_WR)

    assert pool.acquire(AGENT, timeout=3.0) is not channel
    assert is_closed(network.ends[0])


def test_those_to_an_agent_that_has_died_are_closed_by_the_way(network: Network) -> None:
    """Its successor listens elsewhere, and nobody asks for them any more."""
    pool = ConnectionPool(network.open)
    for channel in [pool.acquire(AGENT, timeout=3.0) for _ in range(2)]:
        pool.release(AGENT, channel)
    network.ends[0].shutdown(socket.SHUT_WR)

    pool.acquire(SUCCESSOR, timeout=3.0)

    assert list(map(is_closed, network.ends)) == [True, False, False]


def test_no_more_are_kept_than_a_task_needs(network: Network) -> None:
    """The agent has a thread for each."""
    pool = ConnectionPool(network.open, limit=1)
    for channel in [pool.acquire(AGENT, timeout=3.0) for _ in range(2)]:
        pool.release(AGENT, channel)

    assert list(map(is_closed, network.ends)) == [False, True]
