"""Probes that tell whether a service takes more. In whole runs: `test_congestion`."""

from __future__ import annotations

import pytest

from sluice.sink.dips import Dips
from sluice.sink.upward_probes import UpwardProbes

STEP = 0.02  # seconds between two requests
SHARE = 0.02  # of requests, refused whatever the pace is


def send(probes: UpwardProbes, seconds: float, *, refused: float, begin: float = 0.0) -> list[float]:
    """Sends requests that are answered at once; in a probe, `refused` of each is refused.

    Returns what the probes have said.
    """
    said = []
    for number in range(int(seconds / STEP)):
        at = begin + number * STEP
        if probes.gain(at) > 1.0:
            probes.answered(refused, at)
        elif evidence := probes.evidence(SHARE, at):
            said.append(evidence)
    return said


def test_a_service_that_takes_more_is_found_in_a_few_probes() -> None:
    """One of them is not enough: it may have had tokens left."""
    said = send(UpwardProbes(Dips()), 5.0, refused=0.0)

    assert len(said) >= 3
    assert all(0.5 < evidence < 3.0 for evidence in said)


def test_refusals_that_come_whatever_the_pace_is_do_not_hide_it() -> None:
    assert send(UpwardProbes(Dips()), 5.0, refused=SHARE)


def test_a_probe_at_the_limit_shows_nothing_else_and_the_next_ones_are_rarer() -> None:
    """They cost what is refused in them."""
    probes = UpwardProbes(Dips())

    def time_in_probes(begin: float) -> int:
        return sum(probes.gain(begin + number * STEP) > 1.0 for number in range(int(10.0 / STEP)))

    at_first = time_in_probes(0.0)
    assert send(probes, 10.0, refused=0.13, begin=10.0) == []
    assert time_in_probes(20.0) < 0.5 * at_first
    assert time_in_probes(30.0) > 0, "the capacity may rise again"

    assert send(probes, 20.0, refused=0.0, begin=40.0)
    assert time_in_probes(60.0) == pytest.approx(at_first, rel=0.2)


def test_all_tasks_probe_in_the_same_moments() -> None:
    """Their monotonic clocks differ, and how often they probe: rare probes are at the times of others."""
    here, there = UpwardProbes(Dips(lambda: 1000.0)), UpwardProbes(Dips(lambda: 300.0))
    send(there, 20.0, refused=0.13, begin=700.0)
    together = alone = 0
    for number in range(int(20.0 / STEP)):
        at = 20.0 + number * STEP
        if there.gain(at + 700.0) > 1.0:
            together += here.gain(at) > 1.0
            alone += here.gain(at) == 1.0

    assert together > 10
    assert alone <= 2


def test_a_probe_of_a_few_requests_shows_nothing() -> None:
    probes = UpwardProbes(Dips())
    at = next(number * STEP for number in range(100) if probes.gain(number * STEP) > 1.0)
    for _ in range(3):
        probes.answered(0.0, at)

    assert probes.evidence(SHARE, at + 1.0) == 0.0
