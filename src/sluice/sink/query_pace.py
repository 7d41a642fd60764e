"""The rate limiting strategy of a task whose query shares what it has learnt (`aimdScope=query`).

Each task finds its rate itself, as it does alone. A few times a second, while the destination limits it, it
tells the server of the query its rate, and is told the mean of all: what follows from that is in
`PacingRate.share_with`. Nothing waits for the server: what it says comes with the next answers of the
destination, and where it is gone, silent or out of reach the task goes on alone.

A task that nothing was ever refused says next to nothing, only so that the server knows that it is needed.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable
from typing import Final

from sluice.channels.channel import Address
from sluice.query_server.connection import Line, NoLine, TcpLine
from sluice.query_server.protocol import Advice, Paced
from sluice.sink.bases import BaseRateLimitingStrategy
from sluice.sink.contracts import RequestInfo, ResultInfo
from sluice.sink.dead_letters import Origin
from sluice.sink.rate_limiting import CongestionControlRateLimitingStrategy

__all__ = ["QueryPaceStrategy", "share_pace"]

_log = logging.getLogger(__name__)

TELL_EVERY: Final = 0.25
"""Seconds between two words to the server while the destination limits this task."""
TELL_AT_LEAST: Final = 30.0
"""Seconds between two words else. The server ends when it has not heard of anybody for two minutes."""
ANSWER_TIMEOUT: Final = 2.0
"""Seconds without an answer after which the connection is given up. `Line` makes another one later."""
VALID_FOR: Final = 1.5
"""Seconds for which an answer holds; as long as the server counts what a task has said."""


class QueryPaceStrategy(BaseRateLimitingStrategy):
    """Another strategy, which is told the mean rate of the query's tasks.

    Args:
        own: finds the rate. It may have learnt something before, and may outlive this object.
        query: the id of the query, or of the batch write.
        line: to the server. The strategy closes it.
        on_problem: told why there is no connection, once until there is one again.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        own: CongestionControlRateLimitingStrategy,
        *,
        query: str,
        line: Line,
        on_problem: Callable[[str], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own = own
        self._query = query
        self._line = line
        self._on_problem = on_problem
        self._clock = clock
        self._told_at = clock()  # a short task that nothing limits says nothing
        self._told_rate = False  # whether the last word told a rate
        self._asked_at = math.inf  # since when an answer is due
        self._valid_until = -math.inf
        self._has_problem = False

    def register_in_flight_request(self, request: RequestInfo) -> None:
        self._own.register_in_flight_request(request)

    def register_completed_request(self, result: ResultInfo) -> None:
        self._exchange(self._clock())
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
        self._line.close()
        self._own.share_with(None)

    def _exchange(self, now: float) -> None:
        """Takes in what the server has said, and tells it the rate when that is due. Never waits."""
        for message in self._line.receive():
            if isinstance(message, Advice):
                self._take_in(message, now)
        if now >= self._valid_until:
            self._own.share_with(None)
        self._look_after_line(now)
        rate = self._own.limited_rate
        # That it is not limited any more is told at once.
        pause = TELL_EVERY if rate is not None or self._told_rate else TELL_AT_LEAST
        if self._asked_at == math.inf and now - self._told_at >= pause:
            self._tell(rate, now)

    def _look_after_line(self, now: float) -> None:
        """Finds out whether the answer that is due may still come."""
        if self._asked_at == math.inf:
            return
        if self._line.connect():
            if now - self._asked_at < ANSWER_TIMEOUT:
                return
            self._line.disconnect(f"no answer within {ANSWER_TIMEOUT:g} s")
        self._asked_at = math.inf
        self._note_problem()

    def _tell(self, rate: float | None, now: float) -> None:
        if self._line.connect():
            self._line.send(Paced(self._query, rate or 0.0))
            self._told_at = self._asked_at = now
            self._told_rate = rate is not None
        elif self._line.problem:
            self._note_problem()
            self._told_at = now

    def _note_problem(self) -> None:
        if not self._has_problem:
            self._has_problem = True
            self._on_problem(self._line.problem)

    def _take_in(self, advice: Advice, now: float) -> None:
        self._asked_at = math.inf
        self._has_problem = False
        if advice.tasks > 1 and 0.0 < advice.pace < math.inf:
            self._own.share_with(advice.pace)
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
        line=NoLine("") if address is None else TcpLine(address),
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
