"""Assigns shards to the agents on worker hosts.

This runs in the agent beside the driver, which has no subscriptions itself then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.channels.channel import Channel
from sluice.kinesis.fanout.link import GIVEN_UP_AFTER, SILENT_AFTER, Link
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
    """An agent that has joined, and the subscriptions it was asked for.

    Attributes:
        is_silent: it says nothing, and so it gets no shards.
    """

    host: str
    link: Link
    subscriptions: dict[SplitId, Subscribe] = field(default_factory=dict)
    is_silent: bool = False

    def send(self, message: ToAgent) -> None:
        self.link.send(encode(message))


class WorkerAgents:
    """Gives each shard to one agent: the one that has the fewest when the planner subscribes to it.

    When an agent is gone or has said nothing for 5 s, or another one joins and takes over part of the shards,
    the planner is told that the subscriptions to those shards have ended. It then subscribes to them again,
    from where batches are. An agent that speaks again gets shards as one that has just joined. One that
    leaves 30 questions in a row unanswered is given up: its link is closed.

    Args:
        report: sends a message to the planner. Called from many threads; does not block.
        clock: monotonic seconds.
    """

    def __init__(
        self, report: Callable[[FromAgent], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._report = report
        self._clock = clock
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
        agent = _WorkerAgent(request.host, Link(channel, self._clock))
        with self._lock:
            if request.host in self._agents:
                return
            self._agents[request.host] = agent
            if self._consumers is not None:
                agent.send(self._consumers)
            moved = self._give_share(agent)
            hosts = WorkerHosts(tuple(self._agents))
        _log.info(
            "the agent on %s has joined as one of %d; %d shards move to it from others",
            request.host,
            len(hosts.hosts),
            len(moved),
        )
        if (seen := channel.remote_host) not in (None, request.host):
            _log.warning(
                "the agent on %s is seen as %s from here, so addresses are translated on the way; "
                "tasks on hosts that can't reach it poll its shards",
                request.host,
                seen,
            )
        self._report(hosts)
        self._report_ended(moved, f"the shard moves to the agent on {request.host}")
        agent.link.start(lambda: self.check(request.host))
        try:
            while True:
                self._handle_message(agent, decode_from_agent(agent.link.receive()))
        except (EOFError, OSError):
            pass
        finally:
            agent.link.close()
            with self._lock:
                del self._agents[request.host]
                orphans = list(agent.subscriptions.values())
                hosts = WorkerHosts(tuple(self._agents))
            _log.info(
                "the agent on %s is gone; its %d shards go to the %d others, or else are polled",
                request.host,
                len(orphans),
                len(hosts.hosts),
            )
            self._report(hosts)
            self._report_ended(orphans, f"the agent on {request.host} is gone")

    def close(self) -> None:
        """Closes the links to all agents, which end then."""
        with self._lock:
            for agent in self._agents.values():
                agent.link.close()

    def check(self, host: str) -> None:
        """Notices that an agent has fallen silent, or speaks again. Called once a second by its link."""
        with self._lock:
            agent = self._agents.get(host)
            if agent is None:
                return
            silence = agent.link.silence
            was_silent, agent.is_silent = agent.is_silent, silence >= SILENT_AFTER
            if agent.link.unanswered >= GIVEN_UP_AFTER:
                _log.warning("giving up the agent on %s, which does not answer", host)
                agent.link.close()
            if agent.is_silent == was_silent:
                return
            moved = self._take_all(agent) if agent.is_silent else self._give_share(agent)
        if agent.is_silent:
            _log.warning(
                "the agent on %s has said nothing for %.0f s; until it speaks again its %d shards go "
                "to others, or else are polled",
                host,
                silence,
                len(moved),
            )
            self._report_ended(moved, f"the agent on {host} has said nothing for {silence:.0f} s")
        else:
            _log.info("the agent on %s speaks again; %d shards move to it", host, len(moved))
            self._report_ended(moved, f"the shard moves to the agent on {host}")

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
        speaking = [agent for agent in self._agents.values() if not agent.is_silent]
        if not speaking:
            self._unassigned[request.split] = request
            return
        owner = min(speaking, key=lambda agent: (len(agent.subscriptions), agent.host))
        owner.subscriptions[request.split] = request
        owner.send(request)

    def _give_share(self, newcomer: _WorkerAgent) -> list[Subscribe]:
        """Takes from the other agents what they have beyond an equal share, and deals out what nobody has.

        Returns:
            What the others have lost; the planner's next subscriptions to it go to the newcomer.
        """
        speaking = [agent for agent in self._agents.values() if not agent.is_silent]
        share = -(-sum(len(agent.subscriptions) for agent in speaking) // len(speaking))
        moved = []
        for agent in speaking:
            while agent is not newcomer and len(agent.subscriptions) > share:
                split, request = agent.subscriptions.popitem()
                agent.send(Unsubscribe(split))
                moved.append(request)
        unassigned, self._unassigned = self._unassigned, {}
        for request in unassigned.values():
            self._assign(request)
        return moved

    def _take_all(self, agent: _WorkerAgent) -> list[Subscribe]:
        """Takes all shards from an agent. It learns of that when it reads its messages again."""
        moved = list(agent.subscriptions.values())
        for split in agent.subscriptions:
            agent.send(Unsubscribe(split))
        agent.subscriptions.clear()
        return moved

    def _report_ended(self, requests: list[Subscribe], reason: str) -> None:
        for request in requests:
            self._report(SubscriptionEnded(request.split, request.generation, reason))

    def _send_to_owner(self, split: SplitId, message: ToAgent) -> None:
        for agent in self._agents.values():
            if split in agent.subscriptions:
                agent.send(message)
