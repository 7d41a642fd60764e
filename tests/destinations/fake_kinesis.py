"""A stream in memory: shards that are split and merged, records that are refused, readers of each kind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sluice.aws.responses import Outcome
from sluice.destinations.kinesis.aggregates import routed_by
from sluice.destinations.kinesis.converter import KinesisEntry
from sluice.destinations.kinesis.shard_map import ListedShard
from sluice.errors import ServiceError
from sluice.kinesis.kpl.deaggregator import MAGIC, deaggregate, hash_key, unpack
from sluice.sink.contracts import Rejection, SubmitResult
from sluice.source.stream_log import Record

KEY_SPACE = 2**128


def evenly(shards: int, first_id: int = 0) -> list[ListedShard]:
    """The key space in as many shards."""
    edges = [KEY_SPACE * n // shards for n in range(shards + 1)]
    return [ListedShard(f"shardId-{first_id + n:012}", (edges[n], edges[n + 1] - 1)) for n in range(shards)]


class User(NamedTuple):
    """A record of the user, as a reader gives it."""

    key: str
    data: bytes


@dataclass
class FakeStream:
    """Takes the place of the plain destination and of ``ListShards``.

    Attributes:
        refuse: asked for every record with the shard it goes to: a code, or None to take it.
        requests: the records of every request.
        listings: how often the shards were listed.
    """

    shards: list[ListedShard]
    refuse: Callable[[KinesisEntry, str], str | None] = lambda _entry, _shard: None
    before: Callable[[], None] = lambda: None
    requests: list[Sequence[KinesisEntry]] = field(default_factory=list)
    stored: dict[str, list[KinesisEntry]] = field(default_factory=dict)
    listings: int = 0
    name: str = "kinesis stream 's'"
    lock: Any = field(default_factory=threading.RLock)
    closed: int = 0

    def listed(self) -> list[ListedShard]:
        with self.lock:
            self.listings += 1
            return [*self.shards]

    def reshard(self, count: int) -> None:
        """Closes all shards and opens as many new ones."""
        with self.lock:
            old = [shard._replace(is_closed=True) for shard in self.shards]
            self.shards = [*old, *evenly(count, len(old))]

    def put(self, entries: Sequence[KinesisEntry]) -> tuple[SubmitResult[KinesisEntry], Sequence[Outcome]]:
        self.before()
        with self.lock:
            assert 0 < len(entries) <= 500
            assert sum(map(self.size_in_bytes, entries)) <= 10 * 2**20
            self.requests.append([*entries])
            failed, rejected, outcomes = [], [], []
            for entry in entries:
                assert entry.partition_key
                assert len(entry.data) + len(entry.partition_key.encode()) <= 10 * 2**20
                shard = self.shard_of(routed_by(entry))
                code = self.refuse(entry, shard)
                if code is None:
                    self.stored.setdefault(shard, []).append(entry)
                    outcomes.append(Outcome(shard_id=shard))
                    continue
                outcomes.append(Outcome(error_code=code))
                if code.startswith("Invalid"):
                    rejected.append(Rejection(entry, code))
                else:
                    failed.append(entry)
            codes = {"Throttled": len(failed)} if failed else {}
            return SubmitResult(failed=failed, codes=codes, rejected=rejected), outcomes

    def shard_of(self, key: int) -> str:
        (shard,) = [
            each.id
            for each in self.shards
            if not each.is_closed and each.hash_range[0] <= key <= each.hash_range[1]
        ]
        return shard

    def size_in_bytes(self, entry: KinesisEntry) -> int:
        return len(entry.data) + len(entry.partition_key.encode())

    def is_fatal(self, error: Exception) -> bool:
        return isinstance(error, ServiceError) and not error.retryable

    def close(self) -> None:
        self.closed += 1

    # --- readers --------------------------------------------------------------------------------------

    def _by_shard(self) -> Iterator[tuple[KinesisEntry, tuple[int, int]]]:
        for shard in self.shards:
            for entry in self.stored.get(shard.id, ()):
                yield entry, shard.hash_range

    def read_by_source(self) -> list[User]:
        """As this library's source reads it: shard by shard, parents first."""
        return [
            User(user.partition_key, user.data)
            for entry, hash_range in self._by_shard()
            for user in deaggregate(Record("1", 0, entry.partition_key, entry.data), hash_range)
        ]

    def read_by_client_library(self) -> list[User]:
        """By the rules of ``AggregatorUtil`` of the Kinesis Client Library: a stray drops its aggregate."""
        found: list[User] = []
        for entry, (first, last) in self._by_shard():
            try:
                keys, data, explicit = unpack(entry.data if entry.data.startswith(MAGIC) else b"")
            except ValueError:  # not an aggregate, though data of a user may begin like one
                found.append(User(entry.partition_key, entry.data))
                continue
            routes = [hash_key(k) if h is None else int(h) for k, h in zip(keys, explicit, strict=True)]
            if all(first <= route <= last for route in routes):
                found += map(User, keys, data)
        return found
