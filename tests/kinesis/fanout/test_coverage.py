"""Which positions a subscription covers."""

from __future__ import annotations

import pytest

from sluice.kinesis.fanout.coverage import Coverage, needed
from sluice.source.offsets import HORIZON, After, before
from sluice.source.stream_log import IteratorStart


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (HORIZON, None),
        (After("10"), 10),
        (After("10", sub=3), 9),
        (After("10", next="25"), 24),
        (before("25"), 24),
    ],
)
def test_what_is_not_needed_behind_a_position(position: After, expected: int | None) -> None:
    """Inside an aggregate its record is; where the next record is known nothing up to it is."""
    assert needed(position) == expected


def test_a_start_without_a_number_covers_itself_and_what_follows_the_first_record() -> None:
    """What lay before the first record nobody knows."""
    coverage = Coverage(IteratorStart("AT_TIMESTAMP", timestamp=5))

    assert coverage.holds(IteratorStart("AT_TIMESTAMP", timestamp=5), None)
    assert not coverage.holds(IteratorStart("AT_TIMESTAMP", timestamp=6), None)
    assert not coverage.holds(IteratorStart("AT_SEQUENCE_NUMBER", "30"), 30)
    coverage.begin("30")
    assert coverage.holds(IteratorStart("AT_SEQUENCE_NUMBER", "30"), 30)
    assert not coverage.holds(IteratorStart("AT_SEQUENCE_NUMBER", "28"), 28)
    coverage.drop(40)
    assert not coverage.holds(IteratorStart("AT_TIMESTAMP", timestamp=5), None)
    assert not coverage.holds(IteratorStart("AT_SEQUENCE_NUMBER", "39"), 39)
    assert coverage.holds(IteratorStart("AT_SEQUENCE_NUMBER", "40"), 40)
