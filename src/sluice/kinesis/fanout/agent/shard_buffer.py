"""The events of one shard between the subscription that receives them and the tasks that read them.

The buffer is bounded. When it is full, the thread that receives events waits; then the socket fills up, and
the service waits too.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sluice.kinesis.fanout.coverage import Coverage
from sluice.source.stream_log import IteratorStart

__all__ = ["RangeUnavailable", "ShardBuffer"]


class RangeUnavailable(Exception):  # noqa: N818 - an answer, not an error
    """The agent can't serve a range, or the rest of it. The message says why."""


@dataclass(frozen=True, slots=True)
class _Event:
    payload: bytes | memoryview
    last: int  # sequence number of its last record


@dataclass(slots=True, eq=False)
class _Reader:
    """A task that is being served.

    Attributes:
        sent: sequence number of the last record that it was sent.
        is_waiting: it was sent all events that there are.
    """

    sent: int = -1
    is_waiting: bool = False


class ShardBuffer:
    """Events in order, appended by one subscription and read by any number of tasks. Thread-safe.

    Args:
        start: where the subscription was opened.
        limit: gives the bytes that the buffer may hold now. An empty buffer takes an event of any size.
    """

    def __init__(self, start: IteratorStart, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._coverage = Coverage(start)
        self._events: deque[_Event] = deque()
        self._bytes = 0
        self._newest = -1
        self._has_ended = False
        self._close_reason: str | None = None
        self._readers: set[_Reader] = set()
        self._changed = threading.Condition()

    @property
    def size(self) -> int:
        """Bytes of the events that are buffered."""
        return self._bytes

    def append(self, payload: bytes | memoryview, first: str, last: str) -> bool:
        """Adds an event, as soon as there is space for it.

        Args:
            first, last: sequence numbers of its first and last record.

        Returns:
            False when the buffer was closed before there was space.
        """
        with self._changed:
            while self._close_reason is None and not self._has_space(len(payload)):
                # A range may be larger than the buffer. The task that waits for its rest has been sent all
                # that is here, and no batch ends before the task does: so that much makes room.
                if any(reader.is_waiting for reader in self._readers):
                    self._drop(min(reader.sent for reader in self._readers))
                    if self._has_space(len(payload)):
                        break
                self._changed.wait()
            if self._close_reason is not None:
                return False
            self._coverage.record_first(first)
            self._events.append(_Event(payload, int(last)))
            self._bytes += len(payload)
            self._newest = int(last)
            self._changed.notify_all()
            return True

    def end(self) -> None:
        """The shard has ended: no event follows."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def acknowledge(self, number: int) -> None:
        """Drops events whose records all have numbers up to `number`: the next batch starts behind it."""
        with self._changed:
            self._coverage.advance_to(number)
            self._drop(number)
            self._changed.notify_all()

    def close(self, reason: str) -> None:
        """Drops all events. From now on every read raises RangeUnavailable with `reason`."""
        with self._changed:
            self._close_reason = reason
            self._events.clear()
            self._bytes = 0
            self._changed.notify_all()

    def covers(self, start: IteratorStart, after: int | None) -> bool:
        """Whether a range may be read that starts at a position; arguments as in `Coverage.covers`."""
        with self._changed:
            return self._close_reason is None and self._coverage.covers(start, after)

    def read(
        self, start: IteratorStart, after: int | None, end: int | None, max_wait: float
    ) -> Iterator[bytes | memoryview]:
        """Gives whole events that hold the records of a range. The first and the last may hold others too.

        Args:
            start, after: the range's start, as in `Coverage.covers`.
            end: sequence number of the range's last record; None for all records until the shard ends.
            max_wait: seconds to wait for the next event.

        Raises:
            RangeUnavailable: the start is not covered, no event came within `max_wait`, or the buffer was
                closed.
        """
        reader = _Reader(-1 if after is None else after)
        with self._changed:
            if not self._coverage.covers(start, after):
                raise RangeUnavailable("the agent does not have the record where the range starts")
            self._readers.add(reader)
            knows_first = self._coverage.knows_first
        try:
            while end is None or reader.sent < end:
                events = self._unsent(reader, max_wait)
                if not knows_first and not self.covers(start, after):
                    raise RangeUnavailable("the subscription begins behind the range's start")
                knows_first = True
                if not events:
                    return
                for event in events:
                    yield event.payload
                    reader.sent = event.last
                    if end is not None and event.last >= end:
                        return
        finally:
            with self._changed:
                self._readers.discard(reader)
                self._changed.notify_all()

    def _unsent(self, reader: _Reader, max_wait: float) -> list[_Event]:
        """Waits for events that the reader was not sent yet; none where the shard has ended."""
        with self._changed:
            if not self._has_unsent(reader):
                reader.is_waiting = True  # `append` may drop what it was sent
                self._changed.notify_all()
                if not self._changed.wait_for(lambda: self._has_unsent(reader), max_wait):
                    raise RangeUnavailable(f"no event came for {max_wait:g} s")
                reader.is_waiting = False
            if self._close_reason is not None:
                raise RangeUnavailable(self._close_reason)
            return [event for event in self._events if event.last > reader.sent]

    def _has_unsent(self, reader: _Reader) -> bool:
        return self._close_reason is not None or self._has_ended or self._newest > reader.sent

    def _has_space(self, size: int) -> bool:
        return not self._events or self._bytes + size <= self._limit()

    def _drop(self, number: int) -> None:
        while self._events and self._events[0].last <= number:
            event = self._events.popleft()
            self._bytes -= len(event.payload)
            self._coverage.discard(event.last)
