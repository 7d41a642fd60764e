"""A task and an agent, over a socket of the loopback interface."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from sluice.errors import ServiceError
from sluice.kinesis.fanout.agent.range_server import RangeServer
from sluice.kinesis.fanout.agent.shard_buffer import RangeUnavailable
from sluice.kinesis.fanout.channel import Address, Channel, connect
from sluice.kinesis.fanout.protocol import JoinHub, ReadRange, encode
from sluice.kinesis.fanout.task.connection_pool import ConnectionPool
from sluice.kinesis.fanout.task.publishers import AgentRecordPublisher, is_reachable
from sluice.source.offsets import HORIZON, After, Closed, SplitRange
from sluice.source.splits import SplitId
from sluice.source.stream_log import IteratorStart, Page

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


class Agent:
    """Answers what it is told to, and keeps what it was asked."""

    def __init__(self, *events: bytes, lacking: str | None = None) -> None:
        self.events = events
        self.lacking = lacking
        self.asked: list[ReadRange] = []
        self.joined: list[JoinHub] = []
        self.server = RangeServer("127.0.0.1", SECRET, self.read, self.join)
        self.address = Address("127.0.0.1", self.server.port, SECRET)

    def read(self, request: ReadRange) -> Iterator[bytes]:
        self.asked.append(request)
        yield from self.events
        if self.lacking is not None:
            raise RangeUnavailable(self.lacking)

    def join(self, channel: Channel, join: JoinHub) -> None:
        self.joined.append(join)
        channel.send(b"welcome")

    def close(self) -> None:
        self.server.close()


def publisher(
    agent: Agent, wanted: SplitRange = WANTED, pool: ConnectionPool | None = None
) -> AgentRecordPublisher:
    pool = pool or ConnectionPool(limit=0)
    return AgentRecordPublisher(agent.address, wanted, wanted.start, max_wait=60.0, pool=pool)


class Counting:
    """Opens pool, and knows them."""

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
    """Decoded where the rows are made: the agent passes on what the service has sent."""
    with closing(Agent(payload(5, 6), payload(7, 8, 9))) as agent, closing(publisher(agent)) as got:
        pages = [got.next_page(), got.next_page()]

    assert list(map(numbers, pages)) == [["5", "6"], ["7", "8", "9"]]
    assert pages[0].records[0].data == b"data 5"
    assert agent.asked == [ReadRange(SPLIT, IteratorStart("AT_SEQUENCE_NUMBER", "4"), "4", "9", 60.0)]


def test_behind_the_last_event_of_a_shard_lies_its_end() -> None:
    """As the last page of a closed shard says it."""
    wanted = SplitRange(SPLIT, HORIZON, Closed())
    with closing(Agent(payload(5))) as agent, closing(publisher(agent, wanted)) as got:
        assert numbers(got.next_page()) == ["5"]
        assert got.next_page() == Page((), None, 0)

    assert agent.asked == [ReadRange(SPLIT, IteratorStart("TRIM_HORIZON"), None, None, 60.0)]


def test_a_connection_serves_one_range_after_the_other() -> None:
    """Also one whose range ended with a refusal, and one that was read to the end of its shard."""
    to_the_end = SplitRange(SPLIT, HORIZON, Closed())
    with closing(Counting()) as counting, closing(Agent(payload(5, 9))) as agent:
        for wanted in (WANTED, WANTED, to_the_end, WANTED):
            with closing(publisher(agent, wanted, counting.pool)) as got:
                assert numbers(got.next_page()) == ["5", "9"]
                if wanted is to_the_end:
                    assert got.next_page().next_iterator is None
        agent.lacking, agent.events = "it was trimmed", ()
        with closing(publisher(agent, WANTED, counting.pool)) as got, pytest.raises(ServiceError):
            got.next_page()
        agent.lacking, agent.events = None, (payload(5, 9),)
        with closing(publisher(agent, WANTED, counting.pool)) as got:
            assert numbers(got.next_page()) == ["5", "9"]

        assert len(counting.opened) == 1
        assert len(agent.asked) == 6


def test_ranges_side_by_side_have_a_connection_each() -> None:
    """And what is free is taken first."""
    with closing(Counting()) as counting, closing(Agent(payload(9))) as agent:
        for _ in range(2):
            with (
                closing(publisher(agent, WANTED, counting.pool)) as one,
                closing(publisher(agent, WANTED, counting.pool)) as other,
            ):
                assert numbers(one.next_page()) == numbers(other.next_page()) == ["9"]

        assert len(counting.opened) == 2


def test_a_connection_with_a_range_under_way_is_not_used_again() -> None:
    """What is left of that range would be taken for the next one's."""
    with closing(Counting()) as counting, closing(Agent(payload(5), payload(9))) as agent:
        for _ in range(2):
            with closing(publisher(agent, WANTED, counting.pool)) as got:
                assert numbers(got.next_page()) == ["5"]

        assert len(counting.opened) == 2


def test_what_the_agent_lacks_is_said_and_why() -> None:
    """The task reads on elsewhere; what it has had stays good."""
    with closing(Agent(payload(5), lacking="it was trimmed")) as agent, closing(publisher(agent)) as got:
        assert numbers(got.next_page()) == ["5"]
        with pytest.raises(ServiceError, match=r"clicks/shardId-0: it was trimmed") as caught:
            got.next_page()

    assert caught.value.retryable


def test_an_agent_that_is_gone_is_no_disaster() -> None:
    """The task learns at once, and what to call it."""
    agent = Agent()
    agent.close()

    with pytest.raises(ServiceError, match="can't serve clicks/shardId-0") as caught:
        publisher(agent)

    assert caught.value.retryable
    # Every batch of this process would wait for it again, and say so.
    assert not is_reachable(agent.address)
    assert is_reachable(agent.address, lambda: time.monotonic() + 30)


def test_an_agent_of_another_query_serves_nothing() -> None:
    """It may have got the port of ours."""
    with closing(Agent(payload(5))) as agent:
        stranger = Address("127.0.0.1", agent.server.port, b"z" * 32)
        with pytest.raises(ServiceError):
            AgentRecordPublisher(stranger, WANTED, WANTED.start, max_wait=60.0)
        assert agent.asked == []


def test_an_agent_on_a_worker_host_joins_by_the_same_door() -> None:
    """With the same secret."""
    with closing(Agent()) as agent, closing(connect(agent.address, timeout=60)) as channel:
        channel.send(encode(JoinHub("10.0.0.2", 5000)))
        assert bytes(channel.receive()) == b"welcome"

    assert agent.joined == [JoinHub("10.0.0.2", 5000)]
