"""GetShardIterator and GetRecords.

https://docs.aws.amazon.com/kinesis/latest/APIReference/API_GetShardIterator.html
https://docs.aws.amazon.com/kinesis/latest/APIReference/API_GetRecords.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from integration.model import numbers
from integration.model.clock import SECOND
from integration.model.core import Core, Request, invalid, require, seconds_of
from integration.model.errors import ModelError
from integration.model.shards import Place, Shard, StoredRecord
from integration.model.streams import Stream

_BY_NUMBER: Final = ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER")
_KINDS: Final = (*_BY_NUMBER, "TRIM_HORIZON", "LATEST", "AT_TIMESTAMP")


class Page(NamedTuple):
    """An answer to GetRecords, with records as they are kept."""

    shard: Shard
    records: Sequence[StoredRecord]
    next_iterator: str | None
    millis_behind: int


@dataclass
class Stranger:
    """Another reader of a stream, who polls each of its shards as long as the model stands.

    Its pauses differ by a tenth, as those of a reader do whose answers take their time. With pauses that are
    all the same it would get each read the moment that the limit allows one more, and nobody else would read.
    """

    calls: float  # a second; one above the limit is refused, as others' are
    size: int = 0  # bytes of each of its pages

    def pause(self, chance: float) -> float:
        """Seconds until its next call; `chance` is in [0, 1)."""
        return (0.9 + 0.2 * chance) / self.calls


def api_record(record: StoredRecord) -> dict[str, Any]:
    return {
        "SequenceNumber": record.sequence_number,
        "ApproximateArrivalTimestamp": seconds_of(record.arrival),
        "Data": record.data,
        "PartitionKey": record.partition_key,
    }


def child_shards(shard: Shard) -> list[dict[str, Any]]:
    """The children of a shard that has ended, as the API has them."""
    return [
        {
            "ShardId": child.id,
            "ParentShards": list(child.parents),
            "HashKeyRange": {
                "StartingHashKey": str(child.hash_range[0]),
                "EndingHashKey": str(child.hash_range[1]),
            },
        }
        for child in shard.children
    ]


def start_place(core: Core, stream: Stream, shard: Shard, kind: str, request: Request) -> Place:
    """Where an iterator, or a subscription, starts.

    `request`: has StartingSequenceNumber or SequenceNumber, or Timestamp (seconds).
    """
    now = core.clock.now()
    number = request.get("StartingSequenceNumber", request.get("SequenceNumber"))
    _check_start(kind, number, request)
    if kind == "TRIM_HORIZON":
        return Place(0)
    if kind == "LATEST":
        return Place(shard.tip(now), 0)
    if kind == "AT_TIMESTAMP":
        # Times have millisecond precision.
        instant = round(float(require(request, "Timestamp")) * 1000) * 1000
        if instant > now and not core.laws.future_timestamps:
            raise invalid(
                "The timestampInMillis parameter cannot be greater than the currentTimestampInMillis. "
                f"timestampInMillis: {instant // 1000}, currentTimestampInMillis: {now // 1000}"
            )
        return Place(shard.place_of(instant))
    found = numbers.decode(str(number))
    if found is None or found.shard != shard.index or found.created != shard.created_second:
        if core.laws.foreign_numbers:
            return _place_of_number(shard, str(number), kind)
        raise invalid(_foreign(core, stream, shard, str(number), found))
    if kind == "AFTER_SEQUENCE_NUMBER":
        return Place(min(found.place, numbers.LAST_PLACE - 1) + 1)
    # The reader names this very record: no empty pages come before it.
    return Place(found.place, 0) if shard.holds(found.place) else Place(found.place)


def _check_start(kind: str, number: str | None, request: Request) -> None:
    if kind not in _KINDS:
        raise ModelError(
            "ValidationException", f"Value '{kind}' at 'shardIteratorType' failed to satisfy constraint"
        )
    if (number is not None) != (kind in _BY_NUMBER) or (kind == "AT_TIMESTAMP") != ("Timestamp" in request):
        raise invalid(
            "Must either specify (1) AT_SEQUENCE_NUMBER or AFTER_SEQUENCE_NUMBER and "
            "StartingSequenceNumber or "
            "(2) TRIM_HORIZON or LATEST and no StartingSequenceNumber or (3) AT_TIMESTAMP and Timestamp. "
            f"Request specified {kind} and {'a' if number is not None else 'no'} StartingSequenceNumber."
        )


def _place_of_number(shard: Shard, number: str, kind: str) -> Place:
    value = int(number) if number.isdigit() else 0
    later = kind == "AFTER_SEQUENCE_NUMBER"
    for place, record in zip(shard.places, shard.records, strict=True):
        if int(record.sequence_number) > value or (int(record.sequence_number) == value and not later):
            return Place(place)
    return Place(shard.places[-1] + 1 if shard.places else 0)


def _foreign(core: Core, stream: Stream, shard: Shard, number: str, found: numbers.Decoded | None) -> str:
    if found is not None and found.shard != shard.index:
        return (
            f"Invalid StartingSequenceNumber. It encodes shardId-{found.shard:012d}, "
            f"while it was used in a call to a shard with {shard.id}"
        )
    return (
        f"StartingSequenceNumber {number} used in GetShardIterator on shard {shard.id} in stream "
        f"{stream.name} "
        f"under account {core.account} is invalid because it did not come from this stream."
    )


class Reads:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._strangers: dict[str, list[Stranger]] = {}
        self._polled: dict[tuple[Shard, int], float] = {}

    def add_stranger(self, stream: str, stranger: Stranger) -> None:
        """Another reader polls the shards of a stream from now on."""
        self._strangers.setdefault(stream, []).append(stranger)

    def get_shard_iterator(self, request: Request) -> dict[str, Any]:
        core = self._core
        stream = core.created_stream_of(request)
        shard = core.shard_of(stream, require(request, "ShardId"))
        if not shard.iterator_limit.take(core.laws.iterator_calls, core.clock.elapsed()):
            raise self._throttled(stream, shard)
        kind = require(request, "ShardIteratorType")
        place = start_place(core, stream, shard, kind, request)
        is_fresh = (
            kind in _BY_NUMBER and core.chance("tip", shard.id, place.at) < core.laws.tip_before_records
        )
        return {"ShardIterator": self._iterator(stream, shard, place, is_fresh)}

    def get_records(self, request: Request) -> dict[str, Any]:
        page = self.get_page(request)
        answer: dict[str, Any] = {
            "Records": [api_record(record) for record in page.records],
            "MillisBehindLatest": page.millis_behind,
        }
        if page.next_iterator is None:
            answer["ChildShards"] = child_shards(page.shard)
        else:
            answer["NextShardIterator"] = page.next_iterator
        return answer

    def get_page(self, request: Request) -> Page:
        """GetRecords, with records as they are kept."""
        core = self._core
        limit = request.get("Limit", 10_000)
        if not 1 <= limit <= 10_000:
            raise invalid(f"Limit must be between 1 and 10000, not {limit}.")
        stream, shard, place, is_fresh = self._resolve(require(request, "ShardIterator"), request)
        elapsed, now, laws = core.clock.elapsed(), core.clock.now(), core.laws
        self._let_strangers_poll(stream, shard, elapsed)
        if shard.read_limit.refusal(laws.read_calls, laws.read_bytes, elapsed):
            raise self._throttled(stream, shard)
        if is_fresh and shard.has_records(place):
            return Page(shard, (), self._iterator(stream, shard, place, is_fresh=False), 0)
        reading = shard.read(place, limit, laws.page_bytes, now)
        shard.read_limit.add(reading.size, laws.read_bytes, laws.longest_refusal, elapsed)
        following = None if reading.is_end else self._iterator(stream, shard, reading.place)
        return Page(shard, shard.take(reading), following, reading.millis_behind)

    def _iterator(self, stream: Stream, shard: Shard, place: Place, is_fresh: bool = False) -> str:
        core = self._core
        now, elapsed = core.clock.now() // SECOND, round(core.clock.elapsed(), 3)
        return core.seal(
            "iterator",
            stream.number,
            stream.name,
            shard.index,
            *place,
            int(is_fresh),
            core.generation,
            now,
            elapsed,
        )

    def _resolve(self, iterator: str, request: Request) -> tuple[Stream, Shard, Place, bool]:
        core = self._core
        fields = core.unseal(iterator)
        if fields is None or fields[0] != "iterator":
            if core.laws.foreign_iterators and ("StreamName" in request or "StreamARN" in request):
                stream = core.stream_of(request)
                return stream, next(iter(stream.shards.values())), Place(0), False
            raise invalid("Invalid ShardIterator.")
        _, number, name, index, at, empty, is_fresh, generation, wall, created = fields
        stream = core.named(name)
        if "StreamARN" in request and core.stream_of(request) is not stream:
            raise invalid("The ShardIterator is not one of the stream that StreamARN names.")
        if stream.number != number:
            raise ModelError(
                "ResourceNotFoundException", f"Stream {name} under account {core.account} not found."
            )
        life = core.laws.iterator_life
        is_old = life is not None and core.clock.elapsed() - created > life
        if is_old or generation != core.generation:
            raise ModelError(
                "ExpiredIteratorException",
                f"Iterator expired. The iterator was created at time {wall} while right now it is "
                f"{core.clock.now() // SECOND} which is further in the future than the tolerated delay of "
                "300000 milliseconds.",
            )
        shard = core.shard_of(stream, f"shardId-{index:012d}")
        return stream, shard, Place(at, empty), bool(is_fresh)

    def _let_strangers_poll(self, stream: Stream, shard: Shard, elapsed: float) -> None:
        laws = self._core.laws
        for index, stranger in enumerate(self._strangers.get(stream.name, ())):
            # What was polled more than some seconds ago cannot count any more.
            at = max(self._polled.get((shard, index), elapsed - 1.0), elapsed - 12.0)
            while (at := at + stranger.pause(self._core.chance("stranger", shard.id, index, at))) <= elapsed:
                if not shard.read_limit.refusal(laws.read_calls, laws.read_bytes, at):
                    shard.read_limit.add(stranger.size, laws.read_bytes, laws.longest_refusal, at)
                self._polled[shard, index] = at

    def _throttled(self, stream: Stream, shard: Shard) -> ModelError:
        return ModelError(
            "ProvisionedThroughputExceededException",
            f"Rate exceeded for shard {shard.id} in stream {stream.name} under account {self._core.account}.",
        )
