"""What is kept of one shard's events until the planner is done with them. Bounded: the reader of the
subscription waits for space, and so does, through TCP, the service."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sluice.kinesis.fanout.coverage import Coverage
from sluice.source.stream_log import IteratorStart

__all__ = ["RangeUnavailable", "ShardBuffer"]


class RangeUnavailable(Exception):  # noqa: N818 - an answer, not an error
    """The buffer does not hold a range and will not get it in time. The message says why."""


@dataclass(frozen=True, slots=True)
class _Event:
    payload: bytes | memoryview
    last: int


@dataclass(slots=True, eq=False)
class _Reading:
    """A task that is being served: ``done`` is the last record it was sent."""

    done: int = -1
    is_starving: bool = False


class ShardBuffer:
    """Events in order, between a subscription that appends and tasks that read. Thread-safe.

    Args:
        start: where the subscription was opened.
        limit: bytes it may hold at most; one event is always taken.
    """

    def __init__(self, start: IteratorStart, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._coverage = Coverage(start)
        self._events: deque[_Event] = deque()
        self._bytes = 0
        self._newest = -1
        self._has_ended = False
        self._closed: str | None = None
        self._readings: set[_Reading] = set()
        self._changed = threading.Condition()

    @property
    def size(self) -> int:
        """Bytes held."""
        return self._bytes

    def append(self, payload: bytes | memoryview, first: str, last: str) -> bool:
        """Adds an event when there is space for it. False when the buffer was closed meanwhile."""
        with self._changed:
            while self._closed is None and not self._has_space(len(payload)):
                if any(reading.is_starving for reading in self._readings):
                    self._drop(min(reading.done for reading in self._readings))
                    if self._has_space(len(payload)):
                        break
                self._changed.wait()
            if self._closed is not None:
                return False
            self._coverage.begin(first)
            self._events.append(_Event(payload, int(last)))
            self._bytes += len(payload)
            self._newest = int(last)
            self._changed.notify_all()
            return True

    def end(self) -> None:
        """The shard has ended: nothing comes behind the last event."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def trim(self, number: int) -> None:
        """Forgets events whose records all have numbers up to `number`, which batches have come to."""
        with self._changed:
            self._coverage.pass_by(number)
            self._drop(number)
            self._changed.notify_all()

    def close(self, why: str) -> None:
        """Nothing is served any more."""
        with self._changed:
            self._closed = why
            self._events.clear()
            self._bytes = 0
            self._changed.notify_all()

    def holds(self, start: IteratorStart, need: int | None) -> bool:
        with self._changed:
            return self._closed is None and self._coverage.holds(start, need)

    def read(
        self, start: IteratorStart, need: int | None, end: int | None, patience: float
    ) -> Iterator[bytes | memoryview]:
        """The events that hold what lies behind a position, up to the record `end` or the shard's end.

        Raises:
            RangeUnavailable: the position is not held, or nothing came for `patience` seconds.
        """
        reading = _Reading(-1 if need is None else need)
        with self._changed:
            if not self._coverage.holds(start, need):
                raise RangeUnavailable("it does not hold where the range starts")
            self._readings.add(reading)
            has_begun = self._coverage.has_begun
        try:
            while end is None or reading.done < end:
                events = self._behind(reading, patience)
                if not has_begun and not self.holds(start, need):
                    raise RangeUnavailable("it begins behind where the range starts")
                has_begun = True
                if not events:
                    return
                for event in events:
                    yield event.payload
                    reading.done = event.last
                    if end is not None and event.last >= end:
                        return
        finally:
            with self._changed:
                self._readings.discard(reading)
                self._changed.notify_all()

    def _behind(self, reading: _Reading, patience: float) -> list[_Event]:
        """All events a task has not been sent yet; none where the shard ended."""
        with self._changed:
            if not self._has_news(reading):
                reading.is_starving = True  # what it was sent may make room for what it waits for
                self._changed.notify_all()
                if not self._changed.wait_for(lambda: self._has_news(reading), patience):
                    raise RangeUnavailable(f"nothing has come for {patience:g} s")
                reading.is_starving = False
            if self._closed is not None:
                raise RangeUnavailable(self._closed)
            return [event for event in self._events if event.last > reading.done]

    def _has_news(self, reading: _Reading) -> bool:
        return self._closed is not None or self._has_ended or self._newest > reading.done

    def _has_space(self, size: int) -> bool:
        return not self._events or self._bytes + size <= self._limit()

    def _drop(self, number: int) -> None:
        while self._events and self._events[0].last <= number:
            event = self._events.popleft()
            self._bytes -= len(event.payload)
            self._coverage.drop(event.last)
