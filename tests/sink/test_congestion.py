"""The sink holds its rate under any fault: a part of the table of `integration.benchmarks.congestion`.

All in virtual time, against a service with a token bucket that several tasks share.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from integration.support.shared_capacity import Run, Scenario

from sluice.sink import (
    AIMDScalingStrategy,
    AsyncSinkConfig,
    CongestionControlRateLimitingStrategy,
    RateLimitingStrategy,
)


def aimd(config: AsyncSinkConfig, clock: Callable[[], float]) -> RateLimitingStrategy:
    most = config.max_batch_size * config.max_in_flight_requests
    return CongestionControlRateLimitingStrategy(
        max_in_flight_requests=config.max_in_flight_requests,
        initial_max_in_flight_messages=most,
        scaling_strategy=AIMDScalingStrategy(rate_threshold=most),
        clock=clock,
        wall_clock=clock,
        jitter=random.Random(most).random,
    )


@pytest.mark.parametrize("tasks", [1, 4])
@pytest.mark.parametrize(
    "failing", [{}, {"failing_entries": 0.02}, {"failing_entries": 0.5}, {"failing_requests": 0.3}]
)
def test_failures_do_not_slow_the_sink_down(failing: dict[str, Any], tasks: int) -> None:
    """What the service can take is accepted, less what fails; and little is refused for load."""
    scenario = replace(Scenario(tasks=tasks, capacity=1000, latency=0.1), **failing)
    run = Run(scenario, aimd).until(20)

    assert run.utilisation(5, 20) > 0.85
    assert run.refusals(5, 20) < 0.06
    assert run.fairness(5, 20) > 0.4


def test_many_faults_at_once() -> None:
    """2 % of entries and of requests fail, 8 % of answers are lost: the sink went down to 17 records/s."""
    faults = Scenario(failing_entries=0.02, failing_requests=0.02, lost_answers=0.08)
    run = Run(faults, aimd).until(20)

    assert run.utilisation(5, 20) > 0.95


def test_sixteen_tasks_share_a_destination() -> None:
    """All of it is used, little is refused, and no task is left with next to nothing."""
    run = Run(Scenario(tasks=16, capacity=1600, burst=0.1, latency=0.1), aimd).until(20)

    assert run.utilisation(5, 20) > 0.95
    assert run.refusals(5, 20) < 0.06
    assert run.fairness(5, 20) > 0.3


@pytest.mark.parametrize("latency", [0.005, 2.0])
def test_answers_that_come_late_do_not_matter_once_settled(latency: float) -> None:
    """Of two seconds, too."""
    run = Run(Scenario(tasks=4, capacity=1000, latency=latency), aimd).until(30)

    assert run.utilisation(10, 30) > 0.85
    assert run.refusals(10, 30) < 0.06


@pytest.mark.parametrize(("before", "after"), [(2000.0, 200.0), (200.0, 2000.0)])
def test_a_change_of_capacity_is_followed(before: float, after: float) -> None:
    """By the factor of ten, within ten seconds."""
    run = Run(Scenario(tasks=4, capacity=before, steps={10.0: after}), aimd).until(25)

    assert run.utilisation(20, 25) > 0.85


def test_bytes_bind_as_records_do() -> None:
    """The service counts bytes; the rate is learnt all the same."""
    run = Run(Scenario(capacity=1000, byte_capacity=5e5), aimd).until(20)

    assert run.utilisation(5, 20) > 0.85
    assert run.refusals(5, 20) < 0.06


@pytest.mark.parametrize("failing", [0.0, 0.1, 0.5])
def test_refusals_without_a_reason_do_not_make_the_sink_crawl(failing: float) -> None:
    """The strategy finds out which share is not load; some more is refused for load meanwhile."""
    run = Run(Scenario(told=False, capacity=1000, failing_entries=failing, latency=0.1), aimd).until(30)

    assert run.utilisation(5, 30) > 0.6
    assert run.refusals(5, 30) < 0.2
