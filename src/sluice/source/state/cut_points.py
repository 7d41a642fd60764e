"""The places in a split where a batch may end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sluice.source.logs.stream_log import AnyRecord, size_in_bytes
from sluice.source.model.positions import sequence_of

__all__ = ["CutPoint"]


class CutPoint(NamedTuple):
    """A record after which a batch may end, with the figures of the records before it for admission.

    A probe makes one cut point for each record that it reads page by page, and one for all records of a page
    that it finds at a point in time; a subscription makes one for many records that came in one event. The
    records that are counted lie between the cut point before this one (excluded) and the record itself
    (included).

    Attributes:
        number: sequence number of the record.
        arrival: when the record arrived (microseconds).
        size: bytes of the counted records, partition keys included.
        count: how many records are counted.
        since: when the first counted record arrived (microseconds), if known.
        is_after_gap: records that no cut point counts lie right before the counted ones.
    """

    number: str
    arrival: int
    size: int
    count: int = 1  # type: ignore[assignment]  # hides tuple.count
    since: int | None = None
    is_after_gap: bool = False

    @classmethod
    def of(cls, record: AnyRecord) -> CutPoint:
        """The cut point that counts one record."""
        return cls(record.sequence_number, record.arrival, size_in_bytes(record))

    @classmethod
    def of_all(cls, records: Sequence[AnyRecord], size: int) -> CutPoint:
        """The cut point that counts records of one page, which have about `size` bytes."""
        first, last = records[0], records[-1]
        return cls(last.sequence_number, last.arrival, size, len(records), first.arrival)

    @property
    def sequence(self) -> int:
        """The sequence number, to compare by."""
        return sequence_of(self.number)

    @property
    def first_arrival(self) -> int | None:
        """When the first counted record arrived (microseconds); None if not known."""
        return self.arrival if self.count == 1 and self.since is None else self.since
