"""How many tasks read a batch: few, unless there is much to read and cores to read it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sluice.kinesis.log import dealing
from sluice.kinesis.source import KinesisSource
from sluice.source.model.offsets import HORIZON, After, Closed, Position, SplitRange
from sluice.source.model.splits import SplitId

OPTIONS = {"streamName": "s", "region": "us-east-1"}
SECOND = 1_000_000
END = After("9")


def split(number: int) -> SplitId:
    return SplitId("s", f"shardId-{number:012d}")


def ranges(
    count: int,
    expected: int | None = None,
    *,
    seconds: float | None = None,
    start: Position = HORIZON,
    end: After | Closed = END,
) -> list[SplitRange]:
    """Alike ranges: of some records, of some seconds, or nobody knows of how many."""
    if seconds is not None:
        start, end = After("5", arrival=SECOND), After("9", arrival=SECOND + int(seconds * SECOND))
    return [SplitRange(split(number), start, end, expected) for number in range(count)]


def tasks(found: Sequence[SplitRange], cores: int | None, **options: str) -> list[int]:
    """How many ranges each task has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dealing, "cores_for_tasks", lambda: cores)
        dealt = KinesisSource.configured({**OPTIONS, **options}, streaming=True).deal(found)
    assert sorted(each.split for task in dealt for each in task) == sorted(each.split for each in found)
    return [len(task) for task in dealt]


@pytest.mark.parametrize(
    ("found", "sizes"),
    [
        ([], {None: [], 1: [], 64: []}),
        (ranges(4, 100), {None: [4], 1: [4], 2: [4], 64: [4]}),
        (ranges(15, 0), {None: [15], 1: [15], 2: [15], 64: [15]}),
        (ranges(16, 100), {None: [16], 1: [16], 2: [8, 8], 64: [8, 8]}),
        (ranges(16, seconds=0.3), {None: [16], 1: [16], 2: [8, 8], 64: [8, 8]}),
        (ranges(40, 10), {None: [14, 13, 13], 1: [14, 13, 13], 2: [14, 13, 13], 64: [8] * 5}),
    ],
)
def test_a_batch_near_the_tip_has_few_tasks(
    found: list[SplitRange], sizes: dict[int | None, list[int]]
) -> None:
    """However many the cores: each costs as much as 8 shards, and writes its own file."""
    assert {cores: tasks(found, cores) for cores in sizes} == sizes


@pytest.mark.parametrize(
    ("found", "cores", "sizes"),
    [
        (ranges(4), 8, [1] * 4),
        (ranges(4), 2, [2, 2]),
        (ranges(4, end=Closed()), 2, [2, 2]),
        (ranges(16), 8, [2] * 8),
        (ranges(4, seconds=3600), 8, [1] * 4),
        (ranges(16, 5_000), 16, [2] * 6 + [1] * 4),
        (ranges(16, 5_000), 2, [8, 8]),
        (ranges(2, 10**7), 64, [1, 1]),
        (ranges(40), 2, [14, 13, 13]),
        (ranges(40), None, [14, 13, 13]),
        (ranges(4), 1, [4]),
    ],
)
def test_a_backlog_has_a_task_for_each_core(
    found: list[SplitRange], cores: int | None, sizes: list[int]
) -> None:
    """At most, and for a page of records at least, as far as these are known."""
    assert tasks(found, cores) == sizes


def test_what_the_user_says_counts() -> None:
    """Cores and records do not."""
    assert tasks(ranges(16), 8, shardsPerTask="16") == [16]
    assert tasks(ranges(16, 1), 2, shardsPerTask="4") == [4] * 4
