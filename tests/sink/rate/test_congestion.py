"""The sink holds its rate under any fault: rows of the table of `integration.benchmarks.congestion`.

All in virtual time, with the goals of the table, for each of the seeds with some slack.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from integration.benchmarks import congestion
from integration.support.shared_capacity import Run, Scenario

ONE = Scenario(latency=0.1)
ROWS = {
    "alone": ONE,
    "quick answers, a small burst": replace(ONE, latency=0.02, burst=0.1),
    "four tasks": replace(ONE, tasks=4),
    "half of the entries fail": replace(ONE, failing_entries=0.5, capacity=1000.0),
    "half of the requests fail": replace(ONE, failing_requests=0.5, capacity=1000.0, tasks=4),
    "two tasks, bytes bind": replace(ONE, byte_capacity=2e6, tasks=2),
    "a hot shard": replace(ONE, hot=0.8, tasks=2),
    "stalls": replace(ONE, stall=0.15, stall_every=10_000),
}


def run(scenario: Scenario, end: int, seed: int) -> Run:
    return Run(scenario, congestion.aimd(seed), seed=seed).until(end)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", ROWS)
def test_what_the_service_takes_is_accepted_and_little_is_refused(name: str, seed: int) -> None:
    done = run(ROWS[name], 15, seed)

    assert done.utilisation(5, 15) > 0.8
    assert done.refusals(5, 15) < 0.1
    assert done.fairness(5, 15) > 0.05


@pytest.mark.parametrize(("before", "after"), [(400.0, 4000.0), (4000.0, 400.0)])
def test_a_step_of_the_capacity_is_followed(before: float, after: float) -> None:
    done = run(replace(ONE, capacity=before, steps={10.0: after}, tasks=2), 24, 1)

    assert done.utilisation(20, 24) > 0.8
    assert done.refusals(10, 22) < 0.35


def test_two_of_a_hundred_requests_are_refused_whatever_the_pace() -> None:
    """A sink that mistook them for its limit would keep lowering its pace."""
    done = run(replace(ONE, refused_requests=0.02), 60, 1)

    assert done.utilisation(10, 60) > 0.7


@pytest.mark.parametrize("most", [1, 4])
def test_a_server_that_takes_few_requests_at_a_time_gets_full_ones(most: int) -> None:
    """Requests of one row each would take a hundred times as long."""
    scenario = replace(ONE, capacity=1e9, at_a_time=most, batch=50)
    best = Run(replace(scenario, in_flight=most), congestion.none(), seed=1).until(15)
    done = run(scenario, 15, 1)

    assert done.accepted_between(5, 15) > 0.7 * best.accepted_between(5, 15)
    assert sum(done.sent.values()) / done.requests > 40


def test_a_stored_burst_is_used_and_its_end_is_survived() -> None:
    """As of a DynamoDB table with unused capacity: the pace went far up before it is used up."""
    done = run(replace(ONE, capacity=500.0, burst=60.0), 40, 1)
    used_up = next(second for second in range(40) if done.refused[second])

    assert done.accepted_between(0, used_up + 1) > 20_000
    assert done.utilisation(used_up + 10, 40) > 0.8
    assert done.refusals(used_up + 10, 40) < 0.3


def test_batches_with_pauses_learn_the_pace() -> None:
    done = run(replace(ONE, pauses=(3.0, 2.0)), 40, 1)

    assert done.utilisation(10, 40) > 0.8
    assert done.refusals(10, 40) < 0.1
