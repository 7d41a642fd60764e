"""Places of another consumer, as the option ``startingPosition`` writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sluice.cli.checkpoint import Checkpoint, CheckpointError, choose_source
from sluice.cli.report import UsageError
from sluice.errors import SluiceError
from sluice.source.model.splits import Split, SplitId

__all__ = ["SHARD_END", "TRIM_HORIZON", "Imported", "ImportedFormatError", "after", "last_offset"]

Place = Mapping[str, Any]
"""What ``startingPosition`` has for one shard."""

SHARD_END: Final[Place] = {"SHARD_END": True}
TRIM_HORIZON: Final[Place] = {"TRIM_HORIZON": True}


class ImportedFormatError(SluiceError):
    """What another consumer stores is in an unknown form."""


def after(number: str, sub: int | None = None) -> Place:
    """Behind a record, or behind user record `sub` (from 0) of an aggregated one."""
    place: dict[str, Any] = {"AFTER_SEQUENCE_NUMBER": number}
    return place if sub is None else place | {"SUB_SEQUENCE_NUMBER": sub}


@dataclass(frozen=True)
class Imported:
    """The places of a consumer.

    Attributes:
        places: by shard.
        unread: shards that it knows and has not begun to read, with its own word for where it would start.
        notes: sentences for the user.
        identities: by stream, ``<account>:<stream>:<creation epoch>``, if the consumer stores it.
    """

    places: Mapping[SplitId, Place]
    unread: Mapping[SplitId, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    identities: Mapping[str, str] = field(default_factory=dict)

    @property
    def streams(self) -> list[str]:
        return sorted({split.stream for split in (*self.places, *self.unread)})

    def of_stream(self, stream: str) -> Imported:
        """The positions of one stream alone.

        Raises:
            UsageError: there is none.
        """
        if stream not in self.streams:
            raise UsageError(f"--stream {stream}: the streams are {', '.join(self.streams) or 'none'}")
        return replace(
            self,
            places={split: place for split, place in self.places.items() if split.stream == stream},
            unread={split: word for split, word in self.unread.items() if split.stream == stream},
        )

    def starting_unread_at(self, place: Place) -> Imported:
        """The same with `place` for the shards that the consumer has not begun to read."""
        return replace(
            self,
            places={**self.places, **dict.fromkeys(self.unread, place)},
            unread={},
            notes=[
                *self.notes,
                *(f"{split}: not begun, the consumer says {word}" for split, word in self.unread.items()),
            ],
        )

    def completed(self, listed: Iterable[Split]) -> Imported:
        """The same for the shards that exist now.

        A shard that is not listed any more has expired, and a starting position must not name it. A listed
        shard that the consumer does not know has been finished if the consumer knows a descendant: consumers
        forget what they have finished, and read children after their parents. Any other shard is younger, and
        is read from its start.
        """
        splits = {split.id: split for split in listed}
        known = {split: place for split, place in self.places.items() if split in splits}
        gone = sorted(self.places.keys() - splits.keys())
        finished = _ancestors(known, splits) - known.keys()
        notes = [
            *self.notes,
            *(f"{split}: has expired, left out" for split in gone),
            *(f"{split}: finished, as its children have been begun" for split in sorted(finished)),
        ]
        places = {**known, **dict.fromkeys(finished, SHARD_END)}
        return replace(self, places=places, unread={}, notes=notes)

    def starting_position(self) -> dict[str, Any]:
        """For the option ``startingPosition``: by shard, and by stream where there are several."""
        by_stream: dict[str, dict[str, Place]] = {}
        for split, place in sorted(self.places.items()):
            by_stream.setdefault(split.stream, {})[split.shard] = place
        return dict(by_stream) if len(by_stream) != 1 else dict(next(iter(by_stream.values())))


def last_offset(
    checkpoint: Checkpoint, source: int | None, is_theirs: Callable[[Any], bool], whose: str
) -> tuple[int, int, Any, list[str]]:
    """The last batch that another source has logged.

    Args:
        source: the index of the source in the query; None: the only one there is.
        is_theirs: whether a value is an offset of that source.
        whose: for messages.

    Returns:
        Its number, the index of the source, the offset, and notes.

    Raises:
        CheckpointError, UsageError: there is no such batch or source.
    """
    batch = checkpoint.last
    if batch is None:
        raise CheckpointError(f"{checkpoint.storage.shown}: no batch was planned yet")
    values = {index: each.json for index, each in enumerate(checkpoint.read(batch).sources)}
    theirs = {index: value for index, value in values.items() if is_theirs(value)}
    is_done = checkpoint.in_flight is None
    notes = [] if is_done else [f"batch {batch} was not committed: it is read again"]
    return batch, *choose_source(theirs, source, whose), notes


def _ancestors(known: Iterable[SplitId], splits: Mapping[SplitId, Split]) -> set[SplitId]:
    found: set[SplitId] = set()
    waiting = list(known)
    while waiting:
        for parent in splits[waiting.pop()].parent_ids:
            if parent in splits and parent not in found:
                found.add(parent)
                waiting.append(parent)
    return found
