"""The places in a split where a batch may end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sluice.source.logs.stream_log import AnyRecord, size_in_bytes
from sluice.source.model.positions import sequence_of

__all__ = ["CutPoint"]


class CutPoint(NamedTuple):
    """A record after which a batch may end, with figures of the records since the previous cut point.

    A probe makes one cut point for each record of a page, or one for a whole page that it finds by time.
    A subscription makes one for all records of an event.

    Attributes:
        number: sequence number of the record.
        arrival: when the record arrived (microseconds).
        size: bytes of the counted records, partition keys included.
        count: number of records after the previous cut point, up to and including this one.
        since: when the first counted record arrived (microseconds), if known.
        is_after_gap: uncounted records lie right before the counted ones.
    """

    number: str
    arrival: int
    size: int
    count: int = 1  # type: ignore[assignment]  # hides tuple.count
    since: int | None = None
    is_after_gap: bool = False

    @classmethod
    def of(cls, record: AnyRecord) -> CutPoint:
        return cls(record.sequence_number, record.arrival, size_in_bytes(record))

    @classmethod
    def of_all(cls, records: Sequence[AnyRecord], size: int) -> CutPoint:
        """Makes the cut point that counts records of one page with about `size` bytes."""
        first, last = records[0], records[-1]
        return cls(last.sequence_number, last.arrival, size, len(records), first.arrival)

    @property
    def sequence(self) -> int:
        return sequence_of(self.number)

    @property
    def first_arrival(self) -> int | None:
        """When the first counted record arrived (microseconds); None if not known."""
        return self.arrival if self.count == 1 and self.since is None else self.since
