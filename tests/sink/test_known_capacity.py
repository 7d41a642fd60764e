"""The sender that knows a service's capacity, beside which benchmark ``congestion`` puts the others."""

from __future__ import annotations

from typing import Any

import pytest
from integration.benchmarks.congestion import PARTS, Outcome, Row, best, known, known_capacity
from integration.support.known_capacity import FIRST, KnownCapacityStrategy
from integration.support.shared_capacity import Run, Scenario

from sluice.sink import RequestInfo


@pytest.mark.parametrize("failing", [{}, {"failing_requests": 0.5}, {"failing_entries": 0.5}])
def test_it_meets_all_goals_where_that_is_easy(failing: dict[str, Any]) -> None:
    """It takes into account that requests that fail as a whole use up no tokens."""
    row = Row("told", "easy", Scenario(capacity=1000.0, latency=0.1, tasks=4, **failing))
    part, reached = known((row, 1))

    assert part == max(PARTS)
    assert not reached.misses(row)
    assert reached.accepted > 0.98


def test_it_misses_as_few_goals_as_it_can() -> None:
    """Two requests of this task use up all that the service stores, and may come together.

    At a pace at which 0.85 could be accepted, more than 5 % are refused. So it takes a lower one.
    """
    row = Row("told", "hard", Scenario(capacity=1000.0, latency=2.0, burst=0.1))
    part, reached = known((row, 1))

    assert reached.misses(row) == ["accepted", "settled"]
    assert part < 0.85


def test_of_paces_that_miss_as_many_goals_the_one_that_gets_most_counts() -> None:
    """What is accepted comes after the number of goals that are met."""
    misses_two = Outcome(accepted=0.84, refused=0.01, fair=1.0, settled=9)
    misses_one = Outcome(accepted=0.9, refused=0.1, fair=1.0, settled=0)
    gets_more = Outcome(accepted=0.95, refused=0.2, fair=1.0, settled=0)
    tried = [(0.8, misses_two), (0.9, misses_one), (1.0, gets_more)]

    assert best(Row("told", "any", Scenario()), tried) == (1.0, gets_more)
    assert best(Row("told", "any", Scenario()), tried[:2]) == (0.9, misses_one)


def test_it_sends_the_same_each_time() -> None:
    """All that is random in a run is drawn from its seed."""
    scenario = Scenario(latency=2.0, tasks=4)

    def run(seed: int) -> Run:
        return Run(scenario, known_capacity(scenario, 1.0, seed=seed), seed=seed).until(6)

    assert run(1).accepted == run(1).accepted
    assert run(1).accepted != run(2).accepted


def test_it_knows_nothing_before_a_round_trip() -> None:
    """Neither after its first request, nor after a step of the capacity."""
    now = 1.0
    scenario = Scenario(capacity=8000.0, steps={10.0: 800.0}, latency=2.0, tasks=4, failing_requests=0.2)
    strategy = KnownCapacityStrategy(scenario, 0.8, clock=lambda: now, jitter=lambda: 0.5)
    strategy.register_in_flight_request(RequestInfo(1))
    rates = {}
    for now in (1.0, 2.9, 3.1, 11.9, 12.1):
        rates[now] = strategy.rate

    whole = 0.8 * 8000 / 4 / 0.8
    assert rates == pytest.approx({1.0: FIRST, 2.9: FIRST, 3.1: whole, 11.9: whole, 12.1: whole / 10})
