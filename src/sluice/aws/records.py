"""Records as they come off the wire: decoded once, and good for all that follows up to Arrow.

A page may hold 10,000 of them, so a record is one object with the fields that the decoder made, and what
is derived from them is made for the page as a whole, or when somebody asks.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from sluice.instants import micros_from_seconds

__all__ = ["Seconds", "WireRecord"]

Seconds = Annotated[float, msgspec.Meta(ge=-62_135_596_800.0, lt=253_402_300_799.0)]
"""Seconds since the epoch, of the years 1 to 9999: what Python, Arrow and Spark all have a date for."""


class WireRecord(msgspec.Struct, rename="pascal", gc=False, eq=False):
    """One record, under the names that the service gives its fields.

    Attributes:
        approximate_arrival_timestamp: seconds since the epoch, as the service has written them.
    """

    sequence_number: str
    approximate_arrival_timestamp: Seconds
    partition_key: str
    data: bytes

    @property
    def arrival(self) -> int:
        """Microseconds since the epoch."""
        return micros_from_seconds(self.approximate_arrival_timestamp)

    def __eq__(self, other: object) -> bool:
        """Equal is any record that says the same, whatever holds it."""
        try:
            return self._fields() == tuple(getattr(other, name) for name in _FIELDS)
        except AttributeError:
            return NotImplemented

    def __hash__(self) -> int:
        return hash(self._fields())

    def _fields(self) -> tuple[object, ...]:
        return self.sequence_number, self.arrival, self.partition_key, self.data


_FIELDS: Final = ("sequence_number", "arrival", "partition_key", "data")
