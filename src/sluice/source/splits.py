"""Splits (FLIP-27): the shards of streams, and their lineage through resharding."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Lineage", "Split", "SplitId"]


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
        hash_range: first and last hash key, both included.
    """

    id: SplitId
    parents: tuple[str, ...] = ()
    starting_sequence: str = "0"
    ending_sequence: str | None = None
    hash_range: tuple[int, int] = (0, 2**128 - 1)

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

    def readable(self, drained: Collection[SplitId]) -> list[Split]:
        """The splits that are not drained and whose parents are, in the order of their ids.

        Args:
            drained: splits that have been read to their end.
        """
        return [
            split
            for split_id, split in sorted(self._splits.items())
            if split_id not in drained and not self._waits(split, drained)
        ]

    def _waits(self, split: Split, drained: Collection[SplitId]) -> bool:
        parents = (SplitId(split.id.stream, shard) for shard in split.parents)
        return any(parent in self._splits and parent not in drained for parent in parents)
