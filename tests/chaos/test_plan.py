"""The history of a run is drawn from its seed before anything runs."""

from __future__ import annotations

import re

import pytest
from integration.chaos.plan import KINDS, draw_faults, draw_incarnation

QUERIES = ("copy", "lake")


def test_a_seed_gives_the_same_history_again() -> None:
    """And another seed gives another one."""
    assert draw_faults(7, 600) == draw_faults(7, 600)
    assert draw_faults(7, 600) != draw_faults(8, 600)
    assert draw_incarnation(7, 3, QUERIES) == draw_incarnation(7, 3, QUERIES)


@pytest.mark.parametrize("seed", range(20))
def test_ten_minutes_have_every_kind(seed: int) -> None:
    """For any seed, and no fault outlasts the run."""
    faults = draw_faults(seed, 600)
    assert {fault.kind.name for fault in faults} == set(KINDS)
    assert all(0 <= fault.at <= fault.until < 600 for fault in faults)
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)


@pytest.mark.parametrize("seed", range(20))
def test_two_minutes_have_every_kind_of_kill(seed: int) -> None:
    """Continuous integration has no more, so what costs records most often must be in it."""
    faults = {fault.kind.name for fault in draw_faults(seed, 120)}
    assert {name for name in KINDS if name.startswith("kill")} - faults == set()


def test_errors_that_are_expected_are_patterns() -> None:
    """A kind that ends a query says by which error; the others end none."""
    for kind in KINDS.values():
        assert bool(kind.error) == (kind.ends == "query"), kind
        re.compile(kind.error)
