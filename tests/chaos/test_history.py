"""What a run of chaos makes of its samples and failures."""

from __future__ import annotations

import pytest
from integration.chaos.history import History, Struck
from integration.chaos.plan import KINDS, Fault


def struck(name: str, at: float, seconds: float = 0.0, hit: str | None = "it") -> Struck:
    return Struck(Fault(at, KINDS[name], seconds, (0.0, 0.0, 0.0)), at, hit)


def test_a_failure_is_explained_by_a_fault_that_may_end_a_query() -> None:
    """Each fault as often as its kind may: the next failure needs another one."""
    history = History([struck("kill planner", 10)])
    assert history.fail(12, "copy", "EOFException").cause is history.struck[0]
    assert history.fail(13, "lake", "EOFException").cause is history.struck[0]
    assert history.fail(14, "copy", "EOFException").cause is None
    assert len(history.unexplained) == 1


@pytest.mark.parametrize(
    ("name", "at", "hit", "error"),
    [
        ("throttle reads", 12, "it", "EOFException"),  # may end nothing
        ("kill planner", 12, None, "EOFException"),  # has hit nothing
        ("kill planner", 12, "it", "DataLossError"),  # ends no query like that
        ("kill planner", 12, "it", "sluice.errors.ServiceError: Connection reset"),  # the library's own
        ("kill planner", 9, "it", "EOFException"),  # comes later
        ("kill planner", 110, "it", "EOFException"),  # was long ago
    ],
)
def test_a_failure_is_a_broken_promise_otherwise(name: str, at: float, hit: str | None, error: str) -> None:
    history = History([struck(name, 10, hit=hit)])
    assert history.fail(at, "copy", error).cause is None


def test_what_ended_the_run_before() -> None:
    """A kill of the driver, or the last failure of the query."""
    history = History([struck("kill planner", 10)], kills=[30.0])
    history.fail(12, "copy", "EOFException")
    history.fail(13, "lake", "EOFException")
    history.fail(20, "copy", "DataLossError")
    ended = [history.ended_before(at, "copy") for at in (1, 13, 21, 31)]
    assert ended == ["nothing", "kill planner", "it failed by itself", "kill driver"]
