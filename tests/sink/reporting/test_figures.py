"""The figures of tasks: merged in any order they are those of one writer that has done everything."""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sink_fakes import FakeDestination

from sluice.sink import SinkFigures
from sluice.sink.reporting.figures import OTHER, UNKNOWN, own_figures
from sluice.sink.reporting.histogram import RELATIVE_ERROR, Histogram

durations = st.one_of(
    st.floats(1e-6, 1e6), st.sampled_from([2.0**n for n in range(-19, 19)]), st.just(0.0), st.just(600.0)
)


def histogram(seconds: Sequence[float]) -> Histogram:
    made = Histogram()
    for each in seconds:
        made.record(each)
    return made


@given(st.lists(durations, min_size=1, max_size=50), st.integers(1, 100))
@example([1.0], 50)
@example([0.010] * 19 + [5.0], 95)
def test_percentiles_are_off_by_little(seconds: list[float], percent: int) -> None:
    """By at most 2.2 % of the duration with that rank, or two microseconds; the longest is exact."""
    found = histogram(seconds).percentile(percent)
    exact = sorted(seconds)[math.ceil(percent * len(seconds) / 100) - 1]

    assert found is not None
    assert abs(found - exact) <= max(exact * RELATIVE_ERROR * 1.000001, 2e-6)
    assert RELATIVE_ERROR < 0.022
    assert histogram(seconds).percentile(100) == max(seconds)


def test_there_are_no_percentiles_of_nothing() -> None:
    """A task without rows sends nothing."""
    assert Histogram().percentile(50) is None


@given(st.lists(st.floats(-10, 1e300), max_size=500))
def test_a_histogram_stays_small(seconds: list[float]) -> None:
    """For any durations, even with a clock that goes back, or after years."""
    made = histogram(seconds)

    assert made.count == len(seconds) == sum(made.buckets.values())
    assert all(-320 <= bucket < 320 for bucket in made.buckets)


# What happens to a writer, as functions of its figures.
Happening = Callable[[SinkFigures], object]


def adding(name: str, number: int) -> Happening:
    return lambda figures: setattr(figures, name, getattr(figures, name) + number)


def counting(name: str, number: int) -> Happening:
    other = SinkFigures(destination={name: number})
    return lambda figures: figures.merge(other)


codes = st.sampled_from([*(f"Code{n:02}" for n in range(40)), "", "a b\n", "x" * 100, OTHER])
happenings = st.lists(
    st.one_of(
        st.builds(adding, st.sampled_from(["records", "bytes_out", "dead_letters"]), st.integers(0, 9)),
        st.builds(
            lambda records, codes: lambda figures: figures.refuse(records, codes, sum(codes.values()) + 1),
            st.integers(0, 20),
            st.dictionaries(codes, st.integers(0, 5), max_size=5),
        ),
        st.builds(lambda seconds: lambda figures: figures.send_time.record(seconds), durations),
        st.builds(
            lambda name, number, held: lambda figures: getattr(figures, name).observe(number, held),
            st.sampled_from(["in_flight", "buffered"]),
            st.integers(0, 100),
            st.integers(0, 10**12),
        ),
        st.builds(counting, st.sampled_from(["answers_2xx", "batch_max"]), st.integers(-5, 100)),
    ),
    max_size=60,
)


def figures_of(*parts: Sequence[Happening]) -> SinkFigures:
    made = SinkFigures()
    for part in parts:
        for happening in part:
            happening(made)
    return made


def merged(*parts: SinkFigures) -> SinkFigures:
    made = SinkFigures()
    for part in parts:
        made.merge(part)
    return made


@given(happenings, happenings, happenings)
def test_merging_gives_the_figures_of_the_whole(
    a: list[Happening], b: list[Happening], c: list[Happening]
) -> None:
    """In any order and grouping, also after a journey to the driver; merging changes no input."""
    first, second, third = figures_of(a), figures_of(b), figures_of(c)
    before = pickle.dumps((first, second, third))
    whole = figures_of(a, b, c)

    assert merged(first, second, third) == whole
    assert merged(merged(first, second), third) == whole
    assert merged(first, merged(second, third)) == whole
    assert merged(third, first, second) == whole
    assert merged(*pickle.loads(before)) == whole
    assert pickle.loads(before) == (first, second, third)
    assert len(whole.refused_by_code) <= 33
    assert sum(whole.refused_by_code.values()) == whole.refused


@given(st.integers(0, 1000), st.dictionaries(codes, st.integers(0, 50), max_size=6), st.integers(0, 50))
def test_every_refusal_has_one_code(records: int, by_code: dict[str, int], entries: int) -> None:
    """However a destination counts: whole requests, parts of entries, or nothing at all."""
    figures = SinkFigures()
    figures.refuse(records, by_code, max(entries, 1))

    assert figures.refused == sum(figures.refused_by_code.values()) == records


@pytest.mark.parametrize(
    ("records", "by_code", "entries", "expected"),
    [
        (5, {"Throttled": 3, "Internal": 2}, 5, {"Throttled": 3, "Internal": 2}),
        (5, {"Throttled": 3}, 5, {"Throttled": 3, UNKNOWN: 2}),
        (5, {}, 5, {UNKNOWN: 5}),
        (100, {"Throttled": 1, "Internal": 3}, 4, {"Throttled": 25, "Internal": 75}),  # 25 records an entry
        (2, {"A": 0, "B": 2}, 2, {"B": 2}),
        (1, {"no name\n": 1}, 1, {"no_name_": 1}),
    ],
)
def test_refusals_by_code(
    records: int, by_code: dict[str, int], entries: int, expected: dict[str, int]
) -> None:
    """Exact where entries are records; else in proportion."""
    figures = SinkFigures()
    figures.refuse(records, by_code, entries)

    assert figures.refused_by_code == expected


def test_codes_are_bounded_and_none_is_lost() -> None:
    """A destination that makes codes of ids does not take the driver's memory."""
    figures = SinkFigures()
    for n in range(1000):
        figures.refuse(1, {f"request {n:04}": 1}, 1)

    assert len(figures.refused_by_code) == 33
    assert figures.refused_by_code[OTHER] == 1000 - 32
    assert figures.summary()["refused_by_code"] == figures.refused_by_code


@given(st.lists(st.tuples(st.integers(0, 45), st.integers(1, 9)), min_size=40, max_size=80), st.randoms())
def test_the_same_codes_are_kept_in_any_order(refusals: list[tuple[int, int]], random: Random) -> None:
    """Though there are more of them than are kept apart: which task comes first is chance."""
    parts = [SinkFigures() for _ in refusals]
    for part, (code, count) in zip(parts, refusals, strict=True):
        part.refuse(count, {f"Code{code:02}": count}, count)
    whole = merged(*parts)
    random.shuffle(parts)

    middle = random.randrange(len(parts))
    assert merged(merged(*parts[:middle]), merged(*parts[middle:])) == whole
    assert whole.refused == sum(count for _, count in refusals)


def test_the_mean_is_over_time() -> None:
    """Ten requests for a second and none for three: 2.5, for any number of events; the peak is 10."""
    figures = SinkFigures(requests=1)
    for _ in range(4):
        figures.in_flight.observe(10, 250_000_000)
    figures.in_flight.observe(0, 3_000_000_000)
    figures.buffered.observe(7, 0)
    found = figures.summary()

    assert (found["in_flight_peak"], found["in_flight_mean"]) == (10, 2.5)
    assert (found["buffered_peak"], found["buffered_mean"]) == (7, None)


class Counting(FakeDestination):
    """Has its own figures."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.own = own

    def figures(self) -> Any:
        if isinstance(self.own, Exception):
            raise self.own
        return self.own


def test_a_destination_has_its_own_figures() -> None:
    """Numbers by name; values that are no finite numbers would break JSON, and are left out."""
    given_ = {"files": 3, "seconds": 1.5, "no name": 2, "none": None, "nan": math.nan, "text": "x"}

    assert own_figures(Counting(given_), "fake") == {"files": 3, "seconds": 1.5, "no_name": 2}
    assert len(own_figures(Counting({f"{n:04}": n for n in range(1000)}), "fake")) == 32


@pytest.mark.parametrize("own", [OSError("no figures today"), None, [1, 2]])
def test_figures_that_fail_fail_nothing(own: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Every record is delivered by then; the log says why there are none."""
    with caplog.at_level(logging.WARNING):
        assert own_figures(Counting(own), "fake") == {}

    assert "fake: its own figures are left out" in caplog.text
