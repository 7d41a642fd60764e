"""What the query server does with messages about tokens.

No sockets, no clock: every method is told the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from sluice.query_server.bucket import QueryBucket
from sluice.query_server.protocol import (
    AcquireTokens,
    FromServer,
    Granted,
    Join,
    Leave,
    Members,
    Ping,
    Pong,
    Queued,
    TokensUsed,
    ToServer,
    UsingFallbackShare,
)

__all__ = ["IDLE_TIME", "BucketService", "Outgoing"]

IDLE_TIME: Final = 120.0
"""Seconds after which a bucket that no task takes from is forgotten, and a server without buckets ends:
nobody tells it that a query has ended. In a query that pauses longer, the next batch starts a new server."""

_TELL_EVERY: Final = 0.5
"""Seconds between two messages to a task that waits. By them it knows that the server lives."""

Outgoing = tuple[int, FromServer]
"""A message, and the connection that it is for."""


@dataclass(slots=True)
class _Query:
    """The bucket of a query, and the connections of its tasks."""

    bucket: QueryBucket
    used_at: float
    connections: dict[str, int] = field(default_factory=dict)
    told: int = 0  # how many members the tasks know of
    told_at: float = -math.inf  # when those that wait were told how long


class BucketService:
    """The buckets of the queries that one server serves; all have the same settings.

    Args:
        rate, burst: of `QueryBucket`.
        now: the time, in monotonic seconds.
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._queries: dict[str, _Query] = {}
        self._members_by_connection: dict[int, tuple[str, str]] = {}  # query and task
        self._used_at = now

    def handle(self, connection: int, message: ToServer, now: float) -> list[Outgoing]:
        """Handles the message of a connection. Returns answers; more may come from `due`."""
        self._used_at = now
        match message:
            case Ping():
                return [(connection, Pong())]
            case Join():
                self._join(connection, message, now)
                return []
        if connection not in self._members_by_connection:
            return []  # another connection of the same task has come
        name, task = self._members_by_connection[connection]
        query = self._queries[name]
        query.used_at = now
        match message:
            case AcquireTokens(tokens, returned):
                query.bucket.ask(task, tokens, now, returned=returned)
                query.told_at = -math.inf
            case TokensUsed(tokens):
                query.bucket.sent(task, tokens, now)
            case Leave(returned):
                self._leave(connection, now, returned=returned)
            case UsingFallbackShare(share):
                self._leave(connection, now, share=share)
        return []

    def lost(self, connection: int, now: float) -> None:
        """A connection has ended. If the task has not said why, it is dead."""
        self._leave(connection, now)

    def due(self, now: float) -> list[Outgoing]:
        """What is to be sent now, without a message that it answers. To be called twice a second at least."""
        outgoing: list[Outgoing] = []
        for name, query in list(self._queries.items()):
            grants = query.bucket.grants(now)
            # First how many there are: what a task falls back to goes by that.
            if len(query.connections) != query.told:
                query.told = len(query.connections)
                told = Members(query.told)
                outgoing += [(connection, told) for connection in query.connections.values()]
            outgoing += [(query.connections[grant.task], Granted(grant.tokens)) for grant in grants]
            if now - query.told_at >= _TELL_EVERY:
                query.told_at = now
                waiting = query.bucket.queued()
                outgoing += [(query.connections[task], Queued(seconds)) for task, seconds in waiting]
            if query.connections:
                query.used_at = now
                self._used_at = now
            elif now - query.used_at >= IDLE_TIME:
                del self._queries[name]
        return outgoing

    def wait(self) -> float:
        """Seconds until `due` may have something, as it looks now."""
        return min((query.bucket.wait() for query in self._queries.values()), default=math.inf)

    @property
    def has_tasks(self) -> bool:
        """Whether tasks are connected."""
        return bool(self._members_by_connection)

    def is_idle(self, now: float) -> bool:
        """Whether the server may end: nobody has needed it for `IDLE_TIME`."""
        return not self._queries and now - self._used_at >= IDLE_TIME

    def _join(self, connection: int, message: Join, now: float) -> None:
        query = self._queries.get(message.query)
        if query is None:
            bucket = QueryBucket(self._rate, self._burst, now, full=message.starts_full)
            query = self._queries[message.query] = _Query(bucket, now)
        previous = query.connections.get(message.task)
        if previous is not None:  # the task has given it up before the server has noticed
            self._leave(previous, now)
        query.bucket.join(message.task, message.epoch, now)
        query.connections[message.task] = connection
        query.told = 0  # the new one has to be told in any case
        query.used_at = now
        self._members_by_connection[connection] = message.query, message.task

    def _leave(self, connection: int, now: float, *, returned: float = 0.0, share: float = 0.0) -> None:
        name, task = self._members_by_connection.pop(connection, ("", ""))
        query = self._queries.get(name)
        if query is not None:
            query.bucket.leave(task, now, returned=returned, share=share)
            del query.connections[task]
