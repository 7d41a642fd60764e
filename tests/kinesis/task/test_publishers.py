"""A task's publisher that reads ranges from an agent's server, over the loopback interface."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from sluice.channels.channel import Address, Channel, connect
from sluice.errors import ServiceError
from sluice.kinesis.agent.range_server import RangeServer
from sluice.kinesis.agent.shard_buffer import RangeUnavailable
from sluice.kinesis.shared.launch import ON_THIS_HOST
from sluice.kinesis.shared.protocol import ReadRange
from sluice.kinesis.task import publishers
from sluice.kinesis.task.connection_pool import ConnectionPool
from sluice.kinesis.task.publishers import AgentRecordPublisher, is_reachable
from sluice.source.logs.stream_log import IteratorStart, Page
from sluice.source.model.offsets import HORIZON, After, Closed, SplitRange
from sluice.source.model.splits import SplitId

SPLIT = SplitId("clicks", "shardId-0")
SECRET = b"k" * 32
WANTED = SplitRange(SPLIT, After("4"), After("9"))


def payload(*numbers: int) -> bytes:
    records = [
        {
            "SequenceNumber": str(number),
            "ApproximateArrivalTimestamp": 1_700_000_000.5,
            "Data": base64.b64encode(b"data %d" % number).decode(),
            "PartitionKey": "key",
        }
        for number in numbers
    ]
    return json.dumps(
        {"Records": records, "ContinuationSequenceNumber": "9", "MillisBehindLatest": 0}
    ).encode()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that pauses for a second costs no connection."""
    monkeypatch.setattr(publishers, "_DONE_TIMEOUT", 60.0)


class Agent:
    """Serves the same events for every range, and keeps the requests."""

    def __init__(self, *events: bytes, unavailable: str | None = None) -> None:
        self.events = events
        self.unavailable = unavailable
        self.stands_still: threading.Event | None = None
        self.requests: list[ReadRange] = []
        self.server = RangeServer(ON_THIS_HOST, SECRET, self.read)
        self.address = self.server.address

    def read(self, request: ReadRange) -> Iterator[bytes]:
        self.requests.append(request)
        if self.stands_still is not None:
            self.stands_still.wait(60.0)
        yield from self.events
        if self.unavailable is not None:
            raise RangeUnavailable(self.unavailable)

    def close(self) -> None:
        self.server.close()


def publisher(
    agent: Agent, wanted: SplitRange = WANTED, pool: ConnectionPool | None = None
) -> AgentRecordPublisher:
    pool = pool or ConnectionPool(limit=0)
    return AgentRecordPublisher(agent.address, wanted, wanted.start, max_wait=60.0, pool=pool)


class Counting:
    """A pool that keeps the connections it has opened."""

    def __init__(self) -> None:
        self.opened: list[Channel] = []
        self.pool = ConnectionPool(self._open)

    def _open(self, address: Address, timeout: float) -> Channel:
        self.opened.append(connect(address, timeout=timeout))
        return self.opened[-1]

    def close(self) -> None:
        for channel in self.opened:
            channel.close()


def numbers(page: Page) -> list[str]:
    return [record.sequence_number for record in page.records]


def test_a_task_gets_the_events_of_its_range() -> None:
    """The task decodes them: the agent passes on what the service has sent."""
    with closing(Agent(payload(5, 6), payload(7, 8, 9))) as agent, closing(publisher(agent)) as got:
        pages = [got.next_page(), got.next_page()]

    assert list(map(numbers, pages)) == [["5", "6"], ["7", "8", "9"]]
    assert pages[0].records[0].data == b"data 5"
    assert agent.requests == [ReadRange(SPLIT, IteratorStart("AT_SEQUENCE_NUMBER", "4"), "4", "9", 60.0)]


def test_the_page_behind_the_last_event_of_a_shard_is_its_end() -> None:
    """It is like the last page that polling gives of a closed shard."""
    wanted = SplitRange(SPLIT, HORIZON, Closed())
    with closing(Agent(payload(5))) as agent, closing(publisher(agent, wanted)) as got:
        assert numbers(got.next_page()) == ["5"]
        assert got.next_page() == Page((), None, 0)

    assert agent.requests == [ReadRange(SPLIT, IteratorStart("TRIM_HORIZON"), None, None, 60.0)]


def test_a_connection_is_used_for_one_range_after_the_other() -> None:
    """Even after a range that was unavailable, or that ended with its shard."""
    to_the_end = SplitRange(SPLIT, HORIZON, Closed())
    with closing(Counting()) as counting, closing(Agent(payload(5, 9))) as agent:
        for wanted in (WANTED, WANTED, to_the_end, WANTED):
            with closing(publisher(agent, wanted, counting.pool)) as got:
                assert numbers(got.next_page()) == ["5", "9"]
                if wanted is to_the_end:
                    assert got.next_page().next_iterator is None
        agent.unavailable, agent.events = "it was trimmed", ()
        with closing(publisher(agent, WANTED, counting.pool)) as got, pytest.raises(ServiceError):
            got.next_page()
        agent.unavailable, agent.events = None, (payload(5, 9),)
        with closing(publisher(agent, WANTED, counting.pool)) as got:
            assert numbers(got.next_page()) == ["5", "9"]

        assert len(counting.opened) == 1
        assert len(agent.requests) == 6


class Aged:
    """A pool whose first connections the agent closes just when they are handed out, idle for too long.

    Args:
        aged: how many.
        is_noticed: the request can't be sent; otherwise its answer does not come.
    """

    def __init__(self, aged: int, *, is_noticed: bool) -> None:
        self._aged = aged
        self._is_noticed = is_noticed
        self._ends: list[socket.socket] = []
        self.opened = 0
        self.pool = ConnectionPool(self._open, limit=0)

    def _open(self, address: Address, timeout: float) -> Channel:
        self.opened += 1
        if self.opened > self._aged:
            return connect(address, timeout=timeout)
        ours, theirs = socket.socketpair()
        self._ends.append(theirs)
        theirs.shutdown(socket.SHUT_RDWR if self._is_noticed else socket.SHUT_WR)
        return Channel(ours)

    def close(self) -> None:
        for end in self._ends:
            end.close()


@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_connection_that_has_aged_out_is_replaced(*, is_noticed: bool) -> None:
    """The user learns nothing of it."""
    with closing(Aged(1, is_noticed=is_noticed)) as aged, closing(Agent(payload(5, 9))) as agent:
        with closing(publisher(agent, WANTED, aged.pool)) as got:
            assert numbers(got.next_page()) == ["5", "9"]

        assert aged.opened == 2
        assert len(agent.requests) == 1


@pytest.mark.parametrize("is_noticed", [True, False])
def test_an_agent_that_closes_every_connection_is_not_asked_for_ever(*, is_noticed: bool) -> None:
    """Once more is enough: what it closes now was not idle."""
    with (
        closing(Aged(5, is_noticed=is_noticed)) as aged,
        closing(Agent(payload(5, 9))) as agent,
        pytest.raises(ServiceError) as caught,
        closing(publisher(agent, WANTED, aged.pool)) as got,
    ):
        got.next_page()

    assert caught.value.retryable
    assert aged.opened == 2


def test_a_connection_that_closes_behind_an_event_is_an_error() -> None:
    """The task has a part of the range, and reads the rest elsewhere."""

    def end(_request: ReadRange) -> Iterator[bytes]:
        yield payload(5)
        raise KeyError("the agent is in trouble")

    with closing(Agent()) as agent, closing(Counting()) as counting:
        agent.server._read = end
        with closing(publisher(agent, WANTED, counting.pool)) as got:
            assert numbers(got.next_page()) == ["5"]
            with pytest.raises(ServiceError, match="has closed the connection"):
                got.next_page()

        assert len(counting.opened) == 1


def test_an_unavailable_range_raises_the_agents_reason() -> None:
    """Pages before that stay good; the task reads on elsewhere."""
    with closing(Agent(payload(5), unavailable="it was trimmed")) as agent, closing(publisher(agent)) as got:
        assert numbers(got.next_page()) == ["5"]
        with pytest.raises(
            ServiceError, match=r"^it was trimmed \(the agent .* clicks/shardId-0\)"
        ) as caught:
            got.next_page()

    assert caught.value.retryable


def test_an_agent_that_is_gone_raises_a_retryable_error() -> None:
    """Another attempt to connect follows after 30 s only: each batch of this process would wait for it."""
    agent = Agent()
    agent.close()

    with pytest.raises(ServiceError, match="can't serve clicks/shardId-0") as caught:
        publisher(agent)

    assert caught.value.retryable
    assert not is_reachable(agent.address)
    assert is_reachable(agent.address, clock=lambda: time.monotonic() + 30)
    assert is_reachable(agent.address, recoveries=1)  # the planning process has heard of it since


def test_a_task_waits_for_a_silent_agent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have many ranges to read from it, one after the other. It polls those that follow."""
    monkeypatch.setattr(publishers, "SILENT_AFTER", 0.5)
    goes_on = threading.Event()
    with closing(Agent()) as agent:
        agent.stands_still = goes_on
        got = AgentRecordPublisher(
            agent.address, WANTED, WANTED.start, max_wait=0.0, pool=ConnectionPool(limit=0)
        )
        assert is_reachable(agent.address)
        with closing(got), pytest.raises(ServiceError, match="timed out") as caught:
            got.next_page()
        goes_on.set()

    assert caught.value.retryable
    assert not is_reachable(agent.address)
    assert is_reachable(agent.address, clock=lambda: time.monotonic() + 30)


def test_an_agent_of_another_query_serves_nothing() -> None:
    """It may have got the port of this query's agent."""
    with closing(Agent(payload(5))) as agent:
        stranger = replace(agent.address, secret=b"z" * 32)
        with pytest.raises(ServiceError):
            AgentRecordPublisher(stranger, WANTED, WANTED.start, max_wait=60.0)
        assert agent.requests == []
