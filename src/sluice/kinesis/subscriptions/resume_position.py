"""How far a shard's records have been handed out, and where another subscription may resume."""

from __future__ import annotations

from typing import Final

import msgspec

from sluice.kinesis.subscriptions.events import EventHead
from sluice.source.logs.stream_log import IteratorStart

__all__ = ["UNTRIMMED_AGE", "ResumePosition"]

UNTRIMMED_AGE: Final = 12 * 3600.0
"""Seconds. The shortest retention is 24 h, so records younger than half of that have not expired."""


class ResumePosition:
    """The place in a shard behind the last event that was handed out.

    Args:
        start: where the first record comes from.

    Attributes:
        continuation: the last event's ``ContinuationSequenceNumber``.
    """

    def __init__(self, start: IteratorStart) -> None:
        self.continuation: str | None = None
        self._start = start
        self._last_record: str | None = None
        self._last_sequence = -1
        # A record right after this place was at most `_millis_behind` old at `_stated_at`, or arrived later.
        self._millis_behind = 0
        self._stated_at: float | None = None
        self._refused: str | None = None
        self._awaited: int | None = None  # the record that has to come first

    def advance(self, head: EventHead, stated_at: float) -> EventHead | None:
        """Moves behind an event.

        Args:
            stated_at: monotonic seconds; the service has made the event then or later.

        Returns:
            The new records of the event. None if the subscription should have begun with the last record
            again, and did not: the records after it may have expired as well.
        """
        if self._awaited is not None and (head.numbers or head.millis_behind == 0 or head.has_ended):
            if not head.numbers or int(head.numbers[0]) > self._awaited:
                return None
            self._awaited = None
        fresh = head
        if head.numbers and int(head.numbers[0]) <= self._last_sequence:
            skipped = sum(int(number) <= self._last_sequence for number in head.numbers)
            fresh = msgspec.structs.replace(
                head, numbers=head.numbers[skipped:], arrivals=head.arrivals[skipped:], skipped=skipped
            )
        if fresh.numbers:
            self._last_record = fresh.numbers[-1]
            self._last_sequence = int(self._last_record)
        self.continuation = head.continuation
        self._millis_behind, self._stated_at = head.millis_behind, stated_at
        return fresh

    def starts(self, now: float) -> list[IteratorStart]:
        """Starting positions of a subscription that resumes here, best first. There is at least one."""
        if self._stated_at is None:
            return [self._start]
        age = self._millis_behind / 1000 + now - self._stated_at
        if self._last_record is not None and age > UNTRIMMED_AGE:
            # If the named record has expired, the service starts at the horizon, and does not say so. So the
            # last record is requested again: if it does not come, others may have expired, too.
            return [IteratorStart("AT_SEQUENCE_NUMBER", sequence_number=self._last_record)]
        # A continuation need not be the number of a record, and some implementations refuse those.
        numbers = [self.continuation] if self.continuation != self._refused else []
        starts = [
            IteratorStart("AFTER_SEQUENCE_NUMBER", sequence_number=number)
            for number in dict.fromkeys([*numbers, self._last_record])
            if number is not None
        ]
        if self._last_record is None and self._start.kind != "LATEST":
            starts.append(self._start)
        return starts or [self._start]

    def refuse(self, start: IteratorStart) -> None:
        """The service has refused one of `starts`, so it is not returned again."""
        if start.sequence_number == self.continuation:
            self._refused = self.continuation

    def resume(self, start: IteratorStart) -> None:
        """A subscription has been opened at one of `starts`."""
        is_repeated = (
            self._stated_at is not None
            and start.kind == "AT_SEQUENCE_NUMBER"
            and self._last_record is not None
        )
        self._awaited = self._last_sequence if is_repeated else None
