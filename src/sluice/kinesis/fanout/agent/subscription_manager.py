"""Holds one subscription a shard, and what it has pushed, for as long as the planner wants the shard."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from sluice.errors import SluiceError
from sluice.kinesis.fanout.agent.shard_buffer import RangeUnavailable, ShardBuffer
from sluice.kinesis.fanout.protocol import (
    INTEGRITY_PROBLEM,
    EventReceived,
    FromAgent,
    ReadRange,
    Subscribe,
    SubscriptionEnded,
)
from sluice.kinesis.fanout.subscriptions.events import EventHead
from sluice.kinesis.fanout.subscriptions.subscriber import NEVER_TRIMMED
from sluice.source.cut_points import CutPoint
from sluice.source.splits import SplitId
from sluice.source.stream_log import IteratorStart
from sluice.source.subscriptions import SubscriptionProgress

__all__ = ["EventSource", "SubscriptionManager"]

_log = logging.getLogger(__name__)

_SMALLEST_SHARE: Final = 2 * 2**20

# Behind the tip by more than this part of the retention, records may be trimmed before they are pushed.
_SAFE_PART: Final = 0.9

_ENVELOPE: Final = 100
"""Bytes of an event, at least, that a record takes beside its number, its key and its data."""


class EventSource(Protocol):
    """What a `Subscriber` is to its manager: the events of one shard, each record once."""

    was_taken_over: bool

    def next_event(self) -> tuple[bytes | memoryview, EventHead]:
        """Blocks until the next event. Raises ServiceError when none will come."""

    def close(self) -> None:
        """From any thread: `next_event` raises soon."""


@dataclass(slots=True)
class _ShardSubscription:
    watch: Subscribe
    source: EventSource
    buffer: ShardBuffer
    first: str | None = None
    is_verified: bool = False
    is_closed: bool = False
    heard_at: int | None = None  # the service's time (microseconds) of the last event
    retention: float | None = None  # seconds, once it was asked

    def close(self, why: str) -> None:
        self.is_closed = True
        self.buffer.close(why)
        self.source.close()


class SubscriptionManager:
    """Subscriptions, buffers, and a thread for each.

    Args:
        open_source: subscribes to a split from a start on.
        report: takes what the planner is to know; called from many threads.
        capacity: bytes all buffers may hold together; each shard gets an equal share.
        cut_points: into how many marks an event is divided at most. One will do where batches have no
            limits.
        now: the service's time (microseconds).
        retention: for how long a stream keeps records (seconds); asked only far behind its tip.
        server: host and port where `read` is offered to tasks.
    """

    def __init__(  # noqa: PLR0913 - what it works with, and what bounds it
        self,
        open_source: Callable[[SplitId, IteratorStart], EventSource],
        report: Callable[[FromAgent], None],
        *,
        capacity: int,
        cut_points: int,
        now: Callable[[], int],
        retention: Callable[[str], float],
        server: tuple[str, int],
    ) -> None:
        self._open_source = open_source
        self._report = report
        self._capacity = capacity
        self._cut_points = cut_points
        self._now = now
        self._retention = retention
        self._server = server
        self._held: dict[SplitId, _ShardSubscription] = {}
        self._contested: set[str] = set()

    @property
    def contested(self) -> frozenset[str]:
        """Streams whose consumer somebody else subscribed with as well."""
        taken = {split.stream for split, held in self._held.items() if held.source.was_taken_over}
        return frozenset(self._contested | taken)

    def watch(self, watch: Subscribe) -> None:
        """Subscribes from the watch's start on, instead of what was there of the split."""
        self.unwatch(watch.split, "another watch has taken its place")
        held = _ShardSubscription(
            watch, self._open_source(watch.split, watch.start), ShardBuffer(watch.start, self._share)
        )
        self._held[watch.split] = held
        name = f"sluice-subscription-{watch.split.shard}"
        threading.Thread(target=self._run, args=(held,), name=name, daemon=True).start()

    def trim(self, split: SplitId, number: int) -> None:
        if (held := self._held.get(split)) is not None:
            held.buffer.trim(number)

    def unwatch(self, split: SplitId, why: str = "the planner does not want it any more") -> None:
        if (held := self._held.pop(split, None)) is not None:
            if held.source.was_taken_over:
                self._contested.add(split.stream)
            held.close(why)

    def read(self, fetch: ReadRange) -> Iterator[bytes | memoryview]:
        """The events of a range. Raises RangeUnavailable."""
        held = self._held.get(fetch.split)
        if held is None:
            raise RangeUnavailable("it does not watch the shard")
        need = None if fetch.need is None else int(fetch.need)
        end = None if fetch.end is None else int(fetch.end)
        return held.buffer.read(fetch.start, need, end, fetch.patience)

    def close(self) -> None:
        for split in list(self._held):
            self.unwatch(split, "the agent ends")

    def _share(self) -> int:
        return max(_SMALLEST_SHARE, self._capacity // max(1, len(self._held)))

    def _run(self, held: _ShardSubscription) -> None:
        watch = held.watch
        try:
            while self._take(held, *held.source.next_event()):
                pass
        except SluiceError as error:
            if not held.is_closed:
                self._give_up(held, str(error), getattr(error, "code", ""))
        except Exception as error:  # noqa: BLE001 - a thread that dies silently would leave a shard unread
            if not held.is_closed:
                _log.exception("%s: the subscription ends", watch.split)
                self._give_up(held, repr(error), type(error).__name__)

    def _take(self, held: _ShardSubscription, payload: bytes | memoryview, head: EventHead) -> bool:
        """Buffers an event and reports it. False when there is nothing more to take."""
        watch = held.watch
        if (why := self._integrity_problem(held, head)) is not None:
            self._give_up(held, why, INTEGRITY_PROBLEM)
            return False
        if head.numbers:
            position_record = watch.start.sequence_number
            if (
                position_record is not None
                and not held.is_verified
                and int(head.numbers[0]) > int(position_record)
            ):
                # Whether records are lost is for whoever polls to say.
                self._give_up(held, f"record {position_record}, where it should start, is gone")
                return False
            if held.first is None:
                held.first = head.numbers[0]
            if not held.buffer.append(payload, head.numbers[0], head.numbers[-1]):
                return False
            held.is_verified = True
        if head.has_ended:
            held.buffer.end()
        if watch.start.sequence_number is None or held.is_verified or head.has_ended:
            self._report(self._event_received(held, payload, head))
        return not head.has_ended

    def _integrity_problem(self, held: _ShardSubscription, head: EventHead) -> str | None:
        """Why records may have been trimmed between the last event and this one: nothing in it would tell."""
        # A record that has just arrived knows the service's time better than a clock that slept.
        now = max(self._now(), *head.arrivals[:1], held.heard_at or 0)
        silent, held.heard_at = (now - (held.heard_at or now)) / 1e6, now
        if silent > NEVER_TRIMMED:
            return f"what came in the {silent / 3600:.0f} h since its last event may have expired"
        behind = head.millis_behind / 1000
        if behind > NEVER_TRIMMED:
            if held.retention is None:
                held.retention = self._retention(held.watch.split.stream)
            if behind > held.retention * _SAFE_PART:
                return f"it is {behind / 3600:.1f} h behind, and what it is to give next may expire before"
        return None

    def _event_received(
        self, held: _ShardSubscription, payload: bytes | memoryview, head: EventHead
    ) -> EventReceived:
        progress = SubscriptionProgress(
            cut_points=tuple(_cut_points(head, len(payload), self._cut_points)),
            millis_behind=head.millis_behind,
            has_ended=head.has_ended,
            caught_up_at=self._now() if head.millis_behind == 0 else None,
        )
        return EventReceived(
            split=held.watch.split,
            generation=held.watch.generation,
            first=held.first,
            progress=progress,
            server=self._server,
        )

    def _give_up(self, held: _ShardSubscription, why: str, code: str = "") -> None:
        held.close(why)
        self._report(SubscriptionEnded(held.watch.split, held.watch.generation, why, code))


def _cut_points(head: EventHead, size: int, at_most: int) -> Iterator[CutPoint]:
    """Divides an event; its bytes are taken for evenly spread, without the JSON and base64 undone."""
    total = len(head.numbers)
    envelopes = sum(map(len, head.numbers)) + total * _ENVELOPE
    size = max(total, size - envelopes)
    step = -(-total // at_most) if total else 1
    for begin in range(0, total, step):
        last = min(begin + step, total) - 1
        count = last + 1 - begin
        weight = size * 3 // 4 * count // total
        yield CutPoint(head.numbers[last], head.arrivals[last], weight, count, head.arrivals[begin])
