"""Assigns the ranges of a batch to tasks (FLIP-27's split assigner)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from sluice.source.model.offsets import SplitRange
from sluice.source.model.splits import families

__all__ = ["assign_ranges"]


def assign_ranges(
    ranges: Sequence[SplitRange], per_task: int, least: int = 1
) -> list[tuple[SplitRange, ...]]:
    """Distributes ranges over as few tasks as possible; the same ranges always give the same tasks.

    Ranges of splits that descend from one another go to one task, parents before their children.

    Args:
        ranges: of one batch.
        per_task: number of ranges that one task reads.
        least: minimum number of tasks, if there are enough ranges.
    """
    count = max(-(-len(ranges) // per_task), least)
    tasks: list[list[SplitRange]] = [[] for _ in range(count)]
    smallest = [(0, number) for number in range(count)]  # a heap
    by_split = {each.split: each for each in ranges}
    found = families({each.split: each.parents for each in ranges})
    for family in sorted(found, key=len, reverse=True):
        size, number = smallest[0]
        tasks[number].extend(by_split[split] for split in family)
        heapq.heapreplace(smallest, (size + len(family), number))
    return [tuple(task) for task in tasks if task]
