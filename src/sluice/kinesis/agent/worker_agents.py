"""Assigns shards to the agents on worker hosts.

This runs in the agent beside the driver, which has no subscriptions itself then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sluice.channels.channel import Channel
from sluice.kinesis.agent.shard_loads import BalanceWatch, ShardLoads, plan_moves
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

_JOIN_INTERVAL: Final = 3.0
"""Seconds after the last agent that joined until shards are dealt out: hosts start theirs one after the
other, and each shard that moves is polled for a moment."""
_LONGEST_WAIT: Final = 10.0
"""Seconds from the first agent that joins until shards are dealt out at the latest."""
_MOVABLE_AFTER: Final = 6.0
"""Seconds from a subscription until its shard may move. The service refuses a second one within 5 s."""
# The load of a shard without records, as bytes of records a second. An agent takes 5 s of CPU for a GB of
# them.
_IDLE_PUSHED: Final = 64 * 1024
"""If it is pushed: an empty event every 5 s takes 0.2 ms of CPU a second."""
_IDLE_POLLED: Final = 1024 * 1024
"""If it is polled, which takes some ms of CPU a second."""
_TOTALS_AGE: Final = 1.0
"""Seconds after which the loads of agents are added up anew, and not before: thousands of subscriptions may
come at once."""
_NAMED: Final = 8
"""Shards that a line of the log names, at most."""


@dataclass(eq=False)
class _WorkerAgent:
    """An agent that has joined, and the subscriptions it was asked for.

    Attributes:
        is_silent: it has said nothing for 5 s, and gets no shards.
    """

    host: str
    link: Link
    subscriptions: dict[SplitId, Subscribe] = field(default_factory=dict)
    is_silent: bool = False

    def send(self, message: ToAgent) -> None:
        self.link.send(encode(message))


class WorkerAgents:
    """Gives each shard to one agent: the one with the smallest load when the planner first subscribes to it.

    Shards are dealt out when no other agent has joined for 3 s, and after 10 s at the latest. Shards also
    move to agents that join later, after the same wait, but none that was subscribed to in the last 6 s: the
    service would refuse the next subscription, and the shard would be polled all the longer.

    The load of an agent is how many shards it has and how many bytes a second they bring, as far as that is
    known. When loads have differed much for a minute, a few shards move.

    When an agent is gone or has said nothing for 5 s, or shards move from it, the planner is told that the
    subscriptions to those shards have ended. It then subscribes to them again, from where batches are. An
    agent that speaks again gets shards as one that has just joined. One that leaves 30 questions in a row
    unanswered is given up: its link is closed.

    Args:
        report: sends a message to the planner. Called from many threads; does not block.
        clock: monotonic seconds.
        is_polling: agents poll their shards.
    """

    def __init__(
        self,
        report: Callable[[FromAgent], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        is_polling: bool = False,
    ) -> None:
        self._report = report
        self._clock = clock
        self._agents: dict[str, _WorkerAgent] = {}
        self._unassigned: dict[SplitId, Subscribe] = {}
        self._subscribed_at: dict[SplitId, float] = {}
        self._loads = ShardLoads(_IDLE_POLLED if is_polling else _IDLE_PUSHED, clock)
        self._totals: dict[str, float] | None = None  # the load of each host
        self._totals_at = 0.0  # when it was added up
        self._balance = BalanceWatch(clock)
        # The host that gets a shard when the planner subscribes to it again.
        self._moving: dict[SplitId, str] = {}
        self._waits_since: float | None = None  # since when it waits for others to join
        self._deal_at = 0.0
        self._consumers: ConsumersChanged | None = None
        self._lock = threading.Lock()

    def use_consumers(self, consumers: ConsumersChanged) -> None:
        """Passes consumers on to all agents, also to those that join later. These agents deregister none."""
        with self._lock:
            self._consumers = ConsumersChanged(consumers.arns, ())
            for agent in self._agents.values():
                agent.send(self._consumers)

    def subscribe(self, request: Subscribe) -> None:
        """Makes an agent subscribe to a shard, in place of an earlier subscription to it.

        Until agents have joined, and no more of them are waited for, the shard stays unassigned.
        """
        with self._lock:
            if self._waits_since is None or any(agent.subscriptions for agent in self._agents.values()):
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
            self._moving.pop(split, None)
            self._loads.forget(split)
            self._totals = None
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
            self._wait_for_others()
            hosts = self._hosts()
        _log.info(
            "the agent on %s has joined as one of %d; it gets its share of the shards when no other "
            "one has joined for %g s",
            request.host,
            len(hosts.hosts),
            _JOIN_INTERVAL,
        )
        if (seen := channel.remote_host) not in (None, request.host):
            _log.warning(
                "the agent on %s is seen as %s from here, so addresses are translated on the way; "
                "tasks on hosts that can't reach it poll its shards",
                request.host,
                seen,
            )
        self._report(hosts)
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
                self._stop_moving_to(request.host)
                orphans = list(agent.subscriptions.values())
                hosts = self._hosts()
            _log.info(
                "the agent on %s is gone; its %d shards go to the %d others, or else are polled: %s",
                request.host,
                len(orphans),
                len(hosts.hosts),
                _named(orphans),
            )
            self._report(hosts)
            self._report_ended(orphans, f"the agent on {request.host} is gone")

    def close(self) -> None:
        """Closes the links to all agents, which end then."""
        with self._lock:
            for agent in self._agents.values():
                agent.link.close()

    def check(self, host: str) -> None:
        """Notices that an agent has fallen silent, or speaks again, and deals out shards when it is time.

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
        self._report_ended(moved, "the shard moves to another agent, which has less to do")

    def _hosts(self) -> WorkerHosts:
        silent = tuple(host for host, agent in self._agents.items() if agent.is_silent)
        return WorkerHosts(tuple(self._agents), silent)

    def _wait_for_others(self) -> None:
        """Puts off for a moment that an agent gets shards: others may follow it."""
        now = self._clock()
        if self._waits_since is None or len(self._agents) == 1:
            self._waits_since = now
        self._deal_at = min(now + _JOIN_INTERVAL, self._waits_since + _LONGEST_WAIT)

    def _deal(self) -> list[Subscribe]:
        """If it is time, deals out unassigned shards, and takes from agents what exceeds their share.

        Returns:
            The shards that agents have lost. When the planner subscribes to them again, other agents get
            them.
        """
        now = self._clock()
        speaking = [agent for agent in self._agents.values() if not agent.is_silent]
        if not speaking:
            return []

        def may_move(split: SplitId) -> bool:
            return now - self._subscribed_at.get(split, now) >= _MOVABLE_AFTER

        if self._waits_since is None:
            return self._move(self._balance.plan(lambda: self._shares(speaking), may_move))
        if now < self._deal_at:
            return []
        self._waits_since = None
        self._balance.reset()
        unassigned, self._unassigned = self._unassigned, {}
        for request in unassigned.values():
            self._assign(request)
        moved = self._move(plan_moves(self._shares(speaking), may_move=may_move))
        if plan_moves(self._shares(speaking), most=1):
            self._waits_since = now  # the rest moves when it may
        return moved

    def _shares(self, agents: Sequence[_WorkerAgent]) -> dict[str, dict[SplitId, float]]:
        """The shards that agents have, and those that are moving to them."""
        shares = {
            agent.host: {split: self._loads[split] for split in agent.subscriptions} for agent in agents
        }
        for split, host in self._moving.items():
            if host in shares:
                shares[host][split] = self._loads[split]
        return shares

    def _move(self, moves: Mapping[SplitId, str]) -> list[Subscribe]:
        """Takes shards from agents."""
        moved = []
        for agent in self._agents.values():
            for split in [split for split in agent.subscriptions if split in moves]:
                moved.append(agent.subscriptions.pop(split))
                agent.send(Unsubscribe(split))
                self._moving[split] = moves[split]
        if moved:
            self._totals = None
            _log.info(
                "%d shards move, so that agents have about the same load; each is polled for a moment: %s",
                len(moved),
                _named(moved),
            )
        return moved

    def _stop_moving_to(self, host: str) -> None:
        """The host's agent is gone or silent: shards that were moving to it go to another agent."""
        self._moving = {split: to for split, to in self._moving.items() if to != host}
        self._totals = None

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
                self._totals = None
            else:
                self._loads.record(message.split, sum(point.size for point in message.progress.cut_points))
        self._report(message)

    def _assign(self, request: Subscribe) -> None:
        split = request.split
        speaking = [agent for agent in self._agents.values() if not agent.is_silent]
        if not speaking:
            self._unassigned[split] = request
            return
        owner = next((agent for agent in speaking if split in agent.subscriptions), None)
        if owner is None:
            owner = self._find_owner(split, speaking)
        owner.subscriptions[split] = request
        self._subscribed_at[split] = self._clock()
        owner.send(request)

    def _find_owner(self, split: SplitId, speaking: Sequence[_WorkerAgent]) -> _WorkerAgent:
        """The agent that a shard moves to, or else the one with the smallest load."""
        now = self._clock()
        if self._totals is None or now - self._totals_at >= _TOTALS_AGE:
            shares = self._shares(speaking)
            self._totals = {host: sum(shards.values()) for host, shards in shares.items()}
            self._totals_at = now
        totals = self._totals
        if (host := self._moving.pop(split, None)) is not None:
            return self._agents[host]
        owner = min(speaking, key=lambda agent: (totals.get(agent.host, 0.0), agent.host))
        totals[owner.host] = totals.get(owner.host, 0.0) + self._loads[split]
        return owner

    def _take_all(self, agent: _WorkerAgent) -> list[Subscribe]:
        """Takes all shards from an agent. It learns of that when it reads its messages again."""
        self._stop_moving_to(agent.host)
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
