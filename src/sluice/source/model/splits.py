"""Splits (FLIP-27): the shards of streams, and their lineage through resharding."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Final, NamedTuple

__all__ = ["ALL_HASH_KEYS", "Split", "SplitId", "families", "held_back", "within_reach"]


ALL_HASH_KEYS: Final = (0, 2**128 - 1)


class SplitId(NamedTuple):
    """A shard of a stream."""

    stream: str
    shard: str

    def __str__(self) -> str:
        return f"{self.stream}/{self.shard}"


@dataclass(frozen=True, slots=True)
class Split:
    """A shard as the service lists it.

    Attributes:
        parents: ids of the shards from which it was split or merged; two after a merge. They may have
            expired.
        starting_sequence: no record of the shard has a lower sequence number.
        ending_sequence: None while the shard is open.
        hash_range: first and last hash key, both included. The splits of a stream cover all hash keys.
    """

    id: SplitId
    parents: tuple[str, ...] = ()
    starting_sequence: str = "0"
    ending_sequence: str | None = None
    hash_range: tuple[int, int] = ALL_HASH_KEYS

    @property
    def parent_ids(self) -> tuple[SplitId, ...]:
        return tuple(SplitId(self.id.stream, parent) for parent in self.parents)

    @property
    def is_closed(self) -> bool:
        return self.ending_sequence is not None


def within_reach(splits: Mapping[SplitId, Split], drained: Collection[SplitId]) -> list[Split]:
    """Returns the splits that one batch can read to their ends, parents before children.

    All ancestors of such a split are drained, or closed and within reach themselves. If a parent no
    longer exists, all its records have expired, and its children need not wait.

    Args:
        splits: the existing splits.
        drained: splits that have been read to their end.
    """
    found: dict[SplitId, Split] = {}
    parents = {split: [p for p in splits[split].parent_ids if p in splits] for split in sorted(splits)}
    for split in TopologicalSorter(parents).static_order():
        waits_for = [parent for parent in parents[split] if parent not in drained]
        if split not in drained and all(p in found and found[p].is_closed for p in waits_for):
            found[split] = splits[split]
    return list(found.values())


def held_back(splits: Sequence[Split], max_width: int) -> frozenset[SplitId]:
    """Returns the descendants in families that had more than `max_width` splits open at a time."""
    parents = {split.id: split.parent_ids for split in splits}
    held: set[SplitId] = set()
    for family in families(parents):
        members = set(family)
        roots = {split for split in family if members.isdisjoint(parents[split])}
        leaves = members.difference(*(parents[split] for split in family))
        if max(len(roots), len(leaves)) > max_width:
            held |= members - roots
    return frozenset(held)


def families(parents: Mapping[SplitId, Iterable[SplitId]]) -> list[list[SplitId]]:
    """Groups splits that descend from one another, parents before children.

    Args:
        parents: by split. Parents that are not keys are ignored.
    """
    known = {split: [parent for parent in of if parent in parents] for split, of in parents.items()}
    group_of: dict[SplitId, list[SplitId]] = {}
    for split in TopologicalSorter(known).static_order():
        groups = {id(group_of[parent]): group_of[parent] for parent in known[split]}
        merged = [member for group in groups.values() for member in group] + [split]
        group_of |= dict.fromkeys(merged, merged)
    return list({id(group): group for group in group_of.values()}.values())
