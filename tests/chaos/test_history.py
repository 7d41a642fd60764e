"""What a run of chaos makes of its samples and failures."""

from __future__ import annotations

import pytest
from integration.chaos.history import History, Sample, Struck
from integration.chaos.plan import KINDS, Fault


def struck(name: str, at: float, seconds: float = 0.0, hit: str | None = "it") -> Struck:
    return Struck(Fault(at, KINDS[name], seconds, (0.0, 0.0, 0.0)), at, hit)


def sample(at: float, put: int = 0, waiting: int = 0, committed: int = 0) -> Sample:
    return Sample(at, put, put, {"copy": waiting, "lake": 0}, {"copy": committed, "lake": 0})


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


def test_the_longest_stall_is_time_without_a_commit_while_records_wait() -> None:
    history = History(
        samples=[
            sample(0, committed=1),
            sample(10, waiting=5, committed=1),
            sample(14, waiting=9, committed=1),
            sample(15, waiting=2, committed=2),
            sample(17, waiting=0, committed=2),
            sample(90, waiting=0, committed=2),
        ]
    )
    assert history.longest_stall("copy") == (4, 10)
    assert history.longest_stall("copy", since=15) == (0, 15)
    assert history.longest_stall("lake") == (0, 0)


def test_a_stall_that_lasts() -> None:
    """Since the last commit, the last moment without work, or the beginning that is given."""
    samples = [sample(0, waiting=5, committed=1), *(sample(at, waiting=5, committed=2) for at in (5, 7, 12))]
    assert History(samples=samples).stalled("copy", since=0) == 7
    assert History(samples=samples).stalled("copy", since=6) == 5
    assert History(samples=[*samples, sample(13, committed=2)]).stalled("copy", since=0) == 0
    assert History(samples=samples).stalled("lake", since=0) == 0


def test_lag_is_how_long_ago_the_oldest_record_that_waits_was_put() -> None:
    history = History(
        samples=[sample(0, 0), sample(1, 10, 10), sample(2, 20, 20), sample(3, 30, 25), sample(4, 30)]
    )
    assert history.lag("copy") == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 0)]


def test_recovery_is_from_the_end_of_a_fault_to_the_next_commit() -> None:
    fault = struck("stop agent", 1, 4)
    history = History(
        [fault],
        samples=[sample(0, committed=1), sample(4.9, 9, 9, 3), sample(6, 9, 9, 3), sample(8, 9, 9, 4)],
    )
    assert history.recovery(fault) == 3
    history.samples.pop()
    assert history.recovery(fault) is None
