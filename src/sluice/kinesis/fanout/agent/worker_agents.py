"""Assigns shards to the agents on worker hosts.

This runs in the agent beside the driver, which has no subscriptions itself then.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

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
    decode_from_agent,
    encode,
)
from sluice.source.splits import SplitId

__all__ = ["WorkerAgents"]

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _WorkerAgent:
    """An agent that has joined, and the subscriptions it was asked for."""

    host: str
    channel: Channel
    subscriptions: dict[SplitId, Subscribe] = field(default_factory=dict)

    def send(self, message: ToAgent) -> None:
        with contextlib.suppress(OSError):  # it is gone, which the thread that receives from it notices
            self.channel.send(encode(message))


class WorkerAgents:
    """Gives each shard to one agent: the one that has the fewest when the planner subscribes to it.

    When an agent is gone, or another one joins and takes over part of the shards, the planner is told that
    the subscriptions to those shards have ended. It then subscribes to them again, from where batches are.

    Args:
        report: sends a message to the planner. Called from many threads.
    """

    def __init__(self, report: Callable[[FromAgent], None]) -> None:
        self._report = report
        self._agents: dict[str, _WorkerAgent] = {}
        self._unassigned: dict[SplitId, Subscribe] = {}
        self._consumers: ConsumersChanged | None = None
        self._contested: set[str] = set()
        self._lock = threading.Lock()

    @property
    def contested(self) -> frozenset[str]:
        """Streams with whose consumer another reader has subscribed as well."""
        return frozenset(self._contested)

    def use_consumers(self, consumers: ConsumersChanged) -> None:
        """Passes consumers on to all agents, also to those that join later. These agents deregister none."""
        with self._lock:
            self._consumers = ConsumersChanged(consumers.arns, ())
            for agent in self._agents.values():
                agent.send(self._consumers)

    def subscribe(self, request: Subscribe) -> None:
        """Has an agent subscribe to a shard, in place of an earlier subscription to it.

        While no agent has joined the shard is left unassigned; the first one that joins gets it.
        """
        with self._lock:
            self._assign(request)

    def acknowledge(self, split: SplitId, number: int) -> None:
        """Has the shard's agent drop buffered records up to the sequence number `number`."""
        with self._lock:
            self._send_to_owner(split, Acknowledge(split, str(number)))

    def unsubscribe(self, split: SplitId) -> None:
        """Has the shard's agent end its subscription."""
        with self._lock:
            self._send_to_owner(split, Unsubscribe(split))
            self._unassigned.pop(split, None)
            for agent in self._agents.values():
                agent.subscriptions.pop(split, None)

    def join(self, channel: Channel, request: JoinHub) -> None:
        """Takes in an agent, and returns when it is gone; at once where its host has one already."""
        agent = _WorkerAgent(request.host, channel)
        with self._lock:
            if request.host in self._agents:
                return
            self._agents[request.host] = agent
            if self._consumers is not None:
                agent.send(self._consumers)
            moved = self._rebalance(agent)
            unassigned, self._unassigned = self._unassigned, {}
            for subscription in unassigned.values():
                self._assign(subscription)
            hosts = WorkerHosts(tuple(self._agents))
        _log.info(
            "the fan-out agent on %s has joined as one of %d; %d shards move to it from others",
            request.host,
            len(hosts.hosts),
            len(moved),
        )
        self._report(hosts)
        self._report_ended(moved, f"the shard moves to the fan-out agent on {request.host}")
        try:
            while True:
                self._handle_message(agent, decode_from_agent(channel.receive()))
        except (EOFError, OSError):
            pass
        finally:
            with self._lock:
                del self._agents[request.host]
                orphans = list(agent.subscriptions.values())
                hosts = WorkerHosts(tuple(self._agents))
            _log.info(
                "the fan-out agent on %s is gone; its %d shards go to the %d others, or else are polled",
                request.host,
                len(orphans),
                len(hosts.hosts),
            )
            self._report(hosts)
            self._report_ended(orphans, f"the fan-out agent on {request.host} is gone")

    def close(self) -> None:
        """Closes the links to all agents, which end then."""
        with self._lock:
            for agent in self._agents.values():
                agent.channel.close()

    def _handle_message(self, agent: _WorkerAgent, message: FromAgent) -> None:
        if not isinstance(message, EventReceived | SubscriptionEnded):
            return
        with self._lock:
            request = agent.subscriptions.get(message.split)
            if request is None or request.generation != message.generation:
                return
            if isinstance(message, SubscriptionEnded):
                del agent.subscriptions[message.split]
                if message.code == TAKEN_OVER:
                    self._contested.add(message.split.stream)
        self._report(message)

    def _assign(self, request: Subscribe) -> None:
        for agent in self._agents.values():
            if agent.subscriptions.pop(request.split, None) is not None:
                agent.send(Unsubscribe(request.split))
        if not self._agents:
            self._unassigned[request.split] = request
            return
        owner = min(self._agents.values(), key=lambda agent: (len(agent.subscriptions), agent.host))
        owner.subscriptions[request.split] = request
        owner.send(request)

    def _rebalance(self, newcomer: _WorkerAgent) -> list[Subscribe]:
        """Takes from the other agents what they have beyond an equal share."""
        total = sum(len(agent.subscriptions) for agent in self._agents.values())
        share = -(-total // len(self._agents))
        moved = []
        for agent in self._agents.values():
            while agent is not newcomer and len(agent.subscriptions) > share:
                split, request = agent.subscriptions.popitem()
                agent.send(Unsubscribe(split))
                moved.append(request)
        return moved

    def _report_ended(self, requests: list[Subscribe], reason: str) -> None:
        for request in requests:
            self._report(SubscriptionEnded(request.split, request.generation, reason))

    def _send_to_owner(self, split: SplitId, message: ToAgent) -> None:
        for agent in self._agents.values():
            if split in agent.subscriptions:
                agent.send(message)
