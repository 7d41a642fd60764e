"""Assigns shards to the agents on worker hosts. It runs in the agent on the driver host, which then has no
subscriptions itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sluice.channels.channel import Channel
from sluice.kinesis.shared.link import GIVEN_UP_AFTER, SILENT_AFTER, Link
from sluice.kinesis.shared.protocol import (
    Acknowledge,
    BufferHeld,
    CallsCounted,
    ConsumersChanged,
    EventReceived,
    FromAgent,
    JoinHub,
    RangesAsked,
    Subscribe,
    SubscriptionEnded,
    ToAgent,
    Unsubscribe,
    WorkerHosts,
    decode_from_agent,
    encode,
)
from sluice.source.model.splits import SplitId

__all__ = ["WorkerAgents"]

_log = logging.getLogger(__name__)

_JOIN_WAIT: Final = 5.0
"""Seconds from the time an agent joins until shards are assigned: hosts start their agents one after the
other, and each shard that moves is polled for a moment.
"""
_MOVABLE_AFTER: Final = 6.0
"""Seconds from a subscription until its shard may move. The service refuses a second one within 5 s."""
_NAMED: Final = 8
"""The most shards that one log line names."""


@dataclass(eq=False)
class _WorkerAgent:
    """An agent that has joined, and its requested subscriptions.

    Attributes:
        is_silent: it has sent nothing for 5 s, and gets no shards.
    """

    host: str
    link: Link
    subscriptions: dict[SplitId, Subscribe] = field(default_factory=dict)
    is_silent: bool = False

    def send(self, message: ToAgent) -> None:
        self.link.send(encode(message))


class WorkerAgents:
    """Gives each shard to one agent: the one with the fewest shards when the planner subscribes to it.

    The first shards are assigned 5 s after the first agent has joined. After the same wait, shards also move
    to agents that join later, as few as make the numbers equal. A shard with a subscription of the last 6 s
    does not move: the service would refuse the next subscription, and the shard would be polled for longer.

    When an agent is gone or silent for 5 s, or shards move from it, the planner learns that the subscriptions
    to those shards have ended. It then subscribes to them again, from where batches are. If the agent answers
    again, it gets shards like a new one. If it leaves 30 questions in a row unanswered, its link is closed.

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
        self._subscribed_at: dict[SplitId, float] = {}
        self._deal_at: float | None = None  # None if shards are dealt out
        self._consumers: ConsumersChanged | None = None
        self._lock = threading.Lock()

    def use_consumers(self, consumers: ConsumersChanged) -> None:
        """Passes consumers on to all agents, including later ones. These agents deregister none."""
        with self._lock:
            self._consumers = ConsumersChanged(consumers.arns, ())
            for agent in self._agents.values():
                agent.send(self._consumers)

    def subscribe(self, request: Subscribe) -> None:
        """Makes an agent subscribe to a shard, in place of an earlier subscription to it.

        Until agents have joined, and the wait for more of them is over, the shard stays unassigned.
        """
        with self._lock:
            if self._deal_at is None or any(agent.subscriptions for agent in self._agents.values()):
                self._assign(request)
            else:
                self._unassigned[request.split] = request

    def acknowledge(self, split: SplitId, number: int) -> None:
        """Has the shard's agent drop buffered records up to the sequence number `number`."""
        with self._lock:
            self._send_to_owner(split, Acknowledge(split, str(number)))

    def unsubscribe(self, split: SplitId) -> None:
        """Has the shard's agent end its subscription."""
        with self._lock:
            self._send_to_owner(split, Unsubscribe(split))
            self._unassigned.pop(split, None)
            self._subscribed_at.pop(split, None)
            for agent in self._agents.values():
                agent.subscriptions.pop(split, None)

    def join(self, channel: Channel, request: JoinHub) -> None:
        """Adds an agent, and returns when it is gone; at once if its host already has one."""
        host = request.server.host
        agent = _WorkerAgent(host, Link(channel, self._clock))
        with self._lock:
            if host in self._agents:
                return
            self._agents[host] = agent
            if self._consumers is not None:
                agent.send(self._consumers)
            self._wait_for_others()
            hosts = self._hosts()
        _log.info(
            "the agent on %s has joined as one of %d; it gets its share of the shards in %g s",
            host,
            len(hosts.hosts),
            _JOIN_WAIT,
        )
        if (seen := channel.remote_host) not in (None, host):
            _log.warning(
                "the agent on %s is seen as %s from here, so addresses are translated on the way; "
                "tasks on hosts that can't reach it poll its shards",
                host,
                seen,
            )
        self._report(hosts)
        agent.link.start(lambda: self.check(host))
        try:
            while True:
                self._handle_message(agent, decode_from_agent(agent.link.receive()))
        except (EOFError, OSError):
            pass
        finally:
            agent.link.close()
            with self._lock:
                del self._agents[host]
                orphans = list(agent.subscriptions.values())
                hosts = self._hosts()
            _log.info(
                "the agent on %s is gone; its %d shards go to the %d others, or else are polled: %s",
                host,
                len(orphans),
                len(hosts.hosts),
                _named(orphans),
            )
            self._report(hosts)
            self._report_ended(orphans, f"the agent on {host} is gone")

    def close(self) -> None:
        """Closes the links to all agents, which end then."""
        with self._lock:
            for agent in self._agents.values():
                agent.link.close()

    def check(self, host: str) -> None:
        """Notices that an agent has fallen silent, or answers again, and assigns shards when it is time.

        Called once a second by the link of each agent.
        """
        with self._lock:
            agent = self._agents.get(host)
            if agent is None:
                return
            silence = agent.link.silence
            was_silent, agent.is_silent = agent.is_silent, silence >= SILENT_AFTER
            if agent.link.unanswered >= GIVEN_UP_AFTER:
                _log.warning("giving up the agent on %s, which does not answer", host)
                agent.link.close()
            lost = self._take_all(agent) if agent.is_silent and not was_silent else []
            speaks_again = was_silent and not agent.is_silent
            if speaks_again:
                self._wait_for_others()
            moved = self._deal()
            hosts = self._hosts()
        if agent.is_silent != was_silent:
            self._report(hosts)
        if agent.is_silent and not was_silent:
            _log.warning(
                "the agent on %s has said nothing for %.0f s; until it speaks again its %d shards go "
                "to others, or else are polled: %s",
                host,
                silence,
                len(lost),
                _named(lost),
            )
            self._report_ended(lost, f"the agent on {host} has said nothing for {silence:.0f} s")
        if speaks_again:
            _log.info("the agent on %s speaks again; it gets its share of the shards", host)
        self._report_ended(moved, "the shard moves to another agent, which has fewer")

    def _hosts(self) -> WorkerHosts:
        silent = tuple(host for host, agent in self._agents.items() if agent.is_silent)
        return WorkerHosts(tuple(self._agents), silent)

    def _wait_for_others(self) -> None:
        """Delays the assignment for a moment, because more agents may join."""
        if self._deal_at is None:
            self._deal_at = self._clock() + _JOIN_WAIT

    def _deal(self) -> list[Subscribe]:
        """If it is time, assigns unassigned shards, and takes from agents the shards that exceed their share.

        Returns:
            The shards that agents have lost. When the planner subscribes to them again, others get them.
        """
        now = self._clock()
        agents = self._speaking()
        if self._deal_at is None or now < self._deal_at or not agents:
            return []
        self._deal_at = None
        unassigned, self._unassigned = self._unassigned, {}
        for request in unassigned.values():
            self._assign(request)
        share, rest = divmod(sum(len(agent.subscriptions) for agent in agents), len(agents))
        moved: list[Subscribe] = []
        for index, agent in enumerate(sorted(agents, key=lambda each: -len(each.subscriptions))):
            surplus = len(agent.subscriptions) - share - (index < rest)
            movable = [
                split for split in agent.subscriptions if now - self._subscribed_at[split] >= _MOVABLE_AFTER
            ]
            for split in movable[: max(0, surplus)]:
                moved.append(agent.subscriptions.pop(split))
                agent.send(Unsubscribe(split))
            if len(movable) < surplus:
                self._deal_at = now + _MOVABLE_AFTER  # the rest moves when it may
        if moved:
            _log.info(
                "%d shards move, so that agents have as many each; each is polled for a moment: %s",
                len(moved),
                _named(moved),
            )
        return moved

    def _speaking(self) -> list[_WorkerAgent]:
        return [agent for agent in self._agents.values() if not agent.is_silent]

    def _handle_message(self, agent: _WorkerAgent, message: FromAgent) -> None:
        if isinstance(message, BufferHeld | RangesAsked | CallsCounted):
            self._report(message)
        if not isinstance(message, EventReceived | SubscriptionEnded):
            return
        with self._lock:
            request = agent.subscriptions.get(message.split)
            if request is None or request.generation != message.generation:
                return
            if isinstance(message, SubscriptionEnded):
                del agent.subscriptions[message.split]
        self._report(message)

    def _assign(self, request: Subscribe) -> None:
        split, agents = request.split, self._speaking()
        if not agents:
            self._unassigned[split] = request
            return
        # A shard with a new subscription stays with its agent.
        owner = min(
            agents, key=lambda each: (split not in each.subscriptions, len(each.subscriptions), each.host)
        )
        owner.subscriptions[split] = request
        self._subscribed_at[split] = self._clock()
        owner.send(request)

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


def _named(requests: Sequence[Subscribe]) -> str:
    names = sorted(str(request.split) for request in requests)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (", ".join(names[:_NAMED]) or "none") + more
