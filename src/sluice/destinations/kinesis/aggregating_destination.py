"""The destination that packs: what it needs beyond a plain one is to know where its aggregates go.

Readers leave out what is in the wrong shard: the Kinesis Client Library a whole aggregate of which one
record does not belong to the shard it is read from, the source of this library those records. They rely on
the producer to send them again. So here every answer is compared with the shard that was meant, and an
aggregate that went astray, because of a reshard, is packed anew and sent again, all of it. A reader that
looks at hash keys gets each record at least once; one that does not, like a plain consumer, may see
it twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from sluice.aws.responses import Outcome
from sluice.destinations.kinesis.aggregates import (
    Aggregate,
    AggregatingConverter,
    Entry,
    bounds,
    regrouped,
    routed_by,
    user_records,
)
from sluice.destinations.kinesis.converter import KinesisEntry
from sluice.destinations.kinesis.shard_map import ShardMap, Shards
from sluice.sink.contracts import Rejection, SubmitResult

__all__ = ["DEFAULT_LIMIT", "AggregatingDestination"]

DEFAULT_LIMIT: Final = 51_200
"""Bytes of an aggregate; the default of the Kinesis Producer Library."""

# How often what went astray is sent again at once, before it takes its place among what was refused.
_ATTEMPTS: Final = 3
_ASTRAY: Final = "WrongShard"

_MAX_RECORDS: Final = 500
_MAX_BYTES: Final = 10 * 1024 * 1024


class Plain(Protocol):
    """The destination that does not pack."""

    @property
    def name(self) -> str: ...
    def put(
        self, entries: Sequence[KinesisEntry]
    ) -> tuple[SubmitResult[KinesisEntry], Sequence[Outcome]]: ...
    def size_in_bytes(self, entry: KinesisEntry) -> int: ...
    def is_fatal(self, error: Exception) -> bool: ...
    def close(self) -> None: ...


class _Part(NamedTuple):
    """What is put for an entry: the entry itself, unless its shard was divided meanwhile."""

    owner: int  # place among the entries submitted
    entry: Entry


class _Fate:
    """What becomes of the entries of a request, part by part."""

    def __init__(self) -> None:
        self.failed: set[int] = set()
        self.rejected: dict[int, str] = {}
        self.codes: Counter[str] = Counter()
        self._left: dict[int, list[Entry]] = {}

    def refuse(self, part: _Part, reason: str | None = None) -> None:
        """A part was not accepted; for good, where there is a reason."""
        self._left.setdefault(part.owner, []).append(part.entry)
        if reason is None:
            self.failed.add(part.owner)
        else:
            self.rejected[part.owner] = reason

    def of(self, entries: Sequence[Entry]) -> SubmitResult[Entry]:
        """An entry of which a part was refused is refused, and what is left of it remembered in it.

        A request that was given up may still be under way beside this one. Whichever is the last to say
        what is left: all else had been accepted.
        """
        for owner, left in self._left.items():
            entry = entries[owner]
            if isinstance(entry, Aggregate) and left != [entry]:
                entry.parts = left
        return SubmitResult(
            failed=[entries[owner] for owner in sorted(self.failed)],
            codes=self.codes,
            rejected=[
                Rejection(entries[owner], reason)
                for owner, reason in sorted(self.rejected.items())
                if owner not in self.failed
            ],
        )


class AggregatingDestination:
    """A stream whose records hold many rows each.

    Args:
        plain: the same stream, without packing.
        shards: of the stream.
        limit: bytes that an aggregate may have.
    """

    def __init__(self, plain: Plain, shards: Shards, *, limit: int = DEFAULT_LIMIT) -> None:
        self._plain = plain
        self._shards = shards
        self._limit = limit
        self._lanes: ShardMap | None = None
        self.name = plain.name

    def create_converter(self) -> AggregatingConverter:
        return AggregatingConverter(self._packed_for, self._limit)

    def size_in_bytes(self, entry: Entry) -> int:
        """As Kinesis counts a record, with its partition key."""
        return self._plain.size_in_bytes(_record(entry))

    def ordering_key(self, entry: Entry) -> str | None:
        """The shard: what goes to one goes there in its order. See `Destination`."""
        if isinstance(entry, Aggregate):
            return entry.lane
        shard = self._packed_for().find(routed_by(entry))
        return shard.id if shard else ""

    def records_in(self, entry: Entry) -> int:
        """How many rows an entry holds. See `Destination`."""
        return entry.holds if isinstance(entry, Aggregate) else 1

    def unpacked(self, entry: Entry) -> Sequence[KinesisEntry]:
        """What an entry holds, row by row. See `Destination`."""
        return user_records(entry)

    def submit(self, entries: Sequence[Entry]) -> SubmitResult[Entry]:
        """Calls ``PutRecords``: once, but for reshards.

        Raises:
            ServiceError: nothing is known to have been accepted.
            OptionError: no client can be made from the connection options.
        """
        shards = self._shards.current()
        fate = _Fate()
        waiting = [
            _Part(owner, part) for owner, entry in enumerate(entries) for part in _parts(entry, shards)
        ]
        for _ in range(_ATTEMPTS):
            astray = [
                part for request in _requests(waiting, self) for part in self._put(request, shards, fate)
            ]
            if not astray:
                return fate.of(entries)
            shards = self._shards.newer_than(shards)
            waiting = [_Part(owner, part) for owner, entry in astray for part in _parts(entry, shards)]
        for part in waiting:
            fate.refuse(part)
        fate.codes[_ASTRAY] += len({part.owner for part in waiting})
        return fate.of(entries)

    def is_fatal(self, error: Exception) -> bool:
        """As the plain destination's."""
        fatal = self._plain.is_fatal(error)
        if fatal:
            # A stream that is gone may come back with other shards of the same names.
            self._shards.forget()
        return fatal

    def close(self) -> None:
        self._plain.close()

    def _packed_for(self) -> ShardMap:
        """The shards as they were when the first row came: a lane must not change while it is in use.

        What reshards change later is seen to in `submit`.
        """
        if self._lanes is None:
            self._lanes = self._shards.current()
        return self._lanes

    def _put(self, parts: Sequence[_Part], shards: ShardMap, fate: _Fate) -> list[_Part]:
        """Puts one request; returns what was accepted, but by a shard where not all of it belongs."""
        records = [_record(part.entry) for part in parts]
        result, outcomes = self._plain.put(records)
        fate.codes.update(result.codes)
        failed = set(map(id, result.failed))
        rejected = {id(each.entry): each.reason for each in result.rejected}
        astray: list[_Part] = []
        for part, record, outcome in zip(parts, records, outcomes, strict=True):
            if id(record) in failed:
                fate.refuse(part)
            elif id(record) in rejected:
                fate.refuse(part, rejected[id(record)])
            elif isinstance(part.entry, Aggregate) and not self._arrived(
                part.entry, outcome.shard_id, shards
            ):
                astray.append(part)
        return astray

    def _arrived(self, entry: Aggregate, shard: str | None, shards: ShardMap) -> bool:
        """Whether the shard that took an aggregate is that of all of its records."""
        meant = shards.find(routed_by(entry.record))
        if meant is not None and meant.id == shard:
            return True
        taken_by = shards.named(shard or "") or self._shards.newer_than(shards).named(shard or "")
        if taken_by is None:
            return False
        return taken_by.holds(*bounds(entry))


def _record(entry: Entry) -> KinesisEntry:
    return entry.record if isinstance(entry, Aggregate) else entry


def _parts(entry: Entry, shards: ShardMap) -> Sequence[Entry]:
    """What to put for an entry, as the shards are now: the entry itself, or what it holds, packed anew."""
    if not isinstance(entry, Aggregate):
        return (entry,)
    if entry.parts is not None:
        return [each for part in entry.parts for each in _parts(part, shards)]
    shard = shards.find(entry.first)
    return (
        (entry,) if shard is not None and shard.holds(entry.first, entry.last) else regrouped(entry, shards)
    )


def _requests(parts: Sequence[_Part], destination: AggregatingDestination) -> Iterator[Sequence[_Part]]:
    """The parts in as many requests as the service's limits ask for."""
    start = size = 0
    for place, part in enumerate(parts):
        more = destination.size_in_bytes(part.entry)
        if place > start and (place - start == _MAX_RECORDS or size + more > _MAX_BYTES):
            yield parts[start:place]
            start, size = place, 0
        size += more
    yield parts[start:]
