"""For any refusals, failures and timeouts, every record is acknowledged, in order, within the bounds."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import event, given, settings
from hypothesis import strategies as st
from sink_fakes import config, is_load

from sluice.sink import (
    AIMDScalingStrategy,
    AsyncSinkConfig,
    CongestionControlRateLimitingStrategy,
    NoRateLimitingStrategy,
    PacedRateLimitingStrategy,
    RateLimitingStrategy,
    Rejection,
    SinkFigures,
    SubmitResult,
)
from sluice.sink.user_code.loading import adopted
from sluice.sink.writing.scheduler import Request, SinkScheduler

Kind = Literal["accept", "refuse", "fail", "reject"]


@dataclass(frozen=True)
class Fate:
    """The outcome of a request, how long it takes, and which entries (by bit) it is about."""

    kind: Kind
    latency: float
    mask: int


class KilledError(Exception):
    """The task is killed between two steps."""


# An entry is its number; sizes are drawn apart.
class World:
    """Drives a scheduler through virtual time, with a destination whose answers are drawn."""

    def __init__(
        self,
        settings_: AsyncSinkConfig,
        strategy: RateLimitingStrategy,
        fates: Iterable[Fate],
        *,
        steps: float = float("inf"),
    ) -> None:
        self.config = settings_
        self.now = 0.0
        self.strategy = adopted(strategy, RateLimitingStrategy)
        self.strategy.use_clock(lambda: self.now)  # as the writer does
        self.scheduler: SinkScheduler[int] = SinkScheduler(
            settings_, strategy, name="w", is_throttling=is_load, jitter=lambda: 0.5, keeps_rejected=True
        )
        self.steps_left = steps
        self.rejected: list[int] = []
        self.fates = iter(fates)
        self.answers: list[tuple[float, int, Request[int], Fate]] = []
        self.running = 0
        self.expected = SinkFigures()  # counted apart from the scheduler, as far as it is simple
        self.in_flight: dict[int, Request[int]] = {}
        self.measured_at = 0.0
        self.acknowledged: dict[int, int] = {}
        self.first_sent: list[int] = []

    def measure(self) -> None:
        """What has been in flight and in the buffer since the last event."""
        elapsed = round(self.now * 1e9) - round(self.measured_at * 1e9)
        self.measured_at = self.now
        self.expected.in_flight.observe(len(self.in_flight), elapsed)
        self.expected.buffered.observe(self.scheduler.buffered, elapsed)

    def end(self, number: int, code: str, refused: int | None = None) -> None:
        """A request was answered, has failed, or has timed out, unless it had timed out before."""
        request = self.in_flight.pop(number, None)
        if request is not None:
            count = len(request.entries) if refused is None else refused
            self.expected.send_time.record(self.now - request.sent_at)
            self.expected.refuse(count, {code: count}, count)

    def check_figures(self) -> None:
        """What is measured is exact, and sums are sums: called at the end."""
        found = self.scheduler.figures.copy()
        expected = self.expected
        assert found.send_time == expected.send_time
        assert found.send_time.count == found.requests
        assert (found.in_flight, found.buffered) == (expected.in_flight, expected.buffered)
        assert (found.records_out, found.bytes_out) == (expected.records_out, expected.bytes_out)
        assert found.refused_by_code == expected.refused_by_code
        assert found.refused == sum(found.refused_by_code.values())
        assert found.records_out == found.records + found.refused + len(self.rejected)
        assert found.records_out - found.retries == found.records + len(self.rejected)

    def add(self, entries: Sequence[int], sizes: Sequence[int]) -> None:
        self.measure()
        self.scheduler.add(entries, sizes, self.now)
        assert self.scheduler.buffered <= self.config.max_buffered_requests

    def step(self, *, draining: bool) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise KilledError
        self.measure()
        timeout = self.config.request_timeout
        late = [n for n, request in self.in_flight.items() if self.now >= request.sent_at + timeout]
        for number in late:
            self.end(number, "RequestTimeout")
        requests = self.scheduler.advance(self.now, draining=draining)
        assert self.scheduler.failure is None
        # No waiting entry is overtaken: the sent ones are the head of the queue, in order.
        sent = [entry for request in requests for entry in request.entries]
        head = self.scheduler._buffer.head()
        assert sent == sorted(sent)
        assert not sent or head is None or sent[-1] < head.entry
        for request in requests:
            self.check(request)
            self.in_flight[request.number] = request
            self.expected.records_out += len(request.entries)
            self.expected.bytes_out += request.batch.size
            fate = next(self.fates, Fate("accept", 0.01, 0))
            self.running += 1
            latency = min(fate.latency, 1.5 * timeout)  # a request that takes twice the timeout is fatal
            heapq.heappush(self.answers, (self.now + latency, request.number, request, fate))
        assert self.scheduler.in_flight <= self.config.max_in_flight_requests
        assert self.running <= 2 * self.config.max_in_flight_requests
        most = self.config.max_buffered_requests
        most += self.config.max_in_flight_requests * self.config.max_batch_size
        assert self.scheduler.buffered <= most

    def check(self, request: Request[int]) -> None:
        entries = request.entries
        assert 0 < len(entries) <= self.config.max_batch_size
        assert sum(item.size for item in request.batch.items) == request.batch.size
        assert request.batch.size <= self.config.max_batch_size_in_bytes
        self.first_sent += [entry for entry in entries if entry not in self.first_sent]

    def pass_time(self) -> None:
        """Moves time on to the next answer, or to when the scheduler has to be called again."""
        wake = self.scheduler.wake_at
        answer = self.answers[0][0] if self.answers else float("inf")
        assert min(wake, answer) < float("inf"), "nothing will ever happen again"
        assert min(wake, answer) - self.now < 10_000
        self.now = max(self.now, min(wake, answer))
        while self.answers and self.answers[0][0] <= self.now:
            _, number, request, fate = heapq.heappop(self.answers)
            self.running -= 1
            self.deliver(number, request, fate)

    def deliver(self, number: int, request: Request[int], fate: Fate) -> None:
        self.measure()
        if fate.kind == "fail":
            self.end(number, "OSError")
            self.scheduler.fail(number, OSError("gone"), fatal=False, now=self.now)
        else:
            hit = [entry for n, entry in enumerate(request.entries) if fate.mask >> n & 1]
            failed = hit if fate.kind == "refuse" else []
            rejected = hit if fate.kind == "reject" else []
            self.end(number, "Throttled", len(failed))
            codes = {"Throttled": len(failed)} if failed else {}
            result = SubmitResult(failed, codes, rejected=[Rejection(entry, "no") for entry in rejected])
            self.scheduler.complete(number, result, self.now)
            self.rejected += [rejection.entry for rejection in self.scheduler.rejected]
            self.scheduler.rejected.clear()
            for entry in set(request.entries) - set(failed) - set(rejected):
                self.acknowledged[entry] = self.acknowledged.get(entry, 0) + 1


fates = st.lists(
    st.builds(
        Fate,
        st.sampled_from(["accept", "refuse", "refuse", "fail"]),
        st.sampled_from([0.0, 0.01, 0.5, 3.0, 25.0]),
        st.integers(0, 31),
    ),
    max_size=30,
)


@st.composite
def setups(draw: st.DrawFn) -> tuple[AsyncSinkConfig, RateLimitingStrategy]:
    batch = draw(st.integers(1, 5))
    batch_bytes = draw(st.integers(4, 20))
    in_flight = draw(st.integers(1, 3))
    settings_ = config(
        max_batch_size=batch,
        max_batch_size_in_bytes=batch_bytes,
        max_record_size_in_bytes=4,
        max_in_flight_requests=in_flight,
        max_buffered_requests=draw(st.integers(batch, 12)),
        max_time_in_buffer=draw(st.sampled_from([0.0, 0.2, 5.0])),
        request_timeout=draw(st.sampled_from([1.0, 10.0, 3600.0])),
    )
    most = batch * in_flight
    strategy: RateLimitingStrategy = NoRateLimitingStrategy()
    kind = draw(st.sampled_from(["aimd", "aimd", "published", "none"]))
    scaling = AIMDScalingStrategy(
        increase_rate=1, decrease_factor=draw(st.sampled_from([0.5, 0.99])), rate_threshold=most
    )
    if kind == "aimd":
        strategy = PacedRateLimitingStrategy(
            max_in_flight_requests=in_flight,
            max_batch_size=batch,
            scaling_strategy=scaling,
            jitter=lambda: 0.5,
        )
    elif kind == "published":
        strategy = CongestionControlRateLimitingStrategy(
            max_in_flight_requests=in_flight,
            initial_max_in_flight_messages=draw(st.integers(1, most)),
            scaling_strategy=scaling,
        )
    return settings_, strategy


def run(world: World, sizes: list[int], gaps: list[float]) -> None:
    done = 0
    while done < len(sizes):
        while not world.scheduler.room:
            world.pass_time()
            world.step(draining=False)
        count = min(world.scheduler.room, world.config.max_batch_size, len(sizes) - done)
        world.add(list(range(done, done + count)), sizes[done : done + count])
        done += count
        world.step(draining=False)
        gap = gaps[done % len(gaps)] if gaps else 0.0
        until = world.now + gap
        while min(world.scheduler.wake_at, world.answers[0][0] if world.answers else until) < until:
            world.pass_time()
            world.step(draining=False)
        world.now = max(world.now, until)
    world.step(draining=True)
    while not world.scheduler.idle:
        world.pass_time()
        world.step(draining=True)
    assert not world.running


@settings(max_examples=150)
@given(
    setups(),
    st.lists(st.integers(0, 4), max_size=40),
    st.lists(st.sampled_from([0.0, 0.1, 7.0]), max_size=3),
    fates,
)
def test_every_record_is_acknowledged_before_the_flush_ends(
    setup: tuple[Any, Any], sizes: list[int], gaps: list[float], drawn: list[Fate]
) -> None:
    """At least once, for any refusals, failures and timeouts; exactly once if nothing timed out."""
    settings_, strategy = setup
    world = World(settings_, strategy, drawn)
    run(world, sizes, gaps)
    figures = world.scheduler.figures

    assert set(world.acknowledged) == set(range(len(sizes)))
    assert figures.records == len(sizes)
    assert figures.bytes == sum(sizes)
    world.check_figures()
    assert world.first_sent == list(range(len(sizes)))
    if not figures.timeouts:
        assert set(world.acknowledged.values()) <= {1}
    event(f"timeouts: {bool(figures.timeouts)}, refused: {bool(figures.refused)}")


@settings(max_examples=150)
@given(
    setups(),
    st.lists(st.integers(0, 4), max_size=30),
    st.lists(
        st.builds(
            Fate,
            st.sampled_from(["accept", "refuse", "fail", "reject"]),
            st.sampled_from([0.0, 0.01, 0.5, 3.0, 25.0]),
            st.integers(0, 31),
        ),
        max_size=30,
    ),
    st.lists(st.integers(0, 25), max_size=3),
)
def test_an_epoch_ends_when_every_record_is_acknowledged_or_rejected(
    setup: tuple[Any, Any], sizes: list[int], drawn: list[Fate], kills: list[int]
) -> None:
    """Through refusals, rejections, failures, timeouts and kills, with the same strategy all the time."""
    settings_, strategy = setup
    remaining = iter(drawn)
    for steps in [*kills, None]:
        world = World(settings_, strategy, remaining, steps=float("inf") if steps is None else steps)
        try:
            run(world, sizes, [])
            break
        except KilledError:
            strategy.forget_in_flight()
    event(f"killed: {steps is None and bool(kills)}, rejected: {bool(world.rejected)}")

    assert set(world.acknowledged) | set(world.rejected) == set(range(len(sizes)))
    assert world.scheduler.figures.records + len(world.rejected) == len(sizes)
    world.check_figures()
    assert len(set(world.rejected)) == len(world.rejected)


def test_time_in_the_buffer_is_bounded_when_nothing_is_in_the_way() -> None:
    """With nothing refused, a record is sent no later than maxTimeInBuffer after it was added."""
    settings_ = config(max_time_in_buffer=5.0, max_in_flight_requests=3, max_batch_size=100)
    world = World(settings_, NoRateLimitingStrategy(), [])
    world.add(list(range(7)), [1] * 7)
    world.step(draining=False)
    while not world.answers:
        world.pass_time()
        world.step(draining=False)
    sent = [request.sent_at for _, _, request, _ in world.answers]

    assert sent == [5.0]
