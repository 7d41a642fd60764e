"""A writer hands its clock to its strategy, so that a strategy made without one learns a rate as well.

Rates and limits are followed in virtual time: the writer only hands over the clock there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from integration.support.shared_capacity import Run, Scenario
from sink_fakes import FakeDestination, ManualClock, Outcome, config, fast_clock, rows

from sluice.sink import (
    AIMDScalingStrategy,
    AsyncSinkConfig,
    AsyncSinkWriter,
    CongestionControlRateLimitingStrategy,
    NoRateLimitingStrategy,
    RateLimitingStrategy,
    RequestInfo,
    ResultInfo,
    ScalingStrategy,
    SubmitResult,
)

Clock = Callable[[], float]


class Stepwise:
    """A scaling strategy of one's own: ten more, ten less."""

    def __init__(self, most: int) -> None:
        self._most = most

    def scale_up(self, current: int) -> int:
        return min(current + 10, self._most)

    def scale_down(self, current: int) -> int:
        return max(1, current - 10)


def congestion(initial: int, scaling: ScalingStrategy, **hooks: Any) -> Any:
    """Made as the documentation shows, without a clock."""
    return CongestionControlRateLimitingStrategy(
        max_in_flight_requests=50, initial_max_in_flight_messages=initial, scaling_strategy=scaling, **hooks
    )


def hand_over(strategy: RateLimitingStrategy, clock: Clock) -> None:
    """As each writer does; this one writes nothing."""
    AsyncSinkWriter(FakeDestination(), config(), strategy, clock=clock).close()


def run(scenario: Scenario, initial: int, scaling: ScalingStrategy, end: int) -> Run:
    def make(_: AsyncSinkConfig, clock: Clock) -> RateLimitingStrategy:
        jitter = random.Random(initial).random
        strategy: RateLimitingStrategy = congestion(initial, scaling, wall_clock=clock, jitter=jitter)
        hand_over(strategy, clock)
        return strategy

    return Run(scenario, make).until(end)


class FailingDestination(FakeDestination):
    """A service that tells load from failure."""

    def is_throttling(self, code: str) -> bool | None:
        return {"Throttled": True, "InternalFailure": False}.get(code)


class Watched(NoRateLimitingStrategy):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def use_clock(self, clock: Clock) -> None:
        self.events.append(clock)

    def register_in_flight_request(self, request: RequestInfo) -> None:
        self.events.append(request.batch_size)


class DuckTyped:
    """Has the methods of the contract, and no other."""

    max_batch_size = 10

    def __init__(self) -> None:
        self.completed = 0

    def register_in_flight_request(self, request: RequestInfo) -> None: ...

    def register_completed_request(self, result: ResultInfo) -> None:
        self.completed += result.batch_size

    def should_block(self, request: RequestInfo) -> bool:  # noqa: ARG002 - the contract's
        return False


@pytest.mark.parametrize("failing", [0.02, 0.5])
def test_entries_that_fail_do_not_slow_the_sink_down(failing: float) -> None:
    """With 2 % of entries failing it crawled, as every request had one, and each lowered the limit."""
    scenario = Scenario(failing_entries=failing, latency=0.1)
    end = run(scenario, 500, AIMDScalingStrategy(rate_threshold=25_000), 20)

    assert end.utilisation(5, 20) > 0.85
    assert end.refusals(5, 20) < 0.05


@pytest.mark.parametrize("scaling", [AIMDScalingStrategy(rate_threshold=10_000), Stepwise(10_000)])
def test_the_limit_grows_to_what_the_rate_needs(scaling: ScalingStrategy) -> None:
    """The initial limit, of 20 entries in half a second, is only where it starts."""
    end = run(Scenario(latency=0.5), 20, scaling, 20)

    assert end.utilisation(10, 20) > 0.85
    assert end.refusals(5, 20) < 0.05


@pytest.mark.parametrize("scaling", [AIMDScalingStrategy(rate_threshold=300), Stepwise(300)])
def test_the_limit_is_never_above_what_scaling_allows(scaling: ScalingStrategy) -> None:
    """300 entries in flight for half a second are some 600 a second, of the 4,000 that would be taken."""
    end = run(Scenario(latency=0.5), 20, scaling, 20)
    (task,) = end.tasks

    assert task.strategy.limit == 300
    assert 400 < end.utilisation(10, 20) * 4000 < 700


def test_a_threshold_below_the_initial_limit_does_not_lower_the_ceiling() -> None:
    """A scaling strategy may answer anything: the limit that the user began with may be reached again."""
    strategy = congestion(100, Stepwise(1))
    hand_over(strategy, now := ManualClock())
    strategy.register_in_flight_request(RequestInfo(10, started_at=now.now))
    now.now += 5.0
    strategy.register_completed_request(ResultInfo(0, 10, seconds=5.0, started_at=1000.0))

    assert strategy.limit == 100


def test_before_the_first_answer_the_limit_is_the_initial_one() -> None:
    """Nothing has been learnt that would ask for more, however high the threshold is."""
    strategy = congestion(7, AIMDScalingStrategy(rate_threshold=10_000))
    hand_over(strategy, ManualClock())

    assert (strategy.limit, strategy.max_batch_size) == (7, 7)
    strategy.register_in_flight_request(RequestInfo(7))
    assert strategy.delay(RequestInfo(1)) == math.inf


def test_a_writer_whose_entries_fail_keeps_its_pace() -> None:
    """A whole writer: each entry fails once, for a reason that is not load, and is written then."""
    seen: set[str] = set()

    def fail_once(_: int, entries: Sequence[str]) -> Outcome:
        failed = [entry for entry in entries if entry not in seen]
        seen.update(entries)
        return SubmitResult(failed, {"InternalFailure": len(failed)} if failed else {})

    strategy = congestion(20, AIMDScalingStrategy(rate_threshold=1000))
    destination = FailingDestination(fail_once)
    writer = AsyncSinkWriter(destination, config(), strategy, clock=fast_clock(100))
    first = strategy.rate
    try:
        writer.write(rows(map(str, range(50))))
        writer.flush()
    finally:
        writer.close()

    assert sorted(destination.stored, key=int) == [str(n) for n in range(50)]
    assert strategy.rate >= first
    assert strategy.limit > 20


def test_a_writer_hands_its_clock_over_once_before_the_first_request() -> None:
    """And the next writer does so with its own."""
    strategy = Watched()
    clocks: list[Clock] = [fast_clock(100), fast_clock(200)]
    for clock in clocks:
        writer = AsyncSinkWriter(FakeDestination(), config(), strategy, clock=clock)
        writer.write(rows("ab"))
        writer.flush()
        writer.close()

    assert strategy.events == [clocks[0], 2, clocks[1], 2]


def test_a_strategy_without_the_hook_works_as_before() -> None:
    """What is optional need not be there."""
    strategy, destination = DuckTyped(), FakeDestination()
    writer = AsyncSinkWriter(destination, config(), strategy)  # type: ignore[arg-type]
    writer.write(rows("abc"))
    writer.flush()
    writer.close()

    assert (destination.stored, strategy.completed) == (["a", "b", "c"], 3)


@pytest.mark.parametrize("is_given_one", [True, False])
def test_what_was_learnt_holds_for_the_next_writer(is_given_one: bool) -> None:
    """A strategy that has a clock keeps it, whether it was made with it or a writer brought it."""
    clock = ManualClock()
    hooks = {"clock": clock} if is_given_one else {}
    strategy = congestion(100, AIMDScalingStrategy(rate_threshold=1000), **hooks)
    hand_over(strategy, clock)
    for _ in range(3):  # fewer may be chance
        strategy.register_in_flight_request(RequestInfo(100, started_at=clock.now))
        strategy.register_completed_request(ResultInfo(100, 100, 100, seconds=0.0, started_at=clock.now))
    learnt = strategy.rate
    hand_over(strategy, clock)

    assert learnt < 500
    assert strategy.rate == learnt


@pytest.mark.parametrize("ahead", [1e6, -1e6])
@pytest.mark.parametrize("comes_back", [False, True])
def test_another_writer_may_bring_another_clock(ahead: float, *, comes_back: bool) -> None:
    """Its instants mean nothing to the first one: compared with it, they stopped the sink for days.

    Also if a writer with the first clock comes while it is still sending.
    """
    clock, other = ManualClock(), ManualClock()
    other.now += ahead
    strategy = congestion(100, AIMDScalingStrategy(rate_threshold=1000))
    hand_over(strategy, clock)
    hand_over(strategy, other)
    if comes_back:
        hand_over(strategy, clock)
    for _ in range(3):
        strategy.register_in_flight_request(RequestInfo(5, started_at=other.now))
        clock.now += 0.1
        strategy.register_completed_request(ResultInfo(0, 5, seconds=0.1, started_at=other.now))
        other.now += 0.1

    assert strategy.delay(RequestInfo(5)) < 1.0
    assert strategy.rate >= 500
