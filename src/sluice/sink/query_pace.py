"""The rate limiting strategy of a task whose query shares what it has learnt (`aimdScope=query`).

Each task finds its rate itself, as it does alone. A few times a second, while the destination limits it, it
tells the server of the query its rate, and is told the mean of all: what follows from that is in
`PacingRate.share_with`. Nothing waits for the server: what it says comes with the next answers of the
destination, and where it is gone, silent or out of reach the task goes on alone.

A task that the destination does not limit reports next to nothing, only so that the server goes on.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable
from typing import Final

from sluice.channels.channel import Address
from sluice.query_server.connection import NoServer, ServerConnection, TcpServerConnection
from sluice.query_server.protocol import MeanRate, ReportRate
from sluice.sink.bases import BaseRateLimitingStrategy
from sluice.sink.contracts import Origin, RequestInfo, ResultInfo
from sluice.sink.rate_limiting import CongestionControlRateLimitingStrategy

__all__ = ["QueryPaceStrategy", "share_pace"]

_log = logging.getLogger(__name__)

REPORT_INTERVAL: Final = 0.25
"""Seconds between two reports to the server while the destination limits this task."""
KEEP_ALIVE_INTERVAL: Final = 30.0
"""Seconds between two reports while the destination does not limit this task. They keep the server alive,
which ends after 120 s of silence."""
ANSWER_TIMEOUT: Final = 2.0
"""Seconds without an answer after which the connection is given up. `connect` makes another one later."""
VALID_FOR: Final = 1.5
"""Seconds for which an answer holds; as long as the server counts what a task has reported."""


class QueryPaceStrategy(BaseRateLimitingStrategy):
    """Another strategy, which is told the mean rate of the query's tasks.

    Args:
        own: finds the rate. It may have learnt something before, and may outlive this object.
        query: the id of the query, or of the batch write.
        connection: to the server. The strategy closes it.
        on_problem: told why there is no connection, once until there is one again.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        own: CongestionControlRateLimitingStrategy,
        *,
        query: str,
        connection: ServerConnection,
        on_problem: Callable[[str], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own = own
        self._query = query
        self._connection = connection
        self._on_problem = on_problem
        self._clock = clock
        # The first keep-alive is due after 30 s, so a short task that is not limited never connects.
        self._reported_at = clock()
        self._was_limited = False  # at the last report
        self._awaiting_since = math.inf  # when the last report was sent that has no answer yet
        self._valid_until = -math.inf
        self._has_problem = False

    def use_clock(self, clock: Callable[[], float]) -> None:
        """See `CongestionControlRateLimitingStrategy.use_clock`. The connection keeps its own clock."""
        self._own.use_clock(clock)

    def register_in_flight_request(self, request: RequestInfo) -> None:
        self._own.register_in_flight_request(request)

    def register_completed_request(self, result: ResultInfo) -> None:
        self._sync_with_server(self._clock())
        self._own.register_completed_request(result)

    def should_block(self, request: RequestInfo) -> bool:
        return self._own.should_block(request)

    def delay(self, request: RequestInfo) -> float:
        """See `CongestionControlRateLimitingStrategy.delay`."""
        return self._own.delay(request)

    @property
    def max_batch_size(self) -> int:
        """See `CongestionControlRateLimitingStrategy.max_batch_size`."""
        return self._own.max_batch_size

    @property
    def limit(self) -> int:
        """Entries that may be in flight now."""
        return self._own.limit

    @property
    def rate(self) -> float | None:
        """Entries a second, as learnt so far."""
        return self._own.rate

    def forget_in_flight(self) -> None:
        """See `CongestionControlRateLimitingStrategy.forget_in_flight`."""
        self._own.forget_in_flight()

    def close(self) -> None:
        """Ends the connection. What the other strategy has learnt stays; what the others do is forgotten."""
        self._connection.close()
        self._own.share_with(None)

    def _sync_with_server(self, now: float) -> None:
        """Takes in what the server has said, and reports the rate when that is due. Never waits."""
        for message in self._connection.receive():
            if isinstance(message, MeanRate):
                self._take_in(message, now)
        if now >= self._valid_until:
            self._own.share_with(None)
        self._check_answer_timeout(now)
        rate = self._own.limited_rate
        # That the task is not limited any more is reported as soon as a rate would be.
        pause = REPORT_INTERVAL if rate is not None or self._was_limited else KEEP_ALIVE_INTERVAL
        if self._awaiting_since == math.inf and now - self._reported_at >= pause:
            self._report(rate, now)

    def _check_answer_timeout(self, now: float) -> None:
        """Finds out whether the answer that is due may still come."""
        if self._awaiting_since == math.inf:
            return
        if self._connection.connect():
            if now - self._awaiting_since < ANSWER_TIMEOUT:
                return
            self._connection.disconnect(f"no answer within {ANSWER_TIMEOUT:g} s")
        self._awaiting_since = math.inf
        self._note_problem()

    def _report(self, rate: float | None, now: float) -> None:
        if self._connection.connect():
            self._connection.send(ReportRate(self._query, rate or 0.0))
            self._reported_at = self._awaiting_since = now
            self._was_limited = rate is not None
        elif self._connection.problem:
            self._note_problem()
            self._reported_at = now

    def _note_problem(self) -> None:
        if not self._has_problem:
            self._has_problem = True
            self._on_problem(self._connection.problem)

    def _take_in(self, mean: MeanRate, now: float) -> None:
        self._awaiting_since = math.inf
        self._has_problem = False
        if mean.tasks > 1 and 0.0 < mean.rate < math.inf:
            self._own.share_with(mean.rate)
            self._valid_until = now + VALID_FOR
        else:
            self._valid_until = -math.inf


def share_pace(
    own: CongestionControlRateLimitingStrategy, origin: Origin, address: Address | None
) -> QueryPaceStrategy:
    """The strategy of one task.

    Args:
        own: finds the rate.
        origin: the task.
        address: where the server listens; None: there is none, after a warning on the driver.
    """

    return QueryPaceStrategy(
        own,
        query=origin.query or origin.run,
        connection=NoServer("") if address is None else TcpServerConnection(address),
        on_problem=functools.partial(_warn, origin.destination),
    )


@functools.lru_cache(maxsize=64)
def _warn(destination: str, problem: str) -> None:
    """Warns once in a worker, which runs many tasks. `problem` names the server."""
    _log.warning(
        "%s: tasks can't compare their paces: each finds its own, so that they may share the destination "
        "less evenly; the next attempt follows (on a cluster, workers have to reach the server beside the "
        "driver; aimdScope=task leaves out this line): %s",
        destination,
        problem,
    )
