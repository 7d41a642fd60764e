"""The rate limiting strategy of a task whose query has one token bucket (`tokenBucketScope=query`).

The task asks the query server for the tokens of its next request, and may use them for `HOLD_TIME`. Without
an answer it sends nothing: it connects again, and fails when it has waited too long.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sluice.channels.channel import Address
from sluice.errors import ServiceError
from sluice.query_server.bucket import HOLD_TIME
from sluice.query_server.protocol import AcquireTokens, Granted, Join, Queued, TokensUsed
from sluice.sink.contracts import Origin, RateLimitingStrategy, RequestInfo, ResultInfo
from sluice.sink.rate.token_bucket import TokenUnit, tokens_of
from sluice.sink.shared_bucket.connection import ServerConnection

__all__ = ["SharedBucketConfig", "SharedBucketStrategy"]

_log = logging.getLogger(__name__)

ANSWER_TIMEOUT: Final = 2.0
"""Seconds without an answer after which a task connects again. The server sends one every half second."""
_LEAST_PATIENCE: Final = 10.0
"""Seconds for which a task waits at least, if `maxRetryDuration` is shorter: for one attempt to connect."""
_SHORTEST_WAIT: Final = 0.001
_LONGEST_WAIT: Final = 0.1
"""Seconds between two polls at most: an answer does not wake the writer."""
_UNLIMITED: Final = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class SharedBucketConfig:
    """The options of a query's bucket.

    Attributes:
        rate: tokens a second for all tasks.
        burst: tokens that all tasks may use at once.
        unit: what a token is for.
        address: where its server listens, and tasks find it.
        sink: tells the sinks of one query apart.
    """

    rate: float
    burst: int
    unit: TokenUnit
    address: str
    sink: str

    def create_strategy(self, origin: Origin, server: Address, patience: float) -> SharedBucketStrategy:
        """The strategy of one task.

        Args:
            origin: the task.
            server: where the query server listens.
            patience: seconds without the server after which the task fails.
        """
        name = f"{origin.query or origin.run} {self.sink}"
        # Nothing was sent before a batch write. What the last run of a streaming query sent is not known.
        bucket = Join(name, self.rate, self.burst, starts_full=origin.query is None)
        return SharedBucketStrategy(bucket, self.unit, ServerConnection(server), patience=patience)


def sink_of(options: Mapping[str, str]) -> str:
    """A name for the sink with these options, which shows no secret."""
    return hashlib.sha256(json.dumps(sorted(options.items())).encode()).hexdigest()[:32]


class SharedBucketStrategy(RateLimitingStrategy):
    """Sends when the query's bucket has granted the tokens.

    Args:
        bucket: the bucket, and its settings.
        unit: what a token is for.
        connection: to the server. The strategy closes it.
        patience: seconds for which a request waits for a server that does not answer.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        bucket: Join,
        unit: TokenUnit,
        connection: ServerConnection,
        *,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bucket = bucket
        self._unit: TokenUnit = unit
        self._connection = connection
        self._patience = max(patience, _LEAST_PATIENCE)
        self._clock = clock
        self._held = 0.0
        self._held_until = -math.inf
        self._has_joined = False
        self._asked_at: float | None = None  # or when the last answer came
        self._expected_at = -math.inf
        self._polled_at = -math.inf
        self._missing_since: float | None = None  # since when a request waits for any answer
        self._has_warned = False

    def register_in_flight_request(self, request: RequestInfo) -> None:
        tokens = tokens_of(request, self._unit)
        self._held = max(0.0, self._held - tokens)
        self._connection.send(TokensUsed(tokens))

    def register_completed_request(self, result: ResultInfo) -> None:
        """Changes nothing: the rate is fixed."""

    def should_block(self, request: RequestInfo) -> bool:
        return self._clock() >= self._held_until or self._held < tokens_of(request, self._unit)

    def delay(self, request: RequestInfo) -> float:
        """Asks for the tokens of this request. Returns the seconds until they may be there.

        Raises:
            ServiceError: the server has not answered for too long.
        """
        now = self._clock()
        self._receive(now)
        if not self.should_block(request):
            return 0.0
        if self._missing_since is None:
            self._missing_since = now
        if not self._connection.connect():
            self._forget_connection()
        elif self._asked_at is None:
            self._ask(tokens_of(request, self._unit), now)
        elif now - self._asked_at >= ANSWER_TIMEOUT:
            self._connection.disconnect(f"no answer within {ANSWER_TIMEOUT:g} s")
            self._forget_connection()
        if now - self._missing_since >= self._patience:
            raise self._error()
        return min(max(self._expected_at - now, _SHORTEST_WAIT), _LONGEST_WAIT)

    @property
    def max_batch_size(self) -> int:
        """If records are counted, the burst: the bucket never holds more tokens."""
        return int(self._bucket.burst) if self._unit == "records" else _UNLIMITED

    @property
    def max_batch_size_in_bytes(self) -> int:
        """If bytes are counted, the burst."""
        return int(self._bucket.burst) if self._unit == "bytes" else super().max_batch_size_in_bytes

    def forget_in_flight(self) -> None:
        """Changes nothing: tokens that were used are not given back."""

    def close(self) -> None:
        """Ends the connection. Tokens that are left count as used."""
        self._connection.close()

    def _ask(self, tokens: float, now: float) -> None:
        if not self._has_joined:
            self._connection.send(self._bucket)
            self._has_joined = True
        self._connection.send(AcquireTokens(tokens))
        self._held = 0.0  # the server takes it back
        self._asked_at = self._expected_at = now

    def _receive(self, now: float) -> None:
        for message in self._connection.receive():
            self._missing_since = None
            if self._has_warned:
                self._has_warned = False
                _log.info("the token bucket of the query answers again")
            match message:
                case Queued(seconds):
                    self._asked_at = now
                    self._expected_at = now + seconds
                case Granted(tokens):
                    self._asked_at = None
                    self._held = tokens
                    # If this process was suspended, the grant may have arrived right after the last poll.
                    self._held_until = self._polled_at + HOLD_TIME
        self._polled_at = now

    def _forget_connection(self) -> None:
        self._has_joined = False
        self._asked_at = None
        self._held = 0.0  # the server counts it as used
        self._expected_at = math.inf
        if self._connection.problem and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "the token bucket of the query does not answer; this task sends nothing until it does: %s",
                self._connection.problem,
            )

    def _error(self) -> ServiceError:
        return ServiceError(
            f"the token bucket of the query has not answered for {self._patience:g} s (maxRetryDuration): "
            f"{self._connection.problem or 'no connection'}. On a cluster, tokenBucketAddress must be an "
            "address of the driver host that workers can connect to. If the process of the query server was "
            "killed, restart the query",
            retryable=True,
        )
