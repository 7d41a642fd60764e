"""What the server does for tasks that learn their paces themselves (`aimdScope=query`): it compares them.

A task says a few times a second at which pace the destination lets it send, and is told the mean of all. The
server decides nothing and nobody waits for it. No sockets, no clock: every method is told the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from sluice.query_server.protocol import Advice, Paced, Ping, Pong, ToServer
from sluice.query_server.service import Outgoing, Use

__all__ = ["KNOWN_FOR", "PaceService"]

KNOWN_FOR: Final = 1.5
"""Seconds for which a pace counts. A task that stands still, or has no rows left, says nothing any more."""


@dataclass(slots=True)
class _Query:
    """The paces of the tasks of one query, by connection: those that count, the oldest first."""

    paces: dict[int, float] = field(default_factory=dict)
    times: dict[int, float] = field(default_factory=dict)

    def say(self, connection: int, pace: float, now: float) -> None:
        self.forget(connection)
        if 0.0 < pace < math.inf:
            self.paces[connection], self.times[connection] = pace, now

    def forget(self, connection: int) -> None:
        self.paces.pop(connection, None)
        self.times.pop(connection, None)

    def advice(self, now: float) -> Advice:
        while self.times and now - (oldest := next(iter(self.times.items())))[1] >= KNOWN_FOR:
            self.forget(oldest[0])
        count = len(self.paces)
        return Advice(count, sum(self.paces.values()) / count if count else 0.0)


class PaceService:
    """The paces of the tasks of all queries that one server serves.

    Args:
        now: the time, in monotonic seconds.
    """

    def __init__(self, now: float) -> None:
        self._queries: dict[str, _Query] = {}
        self._places: dict[int, str] = {}  # connection to query
        self._use = Use(now)

    def handle(self, connection: int, message: ToServer, now: float) -> list[Outgoing]:
        """Handles the message of a connection. Returns the answer."""
        self._use.heard(now)
        match message:
            case Ping():
                return [(connection, Pong())]
            case Paced(name, pace):
                self.lost(connection, now)
                self._places[connection] = name
                query = self._queries.setdefault(name, _Query())
                query.say(connection, pace, now)
                return [(connection, query.advice(now))]
        return []

    def lost(self, connection: int, now: float) -> None:
        """A connection has ended."""
        del now
        name = self._places.pop(connection, "")
        if (query := self._queries.get(name)) is not None:
            query.forget(connection)
            if not query.paces:
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
        return bool(self._places)

    def is_idle(self, now: float) -> bool:
        """Whether the server may end: nobody has needed it for `IDLE_TIME`."""
        return self._use.is_over(now)
