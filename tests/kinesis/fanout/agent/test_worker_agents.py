"""Shards are dealt out to the agents that have joined: one owner each, and nobody is left without."""

from __future__ import annotations

import queue
import socket
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from sluice.kinesis.fanout.agent.worker_agents import WorkerAgents
from sluice.kinesis.fanout.channel import Channel
from sluice.kinesis.fanout.protocol import (
    TAKEN_OVER,
    Acknowledge,
    ConsumersChanged,
    EventReceived,
    FromAgent,
    JoinHub,
    Subscribe,
    SubscriptionEnded,
    ToAgent,
    Unsubscribe,
    WorkerHosts,
    decode_to_agent,
    encode,
)
from sluice.source.splits import SplitId
from sluice.source.stream_log import IteratorStart
from sluice.source.subscriptions import SubscriptionProgress

START = IteratorStart("TRIM_HORIZON")
SPLITS = [SplitId("clicks", f"shardId-{number}") for number in range(4)]
PATIENT = 120.0


class Worker:
    """An agent on a worker host, played by the test."""

    def __init__(self, workers: WorkerAgents, host: str) -> None:
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        self.channel.set_timeout(PATIENT)
        self._theirs = Channel(theirs)
        self.thread = threading.Thread(target=self._serve, args=(workers, host), daemon=True)
        self.thread.start()

    def _serve(self, workers: WorkerAgents, host: str) -> None:
        workers.join(self._theirs, JoinHub(host, 4000))
        self._theirs.close()

    def asked(self) -> ToAgent:
        return decode_to_agent(self.channel.receive())

    def says(self, message: FromAgent) -> None:
        self.channel.send(encode(message))

    def leave(self) -> None:
        self.channel.close()
        self.thread.join(PATIENT)


class Hub:
    def __init__(self) -> None:
        self.reports: queue.SimpleQueue[FromAgent] = queue.SimpleQueue()
        self.workers = WorkerAgents(self.reports.put)
        self.joined: list[Worker] = []

    def join(self, host: str) -> Worker:
        self.joined.append(Worker(self.workers, host))
        heard = self.heard()
        assert isinstance(heard, WorkerHosts)
        assert host in heard.hosts
        return self.joined[-1]

    def heard(self) -> FromAgent:
        return self.reports.get(timeout=PATIENT)


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub()
    yield made
    for worker in made.joined:
        worker.leave()


def test_a_shard_waits_until_somebody_joins(hub: Hub) -> None:
    """In the first batch no task has started an agent yet."""
    hub.workers.use_consumers(ConsumersChanged({"clicks": "arn"}, ("arn",)))
    hub.workers.subscribe(Subscribe(SPLITS[0], 1, START))

    worker = hub.join("a")

    # Only the agent beside the driver deregisters anything.
    assert worker.asked() == ConsumersChanged({"clicks": "arn"}, ())
    assert worker.asked() == Subscribe(SPLITS[0], 1, START)


def test_shards_are_dealt_out_evenly(hub: Hub) -> None:
    """To the one that holds fewest."""
    workers = [hub.join("a"), hub.join("b")]
    for generation, split in enumerate(SPLITS):
        hub.workers.subscribe(Subscribe(split, generation, START))

    given = [[worker.asked(), worker.asked()] for worker in workers]

    owners = Counter(
        message.split for messages in given for message in messages if isinstance(message, Subscribe)
    )
    assert owners == Counter(SPLITS)


def test_a_newcomer_gets_its_share(hub: Hub) -> None:
    """What is moved is reported as gone, without a code: the planner asks for it again at once."""
    first = hub.join("a")
    for generation, split in enumerate(SPLITS):
        hub.workers.subscribe(Subscribe(split, generation, START))
    for _ in SPLITS:
        first.asked()

    second = hub.join("b")
    gone = [hub.heard(), hub.heard()]
    left = [first.asked(), first.asked()]

    assert all(isinstance(message, SubscriptionEnded) and message.code == "" for message in gone)
    moved = {message.split for message in gone if isinstance(message, SubscriptionEnded)}
    assert {message.split for message in left if isinstance(message, Unsubscribe)} == moved
    assert len(moved) == 2
    for split in moved:
        hub.workers.subscribe(Subscribe(split, 9, START))
    assert {second.asked(), second.asked()} == {Subscribe(split, 9, START) for split in moved}


def test_the_shards_of_one_that_leaves_are_gone(hub: Hub) -> None:
    """And go to the others when they are asked for."""
    first = hub.join("a")
    hub.workers.subscribe(Subscribe(SPLITS[0], 1, START))
    first.asked()
    second = hub.join("b")

    first.leave()

    assert hub.heard() == WorkerHosts(("b",))
    assert hub.heard() == SubscriptionEnded(SPLITS[0], 1, "the fan-out agent on a is gone")
    hub.workers.subscribe(Subscribe(SPLITS[0], 2, START))
    assert second.asked() == Subscribe(SPLITS[0], 2, START)


def test_a_second_agent_of_a_host_is_turned_away(hub: Hub) -> None:
    """Two tasks may have started one at the same time; it ends when its link does."""
    hub.join("a")

    extra = Worker(hub.workers, "a")
    extra.thread.join(PATIENT)

    assert not extra.thread.is_alive()
    with pytest.raises(EOFError):
        extra.asked()
    extra.leave()
    assert hub.reports.empty()


def test_news_are_passed_on_and_orders_go_to_the_owner(hub: Hub) -> None:
    """But not those of a watch that has gone elsewhere."""
    worker = hub.join("a")
    hub.workers.subscribe(Subscribe(SPLITS[0], 3, START))
    worker.asked()
    stale, fresh = (
        EventReceived(SPLITS[0], generation, None, SubscriptionProgress([], 0), ("a", 1))
        for generation in (2, 3)
    )
    worker.says(stale)
    worker.says(fresh)

    assert hub.heard() == fresh
    hub.workers.acknowledge(SPLITS[0], 77)
    hub.workers.unsubscribe(SPLITS[0])
    assert [worker.asked(), worker.asked()] == [Acknowledge(SPLITS[0], "77"), Unsubscribe(SPLITS[0])]


def test_a_stream_that_somebody_else_reads_with_our_consumer_is_contested(hub: Hub) -> None:
    """Whichever host saw it."""
    worker = hub.join("a")
    hub.workers.subscribe(Subscribe(SPLITS[0], 1, START))
    worker.asked()

    worker.says(SubscriptionEnded(SPLITS[0], 1, "taken over", TAKEN_OVER))

    assert hub.heard() == SubscriptionEnded(SPLITS[0], 1, "taken over", TAKEN_OVER)
    assert hub.workers.contested == {"clicks"}
