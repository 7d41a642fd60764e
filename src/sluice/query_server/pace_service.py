"""What the server does for tasks that learn their paces themselves (`aimdScope=query`): it compares them.

A task reports a few times a second at which rate the destination lets it send, and is told the mean of all.
The server decides nothing and nobody waits for it. No sockets, no clock: every method is told the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from sluice.query_server.protocol import MeanRate, Ping, Pong, ReportRate, ToServer
from sluice.query_server.service import IdleTracker, Outgoing

__all__ = ["KNOWN_FOR", "PaceService"]

KNOWN_FOR: Final = 1.5
"""Seconds for which a rate counts. A task that stands still, or has no rows left, reports none any more."""


@dataclass(slots=True)
class _Query:
    """The rates that the tasks of one query have reported, by connection: those that count, oldest first."""

    rates: dict[int, float] = field(default_factory=dict)
    times: dict[int, float] = field(default_factory=dict)

    def record(self, connection: int, rate: float, now: float) -> None:
        self.forget(connection)
        if 0.0 < rate < math.inf:
            self.rates[connection], self.times[connection] = rate, now

    def forget(self, connection: int) -> None:
        self.rates.pop(connection, None)
        self.times.pop(connection, None)

    def mean(self, now: float) -> MeanRate:
        while self.times and now - (oldest := next(iter(self.times.items())))[1] >= KNOWN_FOR:
            self.forget(oldest[0])
        count = len(self.rates)
        return MeanRate(count, sum(self.rates.values()) / count if count else 0.0)


class PaceService:
    """The paces of the tasks of all queries that one server serves.

    Args:
        now: the time, in monotonic seconds.
    """

    def __init__(self, now: float) -> None:
        self._queries: dict[str, _Query] = {}
        self._queries_by_connection: dict[int, str] = {}
        self._idle = IdleTracker(now)

    def handle(self, connection: int, message: ToServer, now: float) -> list[Outgoing]:
        """Handles the message of a connection. Returns the answer."""
        self._idle.record_use(now)
        match message:
            case Ping():
                return [(connection, Pong())]
            case ReportRate(name, rate):
                self.lost(connection, now)
                self._queries_by_connection[connection] = name
                query = self._queries.setdefault(name, _Query())
                query.record(connection, rate, now)
                return [(connection, query.mean(now))]
        return []

    def lost(self, connection: int, now: float) -> None:
        """A connection has ended."""
        del now
        name = self._queries_by_connection.pop(connection, "")
        if (query := self._queries.get(name)) is not None:
            query.forget(connection)
            if not query.rates:
                del self._queries[name]

    def due(self, now: float) -> list[Outgoing]:
        """Nothing: tasks are told when they ask."""
        del now
        return []

    def wait(self) -> float:
        """For ever; see `due`."""
        return math.inf

    @property
    def has_tasks(self) -> bool:
        """Whether tasks are connected that have said something."""
        return bool(self._queries_by_connection)

    def is_idle(self, now: float) -> bool:
        """Whether the server may end: nobody has needed it for `IDLE_TIME`."""
        return self._idle.is_expired(now)
