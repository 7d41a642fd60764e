"""Splits (FLIP-27): the shards of streams, and their lineage through resharding."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ["ALL_HASH_KEYS", "Lineage", "Split", "SplitId", "families", "held_back"]


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
        parents: ids of the shards it was split or merged from, two after a merge. They may have expired.
        starting_sequence: no record of the shard has a lower sequence number.
        ending_sequence: None while the shard is open.
        hash_range: first and last hash key, both included. The splits of a stream have all of them together.
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


class Lineage:
    """Which splits may be read: those whose parents have been read to their end.

    A parent that is not listed any more has expired with all its records; its children need not wait.
    """

    def __init__(self, splits: Iterable[Split]) -> None:
        self._splits: Mapping[SplitId, Split] = {split.id: split for split in splits}

    @property
    def splits(self) -> Mapping[SplitId, Split]:
        return self._splits

    def within_reach(self, drained: Collection[SplitId]) -> list[Split]:
        """The splits that one batch can read to their ends: all whose ancestors are drained, or closed and
        within reach themselves. Parents come before their children.

        Args:
            drained: splits that have been read to their end.
        """
        found: dict[SplitId, Split] = {}
        left = [split for split_id, split in sorted(self._splits.items()) if split_id not in drained]
        while left:
            ready = [split for split in left if not self._waits(split, drained, found)]
            if not ready:
                return list(found.values())
            found |= {split.id: split for split in ready}
            left = [split for split in left if split.id not in found]
        return list(found.values())

    def _waits(self, split: Split, drained: Collection[SplitId], reached: Mapping[SplitId, Split]) -> bool:
        for parent in split.parent_ids:
            is_reached = parent in reached and reached[parent].is_closed
            if parent in self._splits and parent not in drained and not is_reached:
                return True
        return False


def held_back(splits: Sequence[Split], max_width: int) -> frozenset[SplitId]:
    """The descendants in families that had more than `max_width` splits open at a time.

    Args:
        splits: parents before their children.
    """
    held: set[SplitId] = set()
    for family in families(splits):
        members = {split.id for split in family}
        parents = {parent for split in family for parent in split.parent_ids}
        roots = [split.id for split in family if not members.intersection(split.parent_ids)]
        leaves = members - parents
        if max(len(roots), len(leaves)) > max_width:
            held |= members.difference(roots)
    return frozenset(held)


def families(splits: Iterable[Split]) -> list[list[Split]]:
    """Groups splits that descend from one another. In each group parents come before their children.

    Args:
        splits: parents before their children.
    """
    group_of: dict[SplitId, list[Split]] = {}
    for split in splits:
        groups = {id(group_of[p]): group_of[p] for p in split.parent_ids if p in group_of}
        merged = [member for group in groups.values() for member in group] + [split]
        for member in merged:
            group_of[member.id] = merged
    return list({id(group): group for group in group_of.values()}.values())
