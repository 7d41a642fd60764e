"""The server by which tasks compare their paces, and connections to it, on a clock of the test's: no sockets.

It can be killed, started again, and stand still. What it is told while it stands still it answers later.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from integration.support.shared_capacity import Run, Scenario
from sluice.query_server.pace_service import PaceService
from sluice.query_server.protocol import (
    FromServer,
    ToServer,
    decode_from_server,
    decode_to_server,
    encode,
)
from sluice.sink import AsyncSinkConfig, CongestionControlRateLimitingStrategy
from sluice.sink.query_pace import QueryPaceStrategy

__all__ = ["MakeOwn", "PaceConnection", "PaceServer", "PacedRun"]

RETRY: Final = 5.0
"""Seconds from the end of a connection to the next attempt, as those of `TcpServerConnection`."""
DELAY: Final = 0.002
"""Seconds that a message takes."""

MakeOwn = Callable[[AsyncSinkConfig, Callable[[], float]], CongestionControlRateLimitingStrategy]


class PaceServer:
    """A server.

    Args:
        clock: the time in seconds.
        tamper: changes what tasks are told.

    Attributes:
        connections: those that are connected.
    """

    def __init__(
        self, clock: Callable[[], float], tamper: Callable[[FromServer], FromServer] = lambda message: message
    ) -> None:
        self.clock = clock
        self.tamper = tamper
        self.connections: dict[int, PaceConnection] = {}
        self.is_dead = False
        self._numbers = itertools.count(1)
        self._still_until = -math.inf
        self._waiting: deque[tuple[int, ToServer]] = deque()
        self.service = PaceService(clock())

    def new_connection(self) -> PaceConnection:
        """The connection of another task."""
        return PaceConnection(self)

    def kill(self) -> None:
        """Nothing listens any more."""
        self.is_dead = True
        self._waiting.clear()
        for connection in list(self.connections.values()):
            connection.break_off("the other end has closed the connection")

    def start(self) -> None:
        """Another server listens, which knows nothing."""
        self.kill()
        self.is_dead = False
        self.service = PaceService(self.clock())

    def stand_still(self, seconds: float) -> None:
        """What comes meanwhile is answered afterwards."""
        self._still_until = max(self._still_until, self.clock() + seconds)

    def accept(self, connection: PaceConnection) -> int:
        number = next(self._numbers)
        self.connections[number] = connection
        return number

    def handle(self, number: int, message: ToServer) -> None:
        self._waiting.append((number, message))
        self.advance()

    def advance(self) -> None:
        """Answers what it can answer by now."""
        while self._waiting and not self.is_still:
            number, message = self._waiting.popleft()
            for to, answer in self.service.handle(number, message, self.clock()):
                if to in self.connections:
                    told = self.tamper(decode_from_server(encode(answer)))
                    self.connections[to].incoming.append((self.clock() + DELAY, told))

    @property
    def is_still(self) -> bool:
        return self.clock() < self._still_until

    def lost(self, number: int) -> None:
        self.connections.pop(number, None)
        self.service.lost(number, self.clock())


class PaceConnection:
    """A `ServerConnection` in memory."""

    def __init__(self, server: PaceServer) -> None:
        self.problem = ""
        self.incoming: deque[tuple[float, FromServer]] = deque()
        self.messages = 0
        self._server = server
        self._number: int | None = None
        self._next_attempt = -math.inf

    def connect(self) -> bool:
        """See `ServerConnection.connect`."""
        server = self._server
        if self._number is None and server.clock() >= self._next_attempt and not server.is_still:
            if server.is_dead:
                self.break_off("connection refused")
            else:
                self._number, self.problem = server.accept(self), ""
        return self._number is not None

    def send(self, message: ToServer) -> None:
        """See `ServerConnection.send`."""
        if self._number is not None:
            self.messages += 1
            self._server.handle(self._number, decode_to_server(encode(message)))

    def receive(self) -> list[FromServer]:
        """See `ServerConnection.receive`."""
        self._server.advance()
        messages = []
        while self.incoming and self.incoming[0][0] <= self._server.clock():
            messages.append(self.incoming.popleft()[1])
        return messages

    def disconnect(self, problem: str) -> None:
        """See `ServerConnection.disconnect`."""
        self.break_off(problem)

    def close(self) -> None:
        """See `ServerConnection.close`."""
        self.break_off("closed")
        self._next_attempt = math.inf

    def break_off(self, problem: str) -> None:
        """There is no connection any more."""
        if self._number is not None:
            self._server.lost(self._number)
        self._number = None
        self.incoming.clear()
        self.problem = problem
        self._next_attempt = self._server.clock() + RETRY


class PacedRun(Run):
    """A run whose tasks compare their paces.

    Args:
        make_own: makes the strategy with which a task finds its pace.
        tamper: see `PaceServer`.

    Attributes:
        connections: of the tasks.
        problems: what tasks were told of their connections.
    """

    def __init__(
        self,
        scenario: Scenario,
        make_own: MakeOwn,
        *,
        seed: int = 1,
        tamper: Callable[[FromServer], FromServer] = lambda message: message,
    ) -> None:
        self.now = 0.0  # the server needs it before there are tasks
        self.server = PaceServer(lambda: self.now, tamper)
        self.connections: list[PaceConnection] = []
        self.problems: list[str] = []

        def make(config: AsyncSinkConfig, clock: Callable[[], float]) -> Any:
            connection = self.server.new_connection()
            self.connections.append(connection)
            return QueryPaceStrategy(
                make_own(config, clock),
                query="q",
                connection=connection,
                on_problem=self.problems.append,
                clock=clock,
            )

        super().__init__(scenario, make, seed=seed)
