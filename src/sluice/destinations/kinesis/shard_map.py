"""Which shard a hash key belongs to, as far as is known: what is packed together must go to one shard."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from sluice.aws.calls import Calls
from sluice.aws.connection import ConnectionConfig
from sluice.aws.shards import list_shards
from sluice.retry import Backoff

__all__ = ["ListedShard", "Shard", "ShardMap", "Shards", "shards_of"]

# How long a listing is good for (seconds). A reshard is noticed by the next answer, but a stream that was
# deleted and made again may have shards of the same names with other keys. That takes longer than this.
_FRESH: Final = 30.0


_BACKOFF: Final = Backoff(max_retries=10, base=1.0, max=5.0, exponent=1.5)


class ListedShard(NamedTuple):
    """A shard as the service lists it.

    Attributes:
        hash_range: first and last hash key, both included.
    """

    id: str
    hash_range: tuple[int, int]
    is_closed: bool = False

    @classmethod
    def of(cls, shard: Mapping[str, Any]) -> ListedShard:
        """From the API's description of a shard."""
        keys = shard["HashKeyRange"]
        return cls(
            shard["ShardId"],
            (int(keys["StartingHashKey"]), int(keys["EndingHashKey"])),
            is_closed="EndingSequenceNumber" in shard["SequenceNumberRange"],
        )


class Shard(NamedTuple):
    """A shard and its hash keys, `first` and `last` included."""

    id: str
    first: int
    last: int

    def holds(self, first: int, last: int) -> bool:
        """Whether all hash keys from `first` to `last` are this shard's."""
        return self.first <= first and last <= self.last


class ShardMap:
    """The shards as they were listed once. Never changes.

    Args:
        listed: open and closed ones.
    """

    def __init__(self, listed: Iterable[ListedShard]) -> None:
        self._known: dict[str, Shard] = {}
        found: list[Shard] = []
        for each in listed:
            shard = self._known[each.id] = Shard(each.id, *each.hash_range)
            if not each.is_closed:
                found.append(shard)
        self._open = sorted(found, key=lambda shard: shard.first)
        self._firsts = [shard.first for shard in self._open]

    def find(self, hash_key: int) -> Shard | None:
        """The open shard that takes records with this hash key; None where none is known to."""
        place = bisect_right(self._firsts, hash_key) - 1
        if place < 0 or self._open[place].last < hash_key:
            return None
        return self._open[place]

    def named(self, shard: str) -> Shard | None:
        """The shard of this id, open or closed; None where it was not listed."""
        return self._known.get(shard)


class Shards:
    """The shards of a stream as they are now, or were a moment ago. For all threads of a process.

    Args:
        listing: asks the service.
        clock: monotonic seconds.
    """

    def __init__(
        self, listing: Callable[[], Iterable[ListedShard]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._listing = listing
        self._clock = clock
        self._lock = threading.Lock()
        self._map: ShardMap | None = None
        self._listed_at = 0.0

    def current(self) -> ShardMap:
        """A map that is half a minute old at most.

        Raises:
            ServiceError: the shards cannot be listed.
        """
        with self._lock:
            if self._map is None or self._clock() - self._listed_at >= _FRESH:
                return self._list()
            return self._map

    def newer_than(self, outdated: ShardMap) -> ShardMap:
        """A map that was listed after `outdated`, which has turned out not to be true.

        Raises:
            ServiceError: the shards cannot be listed.
        """
        with self._lock:
            # Many requests find out at the same time: one of them asks.
            return self._list() if self._map is None or self._map is outdated else self._map

    def forget(self) -> None:
        """The stream itself may be another one now."""
        with self._lock:
            self._map = None

    def _list(self) -> ShardMap:
        now = self._clock()
        self._map = ShardMap(self._listing())
        self._listed_at = now
        return self._map


@lru_cache(maxsize=64)
def shards_of(connection: ConnectionConfig, stream: str, arn: str | None) -> Shards:
    """The shards of a stream, known to this process from one task to the next.

    Args:
        connection: how to reach the service.
        stream: its name.
        arn: used instead of the name, where it is given.
    """
    calls = Calls(connection, "kinesis", {"ListShards": _BACKOFF})
    address = {"StreamName": stream} if arn is None else {"StreamARN": arn}
    return Shards(lambda: list_shards(calls, stream, address, ListedShard.of))
