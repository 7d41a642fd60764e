"""The service's state, and its operations in the form in which JSON has them."""

from __future__ import annotations

import itertools
import math
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from integration.model.chance import fraction
from integration.model.clock import SECOND, Clock, ManualClock
from integration.model.errors import ModelError
from integration.model.faults import FaultPlan
from integration.model.limits import CallLimit
from integration.streams_model.laws import Laws
from sluice.instants import micros_to_datetime

_KEY_SPACE: Final = 2**32
Item = Mapping[str, Mapping[str, Any]]


class Stored(NamedTuple):
    shard: str
    number: int  # its sequence number
    made_at: int  # microseconds since the epoch, as answers have it
    fields: Mapping[str, Any]
    size: int
    begins_portion: bool


@dataclass
class _Shard:
    id: str
    parent: str | None
    keys: tuple[int, int]
    starting: int
    opened: float
    due: float  # when it rolls over
    ending: int | None = None
    closed: float | None = None
    closed_at: int = 0
    records: list[Stored] = field(default_factory=list)
    trimmed: int = 0  # so many of the records have expired
    limit: CallLimit = field(default_factory=CallLimit)


@dataclass
class _Stream:
    arn: str
    table: str
    label: str
    enabled_at: int
    view: str
    shards: dict[str, _Shard] = field(default_factory=dict)
    disabled_at: int | None = None


@dataclass(frozen=True)
class _Iterator:
    stream: str
    shard: str
    at: int  # the lowest sequence number that it may give
    empty: int  # empty pages that come first
    made: float


class StreamsModel:
    """See the package's docstring. May be used from several threads."""

    def __init__(
        self,
        laws: Laws | None = None,
        clock: Clock | None = None,
        seed: int = 0,
        *,
        faults: FaultPlan | None = None,
        region: str = "us-east-1",
    ) -> None:
        self.laws = laws or Laws()
        self.clock = clock or ManualClock()
        self.faults = faults or FaultPlan()  # what fails besides
        self.calls: Counter[str] = Counter()  # how often each operation was called
        self.refusals: Counter[tuple[str, str]] = Counter()
        self._seed = seed
        self._region = region
        self._lock = threading.RLock()
        self._streams: dict[str, _Stream] = {}
        self._numbers = itertools.count(100_000_000_003_498_069_978, 7)
        self._names = itertools.count()
        self._iterators: dict[str, _Iterator] = {}
        self._describe = CallLimit()
        self._tables: dict[str, dict[str, list[tuple[float, Item | None]]]] = {}  # each item at any time

    # --- what tables, operators and time do -----------------------------------------------------------

    def enable(self, table: str, *, shards: int = 1, view: str = "NEW_AND_OLD_IMAGES") -> str:
        """A table gets a stream; its ARN."""
        with self._lock:
            assert self._enabled(table) is None
            label = _label(self.clock.now())
            arn = f"arn:aws:dynamodb:{self._region}:123456789012:table/{table}/stream/{label}"
            stream = self._streams[arn] = _Stream(arn, table, label, self.clock.now(), view)
            width = _KEY_SPACE // shards
            for number in range(shards):
                last = _KEY_SPACE - 1 if number == shards - 1 else (number + 1) * width - 1
                self._open(stream, None, (number * width, last))
            return arn

    def disable(self, table: str) -> None:
        """The table's stream gets no more records, and can be read until they have expired."""
        with self._lock:
            stream = self._stream_of(table)
            stream.disabled_at = self.clock.now()
            for shard in self._open_shards(stream):
                self._close(shard)

    def put(
        self,
        table: str,
        key: str,
        new: Item | None = None,
        old: Item | None = None,
        *,
        identity: Mapping[str, str] | None = None,
    ) -> Stored:
        """An item of the table changes; by default it is inserted with nothing but its key."""
        with self._lock:
            self._settle()
            stream = self._stream_of(table)
            place = crc32(key.encode())
            shard = next(s for s in self._open_shards(stream) if s.keys[0] <= place <= s.keys[1])
            record = self._record(stream, shard, key, (new, old), identity)
            shard.records.append(record)
            return record

    def write(self, table: str, key: str, item: Item | None) -> Stored | None:
        """An item of the table is put, changed or deleted, which its stream tells; None: nothing changes."""
        with self._lock:
            versions = self._tables.setdefault(table, {}).setdefault(key, [(-math.inf, None)])
            old = versions[-1][1]
            new = None if item is None else {"id": {"S": key}, **item}
            if new == old:
                return None
            versions.append((self.clock.elapsed(), new))
            if self._enabled(table) is None:
                return None
            return self.put(table, key, new, old)

    def items(self, table: str) -> dict[str, Item]:
        """The items of a table, by key."""
        with self._lock:
            found = {key: versions[-1][1] for key, versions in self._tables.get(table, {}).items()}
            return {key: item for key, item in found.items() if item is not None}

    def roll(self, table: str, shard: str | None = None, *, children: int = 1) -> list[str]:
        """A shard (every open one, where none is named) is closed, and its children are opened; their ids."""
        with self._lock:
            stream = self._stream_of(table)
            parents = [s for s in self._open_shards(stream) if shard in (None, s.id)]
            return [child for parent in parents for child in self._roll(stream, parent, children)]

    def expire_iterators(self) -> None:
        """All iterators that were given until now have expired."""
        with self._lock:
            self._iterators.clear()

    def open_shards(self, table: str) -> list[str]:
        """The shards that get records now."""
        with self._lock:
            self._settle()
            return [shard.id for shard in self._open_shards(self._stream_of(table))]

    def records(self, arn: str) -> list[Stored]:
        """All records that a stream ever had, shard by shard."""
        with self._lock:
            return [record for shard in self._streams[arn].shards.values() for record in shard.records]

    def parents(self, arn: str) -> dict[str, str | None]:
        """Each shard that a stream has or had, and its parent."""
        with self._lock:
            return {shard.id: shard.parent for shard in self._streams[arn].shards.values()}

    # --- the service ----------------------------------------------------------------------------------

    def call(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Carries out an operation. Times are seconds, binary values are base64."""
        with self._lock:
            self.calls[operation] += 1
            self._settle()
            try:
                return self._operate(operation, request)
            except ModelError as error:
                self.refusals[operation, error.code] += 1
                raise

    def _operate(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if (fault := self.faults.draw(operation, request)) is not None:
            raise fault
        match operation:
            case "ListStreams":
                return self._list_streams(request)
            case "DescribeStream":
                return self._describe_stream(request)
            case "GetShardIterator":
                return self._get_shard_iterator(request)
            case "GetRecords":
                return self._get_records(request)
            case "DescribeTable":
                return {"Table": self._table(_table_name(request))}
            case "Scan":
                return self._scan(request)
        raise ModelError("UnknownOperationException")

    def _list_streams(self, request: Mapping[str, Any]) -> dict[str, Any]:
        table, start = request.get("TableName"), request.get("ExclusiveStartStreamArn", "")
        limit = min(int(request.get("Limit", 100)), 100)
        streams = [s for s in self._streams.values() if table in (None, s.table) and s.arn > start]
        streams.sort(key=lambda stream: stream.arn)
        answer: dict[str, Any] = {
            "Streams": [
                {"StreamArn": s.arn, "TableName": s.table, "StreamLabel": s.label} for s in streams[:limit]
            ]
        }
        if len(streams) > limit:
            answer["LastEvaluatedStreamArn"] = streams[limit - 1].arn
        return answer

    def _describe_stream(self, request: Mapping[str, Any]) -> dict[str, Any]:
        stream = self._named(request)
        if not self._describe.take(self.laws.describe_calls, self.clock.elapsed()):
            raise ModelError("ThrottlingException", "Rate exceeded")
        limit, start = int(request.get("Limit", 100)), request.get("ExclusiveStartShardId", "")
        if not 1 <= limit <= 100:
            raise ModelError("ValidationException", "Limit")
        shards = [s for s in stream.shards.values() if s.id > start and self._is_listed(stream, s)]
        shards.sort(key=lambda shard: shard.id)
        limit = min(limit, self.laws.listing_page)
        description: dict[str, Any] = {
            "StreamArn": stream.arn,
            "StreamLabel": stream.label,
            "StreamStatus": "ENABLED" if stream.disabled_at is None else "DISABLED",
            "StreamViewType": stream.view,
            "CreationRequestDateTime": stream.enabled_at / SECOND,
            "TableName": stream.table,
            "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
            "Shards": [self._listed(shard) for shard in shards[:limit]],
        }
        if len(shards) > limit:
            description["LastEvaluatedShardId"] = shards[limit - 1].id
        return {"StreamDescription": description}

    def _is_listed(self, stream: _Stream, shard: _Shard) -> bool:
        if shard.parent is None or shard.closed is not None:
            return True
        delay = self.laws.listing_delay * fraction(self._seed, "listed", stream.arn, shard.id)
        return self.clock.elapsed() - shard.opened >= delay

    def _listed(self, shard: _Shard) -> dict[str, Any]:
        numbers = {"StartingSequenceNumber": str(shard.starting)}
        delay = self.laws.listing_delay * fraction(self._seed, "closed", shard.id)
        if shard.closed is not None and self.clock.elapsed() - shard.closed >= delay:
            numbers["EndingSequenceNumber"] = str(shard.ending)
        listed = {"ShardId": shard.id, "SequenceNumberRange": numbers}
        return listed if shard.parent is None else {**listed, "ParentShardId": shard.parent}

    def _get_shard_iterator(self, request: Mapping[str, Any]) -> dict[str, Any]:
        stream = self._named(request)
        shard = self._shard(stream, request.get("ShardId", ""))
        kind, number = request.get("ShardIteratorType"), request.get("SequenceNumber")
        left = shard.records[shard.trimmed :]
        if kind == "TRIM_HORIZON":
            at = left[0].number if left else shard.starting
        elif kind == "LATEST":
            at = shard.records[-1].number + 1 if shard.records else shard.starting
        elif kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
            if number is None:
                raise ModelError("ValidationException", "SequenceNumber is required")
            at = self._known_number(shard, number) + (kind == "AFTER_SEQUENCE_NUMBER")
        else:
            raise ModelError("ValidationException", f"ShardIteratorType {kind}")
        return {"ShardIterator": self._iterate(stream, shard, at, drawn=None)}

    @staticmethod
    def _known_number(shard: _Shard, text: str) -> int:
        number = int(text)
        place = bisect_left(shard.records, number, key=lambda record: record.number)
        is_there = place < len(shard.records) and shard.records[place].number == number
        if shard.starting <= number and place < shard.trimmed:
            raise ModelError(
                "TrimmedDataAccessException", "The data you are trying to access has been trimmed."
            )
        if not is_there:
            raise ModelError("ValidationException", "Invalid SequenceNumber")
        return number

    def _get_records(self, request: Mapping[str, Any]) -> dict[str, Any]:
        given = self._iterators.get(request.get("ShardIterator", ""))
        limit = int(request.get("Limit", 1000))
        if not 1 <= limit <= 1000:
            raise ModelError("ValidationException", f"Limit {limit}")
        life, now = self.laws.iterator_life, self.clock.elapsed()
        if given is None or (life is not None and now - given.made > life):
            raise ModelError("ExpiredIteratorException", "Iterator expired")
        stream = self._streams.get(given.stream)
        if stream is None:
            raise ModelError("ResourceNotFoundException", "Requested resource not found: Stream")
        shard = self._shard(stream, given.shard)
        if not shard.limit.take(self.laws.read_calls, now):
            raise ModelError("LimitExceededException")
        if shard.trimmed and shard.records[shard.trimmed - 1].number >= given.at:
            raise ModelError(
                "TrimmedDataAccessException", "The data you are trying to access has been trimmed."
            )
        if given.empty:
            return {
                "Records": [],
                "NextShardIterator": self._iterate(stream, shard, given.at, drawn=given.empty - 1),
            }
        return self._page(stream, shard, given.at, min(limit, self.laws.page_records))

    def _page(self, stream: _Stream, shard: _Shard, at: int, limit: int) -> dict[str, Any]:
        place = first = bisect_left(shard.records, at, key=lambda record: record.number)
        size = 0
        while place < len(shard.records) and place - first < limit:
            record = shard.records[place]
            if place > first and (size + record.size > self.laws.page_bytes or record.begins_portion):
                break
            size += record.size
            place += 1
        page = shard.records[first:place]
        answer: dict[str, Any] = {"Records": [record.fields for record in page]}
        at = page[-1].number + 1 if page else at
        # A page that holds the last records of a closed shard may be followed by empty ones.
        is_over = shard.ending is not None and place == len(shard.records)
        if not is_over or (page and self._tail(shard)):
            drawn = self._tail(shard) - 1 if is_over else None
            answer["NextShardIterator"] = self._iterate(stream, shard, at, drawn=drawn)
        return answer

    def _tail(self, shard: _Shard) -> int:
        return int(fraction(self._seed, "tail", shard.id) * (self.laws.empty_tail + 1))

    def _iterate(self, stream: _Stream, shard: _Shard, at: int, *, drawn: int | None) -> str:
        """A new iterator. Empty pages come before it where it is at the beginning of a portion."""
        if drawn is None:
            drawn = 0
            place = bisect_left(shard.records, at, key=lambda record: record.number)
            if place < len(shard.records) and shard.records[place].begins_portion:
                chance = fraction(self._seed, "empty", shard.records[place].number)
                drawn = int(max(0.0, 2 * chance - 1) * (self.laws.empty_pages + 1))
        name = f"{stream.arn}|1|{next(self._names):x}"
        self._iterators[name] = _Iterator(stream.arn, shard.id, at, drawn, self.clock.elapsed())
        return name

    def _table(self, name: str) -> dict[str, Any]:
        stream, items = self._enabled(name), self.items(name).values()
        if stream is None and not items:
            raise ModelError("ResourceNotFoundException", f"Requested resource not found: Table: {name}")
        table: dict[str, Any] = {
            "TableName": name,
            "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
            "ItemCount": len(items),
            "TableSizeBytes": sum(map(_size, items)),
        }
        if stream is not None:
            table["LatestStreamArn"] = stream.arn
            table["StreamSpecification"] = {"StreamEnabled": True, "StreamViewType": stream.view}
        return table

    def _scan(self, request: Mapping[str, Any]) -> dict[str, Any]:
        table = _table_name(request)
        segment, segments = request.get("Segment", 0), request.get("TotalSegments", 1)
        if not 0 <= segment < segments <= 1_000_000 or int(request.get("Limit", 1)) < 1:
            raise ModelError("ValidationException", "Segment, TotalSegments or Limit")
        is_strong = request.get("ConsistentRead", False)
        at = self.clock.elapsed() - (0.0 if is_strong else self.laws.stale_reads)
        behind = request.get("ExclusiveStartKey")
        after = -1.0 if behind is None else _place(behind["id"]["S"])
        found = []
        for key, versions in self._tables.get(table, {}).items():
            item = next((item for made, item in reversed(versions) if made <= at), None)
            if item is not None and int(_place(key) * segments) == segment and _place(key) > after:
                found.append((_place(key), item))
        page: list[Item] = []
        size, is_whole = 0, True
        for _, item in sorted(found, key=lambda each: each[0]):
            if len(page) == request.get("Limit") or (page and size + _size(item) > self.laws.scan_bytes):
                is_whole = False
                break
            page.append(item)
            size += _size(item)
        answer: dict[str, Any] = {"Items": page, "Count": len(page), "ScannedCount": len(page)}
        # A page that is full ends with a key even if nothing follows.
        if not is_whole or (page and len(page) == request.get("Limit")):
            answer["LastEvaluatedKey"] = {"id": page[-1]["id"]}
        if request.get("ReturnConsumedCapacity") == "TOTAL":
            units = max(1, math.ceil(size / 4096)) * (1.0 if is_strong else 0.5)
            answer["ConsumedCapacity"] = {"TableName": table, "CapacityUnits": units}
        return answer

    # --- inside ---------------------------------------------------------------------------------------

    def _record(
        self,
        stream: _Stream,
        shard: _Shard,
        key: str,
        images: tuple[Item | None, Item | None],
        identity: Mapping[str, str] | None,
    ) -> Stored:
        new, old = images
        number, made_at = next(self._numbers), self.clock.now()
        if self.laws.whole_seconds:
            made_at = made_at // SECOND * SECOND
        keys = {"id": {"S": key}}
        new = keys if new is None and old is None else new
        change: dict[str, Any] = {
            "ApproximateCreationDateTime": made_at / SECOND,
            "Keys": keys,
            "SequenceNumber": str(number),
            "StreamViewType": stream.view,
        }
        if new is not None and stream.view in ("NEW_IMAGE", "NEW_AND_OLD_IMAGES"):
            change["NewImage"] = new
        if old is not None and stream.view in ("OLD_IMAGE", "NEW_AND_OLD_IMAGES"):
            change["OldImage"] = old
        size = len(msgspec.json.encode(change))
        change["SizeBytes"] = size
        name = "INSERT" if old is None else "REMOVE" if new is None else "MODIFY"
        fields: dict[str, Any] = {
            "eventID": f"{number:032x}",
            "eventName": name,
            "eventVersion": "1.1",
            "eventSource": "aws:dynamodb",
            "awsRegion": self._region,
            "dynamodb": change,
        }
        if identity is not None:
            fields["userIdentity"] = identity
        begins = fraction(self._seed, "portion", number) * self.laws.portion < 1
        return Stored(shard.id, number, made_at, fields, size, begins)

    def _settle(self) -> None:
        """Does all that is due by now: records expire, shards roll over."""
        now, elapsed = self.clock.now(), self.clock.elapsed()
        for stream in list(self._streams.values()):
            for shard in list(stream.shards.values()):
                self._trim(stream, shard, now)
                if shard.closed is None and elapsed >= shard.due:
                    self._roll(stream, shard, 1)
            if stream.disabled_at is not None and not stream.shards:
                del self._streams[stream.arn]

    def _trim(self, stream: _Stream, shard: _Shard, now: int) -> None:
        if self.laws.retention is None:
            return
        horizon = now - round(self.laws.retention * SECOND)
        while shard.trimmed < len(shard.records) and shard.records[shard.trimmed].made_at < horizon:
            shard.trimmed += 1
        if shard.closed is not None and shard.trimmed == len(shard.records) and shard.closed_at < horizon:
            del stream.shards[shard.id]

    def _roll(self, stream: _Stream, parent: _Shard, children: int) -> list[str]:
        self._close(parent)
        low, high = parent.keys
        width = (high - low + 1) // children
        bounds = [
            (low + n * width, high if n == children - 1 else low + (n + 1) * width - 1)
            for n in range(children)
        ]
        return [self._open(stream, parent.id, bound).id for bound in bounds]

    def _open(self, stream: _Stream, parent: str | None, keys: tuple[int, int]) -> _Shard:
        name = f"shardId-{self.clock.now() // 1000:020d}-{next(self._names):08x}"
        opened, life = self.clock.elapsed(), self.laws.shard_life
        due = math.inf if life is None else opened + life * (0.9 + 0.2 * fraction(self._seed, "life", name))
        shard = _Shard(name, parent, keys, next(self._numbers), opened, due)
        stream.shards[name] = shard
        return shard

    def _close(self, shard: _Shard) -> None:
        shard.ending = next(self._numbers)
        shard.closed, shard.closed_at = self.clock.elapsed(), self.clock.now()

    def _open_shards(self, stream: _Stream) -> list[_Shard]:
        return [shard for shard in stream.shards.values() if shard.closed is None]

    def _enabled(self, table: str) -> _Stream | None:
        return next((s for s in self._streams.values() if s.table == table and s.disabled_at is None), None)

    def _stream_of(self, table: str) -> _Stream:
        stream = self._enabled(table)
        assert stream is not None, f"table {table} has no stream"
        return stream

    def _named(self, request: Mapping[str, Any]) -> _Stream:
        stream = self._streams.get(request.get("StreamArn", ""))
        if stream is None:
            raise ModelError(
                "ResourceNotFoundException",
                f"Requested resource not found: Stream: {request.get('StreamArn')} not found",
            )
        return stream

    @staticmethod
    def _shard(stream: _Stream, name: str) -> _Shard:
        shard = stream.shards.get(name)
        if shard is None:
            raise ModelError(
                "ResourceNotFoundException", "Requested resource not found: Shard does not exist"
            )
        return shard


def _table_name(request: Mapping[str, Any]) -> str:
    """Requests name a table, or have its ARN."""
    return str(request["TableName"]).rpartition("/")[2]


def _place(key: str) -> float:
    """Where a key is in the order in which a table is scanned."""
    return fraction("place", key)


def _size(item: Item) -> int:
    return len(msgspec.json.encode(item))


def _label(now: int) -> str:
    """The time as labels have it: ISO-8601 with milliseconds, without a zone."""
    return micros_to_datetime(now // 1000 * 1000).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
