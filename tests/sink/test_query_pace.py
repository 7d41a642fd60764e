"""`aimdScope=query`: the tasks of a query compare their paces, and share a destination as one would use it.

In virtual time, against a service with a token bucket. What the server says never stops a task, and never
has it send faster than it has found out to be possible itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from integration.support.shared_capacity import Run, Scenario, Service
from integration.support.shared_pace import PacedRun
from test_congestion import aimd

from sluice.channels.channel import Address
from sluice.query_server.connection import NoServer
from sluice.query_server.protocol import FromServer, MeanRate
from sluice.sink import RequestInfo, ResultInfo, query_pace
from sluice.sink.contracts import Origin
from sluice.sink.query_pace import ANSWER_TIMEOUT, KEEP_ALIVE_INTERVAL, share_pace

SEEDS = pytest.mark.parametrize("seed", [1, 2])


class SharingRun(PacedRun):
    """See `PacedRun`; with the settings of the other tests."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        seed: int = 1,
        tamper: Callable[[FromServer], FromServer] = lambda message: message,
    ) -> None:
        super().__init__(scenario, aimd, seed=seed, tamper=tamper)


class RunOfSeparate(SharingRun):
    """Each task's keys are of a part of the service that is theirs alone."""

    def __init__(self, scenario: Scenario, capacities: list[float], *, seed: int = 1) -> None:
        super().__init__(scenario, seed=seed)
        self._services = [
            Service(replace(scenario, capacity=capacity), seed=seed + n)
            for n, capacity in enumerate(capacities)
        ]

    def _happen(self, task: Any, event: Any) -> None:
        self.service = self._services[task.number]
        super()._happen(task, event)


@SEEDS
@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(tasks=4, latency=0.1),
        Scenario(tasks=6, capacity=2000),
        Scenario(tasks=16, capacity=1000, latency=0.1, burst=0.1),
    ],
    ids=lambda each: f"{each.tasks}_tasks",
)
def test_tasks_share_a_destination_evenly(scenario: Scenario, seed: int) -> None:
    """All of it is used, little is refused, and the smallest share is more than half of the largest."""
    run = SharingRun(scenario, seed=seed).until(16)

    assert run.utilisation(5, 16) > 0.95
    assert run.refusals(5, 16) < 0.05
    assert run.fairness(5, 16) > 0.6


def test_a_task_that_comes_late_gets_its_share() -> None:
    run = SharingRun(Scenario(tasks=6, capacity=2000, late=8.0)).until(25)

    assert run.fairness(15, 25) > 0.6


@SEEDS
@pytest.mark.parametrize(("before", "after"), [(4000.0, 400.0), (400.0, 4000.0)])
def test_a_change_of_capacity_is_followed(before: float, after: float, seed: int) -> None:
    """By the factor of ten, within ten seconds, by six tasks."""
    run = SharingRun(Scenario(tasks=6, capacity=before, steps={10.0: after}), seed=seed).until(30)

    assert run.utilisation(20, 30) > 0.85
    assert run.refusals(20, 30) < 0.05
    assert run.fairness(20, 30) > 0.5


@SEEDS
def test_a_task_that_is_refused_alone_lowers_no_other(seed: int) -> None:
    """Each has keys of its own, one of which are hot: it gets what there is for them, as do the others."""
    run = RunOfSeparate(Scenario(tasks=4), [100.0, 1000.0, 1000.0, 1000.0], seed=seed).until(25)

    for number, capacity in enumerate([100.0, 1000.0, 1000.0, 1000.0]):
        accepted = sum(run.accepted[second, number] for second in range(10, 25)) / 15
        assert accepted > 0.95 * capacity
    assert run.refusals(10, 25) < 0.05


class RunWithStraggler(SharingRun):
    """The last task has 30 rows a second; the others have as many as are taken."""

    def _step(self, task: Any) -> None:
        everything = self.scenario
        if task.number == everything.tasks - 1:
            self.scenario = replace(everything, offered=30.0 * everything.tasks)
        super()._step(task)
        self.scenario = everything


def test_a_task_with_few_rows_does_not_count() -> None:
    """It does not pull the mean down, and the others share what it leaves."""
    told: list[MeanRate] = []

    def note(message: FromServer) -> FromServer:
        assert isinstance(message, MeanRate)
        told.append(message)
        return message

    run = RunWithStraggler(Scenario(tasks=3, capacity=1000), tamper=note).until(15)

    assert run.refusals(0, 15) > 0  # of its rows, too
    settled = [each for each in told[20:] if each.tasks]
    assert all(each.rate > 400 for each in settled)
    accepted = [sum(run.accepted[second, number] for second in range(5, 15)) / 10 for number in range(3)]
    assert sum(accepted) > 950
    assert min(accepted[:2]) > 0.6 * max(accepted[:2])
    assert accepted[2] == pytest.approx(30, rel=0.1)


def test_a_task_that_nothing_is_refused_says_little() -> None:
    """A word in half a minute, by which the server knows that it is needed."""
    run = SharingRun(Scenario())
    strategy, connection = run.tasks[0].strategy, run.connections[0]
    said = []
    for second in range(100):
        run.now = float(second)
        strategy.register_in_flight_request(RequestInfo(5, 50))
        strategy.register_completed_request(ResultInfo(0, 5))
        said.append(connection.messages)

    assert [said[int(KEEP_ALIVE_INTERVAL * n) - 1] for n in (1, 2, 3)] == [0, 1, 2]
    assert said[-1] == 3
    assert not run.server.service.is_idle(run.now)


@SEEDS
def test_the_server_dies_and_comes_back(seed: int) -> None:
    """Tasks go on without it as alone, and share again when it is there."""
    run = SharingRun(Scenario(tasks=6, capacity=2000), seed=seed).until(8)
    run.server.kill()
    run.until(16)
    assert len(run.problems) >= 6
    assert {"connection refused", "the other end has closed the connection"} >= set(run.problems)
    assert all(task.strategy._own._pacing._mean is None for task in run.tasks)
    run.server.start()
    run.until(30)

    for start, end in ((8, 16), (16, 30)):
        assert run.utilisation(start, end) > 0.95
        assert run.refusals(start, end) < 0.05
    assert run.fairness(22, 30) > 0.6
    assert all(task.strategy._own._pacing._mean is not None for task in run.tasks)


def test_a_server_that_stands_still_is_left() -> None:
    """After two seconds without an answer; late answers to the old connection are not heard."""
    run = SharingRun(Scenario(tasks=2, capacity=500)).until(6)
    run.server.stand_still(4.0)
    run.until(6 + ANSWER_TIMEOUT + 0.5)
    assert all("no answer within" in problem for problem in run.problems)
    assert len(run.problems) == 2
    assert all(task.strategy._own._pacing._mean is None for task in run.tasks)
    run.until(16)

    assert all(task.strategy._own._pacing._mean is not None for task in run.tasks)


@pytest.mark.parametrize("lie", [5e-324, 1.0, 1e308, math.inf, math.nan, -5.0, 0.0])
def test_lies_neither_stop_nor_drive_a_task(lie: float) -> None:
    """Whatever mean a task is told, it is let send about what it would be alone, and is refused little."""
    alone = Run(Scenario(capacity=1000), aimd).until(15)
    told = SharingRun(Scenario(capacity=1000), tamper=liar(7, lie)).until(15)

    assert told.utilisation(5, 15) > 0.95 * alone.utilisation(5, 15)
    assert told.refusals(5, 15) < 0.05


def liar(tasks: int, pace: float) -> Callable[[FromServer], FromServer]:
    """Says this, whatever is true."""
    lie = MeanRate(tasks, pace)
    return lambda _: lie


EVENTS = st.one_of(
    st.tuples(st.just("run"), st.sampled_from([0.1, 0.7, 3.0])),
    st.tuples(st.just("kill")),
    st.tuples(st.just("start")),
    st.tuples(st.just("stand still"), st.sampled_from([0.3, 1.0, 2.5, 6.0])),
    st.tuples(st.just("lie"), st.integers(-1, 50), st.floats()),
    st.tuples(st.just("tell the truth")),
)


@settings(max_examples=8)
@given(st.lists(EVENTS, max_size=8), st.integers(0, 100))
def test_whatever_the_server_does_tasks_use_the_destination(events: list[Any], seed: int) -> None:
    """Deaths, restarts, late messages and lies: nothing is raised, and what there is to have is used."""
    run = SharingRun(Scenario(tasks=3, capacity=300), seed=seed).until(4)
    for event in events:
        match event:
            case ("kill",):
                run.server.kill()
            case ("start",):
                run.server.start()
            case ("stand still", float(seconds)):
                run.server.stand_still(seconds)
            case ("lie", int(tasks), float(pace)):
                run.server.tamper = liar(tasks, pace)
            case ("tell the truth",):
                run.server.tamper = lambda message: message
            case ("run", float(seconds)):
                run.until(run.now + seconds)
    end = math.ceil(run.now) + 5
    run.until(end)

    assert run.utilisation(4, end) > 0.85
    assert run.refusals(4, end) < 0.1


def test_what_was_learnt_stays_and_what_others_do_is_forgotten() -> None:
    """The rate goes on in the next epoch's task; the mean of this one's does not. Nothing is sent after."""
    run = SharingRun(Scenario(tasks=2, capacity=500)).until(10)
    strategy = run.tasks[0].strategy
    assert strategy._own._pacing._mean is not None
    rate = strategy.rate
    messages = run.connections[0].messages
    strategy.close()

    assert strategy._own.rate == rate
    assert strategy._own._pacing._mean is None
    run.until(15)
    assert run.connections[0].messages == messages
    assert len(run.server.connections) == 1


def test_a_worker_warns_once_and_says_what_it_has_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The address as the task has tried it: what Spark calls it is Spark's."""
    monkeypatch.setattr(query_pace, "TcpServerConnection", lambda address: NoServer(f"{address}: refused"))
    own = SharingRun(Scenario(tasks=1)).tasks[0].strategy._own
    for partition in range(2):
        origin = Origin("kinesis", "q", partition=partition)
        share_pace(own, origin, Address("driver.example", 4000, b"", b""))._note_problem()

    [warning] = [record.getMessage() for record in caplog.records if "compare" in record.getMessage()]
    assert warning.startswith("kinesis: ")
    assert warning.endswith(": driver.example:4000: refused")
    assert "aimdScope=task" in warning
    assert "spark" not in warning


def test_the_rest_is_the_other_strategys() -> None:
    run = SharingRun(Scenario(tasks=2, capacity=500)).until(10)
    strategy = run.tasks[0].strategy

    assert strategy.max_batch_size == strategy._own.max_batch_size
    assert strategy.limit == strategy._own.limit
    assert strategy.rate == strategy._own.rate
    strategy._own._pacing._delayed = 7
    strategy.forget_in_flight()
    assert strategy._own._pacing._delayed == 0
