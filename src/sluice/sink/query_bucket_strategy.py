"""The rate limiting strategy of a task whose query has one token bucket.

The task asks the query server for the tokens of its next request. What it gets is for now: see
`sluice.query_server.bucket`. Where the server is gone, can't be reached or does not answer, the task goes
on at a share of the rate, and tries to connect again.

PySpark does not tell a task how many tasks there are. With ``n`` tasks connected, as the server has told each
of them, the share is ``1 / (n + 1)``. A task of partition ``p`` that the server has told nothing takes
``1 / ((p + 1) * (p + 2))``. The shares of all partitions from ``n`` on add up to ``1 / (n + 1)``, so all
shares together are never more than the rate, however many tasks there are.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sluice.channels.channel import Address
from sluice.query_server.bucket import HOLD_TIME, ROUNDING
from sluice.query_server.connection import NoServer, ServerConnection, TcpServerConnection
from sluice.query_server.launch import ServerSettings
from sluice.query_server.protocol import (
    AcquireTokens,
    FromServer,
    Granted,
    Join,
    Leave,
    Members,
    Pong,
    Queued,
    TokensUsed,
    UsingFallbackShare,
)
from sluice.sink.contracts import Origin, RateLimitingStrategy, RequestInfo, ResultInfo
from sluice.sink.token_bucket import TokenBucket, TokenUnit, tokens_of

__all__ = ["BucketMember", "QueryBucketConfig", "QueryBucketStrategy", "fallback_share"]

_log = logging.getLogger(__name__)

ANSWER_TIMEOUT: Final = 2.0
"""Seconds without an answer after which a task goes on by itself. The bucket takes tokens back after longer
than this and `HOLD_TIME`, see `LEASE_TIME`, and fills for less while the server stands still, see
`LONGEST_STEP`."""
_CONNECT_TIMEOUT: Final = 5.0
"""Seconds for the first connection. A task that has none does not even know how many others there are."""

_POLL_INTERVAL: Final = 1.0
"""Seconds after which a task that uses its fallback share polls the server before it sends. A task that never
waits for tokens would not find out otherwise that the server is back."""
_SHARE_VALID_FOR: Final = 5.0
"""Seconds after a poll for which the task may use its share. After that the server may have given the share
to others."""
_RETURN_TIMEOUT: Final = 10.5
"""Seconds for which the task then tries to connect and sends nothing: enough for one attempt, also if the
last one has just failed; see `TcpServerConnection`."""

_SHORTEST_WAIT: Final = 0.001
_LONGEST_WAIT: Final = 0.1
"""Seconds between two polls at most: an answer does not wake the writer."""
_UNLIMITED: Final = 2**31 - 1


class _State(Enum):
    CONNECTING = "the first connection is being made"
    JOINING = "the server has been told who the task is"
    READY = "the server has answered the last message"
    ASKED = "the server has been asked for tokens"
    ALONE = "there is no server: the task goes by its share"
    RETURNING = "the server may have given the share to others: the task connects before it sends"


@dataclass(frozen=True, kw_only=True)
class BucketMember:
    """Who a task is at the server; see `Join` for the first four."""

    query: str
    epoch: str
    task: str
    starts_full: bool
    partition: int


@dataclass(frozen=True, kw_only=True)
class QueryBucketConfig:
    """The options of a query's bucket.

    Attributes:
        rate: tokens a second for all tasks.
        burst: tokens that all tasks may use at once.
        unit: what a token is for.
        address: where its server listens, and tasks find it.
    """

    rate: float
    burst: float
    unit: TokenUnit
    address: str

    @property
    def server_settings(self) -> ServerSettings:
        """Of the server that holds the bucket."""
        return ServerSettings(self.rate, self.burst, self.address)

    def create_strategy(self, origin: Origin, address: Address | None) -> QueryBucketStrategy:
        """The strategy of one task.

        Args:
            origin: the task.
            address: where the server listens; None if it could not be started.
        """
        connection: ServerConnection = NoServer("the driver could not start it")
        if address is not None:
            connection = TcpServerConnection(address)
        return QueryBucketStrategy(
            rate=self.rate,
            burst=self.burst,
            unit=self.unit,
            member=BucketMember(
                query=origin.query or origin.run,
                epoch="" if origin.batch is None else str(origin.batch),
                task=str(origin.attempt),
                starts_full=origin.query is None,
                partition=origin.partition or 0,
            ),
            connection=connection,
        )


def fallback_share(members: int, partition: int) -> float:
    """The share of the rate that a task takes by itself.

    Args:
        members: how many tasks the server has told; 0 if it has told nothing.
        partition: of the task.
    """
    return 1 / (members + 1) if members else 1 / ((partition + 1) * (partition + 2))


class QueryBucketStrategy(RateLimitingStrategy):
    """Sends when the query's token bucket, or its own share while that is not there, has the tokens.

    Args:
        rate: tokens a second for all tasks.
        burst: tokens that all tasks may use at once.
        unit: what a token is for.
        member: who this task is.
        connection: to the server. The strategy closes it.
        clock: monotonic seconds.
    """

    def __init__(  # noqa: PLR0913 - three settings, and three that make it this task's
        self,
        *,
        rate: float,
        burst: float,
        unit: TokenUnit,
        member: BucketMember,
        connection: ServerConnection,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._unit: TokenUnit = unit
        self._member = member
        self._connection = connection
        self._clock = clock
        self._state = _State.CONNECTING
        self._heard_at = math.inf  # or when the task began to wait for a message
        self._polled_at = -math.inf
        self._expected_at = 0.0
        self._held = 0.0
        self._held_until = 0.0
        self._members = 0
        self._share = 1.0
        self._has_reported_share = False  # the server keeps it for this task, for `SHARE_TIME`
        self._alone = TokenBucket(rate, burst, clock(), tokens=0.0)  # a new one for each time without server
        self._has_warned = False

    # --- what the writer asks -------------------------------------------------------------------------

    def register_in_flight_request(self, request: RequestInfo) -> None:
        tokens = tokens_of(request, self._unit)
        if self._state is _State.ALONE:
            self._alone.take(tokens, self._clock())
            return
        self._held = max(0.0, self._held - tokens)
        self._connection.send(TokensUsed(tokens))

    def register_completed_request(self, result: ResultInfo) -> None:  # noqa: ARG002 - the contract's
        """Polls the server while the task goes on without it. The rate is fixed."""
        if self._state is _State.ALONE:
            self._poll_server(self._clock())

    def should_block(self, request: RequestInfo) -> bool:
        tokens, now = tokens_of(request, self._unit), self._clock()
        if self._state is _State.ALONE:
            return now - self._polled_at >= _POLL_INTERVAL or self._alone.wait(tokens, now) > 0.0
        return self._usable(now) < tokens - ROUNDING

    def delay(self, request: RequestInfo) -> float:
        """Asks for the tokens of this request. Returns the seconds until they may be there."""
        tokens, now = tokens_of(request, self._unit), self._clock()
        self._poll_server(now)
        if self._state is _State.ALONE:
            return min(self._alone.wait(tokens, now), _LONGEST_WAIT)
        if self._usable(now) >= tokens - ROUNDING:
            return 0.0
        if self._state is _State.READY:
            self._acquire(tokens, now)
        return min(max(self._expected_at - now, _SHORTEST_WAIT), _LONGEST_WAIT)

    @property
    def max_batch_size(self) -> int:
        """Where records are counted, as many as the bucket ever holds."""
        return self._most if self._unit == "records" else _UNLIMITED

    @property
    def max_batch_size_in_bytes(self) -> int:
        """Where bytes are counted, as many as the bucket ever holds."""
        return self._most if self._unit == "bytes" else super().max_batch_size_in_bytes

    def forget_in_flight(self) -> None:
        """Changes nothing: tokens that were used are not given back."""

    def close(self) -> None:
        """Gives back what is left, and ends the connection."""
        if self._has_reported_share:
            self._poll_server(self._clock())  # joins, if it can, so that others get the share
        if self._state in _JOINED:
            self._connection.send(Leave(self._held))
        self._held = 0.0
        self._connection.close()

    # --- what the server says -------------------------------------------------------------------------

    @property
    def _most(self) -> int:
        return max(1, int(self._burst * self._share))

    def _usable(self, now: float) -> float:
        return self._held if now < self._held_until else 0.0

    def _acquire(self, tokens: float, now: float) -> None:
        usable = self._usable(now)
        self._connection.send(AcquireTokens(tokens - usable, self._held - usable))
        self._held = usable
        self._state = _State.ASKED
        self._heard_at = self._expected_at = now

    def _poll_server(self, now: float) -> None:
        """Takes in what has come, and finds out whether the server is there."""
        for message in self._connection.receive():
            self._take_in(message, now)
        if self._has_reported_share and now - self._polled_at >= _SHARE_VALID_FOR:
            self._state = _State.RETURNING
            self._heard_at = now
            self._expected_at = now + _RETURN_TIMEOUT
        self._polled_at = now
        self._heard_at = min(
            self._heard_at, now
        )  # the wait for the first connection begins with the first poll
        waited = now - self._heard_at
        if not self._connection.connect():
            if self._state in _JOINED or (self._state is _State.CONNECTING and self._connection.problem):
                self._go_alone(self._connection.problem, now)
            elif self._state is _State.CONNECTING and waited >= _CONNECT_TIMEOUT:
                self._go_alone(f"no connection within {_CONNECT_TIMEOUT:g} s", now)
            elif self._state is _State.RETURNING and waited >= _RETURN_TIMEOUT:
                self._go_alone(self._connection.problem, now)
        elif self._state not in _JOINED:
            self._join(now)
        elif self._state is not _State.READY and waited >= ANSWER_TIMEOUT:
            problem = f"no answer within {ANSWER_TIMEOUT:g} s"
            self._connection.send(UsingFallbackShare(self._fallback_share))
            self._connection.disconnect(problem)
            self._has_reported_share = True
            self._go_alone(problem, now)

    def _join(self, now: float) -> None:
        """From here on this task does not go by its share any more: the server gives it to others."""
        member = self._member
        self._connection.send(Join(member.query, member.epoch, member.task, member.starts_full))
        self._state = _State.JOINING
        self._share = 1.0
        self._has_reported_share = False
        self._heard_at = self._expected_at = now

    def _go_alone(self, problem: str, now: float) -> None:
        self._state = _State.ALONE
        self._held = 0.0  # the server counts it as used
        self._share = self._fallback_share
        rate = self._rate * self._share
        self._alone = TokenBucket(rate, self._burst * self._share, now, tokens=0.0)
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "the token bucket of the query does not answer; partition %d goes on at its share, %.3g %s a "
                "second, and tries again: %s (on a cluster, tokenBucketAddress must be an address of the "
                "driver that workers reach)",
                self._member.partition,
                rate,
                self._unit,
                problem,
            )

    @property
    def _fallback_share(self) -> float:
        return fallback_share(self._members, self._member.partition)

    def _take_in(self, message: FromServer, now: float) -> None:
        self._heard_at = now
        match message:
            case Members(count):
                self._members = count
                if self._state is _State.JOINING:
                    self._state = _State.READY
                    if self._has_warned:
                        self._has_warned = False
                        _log.info("partition %d goes by the query's bucket again", self._member.partition)
            case Queued(seconds):
                self._expected_at = now + seconds
            case Granted(tokens):
                self._state = _State.READY
                self._held += tokens
                # Counted from the last poll, not from now: the grant may have arrived then, if this process
                # was suspended.
                self._held_until = self._polled_at + HOLD_TIME
            case Pong():
                pass


_JOINED: Final = (_State.JOINING, _State.READY, _State.ASKED)
