"""Records as the service sends them: decoded once, and used as they are until they become Arrow.

A page holds up to 10,000 records. So a record is one object with the decoder's fields; values derived from
them are computed for a page as a whole, or on request.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from sluice.instants import micros_from_seconds

__all__ = ["Seconds", "WireRecord"]

Seconds = Annotated[float, msgspec.Meta(ge=-62_135_596_800.0, lt=253_402_300_799.0)]
"""Seconds since the epoch in the years 1 to 9999, which are dates for Python, Arrow and Spark alike."""


class WireRecord(msgspec.Struct, rename="pascal", gc=False, eq=False):
    """One record, with the service's names of its fields.

    Attributes:
        approximate_arrival_timestamp: seconds since the epoch.
    """

    sequence_number: str
    approximate_arrival_timestamp: Seconds
    partition_key: str
    data: bytes

    @property
    def arrival(self) -> int:
        """When the record arrived, in microseconds since the epoch."""
        return micros_from_seconds(self.approximate_arrival_timestamp)

    def __eq__(self, other: object) -> bool:
        """Whether another record of any class has the same fields."""
        try:
            return self._fields() == tuple(getattr(other, name) for name in _FIELDS)
        except AttributeError:
            return NotImplemented

    def __hash__(self) -> int:
        return hash(self._fields())

    def _fields(self) -> tuple[object, ...]:
        return self.sequence_number, self.arrival, self.partition_key, self.data


_FIELDS: Final = ("sequence_number", "arrival", "partition_key", "data")
