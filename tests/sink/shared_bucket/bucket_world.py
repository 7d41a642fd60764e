"""Tasks and the server of their bucket on one clock that tests move: no sockets, no threads, no sleeping."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

from sluice.query_server.bucket import BucketService, Outgoing
from sluice.query_server.protocol import (
    FromServer,
    Join,
    ToServer,
    decode_from_server,
    decode_to_server,
    encode,
)
from sluice.sink import RequestInfo
from sluice.sink.rate.token_bucket import TokenUnit, tokens_of
from sluice.sink.shared_bucket.strategy import SharedBucketStrategy

__all__ = ["FakeConnection", "Task", "World"]

RETRY = 2.0


class FakeConnection:
    """A `ServerConnection` in memory. What is sent arrives in order, as soon as the server runs."""

    def __init__(self, world: World) -> None:
        self.problem = ""
        self.number: int | None = None
        self.is_cut = False  # nothing arrives, and the server does not notice its end
        self.incoming: deque[FromServer] = deque()
        self._world = world
        self._next_attempt = world.now

    def connect(self) -> bool:
        if self.number is None and self._world.now >= self._next_attempt:
            if self._world.is_dead:
                self.fail("connection refused")
            elif not self._world.is_frozen:
                self.number = self._world.accept(self)
        return self.number is not None

    def send(self, message: ToServer) -> None:
        if self.number is not None and not self.is_cut:
            self._world.to_server.append((self.number, decode_to_server(encode(message))))

    def receive(self) -> list[FromServer]:
        messages = list(self.incoming)
        self.incoming.clear()
        return messages

    def disconnect(self, problem: str) -> None:
        if self.number is not None:
            if not self.is_cut:
                self._world.to_server.append((self.number, None))
            self._world.connections.pop(self.number, None)
        self.fail(problem)

    def close(self) -> None:
        self.disconnect("closed")

    def fail(self, problem: str) -> None:
        self.number = None
        self.is_cut = False
        self.incoming.clear()
        self.problem = problem
        self._next_attempt = self._world.now + RETRY


@dataclass
class Task:
    """A task that sends as fast as its strategy allows: requests of one size, one after the other."""

    strategy: SharedBucketStrategy
    connection: FakeConnection
    size: int
    sent: float = 0.0
    late_until: float = 0.0


@dataclass
class World:
    """Everything there is."""

    rate: float = 100.0
    burst: int = 50
    unit: TokenUnit = "records"
    starts_full: bool = False
    patience: float = 900.0
    step_seconds: float = 0.05
    now: float = 1000.0
    is_dead: bool = False
    frozen_until: float = 0.0
    tasks: list[Task] = field(default_factory=list)
    sends: list[tuple[float, float]] = field(default_factory=list)  # time and tokens of each request
    service: BucketService = field(default_factory=BucketService)
    connections: dict[int, FakeConnection] = field(default_factory=dict)
    to_server: deque[tuple[int, ToServer | None]] = field(default_factory=deque)
    _accepted: int = 0

    @property
    def is_frozen(self) -> bool:
        return self.now < self.frozen_until

    def start_task(self, size: int = 10) -> Task:
        connection = FakeConnection(self)
        strategy = SharedBucketStrategy(
            Join("q", self.rate, self.burst, self.starts_full),
            self.unit,
            cast("Any", connection),
            patience=self.patience,
            clock=lambda: self.now,
        )
        self.tasks.append(Task(strategy, connection, size))
        return self.tasks[-1]

    def accept(self, connection: FakeConnection) -> int:
        self._accepted += 1
        self.connections[self._accepted] = connection
        return self._accepted

    def kill(self, task: Task) -> None:
        """The task's process is gone, with what it holds."""
        self.tasks.remove(task)
        task.connection.disconnect("killed")

    def kill_server(self) -> None:
        self.is_dead = True
        self.to_server.clear()
        for connection in self.connections.values():
            connection.fail("the other end has closed the connection")
        self.connections.clear()

    def next_batch(self, tasks: int, size: int = 10) -> None:
        """All tasks have ended; new ones start, with another server if there is none."""
        for task in self.tasks:
            task.strategy.close()
        self.tasks.clear()
        if self.is_dead:
            self.is_dead = False
            self.service = BucketService()
        for _ in range(tasks):
            self.start_task(size)

    def run(self, seconds: float) -> float:
        """Returns how many tokens were used meanwhile."""
        before = len(self.sends)
        end = self.now + seconds
        while self.now < end:
            self.now += self.step_seconds
            for _ in range(3):  # there and back within a step: a network is faster than that
                self._serve()
                for task in self.tasks:
                    self._advance(task)
            self._serve()
        return sum(tokens for _, tokens in self.sends[before:])

    def _advance(self, task: Task) -> None:
        """As the writer does; see `SinkScheduler`."""
        if self.now < task.late_until:
            return
        request = RequestInfo(1, task.size)
        if self.unit != "bytes":
            request = RequestInfo(min(task.size, task.strategy.max_batch_size), 1000)
        tokens = tokens_of(request, self.unit)
        while not task.strategy.should_block(request):
            task.strategy.register_in_flight_request(request)
            task.sent += tokens
            self.sends.append((self.now, tokens))
        task.strategy.delay(request)

    def _serve(self) -> None:
        if self.is_dead or self.is_frozen:
            return
        while self.to_server:
            number, message = self.to_server.popleft()
            if message is None:
                self.service.lost(number, self.now)
            else:
                self._deliver(self.service.handle(number, message, self.now))
        self._deliver(self.service.due(self.now))

    def _deliver(self, outgoing: list[Outgoing]) -> None:
        for number, message in outgoing:
            if number in self.connections and not self.connections[number].is_cut:
                self.connections[number].incoming.append(decode_from_server(encode(message)))

    def excess(self) -> float:
        """By how much the worst span of time has more than ``rate * seconds + burst``."""
        worst = total = 0.0
        lowest = None
        for at, tokens in self.sends:
            # Of all spans that end here, the one that starts where `before - rate * at` was lowest.
            start = total - self.rate * at
            lowest = start if lowest is None else min(lowest, start)
            total += tokens
            worst = max(worst, total - self.rate * at - lowest - self.burst)
        return worst
