"""A Kinesis stream in memory, with reshards and refusals, and readers that follow the rules of real ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from sluice.destinations.common.batch_call import Refusal
from sluice.destinations.kinesis.aggregates import hash_key_of
from sluice.destinations.kinesis.aggregating_destination import AggregatingDestination
from sluice.destinations.kinesis.converter import KinesisEntry
from sluice.destinations.kinesis.shard_map import Shard, ShardMapCache
from sluice.errors import ServiceError
from sluice.kinesis.log.kpl.deaggregator import deaggregate, hash_key, unpack
from sluice.kinesis.log.kpl.format import MAGIC
from sluice.sink.contracts import Rejection, SubmitResult
from sluice.source.logs.stream_log import Record

KEY_SPACE = 2**128


def even_shards(count: int, first_id: int = 0) -> list[Shard]:
    """Open shards that divide the key space into equal ranges."""
    edges = [KEY_SPACE * n // count for n in range(count + 1)]
    return [Shard(f"shardId-{first_id + n:012}", edges[n], edges[n + 1] - 1) for n in range(count)]


class User(NamedTuple):
    """A user record, as a reader returns it."""

    key: str
    data: bytes


@dataclass
class FakeStream:
    """Replaces `KinesisStreamsDestination` and ``ListShards``.

    Attributes:
        shards: open and closed ones.
        refuse: called with every record and the shard it belongs to; returns an error code, or None to accept
            the record.
        before: called before every request.
        requests: the records of every request.
        stored: the accepted records of every shard.
        listings: the calls of ``ListShards``.
        passing: codes of errors that are not fatal, though they say that they are not retryable.
        closed: the calls of ``close``.
    """

    shards: list[Shard]
    refuse: Callable[[KinesisEntry, str], str | None] = lambda _entry, _shard: None
    before: Callable[[], None] = lambda: None
    requests: list[Sequence[KinesisEntry]] = field(default_factory=list)
    stored: dict[str, list[KinesisEntry]] = field(default_factory=dict)
    listings: int = 0
    name: str = "kinesis stream 's'"
    lock: Any = field(default_factory=threading.RLock)
    passing: frozenset[str] = frozenset()
    closed: int = 0

    def list_shards(self) -> list[Shard]:
        with self.lock:
            self.listings += 1
            return [*self.shards]

    def is_throttling(self, code: str) -> bool | None:  # noqa: ARG002 - the contract's
        return None

    def reshard(self, count: int) -> None:
        """Closes all shards and opens `count` new ones."""
        with self.lock:
            old = [shard._replace(is_closed=True) for shard in self.shards]
            self.shards = [*old, *even_shards(count, len(old))]

    def put(self, entries: Sequence[KinesisEntry]) -> tuple[SubmitResult[KinesisEntry], Sequence[Any]]:
        self.before()
        with self.lock:
            assert 0 < len(entries) <= 500
            assert sum(map(self.size_in_bytes, entries)) <= 10 * 2**20
            self.requests.append([*entries])
            failed, rejected, answers = [], [], list[Any]()
            for entry in entries:
                assert entry.partition_key
                assert len(entry.data) + len(entry.partition_key.encode()) <= 10 * 2**20
                shard = self.shard_of(hash_key_of(entry))
                code = self.refuse(entry, shard)
                if code is None:
                    self.stored.setdefault(shard, []).append(entry)
                    answers.append(shard)
                    continue
                answers.append(Refusal(code, "", "retry"))
                if code.startswith("Invalid"):
                    rejected.append(Rejection(entry, code))
                else:
                    failed.append(entry)
            codes = {"Throttled": len(failed)} if failed else {}
            return SubmitResult(failed=failed, codes=codes, rejected=rejected), answers

    def shard_of(self, key: int) -> str:
        """The id of the open shard that takes this hash key."""
        (shard,) = [each.id for each in self.shards if not each.is_closed and each.holds(key, key)]
        return shard

    def size_in_bytes(self, entry: KinesisEntry) -> int:
        return len(entry.data) + len(entry.partition_key.encode())

    def is_fatal(self, error: Exception) -> bool:
        return isinstance(error, ServiceError) and not error.retryable and error.code not in self.passing

    def close(self) -> None:
        self.closed += 1

    # --- readers --------------------------------------------------------------------------------------

    def _by_shard(self) -> Iterator[tuple[KinesisEntry, tuple[int, int]]]:
        for shard in self.shards:
            for entry in self.stored.get(shard.id, ()):
                yield entry, (shard.first, shard.last)

    def read_by_source(self) -> list[User]:
        """All user records as ``kinesis-efo`` reads them: shard by shard, parents first."""
        found: list[User] = []
        for entry, hash_range in self._by_shard():
            users = deaggregate(Record("1", 0, entry.partition_key, entry.data), hash_range)
            found += map(User, users.partition_keys, users.data)
        return found

    def read_by_client_library(self) -> list[User]:
        """All user records as the KCL's ``AggregatorUtil`` reads them.

        It drops an aggregate if one of its records is outside the shard's range.
        """
        found: list[User] = []
        for entry, (first, last) in self._by_shard():
            try:
                keys, data, explicit = unpack(entry.data if entry.data.startswith(MAGIC) else b"")
            except ValueError:  # not an aggregate, although a user's data may begin like one
                found.append(User(entry.partition_key, entry.data))
                continue
            hash_keys = [hash_key(k) if h is None else int(h) for k, h in zip(keys, explicit, strict=True)]
            if all(first <= each <= last for each in hash_keys):
                found += map(User, keys, data)
        return found


def shards_of(stream: FakeStream, clock: Callable[[], float] = lambda: 0.0) -> ShardMapCache:
    """Its shards, listed as they are needed."""
    return ShardMapCache(stream.list_shards, stream.list_shards, clock=clock)


def aggregating(
    stream: FakeStream, clock: Callable[[], float] = lambda: 0.0, **options: Any
) -> AggregatingDestination:
    """A destination that writes aggregates to `stream`."""
    plain: Any = stream
    return AggregatingDestination(plain, shards_of(stream, clock), **options)


# --- rows ---------------------------------------------------------------------------------------------

Row = tuple[bytes, "str | None", "str | None"]  # data, partition key, explicit hash key


def rows(count: int, *, keys: int = 50, size: int = 0) -> list[Row]:
    """Numbered rows with one of `keys` partition keys."""
    return [(f"{n}".encode().ljust(size), f"key-{n % keys}", None) for n in range(count)]


def as_batch(given: list[Row]) -> pa.RecordBatch:
    data, keys, hash_keys = zip(*given, strict=True) if given else ((), (), ())
    arrays = [pa.array(data, pa.binary()), pa.array(keys, pa.string()), pa.array(hash_keys, pa.string())]
    return pa.record_batch(arrays, names=["data", "partitionKey", "explicitHashKey"])


def row_lists() -> st.SearchStrategy[list[Row]]:
    """Rows with and without keys of both kinds."""
    text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
    keys = st.none() | text | st.just("a")
    hash_keys = st.none() | st.integers(0, KEY_SPACE - 1).map(str) | st.just("0")
    return st.lists(st.tuples(st.binary(max_size=60), keys, hash_keys), max_size=60)
