"""Puts numbered records, on and on where asked, and knows what rows they make."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from integration.support.background import repeating
from integration.support.kinesis import Put, Streams
from integration.support.recorder import Row

_KEYS = 53


class Found(Protocol):
    """What a query has read; see `Recorder`."""

    @property
    def rows(self) -> Sequence[Row]: ...
    def found(self) -> Counter[tuple[str, int, bytes]]: ...


class Producer:
    """Puts records to all shards of a stream; each record has other data.

    `per_put`: how many go out at once while `putting`; `pause`: seconds between two puts then.
    """

    def __init__(self, streams: Streams, stream: str, *, per_put: int = 10, pause: float = 0.05) -> None:
        self.streams = streams
        self.stream = stream
        self._per_put = per_put
        self._pause = pause
        self._placed: list[tuple[Put, bytes]] = []

    @property
    def count(self) -> int:
        return len(self._placed)

    def put(self, count: int) -> None:
        first = len(self._placed)
        records = [(f"key-{n % _KEYS}", f"record {n:08}".encode()) for n in range(first, first + count)]
        placed = self.streams.put(self.stream, records)
        self._placed += zip(placed, (data for _, data in records), strict=True)

    def putting(self) -> AbstractContextManager[None]:
        """Puts again and again while the ``with`` block runs."""
        return repeating(lambda: self.put(self._per_put), self._pause)

    def expected(self) -> Counter[tuple[str, int, bytes]]:
        """Shard, sequence number and data of every record put."""
        return Counter((where.shard, int(where.sequence_number), data) for where, data in self._placed)


def check_exact(recorder: Found, producer: Producer) -> None:
    """Every record once, and those of a shard in sequence order, from batch to batch and within each."""
    found, expected = recorder.found(), producer.expected()
    lost, more = expected - found, found - expected
    assert not lost, f"{lost.total()} of {producer.count} records lost, the first is {min(lost)}"
    assert not more, f"{more.total()} rows too many, the first is {min(more)}"
    numbers: dict[str, list[int]] = defaultdict(list)
    for row in recorder.rows:
        numbers[row.shard].append(row.sequence_number)
    assert all(each == sorted(each) for each in numbers.values())
