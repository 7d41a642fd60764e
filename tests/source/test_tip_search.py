"""Where the search for the newest record asks next, by itself."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.instants import MICROS_PER_SECOND as SECOND
from sluice.source.probing.session import next_instant

NOW = 1_700_000_000 * SECOND
YEAR = 365 * 24 * 3600


def search(oldest: int, newest: int, span: int) -> int:
    """Asks until the rest fits a page; returns how often."""
    begin = low = NOW - oldest
    high, asked = NOW + 1, 0
    while (instant := next_instant(begin, NOW, low, high, span)) is not None:
        assert low < instant < high
        if newest >= instant:
            low = instant
        else:
            high = instant
        asked += 1
        assert asked <= 200
    assert low <= newest < high
    assert high - low <= span
    return asked


@given(
    oldest=st.integers(1, YEAR * SECOND),
    pause=st.floats(0.0, 1.0),
    span=st.integers(SECOND // 500, 3600 * SECOND),
)
@example(oldest=1_033_285, pause=0.0, span=SECOND)
@example(oldest=2 * SECOND, pause=0.0, span=SECOND // 500)
def test_every_answer_narrows_the_search(oldest: int, pause: float, span: int) -> None:
    """Each question lies between the known bounds, and the last ones leave no more than a page."""
    assert search(oldest, NOW - int(oldest * pause), span) <= 2 * math.log2(oldest / span + 2) + 12


@pytest.mark.parametrize("pause", [2, 60])
def test_a_pause_is_found_about_as_fast_in_a_year_as_in_an_hour(pause: int) -> None:
    """The logarithm of a pause is halved, and not the time that it lies in."""
    asked = search(YEAR * SECOND, NOW - pause * SECOND, SECOND)
    assert asked <= search(3600 * SECOND, NOW - pause * SECOND, SECOND) + 3


@pytest.mark.parametrize("written", [2, 60])
def test_a_minute_of_records_is_found_about_as_fast_a_day_later_as_an_hour_later(written: int) -> None:
    """And so is the logarithm of the time in which producers wrote."""
    asked = [
        search(past * SECOND, NOW - (past - written) * SECOND, SECOND) for past in (3600, 24 * 3600, YEAR)
    ]
    assert asked[2] <= asked[0] + 3
    assert asked[1] <= 12
