"""An agent's server, as connections to it see it, over the loopback interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from sluice.kinesis.fanout.agent.range_server import RangeServer
from sluice.kinesis.fanout.agent.shard_buffer import RangeUnavailable
from sluice.kinesis.fanout.channel import Address, Channel, connect
from sluice.kinesis.fanout.protocol import DONE, EVENT, UNAVAILABLE, JoinHub, ReadRange, encode
from sluice.source.splits import SplitId
from sluice.source.stream_log import IteratorStart

SECRET = b"k" * 32
PATIENT = 120.0
REQUEST = ReadRange(SplitId("clicks", "shardId-0"), IteratorStart("TRIM_HORIZON"), None, "9", 60.0)


@contextmanager
def connected(
    read: Callable[[ReadRange], Iterator[bytes]], join: Callable[[Channel, JoinHub], None] | None = None
) -> Iterator[Channel]:
    """A connection to a server that has these two functions."""
    with closing(RangeServer("127.0.0.1", SECRET, read, join)) as server:
        address = Address(server.host, server.port, SECRET)
        with closing(connect(address, timeout=PATIENT)) as channel:
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


def test_an_answer_may_end_with_a_reason_instead() -> None:
    """Events that were sent before are part of the range."""

    def read(_request: ReadRange) -> Iterator[bytes]:
        yield b"one"
        raise RangeUnavailable("it was dropped")

    with connected(read) as channel:
        channel.send(encode(REQUEST))

        assert frames(channel, 2) == [EVENT + b"one", UNAVAILABLE + b"it was dropped"]


def test_an_agent_on_a_worker_host_joins_at_the_same_port() -> None:
    """It proves the same secret as tasks do."""
    joined = []

    def join(channel: Channel, request: JoinHub) -> None:
        joined.append(request)
        channel.send(b"welcome")

    with connected(lambda _request: iter(()), join) as channel:
        channel.send(encode(JoinHub("10.0.0.2", 5000)))
        assert frames(channel, 1) == [b"welcome"]

    assert joined == [JoinHub("10.0.0.2", 5000)]
