"""Shards dealt out to agents on the worker hosts, by the one beside the driver that they have joined."""

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
    Consumers,
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
    host: str
    channel: Channel
    watches: dict[SplitId, Subscribe] = field(default_factory=dict)

    def send(self, message: ToAgent) -> None:
        with contextlib.suppress(OSError):  # whoever receives from it will notice
            self.channel.send(encode(message))


class WorkerAgents:
    """One owner for each shard: the agent that holds fewest when the shard is asked for.

    A shard whose agent is gone, or is to be moved to one that has just joined, is reported as gone; the
    planner asks for it anew, from where it is by then.

    Args:
        report: takes what the planner is to know.
    """

    def __init__(self, report: Callable[[FromAgent], None]) -> None:
        self._report = report
        self._members: dict[str, _WorkerAgent] = {}
        self._waiting: dict[SplitId, Subscribe] = {}
        self._consumers: Consumers | None = None
        self._contested: set[str] = set()
        self._lock = threading.Lock()

    @property
    def contested(self) -> frozenset[str]:
        """Streams whose consumer somebody else subscribed with as well."""
        return frozenset(self._contested)

    def use(self, consumers: Consumers) -> None:
        """Passes the consumers on, and keeps them for those who join later. They deregister none."""
        with self._lock:
            self._consumers = Consumers(consumers.arns, ())
            for member in self._members.values():
                member.send(self._consumers)

    def watch(self, watch: Subscribe) -> None:
        with self._lock:
            self._assign(watch)

    def trim(self, split: SplitId, number: int) -> None:
        self._to_owner(split, Acknowledge(split, str(number)))

    def unwatch(self, split: SplitId) -> None:
        self._to_owner(split, Unsubscribe(split))
        with self._lock:
            self._waiting.pop(split, None)
            for member in self._members.values():
                member.watches.pop(split, None)

    def join(self, channel: Channel, join: JoinHub) -> None:
        """Serves an agent that has joined, until it is gone. A second one of a host is turned away."""
        member = _WorkerAgent(join.host, channel)
        with self._lock:
            if join.host in self._members:
                return
            self._members[join.host] = member
            _log.info("an agent on %s has joined", join.host)
            if self._consumers is not None:
                member.send(self._consumers)
            moved = self._make_room(member)
            waiting, self._waiting = self._waiting, {}
            for watch in waiting.values():
                self._assign(watch)
            hosts = WorkerHosts(tuple(self._members))
        self._report(hosts)
        self._tell_gone(moved, "another agent takes it over")
        try:
            while True:
                self._hear(member, decode_from_agent(channel.receive()))
        except (EOFError, OSError):
            _log.info("the agent on %s is gone", join.host)
        finally:
            with self._lock:
                del self._members[join.host]
                orphans = list(member.watches.values())
                hosts = WorkerHosts(tuple(self._members))
            self._report(hosts)
            self._tell_gone(orphans, f"the agent on {join.host} is gone")

    def close(self) -> None:
        with self._lock:
            for member in self._members.values():
                member.channel.close()

    def _hear(self, member: _WorkerAgent, message: FromAgent) -> None:
        with self._lock:
            known = member.watches.get(getattr(message, "split", None))  # type: ignore[arg-type]
            if known is None or known.generation != getattr(message, "generation", None):
                return
            if isinstance(message, SubscriptionEnded):
                del member.watches[message.split]
                if message.code == TAKEN_OVER:
                    self._contested.add(message.split.stream)
        if isinstance(message, EventReceived | SubscriptionEnded):
            self._report(message)

    def _assign(self, watch: Subscribe) -> None:
        for member in self._members.values():
            if member.watches.pop(watch.split, None) is not None:
                member.send(Unsubscribe(watch.split))
        if not self._members:
            self._waiting[watch.split] = watch
            return
        owner = min(self._members.values(), key=lambda member: (len(member.watches), member.host))
        owner.watches[watch.split] = watch
        owner.send(watch)

    def _make_room(self, newcomer: _WorkerAgent) -> list[Subscribe]:
        """Takes from the others what is more than their share."""
        total = sum(len(member.watches) for member in self._members.values())
        share = -(-total // len(self._members))
        moved = []
        for member in self._members.values():
            while member is not newcomer and len(member.watches) > share:
                split, watch = member.watches.popitem()
                member.send(Unsubscribe(split))
                moved.append(watch)
        return moved

    def _tell_gone(self, watches: list[Subscribe], why: str) -> None:
        for watch in watches:
            self._report(SubscriptionEnded(watch.split, watch.generation, why))

    def _to_owner(self, split: SplitId, message: ToAgent) -> None:
        with self._lock:
            for member in self._members.values():
                if split in member.watches:
                    member.send(message)
