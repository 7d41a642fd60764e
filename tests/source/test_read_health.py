"""How the reads of a split fare: since when they fail, and what ends that."""

from __future__ import annotations

from sluice.source.state.read_health import ReadHealth


def test_a_failing_split_is_failing_since_its_first_failure() -> None:
    """One read that succeeds ends it. A throttled one was answered, and neither ends nor begins it."""
    reads = ReadHealth()
    assert reads.mark_failed(10, 20, is_missing=True) == 0
    assert reads.mark_failed(35, 45, is_missing=False) == 25
    assert (reads.failing_since, reads.next_read_at, reads.is_missing) == (10, 45, False)
    reads.mark_answered()
    assert reads.mark_failed(50, 60, is_missing=False) == 0
    reads.mark_throttled(60, 70)
    assert (reads.failing_since, reads.next_read_at) == (50, 70)


def test_a_failure_long_after_the_one_before_begins_anew() -> None:
    """The planner may have tried nothing in between."""
    reads = ReadHealth()
    reads.mark_failed(10, 12, is_missing=False)
    assert reads.mark_failed(41, 43, is_missing=False, begun_at=40) == 31
    assert reads.mark_failed(72, 74, is_missing=False) == 0


def test_a_split_that_answers_is_there() -> None:
    """Whether it was missing counts until the splits are listed again, or it answers."""
    reads = ReadHealth()
    reads.mark_failed(10, 20, is_missing=True)
    assert reads.is_missing
    reads.mark_answered()
    assert not reads.is_missing
