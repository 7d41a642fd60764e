"""What a task remembers of what it has sent."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.sink.sent_requests import _FEWEST, SentRequests


def sent(*requests: tuple[float, int], most: int = 100) -> SentRequests:
    """Requests of so many entries at these times; the pace of each is 10 times its time."""
    requests_ = SentRequests(most)
    for at, count in requests:
        requests_.add(count, at, 10 * at, 1.0)
    return requests_


def test_nothing_is_known_before_the_first() -> None:
    nothing = sent()

    assert nothing.last is None
    assert nothing.sent_at(5.0) is None
    assert nothing.pace_around(5.0, 1.0, 9.0) is None


def test_a_request_is_found_by_its_time() -> None:
    requests = sent((1.0, 5), (2.0, 5), (4.0, 5))

    paces = [found.pace for at in (0.5, 1.0, 1.9, 2.0, 3.0, 9.0) if (found := requests.sent_at(at))]
    assert paces == [10, 10, 10, 20, 20, 40]
    assert requests.last is not None
    assert requests.last.at == 4.0


def test_the_pace_around_a_time_counts_both_sides() -> None:
    """Six requests at the beginning of each second."""
    seconds = ((1, 5), (2, 10), (3, 40), (4, 80))
    requests = sent(*[(second + n / 25, count) for second, count in seconds for n in range(6)])

    assert requests.pace_around(2.5, 1.0, 9.0) == pytest.approx(6 * (10 + 40) / 2)
    assert requests.pace_around(3.5, 0.75, 9.0) == pytest.approx(6 * (40 + 80) / 1.5)
    before = 6 * (5 + 10) + 40  # and nothing before those
    assert requests.pace_around(1.0, 2.0, 9.0) == pytest.approx(before / 4)


def test_what_is_still_to_be_sent_does_not_count_as_nothing() -> None:
    """The last requests of a steady sender are not from a time in which half as much was sent."""
    requests = sent(*[(n / 20, 5) for n in range(1, 101)])

    assert requests.pace_around(5.0, 1.0, 5.0) == pytest.approx(100, rel=0.15)
    assert requests.pace_around(5.0, 1.0, 6.0) == pytest.approx(50, rel=0.15)  # nothing was, in that second


def test_of_a_few_requests_the_pace_is_not_known() -> None:
    requests = sent(*[(n / 10, 10) for n in range(1, 51)])

    assert requests.pace_around(2.02, (_FEWEST - 1) / 20 + 0.01, 9.0) is None
    assert requests.pace_around(2.02, (_FEWEST + 1) / 20, 9.0) is not None
    assert requests.pace_around(2.02, 0.0, 9.0) is None
    assert requests.pace_around(90.0, 1.0, 99.0) is None


def test_what_is_forgotten_does_not_count_as_nothing() -> None:
    requests = sent(*[(n / 40, 10) for n in range(1, 201)], most=40)

    assert requests.pace_around(4.2, 0.5, 9.0) is None
    assert requests.pace_around(4.6, 0.5, 9.0) is not None
    assert requests.sent_at(1.5) == requests.sent_at(4.03)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 500)), min_size=1, max_size=60), st.integers(0, 60)
)
def test_the_pace_around_is_what_was_sent_in_that_time(steps: list[tuple[int, int]], at: int) -> None:
    requests, now, all_of_them = SentRequests(1000), 0.0, []
    for step, count in steps:
        now += step / 10
        requests.add(count, now, 1.0, 1.0)
        all_of_them.append((now, count))

    within = [count for when, count in all_of_them if at - 1.5 <= when <= at + 1.5]
    pace = requests.pace_around(float(at), 1.5, math.inf)
    assert pace == (pytest.approx(sum(within) / 3) if len(within) >= _FEWEST else None)
