"""Follows a query by its checkpoint: which batches exist, what is committed, and how much waits.

The checkpoint is what a restart believes, so it is asked, and not the driver, which may be dead or stopped.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from integration.model import KinesisModel, numbers
from sluice.errors import SluiceError
from sluice.source.model.offsets import Offsets

_END: Final = numbers.LAST_PLACE


class Follower:
    """Follows one query with one source, which reads one stream.

    `checkpoint`: of the query; need not be there yet.
    """

    def __init__(self, model: KinesisModel, stream: str, checkpoint: Path) -> None:
        self.committed = -1  # the last batch that Spark has committed; -1 before the first one
        self.planned = -1  # the last batch in the offset log
        self.consumers: frozenset[str] = frozenset()  # the ARNs that the log has as registered by the query
        self._model = model
        self._stream = stream
        self._checkpoint = checkpoint
        self._logged: dict[int, dict[str, int]] = {}  # not committed yet
        self._places: dict[str, int] = {}  # where the last batch that is committed ends
        self._ends: dict[str, tuple[list[int], list[int]]] = {}  # by shard: ends, and their batches

    def poll(self) -> None:
        """Reads what is new. Spark keeps the last 100 batches, so it must not be called late."""
        for batch in _numbers(self._checkpoint / "offsets"):
            if batch <= self.planned:
                continue
            try:
                text = (self._checkpoint / "offsets" / str(batch)).read_text()
                self._add(batch, Offsets.from_json(json.loads(text.splitlines()[2])).to_json(1))
            except (
                OSError,
                IndexError,
                ValueError,
                SluiceError,
            ):  # half written, by a driver whose disk is full
                break
        for batch in _numbers(self._checkpoint / "commits"):
            if self.committed < batch <= self.planned:
                self.committed = batch
                self._places = self._logged[batch]
        for batch in [each for each in self._logged if each <= self.committed]:
            del self._logged[batch]

    def unread(self) -> int:
        """The records of the stream after the last committed one."""
        waiting = 0
        for shard in self._model.shards():
            if shard.stream == self._stream:
                place = self._places.get(shard.id, -1)
                waiting += len(shard.records) - (
                    len(shard.records) if place == _END else bisect_right(shard.places, place)
                )
        return waiting

    def batch_of(self, shard: str, sequence_number: str) -> int | None:
        """The batch that a record is in; None where it is in none."""
        found = numbers.decode(sequence_number)
        places, batches = self._ends.get(shard, ([], []))
        if found is None:
            return None
        index = bisect_left(places, found.place)
        return batches[index] if index < len(batches) else None

    def _add(self, batch: int, offsets: Mapping[str, Any]) -> None:
        places = {shard: _place(position) for shard, position in offsets["streams"][self._stream].items()}
        for shard, place in places.items():
            ends, batches = self._ends.setdefault(shard, ([], []))
            if place >= 0 and (not ends or ends[-1] < place):
                ends.append(place)
                batches.append(batch)
        self._logged[batch] = places
        self.consumers = frozenset(offsets.get("consumers", {}).values())
        self.planned = batch


def _place(position: Mapping[str, Any]) -> int:
    if position.get("closed"):
        return _END
    number = position.get("after")
    if number is None:
        return -1
    found = numbers.decode(number)
    if found is not None:
        return found.place
    following = numbers.decode(str(int(number) + 1))  # right before a record
    assert following is not None, number
    return following.place - 1


def _numbers(directory: Path) -> list[int]:
    try:
        return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())
    except OSError:
        return []
