"""A service with token buckets that several tasks of the sink share, in virtual time.

It refuses requests without tokens, and fails entries and requests independently of the load. Nothing sleeps:
a minute of sixteen tasks takes seconds.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sluice.errors import ServiceError
from sluice.sink import AsyncSinkConfig, RateLimitingStrategy, SubmitResult
from sluice.sink.rate.causes import Cause, cause_of
from sluice.sink.writing.scheduler import Request, SinkScheduler

if TYPE_CHECKING:
    from typing_extensions import Self

LOAD = "Throttled"
FAILED = "InternalFailure"
ENTRY_SIZE = 1000  # bytes, on average
LAG = (
    1e-4  # seconds by which a strategy reads the clock later than the writer that asks it, as with a real one
)


@dataclass(frozen=True)
class Scenario:
    """A service, and what writes to it."""

    capacity: float = 4000.0  # records a second
    byte_capacity: float | None = None  # bytes a second; None: only records count
    burst: float = 1.0  # seconds' worth of tokens that the bucket holds
    latency: float = 0.02  # the mean of the time until an answer (seconds); half of it to one and a half
    failing_entries: float = 0.0
    # failing_entries, failing_requests: the probability that an entry, or a whole request, fails
    failing_requests: float = 0.0
    refused_requests: float = 0.0  # the probability that a request is refused for load, though there is none
    # of two buckets (shards) with half of the capacity each, the share of entries that the first one gets;
    # 0.0: there is one bucket
    hot: float = 0.0
    # requests that the service works on at a time; it refuses others as a whole. None: any
    at_a_time: int | None = None
    # that it takes, with a burst of a tenth of a second; it refuses others as a whole
    requests_a_second: float = math.inf
    stall: float = 0.0  # seconds for which a writer does nothing after every `stall_every` entries
    stall_every: int = 10_000
    # (seconds of the capacity, seconds): micro-batches of so many rows, and how long a task waits from the
    # last answer to the next rows; None: there are always rows
    pauses: tuple[float, float] | None = None
    whole: bool = False  # a request is refused as a whole if a part of it would be refused
    tasks: int = 1  # that write at the same time
    steps: Mapping[float, float] = field(default_factory=dict)  # by time, the capacity from then on
    batch: int = 500  # entries of a request, at most
    in_flight: int = 50  # requests of a task in flight, at most

    def admitted(self, now: float) -> float:
        """Records a second that the service takes at this time, were none to fail."""
        steps = ((at, value) for at, value in self.steps.items() if at <= now)
        capacity = max(steps, default=(0.0, self.capacity))[1]
        if self.byte_capacity is not None:
            capacity = min(capacity, self.byte_capacity * capacity / self.capacity / ENTRY_SIZE)
        if self.hot:
            capacity = min(capacity, capacity / 2 / self.hot)  # the hot shard holds up the rows behind it
        return capacity


class Service:
    """Decides what becomes of a request.

    A failing request takes no tokens, and refused entries take none; a failing entry does.
    """

    def __init__(self, scenario: Scenario, *, seed: int = 1) -> None:
        self._scenario = scenario
        self._random = random.Random(seed)
        self._counted = 0.0
        self._shards = 2 if scenario.hot else 1
        self._tokens = [self._level()] * self._shards  # in entries
        self.running = 0  # requests that it works on
        self._requests_counted = 0.0
        self._requests = max(1.0, scenario.requests_a_second / 10)  # tokens

    def answer(self, entries: Sequence[int], sizes: Sequence[int], now: float) -> Answer:
        scenario, draw = self._scenario, self._random.random
        if scenario.at_a_time is not None and self.running >= scenario.at_a_time:
            return Answer(set(entries), set(), turned_away=True)
        if scenario.requests_a_second < math.inf:
            rate = scenario.requests_a_second
            self._requests += (now - self._requests_counted) * rate
            self._requests, self._requests_counted = min(self._requests, max(1.0, rate / 10)), now
            if self._requests < 1:
                return Answer(set(entries), set(), turned_away=True)
            self._requests -= 1
        self.running += 1
        if draw() < scenario.failing_requests:
            return Answer(set(), set(), error=True)
        if scenario.refused_requests and draw() < scenario.refused_requests:
            return Answer(set(entries), set())
        self._fill(now)
        refused: set[int] = set()
        before = list(self._tokens)
        for entry, size in zip(entries, sizes, strict=True):
            shard = 0 if not scenario.hot or entry % 100 < 100 * scenario.hot else 1
            cost = 1.0 if scenario.byte_capacity is None else max(self._cost(size), 0.0)
            if self._tokens[shard] < cost:
                refused.add(entry)
            else:
                self._tokens[shard] -= cost
        if refused and scenario.whole:
            refused, self._tokens = set(entries), before
        p = scenario.failing_entries
        failed = {entry for entry in entries if draw() < p} - refused if p else set()
        return Answer(refused, failed)

    def _cost(self, size: int) -> float:
        # What binds is the scarcer of the two: the bucket is kept in its unit.
        scenario = self._scenario
        assert scenario.byte_capacity is not None
        by_bytes = scenario.byte_capacity / ENTRY_SIZE < scenario.capacity
        return size / ENTRY_SIZE if by_bytes else 1.0

    def _rate(self, now: float) -> float:
        """Tokens a second of a shard."""
        scenario = self._scenario
        return (
            replace(scenario, hot=0.0).admitted(now) / self._shards
            if scenario.hot
            else scenario.admitted(now)
        )

    def _level(self) -> float:
        return max(1.0, self._scenario.burst * self._rate(self._counted))

    def _fill(self, now: float) -> None:
        passed, self._counted = now - self._counted, now
        rate, level = self._rate(now), self._level()
        self._tokens = [min(level, tokens + passed * rate) for tokens in self._tokens]


@dataclass(frozen=True)
class Answer:
    """Entries refused for load, and failed otherwise; or an error for all of them."""

    refused: set[int]
    failed: set[int]
    error: bool = False
    turned_away: bool = False  # the service did not even begin to work on it


Make = Callable[[AsyncSinkConfig, Callable[[], float]], RateLimitingStrategy]


class _Task:
    def __init__(self, run: Run, number: int) -> None:
        scenario = run.scenario
        self.number = number
        self.config = AsyncSinkConfig(
            max_batch_size=scenario.batch,
            max_batch_size_in_bytes=10**7,
            max_record_size_in_bytes=10**6,
            max_in_flight_requests=scenario.in_flight,
            max_buffered_requests=10_000,
            max_time_in_buffer=0.5,
            request_timeout=600.0,
            max_retry_duration=900.0,
        )
        self.strategy: Any = run.make(self.config, lambda: run.now + LAG)
        self.scheduler: SinkScheduler[int] = run.scheduler(self.config, self.strategy, run.random.random)
        self.fed = 0
        self.next_feed = 0.0
        self.busy_until = 0.0  # it stalls
        self.stalls = 0
        self.batch_end = 0  # the last row of a micro-batch
        self.next_batch: float | None = None


class Run:
    """Runs a scenario; counts by second and task the accepted, refused and failed entries."""

    def __init__(self, scenario: Scenario, make: Make, *, seed: int = 1) -> None:
        self.scenario = scenario
        self.make = make
        self.now = 0.0
        self.random = random.Random(seed)
        self.service = Service(scenario, seed=seed)
        self.tasks = [_Task(self, n) for n in range(scenario.tasks)]
        self.accepted: Counter[tuple[int, int]] = Counter()  # by second and task
        self.refused: Counter[int] = Counter()  # for load, by second
        self.sent: Counter[int] = Counter()  # entries that were answered, by second
        self.requests = 0
        self.cpu = 0.0  # seconds in the scheduler and the strategy
        self._sizes: dict[int, int] = {}
        self._events: list[tuple[float, int, int, Any]] = []
        self._count = 0

    def scheduler(self, config: AsyncSinkConfig, strategy: Any, jitter: Callable[[], float]) -> Any:
        return SinkScheduler(
            config, strategy, name="s", is_throttling=lambda code: cause_of(code) is Cause.LOAD, jitter=jitter
        )

    def until(self, end: float) -> Self:
        if not self._count:
            for task in self.tasks:
                self._at(self.random.random() * 0.05, task.number, None)
        while self._events and self._events[0][0] <= end:
            at, _, number, event = heapq.heappop(self._events)
            self.now = max(self.now, at)
            task = self.tasks[number]
            if self.now < task.busy_until and not isinstance(event, Request):
                self._at(task.busy_until, number, event)  # the writer's thread takes no notice
                continue
            if event is not None:
                self._happen(task, event)
            self._step(task)
        self.now = end
        return self

    # --- one task -------------------------------------------------------------------------------------

    def _step(self, task: _Task) -> None:
        if self.now < task.busy_until:
            return  # it takes a step when the stall is over, with the next answer or by itself
        scenario = self.scenario
        while room := min(task.scheduler.room, 500, self._rows_for(task)):
            sizes = [self.random.randint(ENTRY_SIZE // 10, ENTRY_SIZE * 19 // 10) for _ in range(room)]
            first = task.fed
            if scenario.stall and first // scenario.stall_every > task.stalls:
                task.stalls += 1
                task.busy_until = self.now + scenario.stall
                self._at(task.busy_until, task.number, None)
                return
            task.scheduler.add(list(range(first, first + room)), sizes, self.now)
            task.fed += room
        begun = time.perf_counter()
        requests = task.scheduler.advance(self.now)
        self.cpu += time.perf_counter() - begun
        for request in requests:
            self.requests += 1
            self._at(self.now + self._half_latency(), task.number, request)
        wake = task.scheduler.wake_at
        if scenario.pauses:
            wake = min(wake, self.now + 0.02)
        if wake < math.inf and wake != task.next_feed:
            task.next_feed = wake
            self._at(max(wake, self.now), task.number, None)

    def _happen(self, task: _Task, event: Any) -> None:
        if isinstance(event, Request):
            items = event.batch.items
            answer = self.service.answer(
                [item.entry for item in items], [item.size for item in items], self.now
            )
            self._count_outcome(task, len(items), answer)
            self._at(self.now + self._half_latency(), task.number, (event, answer))
            return
        request, answer = event
        self.service.running -= not answer.turned_away
        if answer.error:
            error = ServiceError("failed", code=FAILED, retryable=True)
            begun = time.perf_counter()
            task.scheduler.fail(request.number, error, fatal=False, now=self.now)
            self.cpu += time.perf_counter() - begun
            return
        missing = answer.refused | answer.failed
        codes: Counter[str] = Counter()
        codes[LOAD] += len(answer.refused)
        codes[FAILED] += len(answer.failed)
        entries = request.entries
        failed = [entry for entry in entries if entry in missing]
        begun = time.perf_counter()
        task.scheduler.complete(request.number, SubmitResult(failed, +codes), self.now)
        self.cpu += time.perf_counter() - begun

    def _count_outcome(self, task: _Task, count: int, answer: Answer) -> None:
        second = int(self.now)
        self.sent[second] += count
        self.refused[second] += len(answer.refused)
        if not answer.error:
            self.accepted[second, task.number] += count - len(answer.refused) - len(answer.failed)

    def _half_latency(self) -> float:
        return self.scenario.latency * self.random.uniform(0.25, 0.75)

    def _at(self, when: float, number: int, event: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, number, event))

    def _rows_for(self, task: _Task) -> int:
        """How many rows there are now."""
        if self.scenario.pauses is None:
            return 500
        rows, pause = self.scenario.pauses
        if task.fed == task.batch_end and task.scheduler.idle:
            if task.next_batch is None:
                task.next_batch = self.now + (pause if task.fed else 0.0)
            if self.now >= task.next_batch:
                task.batch_end += round(rows * self.scenario.capacity / self.scenario.tasks)
                task.next_batch = None
        return task.batch_end - task.fed

    # --- what came of it ------------------------------------------------------------------------------

    def goal(self, start: int, end: int) -> float:
        """What the service could have accepted in these seconds, with all that failed sent again."""
        goal = sum(self.scenario.admitted(n + 0.5) for n in range(start, end))
        on, off = self.scenario.pauses or (1.0, 0.0)
        return goal * on / (on + off)

    def utilisation(self, start: int, end: int) -> float:
        """What was accepted in these seconds, as a part of C * (1 - p)."""
        passing = 1 - self.scenario.failing_entries
        return self.accepted_between(start, end) / self.goal(start, end) / passing

    def accepted_between(self, start: int, end: int) -> int:
        """The entries that were accepted in these seconds."""
        return sum(self.accepted[n, task.number] for n in range(start, end) for task in self.tasks)

    def refusals(self, start: int, end: int) -> float:
        """The entries that were refused for load in these seconds, as a share of the sent ones."""
        sent = sum(self.sent[n] for n in range(start, end))
        return sum(self.refused[n] for n in range(start, end)) / max(1, sent)

    def fairness(self, start: int, end: int) -> float:
        """The smallest share of a task, as a part of the largest."""
        shares = [sum(self.accepted[n, task.number] for n in range(start, end)) for task in self.tasks]
        return min(shares) / max(1, *shares)

    def settled_after(self, start: int = 0, end: int = 30, width: int = 2) -> float:
        """Seconds after `start` from which every `width` seconds are accepted as they should be."""
        for begin in range(end - width, start - 1, -1):
            if self.utilisation(begin, begin + width) < 0.85:
                return float(begin + 1 - start)
        return 0.0
