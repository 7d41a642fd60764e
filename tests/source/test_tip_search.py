"""Where the search for the newest record asks next, by itself."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from sluice.instants import MICROS_PER_SECOND as SECOND
from sluice.source.probing.tip_search import TipSearch, shortest_span

NOW = 1_700_000_000 * SECOND
YEAR = 365 * 24 * 3600


@given(
    oldest=st.integers(1, YEAR * SECOND),
    pause=st.floats(0.0, 1.0),
    span=st.integers(SECOND // 500, 3600 * SECOND),
    is_large=st.booleans(),
)
@example(oldest=1_033_285, pause=0.0, span=SECOND, is_large=False)
@example(oldest=1_033_285, pause=0.0, span=SECOND, is_large=True)
@example(oldest=2 * SECOND, pause=0.0, span=SECOND // 500, is_large=False)
def test_every_answer_narrows_the_search(oldest: int, pause: float, span: int, *, is_large: bool) -> None:
    """Each question lies between what is known, and the last ones leave no more than a page."""
    newest = NOW - int(oldest * pause)
    search = TipSearch(NOW, NOW - oldest, NOW + 1, span, span, is_large)
    asked = 0
    while (instant := search.next_instant()) is not None:
        assert search.low < instant < search.high
        if newest >= instant:
            search.low = min(newest, max(instant, search.low))
        else:
            search.high = instant
        asked += 1
        assert asked <= 200
    assert search.low <= newest < search.high
    assert search.high - search.low <= span
    if not is_large:
        assert asked <= 2 * math.log2(oldest / span + 2) + 12


def test_a_pause_is_found_about_as_fast_in_a_year_as_in_an_hour() -> None:
    """The logarithm of a pause is halved, and not the time that it lies in."""

    def questions(oldest: float, pause: float) -> int:
        newest, asked = NOW - int(pause * SECOND), 0
        search = TipSearch(NOW, NOW - int(oldest * SECOND), NOW + 1, SECOND, SECOND)
        while (instant := search.next_instant()) is not None:
            asked += 1
            if newest >= instant:
                search.low = instant
            else:
                search.high = instant
        return asked

    assert questions(YEAR, 60.0) <= questions(3600.0, 60.0) + 3
    assert questions(YEAR, 2.0) <= 9


def test_no_more_is_written_than_a_shard_takes() -> None:
    """1,000 records or 1 MiB a second."""
    assert shortest_span(10_000, 100) == 10 * SECOND
    assert shortest_span(1, 2**20) == SECOND
    assert shortest_span(1, 10 * 2**20) == 10 * SECOND
