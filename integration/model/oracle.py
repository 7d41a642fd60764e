"""What really happened, for tests: every record that was accepted, and what has become of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from integration.model.core import Core


class Accepted(NamedTuple):
    """A record that is, or was, in a stream."""

    stream: str
    shard: str
    sequence_number: str
    arrival: int  # microseconds since the epoch
    partition_key: str
    data: bytes
    has_expired: bool  # no reader can get it any more
    was_read: bool  # it was in a page or in an event at least once, whether the answer arrived or not

    @property
    def is_lost(self) -> bool:
        """Whether it expired before anybody was given it."""
        return self.has_expired and not self.was_read


class Oracle:
    """Asked by tests; no operation of the service gives these answers."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def records(self, stream: str) -> list[Accepted]:
        """All records ever accepted, shard by shard, each in the order of its sequence numbers."""
        with self._core.lock:
            self._core.settle()
            return list(self._records(stream))

    def readable(self, stream: str) -> list[Accepted]:
        """Those that have not expired."""
        return [record for record in self.records(stream) if not record.has_expired]

    def unacknowledged(self) -> set[str]:
        """The sequence numbers of records that were accepted in a call whose answer was lost, or may have
        been. Their producer may have put them again.
        """
        with self._core.lock:
            return set(self._core.unacknowledged)

    def lineage(self, stream: str) -> dict[str, tuple[str, ...]]:
        """Each shard that ever was, and its parents."""
        with self._core.lock:
            self._core.settle()
            return {shard.id: shard.parents for shard in self._core.named(stream).shards.values()}

    def _records(self, stream: str) -> Iterator[Accepted]:
        for shard in self._core.named(stream).shards.values():
            for index, record in enumerate(shard.records):
                has_expired = shard.is_expired or index < shard.first
                yield Accepted(stream, shard.id, *record, has_expired, bool(shard.was_read[index]))
