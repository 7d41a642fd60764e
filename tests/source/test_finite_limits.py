"""Limits of a batch of splits whose sizes or records are not known."""

from __future__ import annotations

import pytest

from sluice.source.finite.finite_enumerator import _Room
from sluice.source.finite.splits import SplitEnd
from sluice.source.settings import Limits


def taken(limits: Limits, *ends: SplitEnd) -> int:
    """How many ranges a batch has."""
    room, count = _Room(limits), 0
    for end in ends:
        if room.is_full or not room.take(end):
            break
        count += 1
    return count


@pytest.mark.parametrize(
    ("limits", "end", "count"),
    [
        (Limits(bytes=1000), SplitEnd(None), 1),
        (Limits(bytes=1000), SplitEnd(None, records=1), 1),
        (Limits(records=10), SplitEnd(None, size=1), 1),
        (Limits(records=10, bytes=1000), SplitEnd(None, size=1), 1),
        (Limits(records=10, bytes=1000), SplitEnd(None, records=1), 1),
        (Limits(bytes=1000), SplitEnd(None, size=400), 2),
        (Limits(records=10), SplitEnd(None, records=4), 2),
        (Limits(), SplitEnd(None), 200),
    ],
)
def test_what_is_not_known_fills_a_batch_with_a_limit_on_it(
    limits: Limits, end: SplitEnd, count: int
) -> None:
    """Each batch has one range at least. A limit that nothing is known of would be no limit."""
    assert taken(limits, *[end] * 200) == count


def test_a_range_of_unknown_size_does_not_follow_one_that_is_known() -> None:
    assert taken(Limits(bytes=1000), SplitEnd(None, size=1), SplitEnd(None), SplitEnd(None, size=1)) == 1
