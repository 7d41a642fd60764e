"""What a pace shows at which nothing is refused for load, and what is known of the load before it."""

from __future__ import annotations

import pytest

from sluice.sink.decaying import DecayingSum
from sluice.sink.failing_share import FailingShare
from sluice.sink.lowered_pace import LoweredPace
from sluice.sink.paced_answer import Answer

BEFORE = 8000.0
LATENCY = 1.0


def known(share: float) -> FailingShare:
    sums = DecayingSum()
    for _ in range(100):
        sums.add(share * 10, 10, 0.0, 1e9)
    failing = FailingShare()
    failing.learn(sums, sums)
    return failing


def lowered(failing: FailingShare | None = None, pace: float = 2000.0) -> LoweredPace:
    """Lowered at second 10."""
    return LoweredPace(BEFORE, pace, failing or FailingShare(), 10.0, least=100.0)


def answer(
    pace: LoweredPace, at: float, refused: int, *, entries: int = 100, sent_at: float = BEFORE
) -> None:
    """Of a request that was sent at this time, and at this pace."""
    pace.add(Answer(refused, 0, entries, sent_at, 1.0, at, at + LATENCY), LATENCY)


def answers_to_what_was_sent_before(pace: LoweredPace, refused: int) -> None:
    for n in range(10):
        answer(pace, 9.0 + n / 10, refused)


def test_a_little_less_is_sent_than_is_accepted() -> None:
    """Whether it is load that refuses the rest, or not: surely there is none then."""
    pace = lowered()
    answers_to_what_was_sent_before(pace, 60)

    assert pace.pace == pytest.approx(0.9 * 0.4 * BEFORE)
    assert not pace.is_over


def test_what_fails_anyway_is_sent_too_if_it_is_known() -> None:
    pace = lowered(known(0.2))
    answers_to_what_was_sent_before(pace, 60)

    assert pace.pace == pytest.approx(0.4 / 0.8 * BEFORE)


def test_the_cut_has_the_mean_pace_and_what_was_refused_of_it() -> None:
    pace = lowered()
    for n in range(10):
        answer(pace, 9.0 + n / 10, 60, sent_at=4000.0)
        answer(pace, 9.0 + n / 10, 80, sent_at=8000.0)

    assert pace.cut().before == pytest.approx(200 / (100 / 4000 + 100 / 8000))
    assert pace.cut().refused.share == pytest.approx(0.7)


def test_what_meets_requests_from_before_shows_nothing() -> None:
    """Half the time of an answer after the pace fell, and as long again for what shows what fails."""
    pace = lowered()
    for n in range(50):
        answer(pace, 10.0 + n / 100, 50)
    assert not pace.shown.values
    for n in range(49):
        answer(pace, 10.51 + n / 100, 0)

    assert not pace.is_over
    answer(pace, 11.01, 0)
    assert pace.is_over
    assert pace.shown.share == 0.0


def test_a_pace_that_falls_again_starts_over() -> None:
    pace = lowered()
    for n in range(40):
        answer(pace, 10.6 + n / 100, 10)
    answers_to_what_was_sent_before(pace, 90)  # which come late
    assert not pace.shown.values
    assert pace.pace == pytest.approx(0.9 * 0.1 * BEFORE)
    answer(pace, 10.9, 10)  # it fell at 10.5, with the sixth of them

    assert not pace.shown.values


def test_few_requests_that_fail_as_a_whole_show_little() -> None:
    """So more are waited for: for two more answers at most."""
    pace = lowered()
    for n in range(20):
        answer(pace, 10.5 + n / 10, 100 if n % 3 == 0 else 0)
        assert not pace.is_over
    answer(pace, 12.51, 0)

    assert pace.is_over


def test_an_outage_shows_nothing() -> None:
    """Neither at the lowered pace, nor of what was sent before."""
    pace = lowered()
    for n in range(300):
        answer(pace, 10.5 + n / 100, 100)
    assert not pace.is_over
    for n in range(300):
        answer(pace, 13.5 + n / 100, 10)

    assert pace.is_over
    assert pace.shown.share == pytest.approx(0.1)
    assert pace.was_outage


def test_an_outage_that_is_over_when_the_pace_is_lowered_was_one() -> None:
    pace = lowered()
    for n in range(12):
        answer(pace, 9.0 + n / 20, 100)
    for n in range(200):
        answer(pace, 10.5 + n / 100, 10)

    assert pace.is_over
    assert pace.was_outage
    assert pace.pace == 100.0


def test_much_load_is_no_outage() -> None:
    pace = lowered()
    for n in range(100):
        answer(pace, 9.0 + n / 100, 100 if n % 11 else 80)

    assert not pace.was_outage
