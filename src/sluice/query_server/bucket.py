"""What the query server grants its tasks. No clock, no IO: methods get the time in monotonic seconds.

In every span of time, the tasks of a bucket use at most ``rate * seconds + burst`` tokens, whichever of them
die, are late or lose their connection. So granted tokens count as tokens of the bucket until the task says
that it has used them, or cannot use them any more: together they are never more than `burst`. A task gives
back what it holds when it asks for more. If it dies or stands still, what it holds counts as used.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sluice.query_server.protocol import (
    AcquireTokens,
    FromServer,
    Granted,
    Join,
    Ping,
    Pong,
    Queued,
    TokensUsed,
    ToServer,
)

__all__ = ["HOLD_TIME", "LEASE_TIME", "BucketService", "Outgoing"]

HOLD_TIME: Final = 1.0
"""Seconds for which a task may use granted tokens."""
LEASE_TIME: Final = 5.0
"""Seconds after a grant at which unused tokens count as used. Longer than `HOLD_TIME` and a task's
`ANSWER_TIMEOUT` together: by then no task uses them."""
_FORGET_AFTER: Final = 120.0
"""Seconds without a task after which a full bucket is dropped. Nobody says that a query has ended."""
_REPORT_INTERVAL: Final = 0.5
"""Seconds between two messages to a task that waits. They show that the server is alive."""

Outgoing = tuple[int, FromServer]
"""A message, and the connection that it is for."""


@dataclass(slots=True)
class _Lease:
    """What a task holds, and when it was granted."""

    tokens: float
    granted_at: float


class _Bucket:
    """The tokens of one query. A task is identified by its connection."""

    def __init__(self, settings: Join, now: float) -> None:
        self._rate = settings.rate
        self._burst = settings.burst
        # Negative after a request for more than the burst.
        self._level = settings.burst if settings.starts_full else 0.0
        self._counted_at = self.used_at = now
        self._leases: dict[int, _Lease] = {}
        self._queue: deque[tuple[int, float]] = deque()  # who asks for how many, in order
        self.tasks: set[int] = set()
        self.reported_at = -math.inf  # when waiting tasks last got their waiting times

    def ask(self, task: int, tokens: float, now: float) -> None:
        self._advance(now)
        if (lease := self._leases.pop(task, None)) is not None:
            self._level += lease.tokens
        self._queue.append((task, tokens))
        self.reported_at = -math.inf

    def use(self, task: int, tokens: float, now: float) -> None:
        self._advance(now)
        if (lease := self._leases.get(task)) is not None:
            lease.tokens = max(0.0, lease.tokens - tokens)

    def leave(self, task: int, now: float) -> None:
        """Notes that a task has ended. It may still use what it holds, until its lease ends."""
        self.used_at = now
        self.tasks.remove(task)
        self._queue = deque(item for item in self._queue if item[0] != task)

    def grants(self, now: float) -> Iterator[tuple[int, float]]:
        """Grants what it can, in the order in which tasks asked."""
        self._advance(now)
        while self._queue and self.wait <= 0.0:
            task, tokens = self._queue.popleft()
            self._leases[task] = _Lease(tokens, now)
            self._level -= tokens
            yield task, tokens

    def waits(self) -> Iterator[tuple[int, float]]:
        """The tasks that wait, and an estimate of the seconds until they get their tokens."""
        missing = -self._level
        for task, tokens in self._queue:
            # A bucket that is full grants any number, and is in debt then.
            yield task, max(0.0, (missing + min(tokens, self._burst)) / self._rate)
            missing += tokens

    @property
    def wait(self) -> float:
        """Seconds until the next grant; infinity if no task asks."""
        if not self._queue:
            return math.inf
        return (min(self._queue[0][1], self._burst) - self._level) / self._rate

    @property
    def is_full(self) -> bool:
        return self._level >= self._burst

    def _advance(self, now: float) -> None:
        """Fills the bucket up to now, and ends leases."""
        room = self._burst - sum(lease.tokens for lease in self._leases.values())
        filled = min(room, self._level + max(0.0, now - self._counted_at) * self._rate)
        self._level = max(self._level, filled)
        self._counted_at = max(now, self._counted_at)
        ended = [task for task, lease in self._leases.items() if now - lease.granted_at >= LEASE_TIME]
        for task in ended:
            del self._leases[task]


class BucketService:
    """Handles the messages of all tasks that are connected to a server."""

    def __init__(self) -> None:
        self._buckets: dict[str, _Bucket] = {}
        self._joined: dict[int, _Bucket] = {}

    def handle(self, connection: int, message: ToServer, now: float) -> list[Outgoing]:
        """Handles the message of a connection. Returns answers; `due` may return more."""
        if isinstance(message, Ping):
            return [(connection, Pong())]
        if isinstance(message, Join):
            self.lost(connection, now)
            bucket = self._buckets.setdefault(message.bucket, _Bucket(message, now))
            bucket.tasks.add(connection)
            self._joined[connection] = bucket
        elif connection in self._joined:
            bucket = self._joined[connection]
            if isinstance(message, AcquireTokens):
                bucket.ask(connection, message.tokens, now)
            elif isinstance(message, TokensUsed):
                bucket.use(connection, message.tokens, now)
        return []

    def lost(self, connection: int, now: float) -> None:
        """A connection has ended."""
        if (bucket := self._joined.pop(connection, None)) is not None:
            bucket.leave(connection, now)

    def due(self, now: float) -> list[Outgoing]:
        """Returns the messages to send now. To be called at least twice a second."""
        outgoing: list[Outgoing] = []
        for name, bucket in list(self._buckets.items()):
            outgoing += [(task, Granted(tokens)) for task, tokens in bucket.grants(now)]
            if now - bucket.reported_at >= _REPORT_INTERVAL:
                bucket.reported_at = now
                outgoing += [(task, Queued(seconds)) for task, seconds in bucket.waits()]
            if not bucket.tasks and bucket.is_full and now - bucket.used_at >= _FORGET_AFTER:
                del self._buckets[name]
        return outgoing

    @property
    def wait(self) -> float:
        """Seconds until `due` may return something."""
        return min((bucket.wait for bucket in self._buckets.values()), default=math.inf)

    @property
    def has_tasks(self) -> bool:
        """Whether tasks are connected."""
        return bool(self._joined)
