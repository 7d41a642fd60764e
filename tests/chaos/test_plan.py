"""The history of a run is drawn from its seed before anything runs."""

from __future__ import annotations

import itertools
import re

import pytest
from integration.chaos.plan import KINDS, draw_faults, draw_incarnation, longest_fault
from integration.chaos.roles import ROLES

QUERIES = ("copy", "lake")


def test_a_seed_gives_the_same_history_again() -> None:
    """And another seed gives another one."""
    assert draw_faults(7, 600) == draw_faults(7, 600)
    assert draw_faults(7, 600) != draw_faults(8, 600)
    assert draw_incarnation(7, 3, QUERIES) == draw_incarnation(7, 3, QUERIES)


@pytest.mark.parametrize("seed", range(20))
def test_ten_minutes_have_every_kind(seed: int) -> None:
    """Whatever the seed, and no fault outlasts the run."""
    faults = draw_faults(seed, 600)
    assert {fault.kind.name for fault in faults} == set(KINDS)
    assert all(0 <= fault.at <= fault.until < 600 for fault in faults)
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)


@pytest.mark.parametrize("seed", range(20))
def test_two_minutes_have_every_kind_of_kill(seed: int) -> None:
    """Continuous integration has no more, so what costs records most often must be in it."""
    faults = {fault.kind.name for fault in draw_faults(seed, 120)}
    assert {name for name in KINDS if name.startswith("kill")} - faults == set()


def test_stops_last_from_5_to_60_seconds() -> None:
    """In a short run less: one stop of a minute would be all there is."""
    stops = [
        fault.seconds for seed in range(9) for fault in draw_faults(seed, 3600) if "stop" in fault.kind.name
    ]
    assert 5 <= min(stops) < 6
    assert 50 < max(stops) <= 60
    assert longest_fault(120) == 12


@pytest.mark.parametrize("seconds", [120.0, 3600.0])
def test_faults_of_one_track_do_not_overlap(seconds: float) -> None:
    """Two storms over one another would outlast what a query may be asked to bear."""
    storms = [
        fault
        for fault in draw_faults(3, seconds)
        if re.match("throttle|KMS|internal|refuse|lose", fault.kind.name)
    ]
    assert all(one.until < other.at for one, other in itertools.pairwise(storms))


def test_each_driver_changes_the_publishers() -> None:
    """Both queries read by both publishers, and go on from the other's offsets."""
    pushed = [draw_incarnation(1, number, QUERIES).pushed for number in range(4)]
    assert pushed == [{"copy"}, {"lake"}, {"copy"}, {"lake"}]


def test_what_tasks_share_changes_with_each_driver() -> None:
    """In a short run, which has one or two drivers, there is a query server to strike."""
    assert [draw_incarnation(1, number, QUERIES).shared for number in range(4)] == [
        "tokens",
        "nothing",
        "tokens",
        "nothing",
    ]


def test_each_process_that_is_struck_has_a_role() -> None:
    struck = {name.partition(" ")[2] for name in KINDS if re.match("kill|stop", name)}
    assert struck - {"all workers"} <= set(ROLES)
    assert "query server" in struck


def test_errors_that_are_expected_are_patterns() -> None:
    """A kind that ends a query says by which error; the others end none."""
    for kind in KINDS.values():
        assert bool(kind.error) == (kind.ends == "query"), kind
        re.compile(kind.error)
