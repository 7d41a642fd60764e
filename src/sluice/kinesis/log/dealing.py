"""Distributes the shards of a batch over tasks: as few as have enough to do, and no more than there are
cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sluice.instants import MICROS_PER_SECOND
from sluice.source.model.offsets import SplitRange
from sluice.source.reading.assigner import assign_ranges
from sluice.spark_settings import cores_for_tasks

__all__ = ["deal_by_content"]

_SHARDS: Final = 8
"""Shards that a task reads in the 50 ms that another task would cost, if they have few records or none."""
_RECORDS: Final = 10_000
"""Records of 1 KiB that a task reads in these 50 ms."""
_SPAN: Final = 10 * MICROS_PER_SECOND
"""Arrival time (microseconds) in which a shard gets that many: Kinesis takes 1,000 records a second."""


def deal_by_content(ranges: Sequence[SplitRange], most: int) -> list[tuple[SplitRange, ...]]:
    """Distributes ranges over as few tasks as possible, and over more if these have enough to do.

    A task costs about 50 ms, and writes its own file or sends its own request. So there is another task for
    every 8 shards or 10,000 records, which take about as long to read, up to the number of cores.

    Args:
        ranges: of one batch.
        most: the most ranges of one task.
    """
    worth_while = int(sum(map(_task_share, ranges)))
    return assign_ranges(ranges, most, min(cores_for_tasks() or 1, worth_while))


def _task_share(each: SplitRange) -> float:
    """A range's share of a task's work; 1 if nothing is known, because the range may be long."""
    if each.expected is not None:
        return 1 / _SHARDS + each.expected / _RECORDS
    start, end = (getattr(position, "arrival", None) for position in (each.start, each.end))
    return 1.0 if start is None or end is None else 1 / _SHARDS + max(0, end - start) / _SPAN
