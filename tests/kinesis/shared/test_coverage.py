"""Which positions a subscription covers."""

from __future__ import annotations

import pytest

from sluice.kinesis.shared.coverage import Coverage, exclusive_start
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.offsets import HORIZON, After, before


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
def test_the_exclusive_start_of_a_position(position: After, expected: int | None) -> None:
    """A partly read aggregated record is needed again; nothing before a known next record is needed."""
    assert exclusive_start(position) == expected


def test_a_start_without_a_number_covers_itself_and_what_follows_the_first_record() -> None:
    """Other positions before the first record are not covered: which records lie between is unknown."""
    coverage = Coverage(IteratorStart("AT_TIMESTAMP", timestamp=5))

    assert coverage.covers(IteratorStart("AT_TIMESTAMP", timestamp=5), None)
    assert not coverage.covers(IteratorStart("AT_TIMESTAMP", timestamp=6), None)
    assert not coverage.covers(IteratorStart("AT_SEQUENCE_NUMBER", "30"), 30)
    coverage.record_first("30")
    assert coverage.covers(IteratorStart("AT_SEQUENCE_NUMBER", "30"), 30)
    assert not coverage.covers(IteratorStart("AT_SEQUENCE_NUMBER", "28"), 28)
    coverage.discard(40)
    assert not coverage.covers(IteratorStart("AT_TIMESTAMP", timestamp=5), None)
    assert not coverage.covers(IteratorStart("AT_SEQUENCE_NUMBER", "39"), 39)
    assert coverage.covers(IteratorStart("AT_SEQUENCE_NUMBER", "40"), 40)
