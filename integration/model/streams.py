"""Streams, and what happens to them as time passes: statuses that change, records and shards that expire."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from integration.model.chance import within
from integration.model.clock import SECOND
from integration.model.laws import Laws
from integration.model.shards import Shard

LAST_HASH = 2**128 - 1


@dataclass(eq=False)
class Consumer:
    """A registered consumer. `due` is when its status changes, by `Clock.elapsed`; None: it does not."""

    name: str
    arn: str
    created: int
    status: str = "CREATING"
    due: float | None = None


@dataclass(eq=False)
class Stream:
    name: str
    arn: str
    number: int  # tells it from another stream of the same name
    created: int  # microseconds since the epoch
    seed: int
    status: str = "CREATING"
    retention_hours: int = 24
    max_record_bytes: int = 1024 * 1024
    mode: str = "PROVISIONED"
    shards: dict[str, Shard] = field(default_factory=dict)
    consumers: dict[str, Consumer] = field(default_factory=dict)
    # what ends its status, and when (by `Clock.elapsed`)
    pending: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    # when UpdateShardCount was called, by `Clock.elapsed`
    reshards: list[float] = field(default_factory=list)
    _open: list[Shard] | None = None
    _starts: list[int] | None = None

    @property
    def open_shards(self) -> list[Shard]:
        """The shards that take records, by their hash keys."""
        if self._open is None:
            self._open = sorted((s for s in self.shards.values() if s.is_open), key=lambda s: s.hash_range)
        return self._open

    def shard_for(self, hash_key: int) -> Shard:
        """The open shard whose range holds a hash key."""
        if self._starts is None:
            self._starts = [shard.hash_range[0] for shard in self.open_shards]
        return self.open_shards[bisect_right(self._starts, hash_key) - 1]

    def changed(self) -> None:
        """To be called when shards were opened or closed."""
        self._open = self._starts = None

    def expire(self, now: int) -> None:
        """Records, and closed shards, that are older than the retention expire for good."""
        horizon = now - self.retention_hours * 3600 * SECOND
        for shard in self.shards.values():
            if shard.laws.retention:
                shard.expire(horizon)
            if shard.closed is not None and shard.laws.shards_expire and shard.closed < horizon:
                shard.is_expired = True

    def listed(self, elapsed: float, laws: Laws) -> list[Shard]:
        """The shards as one listing has them, by id. It may miss some; see `Laws.listing_delay`,
        `listing_holes`, `listing_gaps`.

        `elapsed`: the time by `Clock.elapsed`.
        """
        found = []
        new: set[str] = set()  # not listed yet
        gaps = laws.listing_gaps
        for shard in self.shards.values():
            delay = within((0.0, laws.listing_delay), shard.seed, "listed")
            is_new = bool(shard.parents) and elapsed < shard.born + delay
            if is_new or (not laws.listing_holes and not new.isdisjoint(shard.parents)):
                new.add(shard.id)
            is_gap = (
                gaps > 0.0
                and within((0.0, 1.0), shard.seed, "gap", int(elapsed / 2)) < gaps
                and shard.is_drained
                and bool(shard.was_read)
            )
            if not (shard.is_expired or shard.id in new or is_gap):
                found.append(shard)
        return found
