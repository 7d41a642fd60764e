"""Which positions of a shard a subscription's events serve; planner and agent reckon alike."""

from __future__ import annotations

from sluice.source.offsets import After, Position
from sluice.source.stream_log import IteratorStart

__all__ = ["Coverage", "needed"]


def needed(position: Position) -> int | None:
    """The highest number of no record that is needed behind `position`; None where no number says so."""
    if not isinstance(position, After):
        return None
    if position.sub is not None:
        return position.sequence - 1  # the record itself is needed again, for the sub-records left
    return position.sequence if position.next is None else int(position.next) - 1


class Coverage:
    """Which positions a row of events serves: those it began with, and those within it.

    Args:
        start: where the subscription was opened. A record's number there is that of the first record.
    """

    def __init__(self, start: IteratorStart) -> None:
        self._start: IteratorStart | None = start
        self._low = None if start.sequence_number is None else int(start.sequence_number) - 1
        self._passed: int | None = None

    @property
    def has_begun(self) -> bool:
        """Whether it is known what the first record is."""
        return self._low is not None

    def begin(self, first: str) -> None:
        """The number of the first record that came: there is none before it behind the start.

        Behind a position that lies before it there may have been some that expired.
        """
        if self._low is None:
            self._low = int(first) - 1

    def pass_by(self, number: int) -> None:
        """Batches have come to the record `number`: what lies before it is not served any more."""
        self._passed = number if self._passed is None else max(self._passed, number)

    def drop(self, number: int) -> None:
        """Records up to `number` are not held any more."""
        self._start = None
        self.pass_by(number)

    def holds(self, start: IteratorStart, need: int | None) -> bool:
        """Whether all behind a position is there or will come; see `ReadRange`.

        Before it has begun that is so, as far as is known, where batches have come to.
        """
        if start == self._start:
            return True
        if need is None or (self._passed is not None and need < self._passed):
            return False
        return self._passed is not None if self._low is None else need >= self._low
