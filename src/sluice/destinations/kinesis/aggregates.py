"""Packs rows into aggregates of the Kinesis Producer Library's format, each for one shard.

Format: https://github.com/awslabs/amazon-kinesis-producer/blob/master/aggregation-format.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, Union

import pyarrow as pa

from sluice.destinations.kinesis.converter import KinesisEntry, KinesisRowConverter, random_keys
from sluice.destinations.kinesis.shard_map import Shard, ShardMap
from sluice.kinesis.log.kpl.aggregator import Aggregator
from sluice.kinesis.log.kpl.deaggregator import hash_key, unpack
from sluice.kinesis.log.kpl.format import PRODUCER_LIBRARY_KEY

__all__ = [
    "Aggregate",
    "AggregatingConverter",
    "Entry",
    "hash_key_bounds",
    "hash_key_of",
    "repacked",
    "user_records",
]


Entry: TypeAlias = Union[KinesisEntry, "Aggregate"]
"""A record to write: one user record, or an aggregate of several."""


@dataclass(slots=True, eq=False)
class Aggregate:
    """A record to write that holds several user records.

    Attributes:
        record: is sent. Its explicit hash key is taken from the first user record.
        count: its user records; of a rejected aggregate, only the refused ones.
        first, last: the range of its user records' hash keys, both included. May be wider than necessary.
        ordering_key: in whose order it must be accepted: the shard that it was packed for or, if none was
            listed, the hash key of all its user records. None if its rows have no keys, and so no order.
        parts: None until it had to be split because of a reshard; then the parts that were not yet accepted.
    """

    record: KinesisEntry
    count: int
    first: int
    last: int
    ordering_key: str | int | None
    parts: Sequence[Entry] | None = None


class AggregatingConverter(KinesisRowConverter):
    """Makes aggregates from rows. A row that is too large, or alone in its aggregate, becomes a plain record.

    The rows of one batch are packed together; an aggregate never waits for the next batch. Rows for the same
    shard keep their order. Rows without any key may go to any shard: those of one aggregate share a random
    partition key. While a reshard hides a shard from the listing, an aggregate has the rows of one hash key:
    these go to the same shard, whichever that is.

    Args:
        shards: gives the shards to pack for; called once for each batch.
        limit: the largest size of an aggregate in bytes.
        compression: of the data of each row.
    """

    def __init__(self, shards: Callable[[], ShardMap], limit: int, compression: str = "none") -> None:
        super().__init__(compression)
        self._shards = shards
        self._limit = limit

    def convert(self, batch: pa.RecordBatch) -> Iterator[Entry]:  # type: ignore[override]
        """The entries of a batch, each as soon as it is full.

        Raises:
            InvalidRecordError: in a row, ``data`` is null or a key is not allowed.
            OptionError: the batch has no column ``data``.
            ServiceError: the stream's shards cannot be listed.
        """
        open_aggregates = _OpenAggregates(self._shards(), self._limit)
        for data, keys, hash_keys in self.columns(batch):
            nothing = [None] * len(data)
            for row in zip(data, keys or nothing, hash_keys or nothing, strict=True):
                full = open_aggregates.add(*row)
                if full:
                    yield from full
        yield from open_aggregates.finish()


def hash_key_of(record: KinesisEntry) -> int:
    """The hash key that selects the shard of a record."""
    return _hash_key(record.partition_key, record.explicit_hash_key)


def user_records(entry: Entry) -> list[KinesisEntry]:
    """The user records in an entry, in their order; of a split aggregate those that were not yet accepted."""
    if isinstance(entry, KinesisEntry):
        return [entry]
    if entry.parts is not None:
        return [record for part in entry.parts for record in user_records(part)]
    return list(map(KinesisEntry, *_unpack(entry)))


def hash_key_bounds(aggregate: Aggregate) -> tuple[int, int]:
    """The smallest and the largest hash key of the user records; unpacks the aggregate."""
    _, keys, hash_keys = _unpack(aggregate)
    found = [_hash_key(key, explicit) for key, explicit in set(zip(keys, hash_keys, strict=True))]
    return min(found), max(found)


def repacked(aggregate: Aggregate, shards: ShardMap) -> list[Entry]:
    """The user records of an aggregate, packed for `shards`."""
    open_aggregates = _OpenAggregates(shards, len(aggregate.record.data))
    full = [entry for row in zip(*_unpack(aggregate), strict=True) for entry in open_aggregates.add(*row)]
    return [*full, *open_aggregates.finish()]


def _unpack(aggregate: Aggregate) -> tuple[list[bytes], list[str], list[str | None]]:
    keys, data, hash_keys = unpack(aggregate.record.data)
    return data, keys, hash_keys


def _hash_key(key: str, explicit: str | None) -> int:
    return hash_key(key) if explicit is None else int(explicit)


class _OpenAggregates:
    """The aggregates that are being filled: one for each shard, one for each hash key whose shard is not
    listed, and one for rows without keys.
    """

    def __init__(self, shards: ShardMap, limit: int) -> None:
        self._shards = shards
        self._limit = limit
        self._by_target: dict[str | int, _OpenAggregate] = {}
        self._by_key: dict[str, _OpenAggregate] = {}
        self._by_hash_key: dict[str, _OpenAggregate] = {}
        self._without_keys = _OpenAggregate(None, limit)
        # The partition key of rows that have only an explicit hash key.
        (self._spare_key,) = random_keys(1)

    def add(self, data: bytes, key: str | None, explicit: str | None) -> Sequence[Entry]:
        """Takes a row; returns the entries that are now full."""
        if explicit is not None:
            key = self._spare_key if key is None else key
            aggregate = self._by_hash_key.get(explicit) or self._aggregate_for(key, explicit)
        elif key is not None:
            aggregate = self._by_key.get(key) or self._aggregate_for(key, None)
        else:
            aggregate = self._without_keys
            key = aggregate.shared_key
        if aggregate.aggregator.add(key, data, explicit):
            return ()
        return aggregate.replace_full(data, key, explicit)

    def finish(self) -> Iterator[Entry]:
        """The entries that are not full."""
        for aggregate in (*self._by_target.values(), self._without_keys):
            yield from aggregate.seal()

    def _aggregate_for(self, key: str, explicit: str | None) -> _OpenAggregate:
        """The aggregate of the shard that a hash key belongs to, or of the hash key if none is listed."""
        hash_key = _hash_key(key, explicit)
        shard = self._shards.find(hash_key)
        target = _Target(hash_key, hash_key, hash_key) if shard is None else _Target.of(shard)
        aggregate = self._by_target.get(target.ordering_key)
        if aggregate is None:
            aggregate = self._by_target[target.ordering_key] = _OpenAggregate(target, self._limit)
        if explicit is None:
            self._by_key[key] = aggregate
        else:
            self._by_hash_key[explicit] = aggregate
        return aggregate


class _Target(NamedTuple):
    """Where the rows of an aggregate go: to a shard, or to whichever takes their one hash key.

    Attributes:
        ordering_key: see `Aggregate`.
        first, last: the range of its hash keys, both included.
    """

    ordering_key: str | int
    first: int
    last: int

    @classmethod
    def of(cls, shard: Shard) -> _Target:
        return cls(shard.id, shard.first, shard.last)


class _OpenAggregate:
    """The aggregate that is being filled for one target, and after it the next one.

    Attributes:
        aggregator: holds the rows so far.
        shared_key: the partition key of rows that have none.

    Args:
        target: None for rows without keys.
        limit: the largest size of an aggregate in bytes.
    """

    __slots__ = ("_first_record", "_limit", "_target", "aggregator", "shared_key")

    def __init__(self, target: _Target | None, limit: int) -> None:
        self._target = target
        self._limit = limit
        self._first_record = _NO_RECORD
        # An aggregator without room: the first row replaces it.
        self.aggregator = Aggregator(0)
        self.shared_key = ""

    def replace_full(self, data: bytes, key: str, explicit: str | None) -> list[Entry]:
        """Begins another aggregate with a row for which there was no room.

        Returns:
            The full aggregate, and after it the row itself if it is too large for any.
        """
        entries = self.seal()
        if self._target is None:
            (key,) = random_keys(1)
            self.shared_key = key
        self._first_record = KinesisEntry(data, key, explicit)
        self.aggregator = Aggregator(self._limit)
        if not self.aggregator.add(key, data, explicit):
            self.aggregator = Aggregator(0)
            entries.append(self._first_record)
        return entries

    def seal(self) -> list[Entry]:
        """Ends the aggregate. Returns it; or the plain record, if it holds only one; or nothing."""
        aggregator, self.aggregator = self.aggregator, Aggregator(0)
        if aggregator.count < 2:
            return [self._first_record] if aggregator.count else []
        first_hash_key = hash_key_of(self._first_record)
        record = KinesisEntry(aggregator.seal(), PRODUCER_LIBRARY_KEY, str(first_hash_key))
        if self._target is None:
            return [Aggregate(record, aggregator.count, first_hash_key, first_hash_key, None)]
        ordering_key, first, last = self._target
        return [Aggregate(record, aggregator.count, first, last, ordering_key)]


_NO_RECORD: Final = KinesisEntry(b"", "")
