"""Assigns the ranges of a batch to tasks (FLIP-27's split assigner)."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from sluice.source.model.offsets import SplitRange
from sluice.source.model.splits import SplitId

__all__ = ["assign_ranges"]


def assign_ranges(
    ranges: Sequence[SplitRange], per_task: int, least: int = 1
) -> list[tuple[SplitRange, ...]]:
    """Deals ranges out to as few tasks as possible; the same ranges always in the same way.

    Ranges of splits that descend from one another go to one task, parents before their children.

    Args:
        ranges: those of one batch.
        per_task: how many ranges one task reads.
        least: how many tasks there are at least, as far as there are ranges for them.
    """
    count = max(-(-len(ranges) // per_task), least)
    tasks: list[list[SplitRange]] = [[] for _ in range(count)]
    smallest = [(0, number) for number in range(count)]  # a heap
    for family in sorted(_families(ranges), key=len, reverse=True):
        size, number = smallest[0]
        tasks[number].extend(family)
        heapq.heapreplace(smallest, (size + len(family), number))
    return [tuple(task) for task in tasks if task]


def _families(ranges: Sequence[SplitRange]) -> list[list[SplitRange]]:
    by_split = {each.split: each for each in ranges}
    group_of: dict[SplitId, list[SplitRange]] = {}
    for each in _parents_first(by_split):
        groups = {id(group_of[p]): group_of[p] for p in each.parents if p in group_of}
        merged = [member for group in groups.values() for member in group] + [each]
        group_of |= dict.fromkeys((member.split for member in merged), merged)
    return list({id(group): group for group in group_of.values()}.values())


def _parents_first(ranges: Mapping[SplitId, SplitRange]) -> list[SplitRange]:
    placed: dict[SplitId, SplitRange] = {}
    left = list(ranges.values())
    while left:
        ready = [r for r in left if all(p in placed or p not in ranges for p in r.parents)]
        placed |= {each.split: each for each in ready}
        left = [each for each in left if each.split not in placed]
    return list(placed.values())
