"""Shards are assigned to the agents that have joined, each to one of them."""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.channels.channel import Channel
from sluice.kinesis.agent.worker_agents import WorkerAgents
from sluice.kinesis.shared.protocol import (
    TAKEN_OVER,
    Acknowledge,
    BufferHeld,
    CallsCounted,
    ConsumersChanged,
    EventReceived,
    FromAgent,
    JoinHub,
    RangesAsked,
    Server,
    Subscribe,
    SubscriptionEnded,
    ToAgent,
    Unsubscribe,
    WorkerHosts,
    decode_to_agent,
    encode,
)
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.splits import SplitId
from sluice.source.state.subscriptions import SubscriptionProgress

START = IteratorStart("TRIM_HORIZON")
SPLITS = [SplitId("clicks", f"shardId-{number}") for number in range(4)]
PATIENT = 120.0


class Worker:
    """An agent on a worker host, whose messages the test writes and whose orders it reads."""

    def __init__(self, workers: WorkerAgents, host: str) -> None:
        self.host = host
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        self.channel.set_timeout(PATIENT)
        self._theirs = Channel(theirs)
        self.thread = threading.Thread(target=self._serve, args=(workers, host), daemon=True)
        self.thread.start()

    def _serve(self, workers: WorkerAgents, host: str) -> None:
        workers.join(self._theirs, JoinHub(Server(host, 4000, b"start")))
        self._theirs.close()

    def received(self) -> ToAgent:
        """The next message that is no question."""
        while (frame := self.channel.receive()).tobytes() == b"?":
            pass
        return decode_to_agent(frame)

    def send(self, message: FromAgent) -> None:
        self.channel.send(encode(message))

    def answer(self) -> None:
        """A message without content: the agent is alive."""
        self.channel.send(b"!")

    def leave(self) -> None:
        self.channel.close()
        self.thread.join(PATIENT)


class Hub:
    def __init__(self) -> None:
        self.now = 100.0
        self.reports: queue.SimpleQueue[FromAgent] = queue.SimpleQueue()
        self.workers = WorkerAgents(self.reports.put, lambda: self.now)
        self.joined: list[Worker] = []

    def join(self, host: str) -> Worker:
        self.joined.append(Worker(self.workers, host))
        report = self.report()
        assert isinstance(report, WorkerHosts)
        assert host in report.hosts
        return self.joined[-1]

    def settle(self) -> None:
        """So much time passes that nobody waits any more for others to join."""
        self.pass_time(6, *(worker.host for worker in self.joined))

    def report(self) -> FromAgent:
        return self.reports.get(timeout=PATIENT)

    def pass_time(self, seconds: int, *speaking: str) -> None:
        """As many seconds pass, in each of which the hub asks its agents; these hosts' answer."""
        links = {host: agent.link for host, agent in self.workers._agents.items()}
        for _ in range(seconds):
            self.now += 1.0
            for worker in self.joined:
                if worker.host in speaking:
                    worker.answer()
                    wait_until(lambda host=worker.host: links[host].silence == 0.0)  # type: ignore[misc]
            for host, link in links.items():
                link.ask()
                self.workers.check(host)


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits for what the hub's own threads do."""
    end = time.monotonic() + PATIENT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub()
    yield made
    for worker in made.joined:
        worker.leave()


def test_a_shard_is_assigned_when_the_first_agent_joins(hub: Hub) -> None:
    """In the first batch no task has started an agent yet."""
    hub.workers.use_consumers(ConsumersChanged({"clicks": "arn"}, ("arn",)))
    hub.workers.subscribe(Subscribe(SPLITS[0], 1, START))

    worker = hub.join("a")

    # Only the agent on the driver host deregisters anything.
    assert worker.received() == ConsumersChanged({"clicks": "arn"}, ())
    hub.settle()
    assert worker.received() == Subscribe(SPLITS[0], 1, START)


def test_a_newcomer_gets_its_share(hub: Hub) -> None:
    """A shard that moves is reported as ended, without a code: the planner subscribes again at once."""
    first = hub.join("a")
    for generation, split in enumerate(SPLITS):
        hub.workers.subscribe(Subscribe(split, generation, START))
    hub.settle()
    for _ in SPLITS:
        first.received()

    second = hub.join("b")
    hub.pass_time(3, "a", "b")
    for generation, split in enumerate(SPLITS):
        hub.workers.subscribe(Subscribe(split, generation + 10, START))
        first.received()
    hub.pass_time(5, "a", "b")
    assert hub.reports.empty()  # the service would refuse another subscription so soon
    hub.pass_time(4, "a", "b")
    ended = [hub.report(), hub.report()]
    left = [first.received(), first.received()]

    assert all(isinstance(message, SubscriptionEnded) and message.code == "" for message in ended)
    moved = {message.split for message in ended if isinstance(message, SubscriptionEnded)}
    assert {message.split for message in left if isinstance(message, Unsubscribe)} == moved
    assert len(moved) == 2
    for split in moved:
        hub.workers.subscribe(Subscribe(split, 9, START))
    assert {second.received(), second.received()} == {Subscribe(split, 9, START) for split in moved}


def test_shards_are_dealt_out_once_when_hosts_join_one_after_the_other(hub: Hub) -> None:
    """Tasks start their agents within seconds of one another, and no shard moves for that."""
    for generation, split in enumerate(SPLITS):
        hub.workers.subscribe(Subscribe(split, generation, START))
    first = hub.join("a")
    hub.pass_time(2, "a")
    second = hub.join("b")
    hub.pass_time(2, "a", "b")
    hub.workers.subscribe(Subscribe(SPLITS[0], 9, START))  # the planner has read on meanwhile
    hub.pass_time(3, "a", "b")

    sent = {first.received(), first.received(), second.received(), second.received()}

    assert {message.split for message in sent if isinstance(message, Subscribe)} == set(SPLITS)
    assert Subscribe(SPLITS[0], 9, START) in sent
    hub.settle()
    hub.settle()
    assert hub.reports.empty()


def test_the_subscriptions_of_an_agent_that_leaves_have_ended(hub: Hub) -> None:
    """Its shards go to the others when the planner subscribes again."""
    first = hub.join("a")
    hub.settle()
    hub.workers.subscribe(Subscribe(SPLITS[0], 1, START))
    first.received()
    second = hub.join("b")
    hub.settle()

    first.leave()

    assert hub.report() == WorkerHosts(("b",))
    assert hub.report() == SubscriptionEnded(SPLITS[0], 1, "the agent on a is gone")
    hub.workers.subscribe(Subscribe(SPLITS[0], 2, START))
    assert second.received() == Subscribe(SPLITS[0], 2, START)


def test_a_second_agent_of_a_host_is_turned_away(hub: Hub) -> None:
    """Two tasks may have started one at the same time. The second one ends when its link is closed."""
    hub.join("a")

    extra = Worker(hub.workers, "a")
    extra.thread.join(PATIENT)

    assert not extra.thread.is_alive()
    with pytest.raises(EOFError):
        extra.received()
    extra.leave()
    assert hub.reports.empty()


def test_messages_pass_between_the_planner_and_the_shards_agent(hub: Hub) -> None:
    """A message about an earlier subscription is not passed on."""
    worker = hub.join("a")
    hub.settle()
    hub.workers.subscribe(Subscribe(SPLITS[0], 3, START))
    worker.received()
    stale, fresh = (
        EventReceived(SPLITS[0], generation, None, SubscriptionProgress([], 0), Server("a", 1, b"start"))
        for generation in (2, 3)
    )
    worker.send(stale)
    worker.send(fresh)

    assert hub.report() == fresh
    hub.workers.acknowledge(SPLITS[0], 77)
    hub.workers.unsubscribe(SPLITS[0])
    assert [worker.received(), worker.received()] == [Acknowledge(SPLITS[0], "77"), Unsubscribe(SPLITS[0])]


@pytest.mark.parametrize("message", [RangesAsked(7), CallsCounted(SPLITS[0], 3, 4), BufferHeld("a", 3, 10)])
def test_the_planner_learns_what_agents_are_asked_for_and_refused(hub: Hub, message: FromAgent) -> None:
    """It shows whether tasks reach them, and goes into the query's figures."""
    worker = hub.join("a")
    worker.send(message)

    assert hub.report() == message


# --- agents that are silent -----------------------------------------------------------------------------


def test_the_shards_of_a_silent_agent_go_to_others(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    """Its host may be gone without a word. The log reports it once, and reports once that the agent answers
    again; then the agent is informed of what it has lost, and gets its share like a new one.
    """
    caplog.set_level(logging.INFO, "sluice.kinesis.agent.worker_agents")
    first, second = hub.join("a"), hub.join("b")
    hub.settle()
    for generation, split in enumerate(SPLITS):
        hub.workers.subscribe(Subscribe(split, generation, START))
    mine = [first.received(), first.received()]
    for _ in SPLITS[2:]:
        second.received()

    hub.pass_time(4, "b")
    assert hub.reports.empty()
    hub.pass_time(3, "b")

    assert hub.report() == WorkerHosts(("a", "b"), ("a",))
    ended = [hub.report(), hub.report()]
    lost = {message.split for message in mine if isinstance(message, Subscribe)}
    assert {each.split for each in ended if isinstance(each, SubscriptionEnded) and each.code == ""} == lost
    for split in lost:
        hub.workers.subscribe(Subscribe(split, 9, START))
    assert {second.received(), second.received()} == {Subscribe(split, 9, START) for split in lost}
    assert hub.reports.empty()

    hub.pass_time(6, "a", "b")
    assert hub.report() == WorkerHosts(("a", "b"))
    moved = [hub.report(), hub.report()]
    assert all(isinstance(each, SubscriptionEnded) for each in moved)
    told = [first.received(), first.received()]
    assert {each.split for each in told if isinstance(each, Unsubscribe)} == lost
    assert len([line for line in caplog.messages if "on a has said nothing for 5 s" in line]) == 1
    assert len([line for line in caplog.messages if "on a speaks again" in line]) == 1
    assert any(
        f"its 2 shards go to others, or else are polled: {min(lost)}, " in line for line in caplog.messages
    )


def test_without_another_agent_shards_wait_for_the_silent_one(hub: Hub) -> None:
    """They are polled meanwhile: the planner has learned that their subscriptions have ended."""
    worker = hub.join("a")
    hub.settle()
    hub.workers.subscribe(Subscribe(SPLITS[0], 1, START))
    hub.pass_time(5)
    assert hub.report() == WorkerHosts(("a",), ("a",))
    assert isinstance(hub.report(), SubscriptionEnded)
    hub.workers.subscribe(Subscribe(SPLITS[0], 2, START))

    hub.pass_time(6, "a")

    assert [worker.received() for _ in range(3)] == [
        Subscribe(SPLITS[0], 1, START),
        Unsubscribe(SPLITS[0]),
        Subscribe(SPLITS[0], 2, START),
    ]


def test_an_agent_that_stays_silent_is_given_up(hub: Hub) -> None:
    """Its link is closed, at which it ends if it still can. A task on its host may start another one."""
    worker = hub.join("a")
    hub.settle()
    hub.workers.subscribe(Subscribe(SPLITS[0], 1, START))
    hub.pass_time(30)

    assert hub.report() == WorkerHosts(("a",), ("a",))
    assert isinstance(hub.report(), SubscriptionEnded)
    assert hub.report() == WorkerHosts(())
    worker.thread.join(PATIENT)
    assert not worker.thread.is_alive()
    assert hub.reports.empty()
    assert isinstance(hub.join("a"), Worker)


def test_messages_of_a_silent_agent_about_what_it_has_lost_are_ignored(hub: Hub) -> None:
    """Another reader has taken over the shard: the agent that it was moved to."""
    worker = hub.join("a")
    hub.settle()
    hub.workers.subscribe(Subscribe(SPLITS[0], 1, START))
    hub.pass_time(5)
    assert hub.report() == WorkerHosts(("a",), ("a",))
    assert isinstance(hub.report(), SubscriptionEnded)

    worker.send(SubscriptionEnded(SPLITS[0], 1, "taken over", TAKEN_OVER))
    worker.leave()

    assert hub.report() == WorkerHosts(())
    assert hub.reports.empty()


def test_the_hub_never_waits_for_an_agent(hub: Hub) -> None:
    """A stopped agent takes nothing. The others get their messages all the same."""
    hub.join("a")
    other = hub.join("b")
    hub.settle()
    for split in SPLITS[:2]:
        hub.workers.subscribe(Subscribe(split, 1, START))

    def acknowledge() -> None:
        for number in range(20_000):
            hub.workers.acknowledge(SPLITS[0], 10**40 + number)
        hub.workers.unsubscribe(SPLITS[1])

    thread = threading.Thread(target=acknowledge, daemon=True)
    thread.start()
    thread.join(PATIENT)

    assert not thread.is_alive()
    assert [other.received(), other.received()] == [Subscribe(SPLITS[1], 1, START), Unsubscribe(SPLITS[1])]


def test_addresses_that_are_translated_are_reported(
    hub: Hub, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In containers, for example: tasks on other hosts may not reach what an agent takes for its address."""
    monkeypatch.setattr(Channel, "remote_host", "10.0.0.5")
    with caplog.at_level(logging.WARNING):
        hub.join("10.0.0.5")
        assert caplog.messages == []
        hub.join("172.17.0.2")

    assert "the agent on 172.17.0.2 is seen as 10.0.0.5 from here" in caplog.text


# --- shares ---------------------------------------------------------------------------------------------


def held(hub: Hub) -> dict[str, set[SplitId]]:
    return {host: set(agent.subscriptions) for host, agent in hub.workers._agents.items()}


@given(st.integers(1, 12), st.lists(st.sampled_from("abcde"), min_size=1, max_size=12))
def test_shares_are_equal_and_stable_as_hosts_come_and_go(shards: int, changes: list[str]) -> None:
    """A host that is named joins or leaves. Shards of a host that leaves move, and the surplus of others."""
    hub, splits = Hub(), [SplitId("clicks", f"shardId-{number}") for number in range(shards)]
    workers: dict[str, Worker] = {}
    for generation, split in enumerate(splits):
        hub.workers.subscribe(Subscribe(split, generation, START))
    for host in changes:
        before = {split: owner for owner, its in held(hub).items() for split in its}
        if host in workers:
            workers.pop(host).leave()
            assert isinstance(hub.report(), WorkerHosts)
        else:
            workers[host] = hub.join(host)
        hub.joined = list(workers.values())
        for _ in range(3):
            hub.settle()
            while not hub.reports.empty():
                ended = hub.report()
                assert isinstance(ended, SubscriptionEnded)
                hub.workers.subscribe(Subscribe(ended.split, ended.generation + 100, START))
        after = {split: owner for owner, its in held(hub).items() for split in its}
        sizes = [len(its) for its in held(hub).values()]
        if workers:
            assert set(after) == set(splits)
            assert max(sizes) - min(sizes) <= 1
            moved = [split for split, owner in before.items() if owner in workers and after[split] != owner]
            assert len(moved) <= sizes[list(held(hub)).index(host)] if host in workers else len(moved) <= 1
    for worker in workers.values():
        worker.leave()
