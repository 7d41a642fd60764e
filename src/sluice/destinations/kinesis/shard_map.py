"""Which shard takes the records with a given hash key."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from sluice.aws.calling.calls import Calls
from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.names.shards import list_shards
from sluice.errors import ServiceError
from sluice.retry import Backoff

__all__ = ["Shard", "ShardMap", "ShardMapCache", "shard_map_cache"]

_log = logging.getLogger(__name__)

# How long a map is used (seconds). Answers to PutRecords show a reshard, but not that the stream was deleted
# and created again, with shards of the same names and other hash keys. That takes longer than this.
_MAX_AGE: Final = 30.0
# The same for a map with a hole. Listings are eventually consistent: for some seconds, one may show that a
# shard is closed, and not yet the shards that take its records.
_MAX_AGE_WITH_HOLE: Final = 1.0
# How long nothing is known of the shards when they could not be listed again (seconds). All that is written
# waits for each attempt, for some seconds if the service does not answer.
_UNLISTED_FOR: Final = 30.0

_HASH_KEYS: Final = 2**128

_BACKOFF: Final = Backoff(max_retries=10, base=1.0, max=5.0, exponent=1.5)
# While shards are listed again, all that is written waits; and it can be written without them.
_BRIEF_BACKOFF: Final = Backoff(max_retries=3, base=0.5, max=1.0, exponent=1.5, give_up_after=5.0)
_BRIEF_WAIT: Final = 5.0  # seconds for an answer


class Shard(NamedTuple):
    """A shard and its range of hash keys, `first` and `last` included."""

    id: str
    first: int
    last: int
    is_closed: bool = False

    def holds(self, first: int, last: int) -> bool:
        """Whether all hash keys from `first` to `last` are in the range of this shard."""
        return self.first <= first and last <= self.last

    @classmethod
    def of(cls, shard: Mapping[str, Any]) -> Shard:
        """Reads a shard from the answer to ``ListShards``."""
        hash_keys = shard["HashKeyRange"]
        return cls(
            shard["ShardId"],
            int(hash_keys["StartingHashKey"]),
            int(hash_keys["EndingHashKey"]),
            is_closed="EndingSequenceNumber" in shard["SequenceNumberRange"],
        )


class ShardMap:
    """The result of one ``ListShards``. Immutable.

    Attributes:
        has_hole: whether there are hash keys that no open shard takes.

    Args:
        listed: open and closed shards, in any order.
    """

    def __init__(self, listed: Iterable[Shard]) -> None:
        self._by_id = {shard.id: shard for shard in listed}
        self._open = sorted(
            (shard for shard in self._by_id.values() if not shard.is_closed), key=lambda shard: shard.first
        )
        self._firsts = [shard.first for shard in self._open]
        self.has_hole = self._covered() < _HASH_KEYS

    def _covered(self) -> int:
        """The smallest hash key that no open shard takes."""
        covered = 0
        for shard in self._open:
            if shard.first > covered:
                break
            covered = max(covered, shard.last + 1)
        return covered

    def find(self, hash_key: int) -> Shard | None:
        """The open shard that takes records with this hash key; None if none was listed."""
        index = bisect_right(self._firsts, hash_key) - 1
        if index < 0 or self._open[index].last < hash_key:
            return None
        return self._open[index]

    def named(self, shard_id: str) -> Shard | None:
        """The shard with this id, open or closed; None if it was not listed."""
        return self._by_id.get(shard_id)


class ShardMapCache:
    """The shards of one stream, listed when they are needed. Shared by all threads of a process.

    While they cannot be listed again, the map is empty: rows are packed by their hash keys, which are right
        for any shards.

    Args:
        list_shards: calls the service for the first time, and retries that for long.
        list_again: the same later, for some seconds.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        list_shards: Callable[[], Iterable[Shard]],
        list_again: Callable[[], Iterable[Shard]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._list_shards = list_shards
        self._list_again = list_again
        self._clock = clock
        self._lock = threading.Lock()
        self._map: ShardMap | None = None
        self._expires_at = 0.0

    def current(self) -> ShardMap:
        """A map that is at most 30 s old, or 1 s if it has a hole; empty if there is none.

        Raises:
            ServiceError: the shards cannot be listed: for the first time, or for a reason that stays.
        """
        with self._lock:
            if self._map is not None and self._clock() < self._expires_at:
                return self._map
            return self._refresh()

    def newer_than(self, outdated: ShardMap) -> ShardMap:
        """A map that was listed after `outdated`; empty if there is none.

        Raises:
            ServiceError: as `current`.
        """
        with self._lock:
            # Many requests find the same map outdated at once; only the first of them lists again.
            return self._refresh() if self._map is None or self._map is outdated else self._map

    def invalidate(self) -> None:
        """Forgets the map: the next caller lists again."""
        with self._lock:
            self._map = None

    def _refresh(self) -> ShardMap:
        now = self._clock()
        try:
            listed = ShardMap(self._list_shards() if self._map is None else self._list_again())
        except ServiceError as error:
            if self._map is None or not error.retryable:
                raise
            _log.warning("aggregates hold rows of one key only until shards can be listed: %s", error)
            self._map, self._expires_at = ShardMap(()), self._clock() + _UNLISTED_FOR
            return self._map
        self._map, self._expires_at = listed, now + (_MAX_AGE_WITH_HOLE if listed.has_hole else _MAX_AGE)
        return listed


@lru_cache(maxsize=64)
def shard_map_cache(connection: ConnectionConfig, stream: str, arn: str | None) -> ShardMapCache:
    """The process's cache for a stream; later tasks use it, too.

    Args:
        connection: how to reach the service.
        stream: the name of the stream.
        arn: its ARN, sent instead of the name if given.
    """
    address = {"StreamName": stream} if arn is None else {"StreamARN": arn}

    def lister(connection: ConnectionConfig, backoff: Backoff) -> Callable[[], Iterable[Shard]]:
        calls = Calls(connection, "kinesis", {"ListShards": backoff})
        return lambda: list_shards(calls, stream, address, Shard.of)

    brief = replace(
        connection,
        connect_timeout=min(connection.connect_timeout, _BRIEF_WAIT),
        read_timeout=min(connection.read_timeout, _BRIEF_WAIT),
    )
    return ShardMapCache(lister(connection, _BACKOFF), lister(brief, _BRIEF_BACKOFF))
