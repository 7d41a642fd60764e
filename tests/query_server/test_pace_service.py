"""The server by which tasks compare their paces: the mean of those whom the destination limits now."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.query_server.pace_service import KNOWN_FOR, PaceService
from sluice.query_server.protocol import AcquireTokens, Join, MeanRate, Ping, Pong, ReportRate
from sluice.query_server.service import IDLE_TIME


def report(service: PaceService, connection: int, pace: float, now: float, query: str = "q") -> MeanRate:
    [(to, answer)] = service.handle(connection, ReportRate(query, pace), now)
    assert to == connection
    assert isinstance(answer, MeanRate)
    return answer


def test_tasks_are_told_how_many_they_are_and_their_mean() -> None:
    """Each when it says its pace; those of other queries do not count."""
    service = PaceService(0.0)
    assert report(service, 1, 100.0, 0.0) == MeanRate(1, 100.0)
    assert report(service, 2, 300.0, 0.1) == MeanRate(2, 200.0)
    assert report(service, 3, 900.0, 0.2, query="other") == MeanRate(1, 900.0)
    assert report(service, 1, 200.0, 0.3) == MeanRate(2, 250.0)


@pytest.mark.parametrize("pace", [0.0, -1.0, math.inf, math.nan])
def test_a_task_that_nothing_limits_does_not_count(pace: float) -> None:
    """Nor does what is no pace."""
    service = PaceService(0.0)
    report(service, 1, 100.0, 0.0)
    report(service, 2, 300.0, 0.0)
    assert report(service, 2, pace, 0.1) == MeanRate(1, 100.0)
    assert report(service, 1, pace, 0.1) == MeanRate(0, 0.0)


def test_a_task_that_is_gone_or_silent_does_not_count() -> None:
    service = PaceService(0.0)
    for connection, pace in ((1, 100.0), (2, 300.0), (3, 800.0)):
        report(service, connection, pace, 0.0)
    service.lost(3, 0.5)
    service.lost(4, 0.5)  # it has said nothing
    assert report(service, 1, 100.0, 1.0) == MeanRate(2, 200.0)
    assert report(service, 1, 100.0, KNOWN_FOR) == MeanRate(1, 100.0)


def test_it_ends_when_nobody_says_anything() -> None:
    """No task, and no writer of the query. Nothing of a query stays when its tasks are gone."""
    service = PaceService(0.0)
    assert service.handle(1, Ping(), 1.0) == [(1, Pong())]
    report(service, 2, 100.0, 2.0)
    assert service.has_tasks
    service.lost(2, 3.0)
    assert not service.has_tasks
    assert not service._queries
    assert not service.is_idle(2.0 + IDLE_TIME - 1)
    assert service.is_idle(2.0 + IDLE_TIME)


def test_what_is_of_a_bucket_is_ignored() -> None:
    service = PaceService(0.0)
    for message in (Join("q", "", "1", starts_full=True), AcquireTokens(5.0)):
        assert service.handle(1, message, 0.0) == []
    assert service.due(1.0) == []
    assert service.wait() == math.inf
    assert not service.has_tasks


@given(st.lists(st.tuples(st.integers(1, 4), st.floats(), st.floats(0, 1)), max_size=20))
def test_the_mean_is_within_what_was_said(words: list[tuple[int, float, float]]) -> None:
    """Whoever says what and when."""
    service, now = PaceService(0.0), 0.0
    said = []
    for connection, pace, later in words:
        now += later
        said += [pace] if 0 < pace < math.inf else []
        told = report(service, connection, pace, now)
        assert 0 <= told.tasks <= 4
        if told.tasks:
            assert min(said) * 0.999 <= told.rate
            assert told.rate <= max(said) * 1.001 or told.rate == math.inf
        else:
            assert told.rate == 0.0
