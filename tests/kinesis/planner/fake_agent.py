"""A planner's end of the link to agents that the tests play, with a clock of the test."""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sluice.channels.channel import Channel
from sluice.kinesis.consumers.ownership import QueryConsumers
from sluice.kinesis.options.config import source_config_from_options
from sluice.kinesis.planner.agent_client import AgentClient
from sluice.kinesis.planner.agent_process import AgentProcess
from sluice.kinesis.shared.launch import AgentSetup
from sluice.kinesis.shared.protocol import (
    ConsumersChanged,
    EventReceived,
    FromAgent,
    Listening,
    Server,
    Subscribe,
    ToAgent,
    decode_to_agent,
    encode,
)
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.offsets import HORIZON, Position
from sluice.source.model.splits import SplitId
from sluice.source.state.cut_points import CutPoint
from sluice.source.state.subscriptions import SubscriptionProgress

SPLIT, OTHER = SplitId("clicks", "shardId-0"), SplitId("clicks", "shardId-1")
ARN = "arn:consumer:1"
NONE_REGISTERED = ConsumersChanged({"clicks": ARN}, ())
AT_HORIZON = IteratorStart("TRIM_HORIZON")
PATIENT = 120.0


class FakeAgent(AgentProcess):
    """An agent whose messages the test writes, and whose orders it reads.

    Attributes:
        peer: the agent's end of the link.
        ended: how long the client was ready to wait for the agent's end (seconds); None before it asked.
    """

    def __init__(self, setup: AgentSetup) -> None:
        self.pid = 4711
        ours, theirs = socket.socketpair()
        self.setup = setup
        self.channel = Channel(ours)
        self.peer = Channel(theirs)
        self.peer.set_timeout(PATIENT)
        self.stops = 0
        self.is_closed = False
        self.ended: float | None = None

    def tell_stop(self) -> bool:
        self.stops += 1
        return True

    def close(self) -> None:
        self.is_closed = True
        self.channel.close()

    def end(self, patience: float) -> int:
        self.close()
        self.ended = patience
        return -9

    def received(self) -> ToAgent:
        """The next message that is no question."""
        while (frame := self.peer.receive()).tobytes() == b"?":
            pass
        return decode_to_agent(frame)

    def send(self, *messages: FromAgent) -> None:
        for message in messages:
            self.peer.send(encode(message))

    def answer(self) -> None:
        """A message without content: the agent is alive."""
        self.peer.send(b"!")

    def die(self) -> None:
        self.peer.close()


class Planning:
    """A client, the agents that it has started, and its clock."""

    def __init__(self, **options: str) -> None:
        self.now = 100.0
        self.agents: list[FakeAgent] = []
        self.renewed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.new_arn = ARN
        self.deregistered: list[str] = []
        self.launch_error: OSError | None = None
        given = {"streamName": "clicks", "region": "us-east-1", "consumerName": "app", **options}
        config = source_config_from_options(given, streaming=True)
        self.consumers = QueryConsumers(config)
        self.consumers._registrar = self  # type: ignore[assignment]
        self.consumers.arns = {"clicks": ARN}
        self.client = AgentClient(
            AgentSetup.beside_driver(config),
            self.consumers,
            launch=self._launch,
            clock=lambda: self.now,
        )

    def _launch(self, setup: AgentSetup) -> FakeAgent:
        if self.launch_error is not None:
            raise self.launch_error
        self.agents.append(FakeAgent(setup))
        return self.agents[-1]

    def ensure(self, stream: str) -> str:
        """Replaces the registrar."""
        self.renewed.put(stream)
        return self.new_arn

    def deregister(self, arn: str) -> None:
        self.deregistered.append(arn)

    def own(self, *arns: str) -> None:
        """The query has registered these, one for each stream."""
        self.consumers.own = {f"stream {number}": arn for number, arn in enumerate(arns)}
        self.consumers.on_change()

    @property
    def agent(self) -> FakeAgent:
        return self.agents[-1]

    def started(self, consumers: ConsumersChanged = NONE_REGISTERED) -> FakeAgent:
        self.client.start()
        assert self.agent.received() == consumers
        return self.agent

    def listening(self, consumers: ConsumersChanged = NONE_REGISTERED) -> FakeAgent:
        """An agent that has said where it listens."""
        agent = self.started(consumers)
        agent.send(Listening(Server("127.0.0.1", 1, b"start")))
        self.until(lambda: self.client.hub)
        return agent

    def pass_time(self, seconds: int) -> None:
        """As many seconds pass; the test plays the client's own thread, which asks in each second."""
        supervised = self.client._supervisor._agent
        for _ in range(seconds):
            self.now += 1.0
            if supervised is not None:
                supervised.link.ask()
                self.client.check()

    def subscribed(self, position: Position = HORIZON) -> int:
        """Has one shard subscribed to. Returns the generation of the subscription."""
        self.client.follow({SPLIT: position})
        received = self.agent.received()
        assert isinstance(received, Subscribe)
        return received.generation

    def until(self, condition: Callable[[], Any]) -> Any:
        """Waits for what the client's own thread does."""
        end = time.monotonic() + PATIENT
        while not (value := condition()):
            assert time.monotonic() < end
            time.sleep(0.001)
        return value


def event(
    generation: int, *cut_points: CutPoint, first: str | None = None, behind: int = 0, ended: bool = False
) -> EventReceived:
    progress = SubscriptionProgress(cut_points, behind, ended, 7 if behind == 0 else None)
    return EventReceived(SPLIT, generation, first, progress, Server("10.0.0.7", 4000, b"start"))


def cut_point(number: int, count: int = 1) -> CutPoint:
    return CutPoint(str(number), number * 10, count * 100, count, number * 10 - 5)


@contextmanager
def plannings() -> Iterator[Callable[..., Planning]]:
    """Gives `Planning`; what it makes is closed at the end."""
    made: list[Planning] = []

    def make(**options: str) -> Planning:
        made.append(Planning(**options))
        return made[-1]

    yield make
    for planning in made:
        planning.client.close()
        for agent in planning.agents:
            agent.peer.close()
            agent.channel.close()
