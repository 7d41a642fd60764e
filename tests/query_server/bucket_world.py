"""Tasks and the server of their bucket on one clock that tests move: no sockets, no threads, no sleeping."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.query_server.protocol import (
    FromServer,
    ToServer,
    decode_from_server,
    decode_to_server,
    encode,
)
from sluice.query_server.service import BucketService
from sluice.sink import RequestInfo
from sluice.sink.query_bucket_strategy import BucketMember, QueryBucketStrategy
from sluice.sink.token_bucket import TokenUnit, tokens_of

__all__ = ["FakeConnection", "Task", "World"]

RETRY = 5.0


class FakeConnection:
    """A `ServerConnection` in memory. What is sent arrives in order, as soon as the server runs."""

    def __init__(self, world: World) -> None:
        self.problem = ""
        self._world = world
        self._number: int | None = None
        self._next_attempt = world.now
        self.incoming: deque[FromServer] = deque()

    def connect(self) -> bool:
        if self._number is None and self._world.now >= self._next_attempt:
            if self._world.is_dead:
                self._fail("connection refused")
            elif not (self._world.is_frozen or self._world.is_connecting):
                self._number = self._world.accept(self)
                self.problem = ""
        return self._number is not None

    def send(self, message: ToServer) -> None:
        if self._number is not None:
            self._world.to_server.append((self._number, decode_to_server(encode(message))))

    def receive(self) -> list[FromServer]:
        messages = list(self.incoming)
        self.incoming.clear()
        return messages

    def disconnect(self, problem: str) -> None:
        if self._number is not None:
            self._world.to_server.append((self._number, None))
            self._world.connections.pop(self._number, None)
        self._fail(problem)

    def close(self) -> None:
        self.disconnect("closed")

    def _fail(self, problem: str) -> None:
        self._number = None
        self.incoming.clear()
        self.problem = problem
        self._next_attempt = self._world.now + RETRY


@dataclass
class Task:
    """A task that sends as fast as its strategy allows: requests of these sizes, one after the other."""

    strategy: QueryBucketStrategy
    connection: FakeConnection
    sizes: Callable[[], RequestInfo]
    unit: TokenUnit
    sent: float = 0.0
    late_until: float = 0.0
    pauses: bool = False  # when it has tokens, it does nothing more


@dataclass
class World:
    """Everything there is.

    Attributes:
        sends: time and tokens of each request.
    """

    rate: float = 100.0
    burst: float = 50.0
    unit: TokenUnit = "records"
    streaming: bool = True
    step_seconds: float = 0.05
    now: float = 1000.0
    is_dead: bool = False
    is_connecting: bool = False  # connections take longer
    frozen_until: float = 0.0
    tasks: list[Task] = field(default_factory=list)
    sends: list[tuple[float, float]] = field(default_factory=list)
    connections: dict[int, FakeConnection] = field(default_factory=dict)
    to_server: deque[tuple[int, ToServer | None]] = field(default_factory=deque)
    epoch: int = 0
    _started: int = 0
    _accepted: int = 0

    def __post_init__(self) -> None:
        self.service = BucketService(self.rate, self.burst, self.now)

    @property
    def is_frozen(self) -> bool:
        return self.now < self.frozen_until

    def start_task(self, size: int = 10, partition: int | None = None) -> Task:
        index = len(self.tasks) if partition is None else partition
        connection = FakeConnection(self)
        self._started += 1
        member = BucketMember(
            query="q",
            epoch=str(self.epoch),
            task=str(self._started),
            starts_full=not self.streaming,
            partition=index,
        )
        strategy = QueryBucketStrategy(
            rate=self.rate,
            burst=self.burst,
            unit=self.unit,
            member=member,
            connection=connection,
            clock=lambda: self.now,
        )
        task = Task(strategy, connection, lambda: self._request(strategy, size), self.unit)
        self.tasks.append(task)
        return task

    def _request(self, strategy: QueryBucketStrategy, size: int) -> RequestInfo:
        if self.unit == "bytes":
            return RequestInfo(1, size)
        return RequestInfo(min(size, strategy.max_batch_size), 1000)

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
            connection._fail("the other end has closed the connection")
        self.connections.clear()

    def next_epoch(self, tasks: int, size: int = 10) -> None:
        """All tasks are done; new ones start, with another server if there is none."""
        for task in self.tasks:
            task.strategy.close()
        self.tasks.clear()
        self.epoch += 1
        if self.is_dead:
            self.is_dead = False
            self.service = BucketService(self.rate, self.burst, self.now)
        for _ in range(tasks):
            self.start_task(size)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.step()

    def step(self) -> None:
        self.now += self.step_seconds
        for _ in range(3):  # there and back within a step: a network is faster than that
            self._serve()
            for task in list(self.tasks):
                self._advance(task)
        self._serve()

    def _advance(self, task: Task) -> None:
        """As the writer does; see `SinkScheduler`."""
        if self.now < task.late_until:
            return
        while True:
            # Entries that wait do not change, but how many are taken may.
            request = task.sizes()
            if task.strategy.should_block(request):
                break
            if task.pauses:
                return
            tokens = tokens_of(request, task.unit)
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

    def _deliver(self, outgoing: list[tuple[int, FromServer]]) -> None:
        for number, message in outgoing:
            if number in self.connections:
                self.connections[number].incoming.append(decode_from_server(encode(message)))

    def excess(self) -> float:
        """By how much the worst window of time has more than ``rate * seconds + burst``."""
        worst = lowest = 0.0
        total = 0.0
        first = True
        for at, tokens in self.sends:
            # Of all windows that end here, the one that starts where `before - rate * at` was lowest.
            start = total - self.rate * at
            lowest = start if first else min(lowest, start)
            first = False
            total += tokens
            worst = max(worst, total - self.rate * at - lowest - self.burst)
        return worst
