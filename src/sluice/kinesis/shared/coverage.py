"""Which positions of a shard a subscription covers, by the same rules in the planner and in the agent."""

from __future__ import annotations

from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.offsets import After, Position

__all__ = ["Coverage", "exclusive_start"]


def exclusive_start(position: Position) -> int | None:
    """The highest sequence number that need not be read from a position on.

    Returns:
        None: the position names no number.
    """
    if not isinstance(position, After):
        return None
    if position.sub is not None or position.next is None:
        return position.read_up_to
    return int(position.next) - 1


class Coverage:
    """The positions that a subscription covers: it delivers every record after them.

    It covers the position where it was opened, and those from its first record on that no batch has passed.

    Args:
        start: where the subscription was opened. A sequence number in it belongs to the first record.
    """

    def __init__(self, start: IteratorStart) -> None:
        self._start: IteratorStart | None = start
        self._lowest = None if start.sequence_number is None else int(start.sequence_number) - 1
        self._batches_at: int | None = None

    @property
    def knows_first(self) -> bool:
        """Whether the first record of the subscription is known."""
        return self._lowest is not None

    def record_first(self, number: str) -> None:
        """The subscription's first record has come.

        A position before that record is not covered, unless it is the start: records between the two may
        have expired.
        """
        if self._lowest is None:
            self._lowest = int(number) - 1

    def advance_to(self, number: int) -> None:
        """Batches have reached the record `number`: positions before it are not covered any more."""
        self._batches_at = number if self._batches_at is None else max(self._batches_at, number)

    def discard(self, number: int) -> None:
        """Records up to `number` are dropped, so the start is no longer covered, either."""
        self._start = None
        self.advance_to(number)

    def covers(self, start: IteratorStart, after: int | None) -> bool:
        """Whether the subscription delivers every record after a position.

        Until the first record is known, the position that batches have reached counts as covered.

        Args:
            start: where an iterator for the position starts.
            after: `exclusive_start` of the position.
        """
        if start == self._start:
            return True
        if after is None or (self._batches_at is not None and after < self._batches_at):
            return False
        return self._batches_at is not None if self._lowest is None else after >= self._lowest
