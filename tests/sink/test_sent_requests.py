"""What a task remembers of what it has sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.sink.sent_requests import SentRequests


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
    assert nothing.pace_around(5.0, 1.0) is None


def test_a_request_is_found_by_its_time() -> None:
    requests = sent((1.0, 5), (2.0, 5), (4.0, 5))

    paces = [found.pace for at in (0.5, 1.0, 1.9, 2.0, 3.0, 9.0) if (found := requests.sent_at(at))]
    assert paces == [10, 10, 10, 20, 20, 40]
    assert requests.last is not None
    assert requests.last.at == 4.0


def test_the_pace_around_a_time_counts_both_sides() -> None:
    requests = sent((1.0, 10), (2.0, 20), (3.0, 40), (4.0, 80))

    assert requests.pace_around(2.5, 1.0) == pytest.approx((20 + 40) / 2)
    assert requests.pace_around(3.5, 0.75) == pytest.approx((40 + 80) / 1.5)
    assert requests.pace_around(1.0, 2.0) == pytest.approx((10 + 20 + 40) / 4)  # nothing was sent before
    assert requests.pace_around(9.0, 1.0) is None


def test_what_is_forgotten_is_not_counted_as_nothing() -> None:
    requests = sent((1.0, 10), (2.0, 10), (3.0, 10), (4.0, 10), most=2)

    assert requests.pace_around(3.5, 1.0) is None
    assert requests.sent_at(1.5) == requests.sent_at(3.0)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 500)), min_size=1, max_size=40), st.integers(0, 60)
)
def test_the_pace_around_is_what_was_sent_in_that_time(steps: list[tuple[int, int]], at: int) -> None:
    requests, now, all_of_them = SentRequests(1000), 0.0, []
    for step, count in steps:
        now += step / 10
        requests.add(count, now, 1.0, 1.0)
        all_of_them.append((now, count))

    within = sum(count for when, count in all_of_them if at - 1.5 <= when <= at + 1.5)
    assert (requests.pace_around(float(at), 1.5) or 0.0) == pytest.approx(within / 3)
