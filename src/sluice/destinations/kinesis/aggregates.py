"""Rows packed into aggregates of the Kinesis Producer Library's format, shard by shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, Union

import pyarrow as pa

from sluice.destinations.kinesis.converter import KinesisEntry, KinesisRowConverter, random_keys
from sluice.destinations.kinesis.shard_map import Shard, ShardMap
from sluice.kinesis.kpl.aggregator import Packer
from sluice.kinesis.kpl.deaggregator import PRODUCER_LIBRARY_KEY, hash_key, unpack

__all__ = [
    "Aggregate",
    "AggregatingConverter",
    "Entry",
    "bounds",
    "regrouped",
    "routed_by",
    "user_records",
]


Entry: TypeAlias = Union[KinesisEntry, "Aggregate"]
"""What is written: a record of the user as it is, or several in one."""


@dataclass(slots=True, eq=False)
class Aggregate:
    """A record to write that holds several of the user's.

    Attributes:
        record: what is sent. Its explicit hash key is that of the first record it holds.
        holds: how many records it holds.
        first, last: all its records have hash keys from `first` to `last`, both included; those may be wider
            than they need be.
        lane: the shard it was made for, by which order is kept; None where no order is asked for.
        parts: after it was divided among several shards, what has still to be accepted.
    """

    record: KinesisEntry
    holds: int
    first: int
    last: int
    lane: str | None
    parts: Sequence[Entry] | None = None


class AggregatingConverter(KinesisRowConverter):
    """Makes aggregates of rows, and single records of those that are too large or alone.

    The rows of one batch are packed together: what is packed waits for nothing but the rest of its batch.
    Rows of one shard keep their order. Rows without any key go anywhere: those of one aggregate share a
    key made at random.

    Args:
        shards: the shards to pack for, asked for when there are rows.
        limit: bytes that an aggregate may have.
    """

    def __init__(self, shards: Callable[[], ShardMap], limit: int) -> None:
        self._shards = shards
        self._limit = limit

    def convert(self, batch: pa.RecordBatch) -> Iterator[Entry]:  # type: ignore[override]
        """The entries of a batch, each as soon as it is full.

        Raises:
            InvalidRecordError: a row without data, or with a key that is not allowed.
            OptionError: the batch has no column ``data``.
            ServiceError: the stream's shards cannot be listed.
        """
        packing = _Packing(self._shards(), self._limit)
        for data, keys, hash_keys in self.columns(batch):
            nothing = [None] * len(data)
            for row in zip(data, keys or nothing, hash_keys or nothing, strict=True):
                done = packing.add(*row)
                if done:
                    yield from done
        yield from packing.finish()


def routed_by(entry: KinesisEntry) -> int:
    """The hash key that decides about the shard of a record."""
    return _hash_of(entry.partition_key, entry.explicit_hash_key)


def user_records(entry: Entry) -> list[KinesisEntry]:
    """The records of the user that an entry holds, in their order; of a divided one, what is left."""
    if isinstance(entry, KinesisEntry):
        return [entry]
    if entry.parts is not None:
        return [record for part in entry.parts for record in user_records(part)]
    return list(map(KinesisEntry, *_columns(entry)))


def bounds(entry: Aggregate) -> tuple[int, int]:
    """The least and the greatest of the hash keys that are really in it."""
    _, keys, hash_keys = _columns(entry)
    routes = [_hash_of(key, explicit) for key, explicit in set(zip(keys, hash_keys, strict=True))]
    return min(routes), max(routes)


def regrouped(entry: Aggregate, shards: ShardMap) -> list[Entry]:
    """What is in `entry`, packed anew for other shards."""
    packing = _Packing(shards, len(entry.record.data))
    found = [done for row in zip(*_columns(entry), strict=True) for done in packing.add(*row)]
    return [*found, *packing.finish()]


def _columns(entry: Aggregate) -> tuple[list[bytes], list[str], list[str | None]]:
    keys, data, hash_keys = unpack(entry.record.data)
    return data, keys, hash_keys


def _hash_of(key: str, explicit: str | None) -> int:
    return hash_key(key) if explicit is None else int(explicit)


class _Packing:
    """Aggregates that are being filled, one for each shard and one for what may go anywhere."""

    def __init__(self, shards: ShardMap, limit: int) -> None:
        self._shards = shards
        self._limit = limit
        self._groups: dict[str, _Group] = {}
        self._by_key: dict[str, _Group] = {}
        self._by_hash_key: dict[str, _Group] = {}
        self._anywhere = _Group(None, limit)
        # For rows that have a hash key alone.
        (self._spare_key,) = random_keys(1)

    def add(self, data: bytes, key: str | None, explicit: str | None) -> Sequence[Entry]:
        """Takes a record; returns what is full by now."""
        if explicit is not None:
            key = self._spare_key if key is None else key
            group = self._by_hash_key.get(explicit) or self._group(key, explicit)
        elif key is not None:
            group = self._by_key.get(key) or self._group(key, None)
        else:
            group = self._anywhere
            key = group.key
        if group is None:
            return (KinesisEntry(data, key, explicit),)
        if group.packer.add(key, data, explicit):
            return ()
        return group.turn_over(data, key, explicit)

    def finish(self) -> Iterator[Entry]:
        """What is not full."""
        for group in (*self._groups.values(), self._anywhere):
            yield from group.seal()

    def _group(self, key: str, explicit: str | None) -> _Group | None:
        shard = self._shards.find(_hash_of(key, explicit))
        if shard is None:
            return None
        group = self._groups.get(shard.id)
        if group is None:
            group = self._groups[shard.id] = _Group(shard, self._limit)
        if explicit is None:
            self._by_key[key] = group
        else:
            self._by_hash_key[explicit] = group
        return group


class _Group:
    """The aggregate that is being filled for one shard, or for any (`shard` is None)."""

    __slots__ = ("_limit", "_opening", "_shard", "key", "packer")

    def __init__(self, shard: Shard | None, limit: int) -> None:
        self._shard = shard
        self._limit = limit
        self._opening = _NONE
        self.packer = Packer(0)  # takes nothing: the first record opens a real one
        self.key = ""  # of all records, where they have none

    def turn_over(self, data: bytes, key: str, explicit: str | None) -> list[Entry]:
        """Takes a record for which there was no room; returns what had filled it, and what is too large."""
        done = self.seal()
        if self._shard is None:
            (key,) = random_keys(1)
            self.key = key
        self._opening = KinesisEntry(data, key, explicit)
        self.packer = Packer(self._limit)
        if not self.packer.add(key, data, explicit):
            self.packer = Packer(0)
            done.append(self._opening)
        return done

    def seal(self) -> list[Entry]:
        """What is in it: an aggregate, a single record as it is, or nothing."""
        packer, self.packer = self.packer, Packer(0)
        if packer.count < 2:
            return [self._opening] if packer.count else []
        route = routed_by(self._opening)
        first, last, lane = (
            (route, route, None)
            if self._shard is None
            else (self._shard.first, self._shard.last, self._shard.id)
        )
        record = KinesisEntry(packer.seal(), PRODUCER_LIBRARY_KEY, str(route))
        return [Aggregate(record, packer.count, first, last, lane)]


_NONE: Final = KinesisEntry(b"", "")
