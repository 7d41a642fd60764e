"""Writes aggregates to a Kinesis stream, and sends those again that a reshard has taken to the wrong shard.

Readers drop records of an aggregate that do not belong to the shard they are read from: the Kinesis Client
Library drops the whole aggregate, ``kinesis-efo`` only the records outside the shard's range. Both rely on
the producer to send them again. So the shard in every answer is compared with the shard that the aggregate
was packed for. If it is another one, all records of the aggregate are packed and sent again. A reader that
looks at hash keys gets each record at least once; a reader that does not look may see all of them twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from sluice.destinations.common.batch_call import Refusal
from sluice.destinations.common.counters import Counters
from sluice.destinations.kinesis.aggregates import (
    Aggregate,
    AggregatingConverter,
    Entry,
    hash_key_bounds,
    hash_key_of,
    repacked,
    user_records,
)
from sluice.destinations.kinesis.converter import KinesisEntry
from sluice.destinations.kinesis.put_records import MAX_BYTES, MAX_RECORDS, PutRecords
from sluice.destinations.kinesis.shard_map import ShardMap, ShardMapCache
from sluice.errors import ServiceError
from sluice.sink import Destination, Rejection, SubmitResult

__all__ = ["DEFAULT_LIMIT", "AggregatingDestination"]

DEFAULT_LIMIT: Final = 51_200
"""The largest size of an aggregate in bytes; the default of the Kinesis Producer Library."""

# How often misrouted aggregates are sent before they are reported as failed, for the writer to retry.
_ATTEMPTS: Final = 3
_MISROUTED: Final = "WrongShard"  # error code in messages


class _Part(NamedTuple):
    """An entry, or a part of a split entry.

    Attributes:
        position: of the submitted entry that it belongs to.
        entry: the entry or part to send.
    """

    position: int
    entry: Entry


class _Stray(NamedTuple):
    """An aggregate that was accepted, and is not known to be in the shard that its records belong to.

    Attributes:
        part: holds the aggregate.
        aggregate: the same.
        shard_id: of the shard that took it; None if the answer names none.
    """

    part: _Part
    aggregate: Aggregate
    shard_id: str | None

    def belongs(self, shards: ShardMap) -> bool:
        """Whether the shard that took it holds the hash keys of all its records."""
        actual = None if self.shard_id is None else shards.named(self.shard_id)
        return actual is not None and actual.holds(*hash_key_bounds(self.aggregate))


class _Refused:
    """Collects the parts that were not accepted, by the submitted entry they belong to.

    Attributes:
        codes: why, as entries by code.
        answered: whether any request was answered: then parts may have been accepted.
    """

    def __init__(self) -> None:
        self.codes: Counter[str] = Counter()
        self.answered = False
        self._failed: set[int] = set()
        self._rejected: dict[int, str] = {}
        self._parts: dict[int, list[Entry]] = {}

    def add_failed(self, part: _Part) -> None:
        """A part that may be accepted later."""
        self._parts.setdefault(part.position, []).append(part.entry)
        self._failed.add(part.position)

    def add_all_failed(self, parts: Sequence[_Part], code: str) -> None:
        """Parts that may be accepted later, which share a reason."""
        for part in parts:
            self.add_failed(part)
        self.codes[code] += len({part.position for part in parts})

    def add_rejected(self, part: _Part, reason: str) -> None:
        """A part that will never be accepted."""
        self._parts.setdefault(part.position, []).append(part.entry)
        self._rejected[part.position] = reason

    def result(self, entries: Sequence[Entry]) -> SubmitResult[Entry]:
        """The result for the submitted entries. An entry is refused if any part of it is.

        The refused parts are stored in the entry, so that only they are sent again. A request that has timed
        out may store its refused parts later than a newer one: that is no harm, because all other parts were
        accepted.
        """
        for position, parts in self._parts.items():
            entry = entries[position]
            if isinstance(entry, Aggregate) and parts != [entry]:
                entry.parts = parts
                if position not in self._failed:
                    # Its other parts are written. Until it is over, they count as refused with it.
                    entry.count = len(user_records(entry))
        return SubmitResult(
            failed=[entries[position] for position in sorted(self._failed)],
            codes=self.codes,
            rejected=[
                Rejection(entries[position], reason)
                for position, reason in sorted(self._rejected.items())
                if position not in self._failed
            ],
        )


class AggregatingDestination(Destination[Entry]):
    """Writes aggregates to a stream.

    Args:
        put: writes to the stream.
        shards: of the stream.
        limit: the largest size of an aggregate in bytes.
        compression: of the data of each row.
    """

    def __init__(
        self,
        put: PutRecords,
        shards: ShardMapCache,
        *,
        limit: int = DEFAULT_LIMIT,
        compression: str = "none",
    ) -> None:
        self._compression = compression
        self._put = put
        self._shards = shards
        self._limit = limit
        self._first_map: ShardMap | None = None
        self._counters = Counters()
        self.name = put.name

    def create_converter(self) -> AggregatingConverter:
        return AggregatingConverter(self._packing_shards, self._limit, self._compression)

    def size_in_bytes(self, entry: Entry) -> int:
        """The size of the record, as Kinesis counts it, with its partition key."""
        return self._put.size_in_bytes(_record(entry))

    def ordering_key(self, entry: Entry) -> str | int | None:
        """The shard: records for the same shard are accepted in their order. While a reshard hides the shard
        from the listing, the hash key.
        """
        if isinstance(entry, Aggregate):
            return entry.ordering_key
        hash_key = hash_key_of(entry)
        shard = self._packing_shards().find(hash_key)
        return shard.id if shard else hash_key

    def records_in(self, entry: Entry) -> int:
        """The number of user records in an entry."""
        return entry.count if isinstance(entry, Aggregate) else 1

    def unpacked(self, entry: Entry) -> Sequence[KinesisEntry]:
        """The user records in an entry, as they were before they were compressed."""
        return [record.restored(self._compression) for record in user_records(entry)]

    def figures(self) -> Mapping[str, float]:
        """What was put, by the names of the Kinesis Producer Library, and what came to a wrong shard.

        https://docs.aws.amazon.com/streams/latest/dev/monitoring-with-kpl.html
        """
        return self._counters.read()

    def submit(self, entries: Sequence[Entry]) -> SubmitResult[Entry]:
        """Calls ``PutRecords`` once; more often only during a reshard.

        Raises:
            ServiceError: no record is known to have been accepted, or none will be any more.
            OptionError: no client can be made from the connection options.
        """
        shards = self._shards.current()
        refused = _Refused()
        parts = [
            _Part(position, part) for position, entry in enumerate(entries) for part in _split(entry, shards)
        ]
        for _ in range(_ATTEMPTS):
            strays = self._put_all(parts, shards, refused)
            if not strays:
                return refused.result(entries)
            try:
                shards = self._shards.newer_than(shards)
            except ServiceError as error:
                if self.is_fatal(error):
                    raise
                refused.add_all_failed([stray.part for stray in strays], error.code)
                return refused.result(entries)
            misrouted = self._misrouted(strays, shards)
            if not misrouted:
                return refused.result(entries)
            parts = [_Part(position, part) for position, entry in misrouted for part in _split(entry, shards)]
        refused.add_all_failed(parts, _MISROUTED)
        return refused.result(entries)

    def is_fatal(self, error: Exception) -> bool:
        """See `BatchCall.is_fatal`."""
        fatal = self._put.is_fatal(error)
        if fatal:
            # A deleted stream may be created again, with shards of the same names and other hash keys.
            self._shards.invalidate()
        return fatal

    def is_throttling(self, code: str) -> bool:
        return self._put.is_throttling(code)

    def close(self) -> None:
        self._put.close()

    def _packing_shards(self) -> ShardMap:
        """The shards as they were when the task's first row came.

        They stay the same for the whole task, because the ordering key of a row must not change while rows
        before it wait. `submit` splits what a later reshard has separated. Where none could be listed, the
        task packs rows by their hash keys to its end.
        """
        if self._first_map is None:
            self._first_map = self._shards.current()
        return self._first_map

    def _put_all(self, parts: Sequence[_Part], shards: ShardMap, refused: _Refused) -> list[_Stray]:
        """Sends parts; returns the accepted aggregates that are not known to be in their shard.

        Raises:
            ServiceError: no part is known to have been accepted, or none will be any more.
        """
        strays: list[_Stray] = []
        requests = _requests(parts, self)
        try:
            for request in requests:
                strays += self._put_request(request, shards, refused)
        except ServiceError as error:
            # As an error of all entries it would send those again that were accepted before.
            if not refused.answered or self.is_fatal(error):
                raise
            refused.add_all_failed([*request, *chain.from_iterable(requests)], error.code)
        return strays

    def _put_request(self, parts: Sequence[_Part], shards: ShardMap, refused: _Refused) -> list[_Stray]:
        """As `_put_all`, in one request."""
        records = [_record(part.entry) for part in parts]
        result, answers = self._put.put(records)
        refused.answered = True
        refused.codes.update(result.codes)
        rejected = {id(each.entry): each.reason for each in result.rejected}
        strays: list[_Stray] = []
        for part, record, answer in zip(parts, records, answers, strict=True):
            if id(record) in rejected:
                refused.add_rejected(part, rejected[id(record)])
                continue
            if isinstance(answer, Refusal):
                refused.add_failed(part)
                continue
            self._counters.add(kinesis_records_put=1)
            # Records of one hash key are in their shard, whichever took them.
            if isinstance(part.entry, Aggregate) and part.entry.first != part.entry.last:
                expected = shards.find(hash_key_of(record))
                stray = _Stray(part, part.entry, answer)
                if (expected is None or expected.id != answer) and not stray.belongs(shards):
                    strays.append(stray)
                    continue
            self._counters.add(user_records_put=self.records_in(part.entry))
        return strays

    def _misrouted(self, strays: Sequence[_Stray], shards: ShardMap) -> list[_Part]:
        """The aggregates with a record that belongs to another shard than the one which accepted them."""
        misrouted: list[_Part] = []
        for stray in strays:
            if stray.belongs(shards):
                self._counters.add(user_records_put=stray.aggregate.count)
            else:
                self._counters.add(aggregates_misrouted=1)
                misrouted.append(stray.part)
        return misrouted


def _record(entry: Entry) -> KinesisEntry:
    return entry.record if isinstance(entry, Aggregate) else entry


def _split(entry: Entry, shards: ShardMap) -> Sequence[Entry]:
    """The entry itself if all its records belong to one shard of `shards`, else its records packed anew.

    The parts of an entry go into the same request, of which any part may be refused. They have no hash key in
    common, so that the records of each stay in their order.
    """
    if not isinstance(entry, Aggregate):
        return (entry,)
    if entry.parts is not None:
        return [each for part in entry.parts for each in _split(part, shards)]
    if entry.first == entry.last:
        return (entry,)
    shard = shards.find(entry.first)
    if shard is not None and shard.holds(entry.first, entry.last):
        return (entry,)
    return repacked(entry, shards)


def _requests(parts: Sequence[_Part], destination: AggregatingDestination) -> Iterator[Sequence[_Part]]:
    """The parts, in requests within the service's limits."""
    start = size = 0
    for index, part in enumerate(parts):
        part_size = destination.size_in_bytes(part.entry)
        if index > start and (index - start == MAX_RECORDS or size + part_size > MAX_BYTES):
            yield parts[start:index]
            start, size = index, 0
        size += part_size
    yield parts[start:]
