"""The sink holds its rate under any fault: a part of the table of `integration.benchmarks.congestion`.

All in virtual time, against a service with a token bucket that several tasks share. Every bound holds for
each of the seeds. What the whole table reaches is in docs/rate-limiting.md.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from integration.benchmarks import congestion
from integration.support.shared_capacity import Run, Scenario

from sluice.sink import (
    AIMDScalingStrategy,
    AsyncSinkConfig,
    CongestionControlRateLimitingStrategy,
)

SEEDS = pytest.mark.parametrize("seed", [1, 2, 3])


def aimd(config: AsyncSinkConfig, clock: Callable[[], float]) -> CongestionControlRateLimitingStrategy:
    most = config.max_batch_size * config.max_in_flight_requests
    return CongestionControlRateLimitingStrategy(
        max_in_flight_requests=config.max_in_flight_requests,
        initial_max_in_flight_messages=most,
        scaling_strategy=AIMDScalingStrategy(rate_threshold=most),
        clock=clock,
        wall_clock=clock,
        jitter=random.Random(most).random,
    )


@SEEDS
@pytest.mark.parametrize("tasks", [1, 4])
@pytest.mark.parametrize(
    "failing", [{}, {"failing_entries": 0.02}, {"failing_entries": 0.5}, {"failing_requests": 0.5}]
)
def test_failures_do_not_slow_the_sink_down(failing: dict[str, Any], tasks: int, seed: int) -> None:
    """What the service can take is accepted, less what fails; and little is refused for load."""
    scenario = replace(Scenario(tasks=tasks, capacity=1000, latency=0.1), **failing)
    run = Run(scenario, aimd, seed=seed).until(20)

    assert run.utilisation(5, 20) > 0.85
    assert run.refusals(5, 20) < 0.05


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(in_flight=4, latency=0.3, failing_entries=0.1),
        Scenario(in_flight=4, latency=0.6),
    ],
    ids=lambda each: f"answers_after_{each.latency}s",
)
def test_few_large_requests_that_are_refused_without_a_reason(scenario: Scenario) -> None:
    """The first request of a dip is as small as the others, or its refusals, for load, count as failures.

    More than half was refused for load, for good.
    """
    scenario = replace(scenario, tasks=2, capacity=1000, told=False)
    runs = [Run(scenario, aimd, seed=seed).until(40) for seed in range(1, 6)]

    assert min(run.utilisation(20, 40) for run in runs) > 0.9
    assert sum(run.refusals(20, 40) for run in runs) / len(runs) < 0.2


@SEEDS
def test_many_faults_at_once(seed: int) -> None:
    """2 % of entries and of requests fail, 8 % of answers are lost."""
    faults = Scenario(failing_entries=0.02, failing_requests=0.02, lost_answers=0.08)
    run = Run(faults, aimd, seed=seed).until(20)

    assert run.utilisation(5, 20) > 0.95


@SEEDS
@pytest.mark.parametrize(("tasks", "latency"), [(1, 0.02), (1, 0.1), (4, 0.02), (16, 0.1)])
def test_refusals_for_load_that_come_whatever_the_pace_is(tasks: int, latency: float, seed: int) -> None:
    """Many faults, and 2 % of requests refused for load though there is none: the sink went to 17 records/s.

    It goes on as fast as it can for minutes, and not only at first.
    """
    faults = Scenario(failing_entries=0.02, lost_answers=0.08, refused_requests=0.02, latency=latency)
    run = Run(replace(faults, tasks=tasks), aimd, seed=seed).until(20 if tasks == 16 else 60)

    assert run.utilisation(5, 20) > 0.8
    assert run.refusals(5, 20) < 0.1, "2 % of them are refused whatever the pace is"
    if tasks < 16:
        assert run.utilisation(30, 60) > 0.85
        assert run.refusals(30, 60) < 0.1


@SEEDS
@pytest.mark.parametrize("tasks", [1, 4])
def test_a_capacity_that_rises_is_found_where_some_are_refused_whatever_the_pace_is(
    tasks: int, seed: int
) -> None:
    """A silence would show it, and there is none: a task stayed at a tenth of it for minutes."""
    faults = Scenario(failing_entries=0.02, lost_answers=0.08, refused_requests=0.02, latency=0.1)
    run = Run(replace(faults, capacity=400.0, steps={20.0: 4000.0}, tasks=tasks), aimd, seed=seed).until(100)

    assert run.utilisation(10, 20) > 0.8
    assert run.utilisation(80, 100) > 0.85
    assert run.refusals(80, 100) < 0.12


@SEEDS
@pytest.mark.parametrize("latency", [0.02, 0.1])
def test_refusals_whatever_the_pace_is_that_begin_later(latency: float, seed: int) -> None:
    """What was refused before was load, and proved to be it. The rate went down to half within 40 seconds."""
    run = Run(Scenario(latency=latency, refused_steps={30.0: 0.02, 90.0: 0.0}), aimd, seed=seed).until(120)

    assert min(run.utilisation(second, second + 10) for second in range(20, 110, 10)) > 0.55
    assert run.utilisation(60, 90) > 0.8
    assert run.utilisation(110, 120) > 0.95


@SEEDS
def test_a_twentieth_refused_whatever_the_pace_is(seed: int) -> None:
    """The rate went down to 5 to 8 records/s."""
    run = Run(Scenario(refused_requests=0.05, latency=0.1), aimd, seed=seed).until(120)

    assert run.utilisation(5, 60) > 0.85
    assert run.utilisation(60, 120) > 0.85


@SEEDS
@pytest.mark.parametrize(("tasks", "part"), [(1, 0.005), (1, 0.02), (1, 0.05), (4, 0.02)])
def test_entries_refused_each_by_itself_whatever_the_pace_is(tasks: int, part: float, seed: int) -> None:
    """A task took the first few of them for its limit, and stayed at a quarter of what it could send."""
    run = Run(Scenario(refused_entries=part, latency=0.1, tasks=tasks), aimd, seed=seed).until(30)

    assert run.utilisation(5, 20) > 0.8
    assert run.utilisation(20, 30) > 0.8
    assert run.refusals(5, 30) < 0.05 + part


def test_tasks_that_begin_together_share_a_small_bucket() -> None:
    """None goes on growing because it takes the limit for chance when the others have found it."""
    scenario = Scenario(tasks=4, latency=0.005, burst=0.1)
    runs = [Run(scenario, aimd, seed=seed).until(12) for seed in range(1, 10)]

    assert statistics.median(run.fairness(4, 12) for run in runs) > 0.5
    assert min(run.utilisation(4, 12) for run in runs) > 0.95


@SEEDS
def test_sixteen_tasks_share_a_destination(seed: int) -> None:
    """All of it is used, little is refused, and no task is left with next to nothing."""
    run = Run(Scenario(tasks=16, latency=0.1), aimd, seed=seed).until(20)

    assert run.utilisation(5, 20) > 0.95
    assert run.refusals(5, 20) < 0.03
    assert run.fairness(5, 20) > 0.45
    assert run.settled_after(end=20) <= 5


@SEEDS
@pytest.mark.parametrize("latency", [0.005, 2.0])
def test_answers_that_come_late_do_not_matter(latency: float, seed: int) -> None:
    """What the service takes is accepted, whether answers take 5 ms or two seconds."""
    run = Run(Scenario(tasks=4, capacity=1000, latency=latency), aimd, seed=seed).until(25)

    assert run.utilisation(8, 25) > 0.85
    assert run.refusals(15, 25) < 0.1


@pytest.mark.parametrize("seed", [1, 2])
def test_the_limit_is_found_within_seconds_where_answers_are_late(seed: int) -> None:
    """Answers take two seconds: the rate is too high once, early, and then what is let through."""
    run = Run(Scenario(tasks=4, latency=2.0), aimd, seed=seed).until(20)

    assert run.utilisation(5, 20) > 0.93
    assert run.refusals(5, 20) < 0.07
    assert run.settled_after(end=20) <= 5


@pytest.mark.parametrize("told", [True, False])
def test_one_task_finds_the_limit_within_seconds_where_answers_are_late(told: bool) -> None:
    """Far too much is sent once. The end of that, and what was sent while it came, was 7 to 8 % of all that
    was sent from the sixth second on; and the rate was too low after that."""
    runs = [Run(Scenario(latency=2.0, told=told), aimd, seed=seed).until(20) for seed in range(1, 7)]

    assert sum(run.refusals(5, 20) for run in runs) / len(runs) < 0.05
    assert sum(run.utilisation(5, 20) for run in runs) / len(runs) > 0.94


def test_more_capacity_is_found_where_answers_are_late() -> None:
    """Ten times as much after ten seconds: nearly all of it is used from ten seconds after that on."""
    scenario = Scenario(tasks=4, capacity=400, latency=2.0, steps={10.0: 4000.0})
    run = Run(scenario, aimd).until(30)

    assert run.utilisation(20, 30) > 0.8


@SEEDS
def test_a_capacity_that_falls_slowly_is_followed_where_answers_are_late(seed: int) -> None:
    """By a quarter of a percent a second: a quarter of all was refused for minutes, as the pace was held."""
    falls = {60.0 + n: 1000.0 * 0.9975**n for n in range(180)}
    run = Run(Scenario(capacity=1000.0, latency=3.0, steps=falls), aimd, seed=seed).until(240)

    assert max(run.refusals(start, start + 40) for start in range(80, 240, 40)) < 0.12


@SEEDS
@pytest.mark.parametrize(("before", "after"), [(2000.0, 200.0), (200.0, 2000.0)])
def test_a_change_of_capacity_is_followed(before: float, after: float, seed: int) -> None:
    """By the factor of ten, within ten seconds."""
    run = Run(Scenario(tasks=4, capacity=before, steps={10.0: after}), aimd, seed=seed).until(25)

    assert run.utilisation(20, 25) > 0.85
    assert run.refusals(20, 25) < 0.05
    assert run.settled_after(10, 25) <= 10


@SEEDS
def test_sixteen_tasks_share_what_is_new(seed: int) -> None:
    """They notice at different times that there is ten times as much to have, and still share it."""
    scenario = Scenario(tasks=16, capacity=400, latency=0.1, steps={10.0: 4000})
    # Tasks that all wait for the same random times would grow at the same moments.
    run = Run(scenario, congestion.aimd(paced=True, seed=seed), seed=seed).until(25)

    assert run.utilisation(20, 25) > 0.95
    assert run.fairness(20, 25) > 0.35


@SEEDS
def test_no_task_starves_where_requests_are_refused_as_a_whole(seed: int) -> None:
    """After a fall of the capacity a task's large requests found no room beside the small ones of others.
    It was taken for an outage, and lasted for good.
    """
    scenario = Scenario(tasks=4, latency=0.1, whole=True, steps={10.0: 400.0})
    run = Run(scenario, congestion.aimd(paced=True, seed=seed), seed=seed).until(30)

    assert run.refusals(20, 30) < 0.06
    assert run.fairness(20, 30) > 0.4


@SEEDS
def test_bytes_bind_as_records_do(seed: int) -> None:
    """The service counts bytes; the rate is learnt all the same."""
    run = Run(Scenario(capacity=1000, byte_capacity=5e5), aimd, seed=seed).until(20)

    assert run.utilisation(5, 20) > 0.85
    assert run.refusals(5, 20) < 0.05


UNTOLD = Scenario(told=False, capacity=1000, latency=0.1)


@SEEDS
@pytest.mark.parametrize("tasks", [1, 4])
def test_refusals_without_a_reason_are_load_if_nothing_fails(tasks: int, seed: int) -> None:
    """As `UnprocessedItems` of DynamoDB: the sink does as well as if it were told."""
    run = Run(replace(UNTOLD, tasks=tasks), aimd, seed=seed).until(20)

    assert run.utilisation(5, 20) > 0.93
    assert run.refusals(5, 20) < 0.1
    assert run.fairness(5, 20) > 0.45


@SEEDS
@pytest.mark.parametrize("tasks", [1, 4])
@pytest.mark.parametrize(
    "failing", [{"failing_entries": 0.1}, {"failing_entries": 0.5}, {"failing_requests": 0.5}]
)
def test_failures_without_a_reason_do_not_make_the_sink_crawl(
    failing: dict[str, Any], tasks: int, seed: int
) -> None:
    """The sink finds out which share does not depend on its pace, and acts on what exceeds it."""
    run = Run(replace(UNTOLD, tasks=tasks, **failing), aimd, seed=seed).until(30)

    assert run.utilisation(10, 30) > 0.8
    assert run.refusals(10, 30) < 0.15


@SEEDS
@pytest.mark.parametrize("latency", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    ("failing", "least"),
    [({}, 0.85), ({"failing_entries": 0.1}, 0.75), ({"failing_requests": 0.1}, 0.75)],
    ids=["nothing", "entries", "requests"],
)
def test_refusals_without_a_reason_where_answers_are_late(
    failing: dict[str, Any], least: float, latency: float, seed: int
) -> None:
    """It took two dips of a pace that was many times too high to find out: up to 20 s, with half refused."""
    scenario = replace(UNTOLD, tasks=4, capacity=4000, latency=latency, **failing)
    run = Run(scenario, congestion.aimd(paced=True, seed=seed), seed=seed).until(20)

    assert run.utilisation(8, 20) > least
    assert run.refusals(8, 20) < 0.12


@SEEDS
@pytest.mark.parametrize("latency", [0.1, 0.5])
@pytest.mark.parametrize("failing", [0.005, 0.02])
def test_a_few_failures_without_a_reason_are_no_load(failing: float, latency: float, seed: int) -> None:
    """Two of a hundred passed for as good as none, and were taken for load: the pace sank to a fifth within
    two minutes, and stayed there.
    """
    run = Run(replace(UNTOLD, latency=latency, failing_entries=failing), aimd, seed=seed).until(90)

    assert run.utilisation(60, 90) > 0.8


@SEEDS
@pytest.mark.parametrize("tasks", [1, 4])
@pytest.mark.parametrize(("before", "after"), [(0.0, 0.5), (0.5, 0.0), (0.0, 0.1)])
def test_a_share_that_changes_is_followed(before: float, after: float, tasks: int, seed: int) -> None:
    """What begins to fail without a reason does not bring the sink down, and what ends lets it come back."""
    scenario = replace(UNTOLD, tasks=tasks, failing_entries=before, failing_steps={15.0: after})
    run = Run(scenario, aimd, seed=seed).until(45)

    assert accepted(run, 30, 45) > 0.8 * 1000 * (1 - after)


@pytest.mark.parametrize("tasks", [1, 4])
@pytest.mark.parametrize("failing", [0.0, 0.1])
def test_an_outage_without_a_reason_leaves_the_pace_alone(failing: float, tasks: int) -> None:
    """For five seconds nothing is accepted. Ten seconds later the sink is as fast as before."""
    steps = {10.0: 1.0, 15.0: failing}
    scenario = replace(UNTOLD, tasks=tasks, failing_entries=failing, failing_steps=steps)
    run = Run(scenario, aimd, seed=2).until(35)

    assert accepted(run, 25, 35) > 0.8 * 1000 * (1 - failing)


@SEEDS
@pytest.mark.parametrize("seconds", [3.0, 30.0])
@pytest.mark.parametrize("offered", [800.0, 1e9])
def test_an_outage_where_answers_are_late(offered: float, seconds: float, seed: int) -> None:
    """What was refused in it was taken for load, and one entry a second was sent for minutes."""
    steps = {20.0: 1.0, 20.0 + seconds: 0.02}
    scenario = replace(UNTOLD, latency=0.5, offered=offered, failing_entries=0.02, failing_steps=steps)
    run = Run(scenario, aimd, seed=seed).until(60 + seconds)

    assert accepted(run, int(35 + seconds), int(60 + seconds)) > 0.75 * min(1000, offered)


@SEEDS
@pytest.mark.parametrize("tasks", [1, 4])
@pytest.mark.parametrize("failing", [0.0, 0.1, 0.5])
def test_the_pace_is_back_soon_after_a_long_outage(failing: float, tasks: int, seed: int) -> None:
    """It may have been cut when the outage began: as nothing was accepted afterwards, it was no load."""
    steps = {10.0: 1.0, 40.0: failing}
    scenario = replace(UNTOLD, tasks=tasks, failing_entries=failing, failing_steps=steps)
    run = Run(scenario, aimd, seed=seed).until(60)

    assert accepted(run, 50, 60) > 0.75 * 1000 * (1 - failing)


@pytest.mark.parametrize("failing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(("before", "after"), [(2000.0, 200.0), (400.0, 4000.0)])
def test_a_change_of_capacity_is_found_without_reasons(before: float, after: float, failing: float) -> None:
    """Downwards within seconds; upwards by ten the later the more fails, within half a minute."""
    scenario = replace(UNTOLD, tasks=4, capacity=before, failing_entries=failing, steps={15.0: after})
    run = Run(scenario, aimd).until(58)

    assert run.utilisation(50, 58) > 0.7
    assert run.refusals(50, 58) < 0.15


def accepted(run: Run, start: int, end: int) -> float:
    """Entries a second that were accepted in these seconds."""
    entries = sum(run.accepted[n, task.number] for n in range(start, end) for task in run.tasks)
    return entries / (end - start)
