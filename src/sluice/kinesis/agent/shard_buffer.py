"""The events of one shard between the subscription that receives them and the tasks that read them.

Buffers share a budget. While there is no space for an event, the thread that receives it waits; then the
socket fills up, and the service waits too.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sluice.kinesis.agent.buffer_budget import BufferBudget, Share
from sluice.kinesis.shared.coverage import Coverage
from sluice.source.logs.stream_log import IteratorStart

__all__ = ["RangeUnavailable", "ShardBuffer"]

_OVERHEAD: Final = 1024
"""Bytes that an event takes in memory in addition to its payload. They count as a part of it."""
_SMALL: Final = 4096
"""An event up to this many bytes is received before there is space for it: most such events hold no record,
and only report that the shard is at its tip.
"""


class RangeUnavailable(Exception):  # noqa: N818 - an answer, not an error
    """The agent can't serve a range, or the rest of a range. The message says why."""


@dataclass(slots=True, eq=False)
class _Event:
    """An event in the buffer, or a dropped event that is still being sent to tasks.

    Attributes:
        last: sequence number of its last record.
        size: its bytes in the budget. is_lent: these bytes are lent, so the event is dropped once it was
            sent. being_sent: to how many tasks it is being sent.
    """

    payload: bytes | memoryview
    last: int
    size: int
    is_lent: bool
    being_sent: int = 0
    is_dropped: bool = False


@dataclass(slots=True, eq=False)
class _Reader:
    """A task that is being served.

    Attributes:
        sent: sequence number of the last record that was sent to the task.
        place: number of the next event, counted from the first that was ever buffered; None before the first.
        is_waiting: all buffered events were sent to it.
    """

    sent: int
    place: int | None = None
    is_waiting: bool = False


class ShardBuffer:
    """Events in order, appended by one subscription and read by any number of tasks. Thread-safe.

    The thread of the subscription calls `make_space`, `give_back_space` and `append`.

    Args:
        start: where the subscription was opened.
        budget: gives the space for events.
    """

    def __init__(self, start: IteratorStart, budget: BufferBudget) -> None:
        self._budget = budget
        self._share = Share()
        self._space = 0  # for the next event
        self._coverage = Coverage(start)
        self._events: deque[_Event] = deque()
        self._first_place = 0  # of the first event, see `_Reader`
        # Sequence numbers of the last records of:
        self._newest = -1  # the newest event
        self._acknowledged = -1  # the last batch
        self._dropped = -1  # the newest event that was dropped
        self._sent_and_lent = -1  # the newest sent event that has to be dropped because its space is lent
        self._has_ended = False
        self._close_reason: str | None = None
        self._readers: set[_Reader] = set()
        self._changed = threading.Condition()

    @property
    def size(self) -> int:
        """Bytes that it takes of the budget."""
        return self._share.held

    def wait_until_drained(self) -> None:
        """Blocks until batches have passed all events, or the buffer is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._close_reason is not None or not self._events)

    def make_space(self, size: int) -> None:
        """Blocks until there is space for the next event, or the buffer is closed.

        Args:
            size: of its message (bytes).
        """
        if size > _SMALL:
            self._take_space(size)

    def give_back_space(self) -> None:
        """Gives back the space for an event that has not come, or that holds no record."""
        space, self._space = self._space, 0
        self._budget.release(self._share, space, is_lent=self._share.is_lent)

    def fit_space(self, size: int) -> None:
        """Reduces the space for an event that has come to at most `size` bytes."""
        surplus = self._space - size - _OVERHEAD
        if surplus > 0:
            self._space -= surplus
            self._budget.release(self._share, surplus, is_lent=self._share.is_lent)

    def append(self, payload: bytes | memoryview, first: str, last: str) -> bool:
        """Adds an event, as soon as there is space for it.

        Args:
            first, last: sequence numbers of its first and last record.

        Returns: False if the buffer was closed before there was space.
        """
        if self._space < len(payload) + _OVERHEAD:
            self._take_space(len(payload))
        with self._changed:
            if self._close_reason is not None:
                self.give_back_space()
                return False
            space, self._space = self._space, 0
            self._coverage.record_first(first)
            self._events.append(_Event(payload, int(last), space, self._share.is_lent))
            self._newest = int(last)
            if self._newest <= self._acknowledged:  # batches have come further, by polling
                self._drop(self._newest)
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
            self._acknowledged = max(self._acknowledged, number)
            self._drop(number)
            self._changed.notify_all()

    def close(self, reason: str) -> None:
        """Drops all events. From now on every read raises RangeUnavailable with `reason`."""
        with self._changed:
            if self._close_reason is not None:
                return
            self._close_reason = reason
            self._budget.close(self._share)
            self._drop(self._newest)
            self._changed.notify_all()

    def covers(self, start: IteratorStart, after: int | None) -> bool:
        """Whether a range that starts at a position may be read; arguments as in `Coverage.covers`."""
        with self._changed:
            return self._close_reason is None and self._coverage.covers(start, after)

    def read(
        self, start: IteratorStart, after: int | None, end: int | None, max_wait: float
    ) -> Iterator[bytes | memoryview]:
        """Returns whole events with the records of a range. The first and the last event may hold others,
        too.

        Args:
            start, after: the range's start, as in `Coverage.covers`.
            end: sequence number of the range's last record; None for all records until the shard ends.
            max_wait: seconds to wait for the next event.

        Raises:
            RangeUnavailable: the start is not covered, no event came within `max_wait`, or the rest of the
                range was dropped.
        """
        reader = _Reader(-1 if after is None else after)
        with self._changed:
            if self._close_reason is not None:
                raise RangeUnavailable(self._close_reason)
            if not self._coverage.covers(start, after):
                raise RangeUnavailable("the agent does not have the record where the range starts")
            self._readers.add(reader)
            knows_first = self._coverage.knows_first
        event: _Event | None = None
        try:
            while end is None or reader.sent < end:
                event = self._next_unsent(reader, max_wait)
                if not knows_first and not self.covers(start, after):
                    raise RangeUnavailable("the subscription begins behind the range's start")
                knows_first = True
                if event is None:
                    return
                yield event.payload
                self._finish_sending(reader, event)
        finally:
            with self._changed:
                if event is not None and reader.sent < event.last:
                    self._let_go(event)
                self._readers.discard(reader)
                self._drop_lent()
                self._changed.notify_all()

    def _next_unsent(self, reader: _Reader, max_wait: float) -> _Event | None:
        """Waits for an event that was not sent to the reader yet; None if the shard has ended."""
        with self._changed:
            if not self._has_unsent(reader):
                reader.is_waiting = True
                self._hurry()
                is_there = self._changed.wait_for(lambda: self._has_unsent(reader), max_wait)
                reader.is_waiting = False
                if not is_there:
                    raise RangeUnavailable(f"no event came for {max_wait:g} s")
            if self._close_reason is not None:
                raise RangeUnavailable(self._close_reason)
            if reader.sent < self._dropped:
                raise RangeUnavailable("the agent has dropped the rest of the range: batches have passed it")
            if reader.place is None:
                places = (place for place, event in enumerate(self._events) if event.last > reader.sent)
                reader.place = self._first_place + next(places, len(self._events))
            if reader.place - self._first_place == len(self._events):
                return None
            event = self._events[reader.place - self._first_place]
            event.being_sent += 1
            return event

    def _finish_sending(self, reader: _Reader, event: _Event) -> None:
        with self._changed:
            reader.sent = event.last
            reader.place = None if reader.place is None else reader.place + 1
            self._let_go(event)
            if event.is_lent:
                self._sent_and_lent = max(self._sent_and_lent, event.last)
                self._drop_lent()

    def _let_go(self, event: _Event) -> None:
        event.being_sent -= 1
        if event.is_dropped and not event.being_sent:
            self._budget.release(self._share, event.size, is_lent=event.is_lent)

    def _has_unsent(self, reader: _Reader) -> bool:
        return self._close_reason is not None or self._has_ended or self._newest > reader.sent

    def _take_space(self, size: int) -> None:
        with self._changed:
            self.give_back_space()
            self._budget.request(self._share, size + _OVERHEAD)
            self._hurry()
        self._space = self._budget.wait(self._share)

    def _hurry(self) -> None:
        """Makes space if the next event waits for it, and a task waits for that event.

        A range may be larger than the buffer. If a task waits for the rest of its range, it has received all
        buffered events. No batch ends before the task does, so these events may be dropped.
        """
        is_awaited = any(reader.is_waiting and not self._has_unsent(reader) for reader in self._readers)
        if self._share.wanted and is_awaited:
            self._drop(min(reader.sent for reader in self._readers))
            self._budget.lend(self._share)

    def _drop_lent(self) -> None:
        """Drops sent events whose space is lent, because others may need it. If the task runs again, it polls
        them.
        """
        if self._sent_and_lent > self._dropped:
            self._drop(min((self._sent_and_lent, *(reader.sent for reader in self._readers))))

    def _drop(self, number: int) -> None:
        space = {True: 0, False: 0}  # lent or not
        while self._events and self._events[0].last <= number:
            event = self._events.popleft()
            self._first_place += 1
            event.is_dropped = True
            if not event.being_sent:
                space[event.is_lent] += event.size
            self._dropped = event.last
            self._coverage.discard(event.last)
        for is_lent, size in space.items():
            self._budget.release(self._share, size, is_lent=is_lent)
