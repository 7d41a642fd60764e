"""Keeps an agent's subscriptions, one for each shard, and buffers their events."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from sluice.errors import ServiceError, SluiceError
from sluice.kinesis.agent.buffer_budget import BufferBudget
from sluice.kinesis.agent.shard_buffer import RangeUnavailable, ShardBuffer
from sluice.kinesis.shared.protocol import (
    INTEGRITY_PROBLEM,
    EventReceived,
    FromAgent,
    ReadRange,
    Server,
    Subscribe,
    SubscriptionEnded,
)
from sluice.kinesis.subscriptions.events import EventHead
from sluice.kinesis.subscriptions.resume_position import UNTRIMMED_AGE
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.splits import SplitId
from sluice.source.state.cut_points import CutPoint
from sluice.source.state.subscriptions import SubscriptionProgress

__all__ = ["EventSource", "ManagerSettings", "OpenSource", "SubscriptionManager"]

_log = logging.getLogger(__name__)

_SAFE_PART: Final = 0.9
"""If a subscription is further behind than this part of the retention, records may expire before they are
read.
"""

_ENVELOPE: Final = 100
"""The fewest bytes of JSON that a record takes in addition to its sequence number, partition key and data."""


class EventSource(Protocol):
    """The methods of a `Subscriber` or a `Poller` that the manager uses: they return the events of one shard,
    each record once.
    """

    consumer: str
    asked_at: int

    def next_event(self) -> tuple[bytes | memoryview, EventHead]:
        """Blocks until the next event. Raises ServiceError when none will come."""

    def close(self) -> None:
        """May be called from any thread: `next_event` then raises soon."""


OpenSource = Callable[[SplitId, IteratorStart, ShardBuffer], EventSource]
"""Opens the source of a shard's events. It waits for space in the buffer before it receives one."""


@dataclass(frozen=True)
class ManagerSettings:
    """A manager's limits, and the address that it reports to the planner.

    Attributes:
        buffer_bytes: bytes that all buffers may hold together, see `BufferBudget`.
        cut_points: the most cut points of one event. One is enough if batches have no limits. server: the
            address at which tasks read.
    """

    buffer_bytes: int
    cut_points: int
    server: Server


@dataclass(slots=True)
class _ShardSubscription:
    """One subscription and its buffer.

    Attributes:
        first: sequence number of the first record; None before it came.
        is_verified: the first record has come; if the subscription starts at a record, it was that record.
        is_closed: the agent has ended it, so an error of `source` is not reported.
        is_over: no further event comes.
        stated_at: the service made the last event at this instant of its time or later (microseconds). If the
            buffer is full, or this process is frozen, an event is read long after it was made.
    """

    request: Subscribe
    source: EventSource
    buffer: ShardBuffer
    first: str | None = None
    is_verified: bool = False
    is_closed: bool = False
    is_over: bool = False
    stated_at: int | None = None

    def close(self, reason: str) -> None:
        self.is_closed = True
        self.buffer.close(reason)
        self.source.close()


class SubscriptionManager:
    """One subscription for each shard, each with a buffer and a thread that receives its events.

    `subscribe`, `acknowledge` and `unsubscribe` are called by one thread, `read` by any.

    Args:
        open_source: subscribes to a shard, or polls it, from the record of the start on.
        report: sends a message to the planner. Called from many threads.
        now: the service's time (microseconds).
        retention: for how long a stream keeps records (seconds). It is called once, and only if a
            subscription is far behind the tip: an account has 20 such calls a second.
    """

    def __init__(
        self,
        open_source: OpenSource,
        report: Callable[[FromAgent], None],
        settings: ManagerSettings,
        *,
        now: Callable[[], int],
        retention: Callable[[str], float],
    ) -> None:
        self._open_source = open_source
        self._report = report
        self._settings = settings
        self._budget = BufferBudget(settings.buffer_bytes)
        self._now = now
        self._ask_retention = retention
        self._retentions: dict[str, float] = {}
        self._lock = threading.Lock()
        self._subscriptions: dict[SplitId, _ShardSubscription] = {}

    @property
    def count(self) -> int:
        """How many shards have a subscription, or are polled, now: ended ones take no reads."""
        return sum(not each.is_over for each in list(self._subscriptions.values()))

    @property
    def held(self) -> int:
        """Bytes that are buffered."""
        return self._budget.held

    def subscribe(self, request: Subscribe) -> None:
        """Subscribes to a shard, in place of an earlier subscription to it."""
        self.unsubscribe(request.split, "the planner has subscribed to the shard anew")
        buffer = ShardBuffer(request.start, self._budget)
        source = self._open_source(request.split, request.start, buffer)
        subscription = _ShardSubscription(request, source, buffer)
        self._subscriptions[request.split] = subscription
        self._start(subscription)

    def acknowledge(self, split: SplitId, number: int) -> None:
        """Drops buffered records up to the sequence number `number`."""
        if (subscription := self._subscriptions.get(split)) is not None:
            subscription.buffer.acknowledge(number)

    def unsubscribe(
        self, split: SplitId, reason: str = "the planner has unsubscribed from the shard"
    ) -> None:
        """Ends the subscription to a shard, if there is one. Tasks that read from it receive `reason`."""
        if (subscription := self._subscriptions.pop(split, None)) is not None:
            subscription.close(reason)

    def read(self, request: ReadRange) -> Iterator[bytes | memoryview]:
        """The payloads of the events of a range; see `ShardBuffer.read`.

        Raises:
            RangeUnavailable: there is no subscription to the shard, or it does not cover the range.
        """
        subscription = self._subscriptions.get(request.split)
        if subscription is None:
            raise RangeUnavailable("the agent has no subscription to the shard")
        after = None if request.after is None else int(request.after)
        end = None if request.end is None else int(request.end)
        return subscription.buffer.read(request.start, after, end, request.max_wait)

    def close(self) -> None:
        """Ends all subscriptions."""
        for split in list(self._subscriptions):
            self.unsubscribe(split, "the agent ends")

    def _start(self, subscription: _ShardSubscription) -> None:
        name = f"sluice-subscription-{subscription.request.split.shard}"
        threading.Thread(target=self._receive, args=(subscription,), name=name, daemon=True).start()

    def _receive(self, subscription: _ShardSubscription) -> None:
        """The thread of a subscription."""
        while self._receive_event(subscription):
            pass
        subscription.is_over = True
        subscription.buffer.give_back_space()

    def _receive_event(self, subscription: _ShardSubscription) -> bool:
        """Waits for one event. Returns False if the subscription is over."""
        try:
            return self._handle_event(subscription, *subscription.source.next_event())
        except ServiceError as error:
            if not subscription.is_closed:
                self._give_up(subscription, str(error), error.code, retryable=error.retryable)
        except SluiceError as error:
            if not subscription.is_closed:
                self._give_up(subscription, str(error))
        except Exception as error:  # noqa: BLE001 - the planner has to know that the shard is not pushed
            if not subscription.is_closed:
                _log.exception("%s: the subscription ends; the shard is polled", subscription.request.split)
                self._give_up(subscription, repr(error), type(error).__name__)
        return False

    def _handle_event(
        self, subscription: _ShardSubscription, payload: bytes | memoryview, head: EventHead
    ) -> bool:
        """Buffers an event, then reports it. Returns False if the subscription is over."""
        problem = self._integrity_problem(subscription, head)
        subscription.stated_at = max(
            subscription.stated_at or 0, subscription.source.asked_at, *head.arrivals[-1:]
        )
        if problem is not None:
            self._give_up(subscription, problem, INTEGRITY_PROBLEM)
            return False
        start_record = subscription.request.start.sequence_number
        if head.numbers:
            if (
                start_record is not None
                and not subscription.is_verified
                and int(head.numbers[0]) > int(start_record)
            ):
                # Polling decides whether records are lost.
                self._give_up(subscription, f"record {start_record}, where it starts, is not there any more")
                return False
            if subscription.first is None:
                subscription.first = head.numbers[0]
            if not subscription.buffer.append(payload, head.numbers[0], head.numbers[-1]):
                return False
            subscription.is_verified = True
        else:
            subscription.buffer.give_back_space()
        if head.has_ended:
            subscription.buffer.end()
        if start_record is None or subscription.is_verified or head.has_ended:
            self._report(self._event_received(subscription, payload, head))
        return not head.has_ended

    def _integrity_problem(self, subscription: _ShardSubscription, head: EventHead) -> str | None:
        """Why records may have expired between the last event and this one: the events themselves do not show
        it.
        """
        # Our clock may have stopped while the host slept; a record that has just arrived shows the time.
        last = subscription.stated_at
        now = max(self._now(), *head.arrivals[:1], last or 0)
        silent = 0.0 if last is None else (now - last) / 1e6
        if silent > UNTRIMMED_AGE:
            return f"no event came for {silent / 3600:.0f} h, and records may have expired meanwhile"
        behind = head.millis_behind / 1000
        if behind > UNTRIMMED_AGE:
            retention = self._retention(subscription.request.split.stream)
            if behind > retention * _SAFE_PART:
                return f"it is {behind / 3600:.1f} h behind, and records may expire before they are pushed"
        return None

    def _retention(self, stream: str) -> float:
        """The retention of a stream (seconds). While one thread asks the service, others wait."""
        with self._lock:
            if stream not in self._retentions:
                self._retentions[stream] = self._ask_retention(stream)
            return self._retentions[stream]

    def _event_received(
        self, subscription: _ShardSubscription, payload: bytes | memoryview, head: EventHead
    ) -> EventReceived:
        progress = SubscriptionProgress(
            cut_points=tuple(_cut_points(head, len(payload), self._settings.cut_points)),
            millis_behind=head.millis_behind,
            has_ended=head.has_ended,
            caught_up_at=subscription.stated_at if head.millis_behind == 0 else None,
        )
        request = subscription.request
        return EventReceived(
            request.split, request.generation, subscription.first, progress, self._settings.server
        )

    def _give_up(
        self, subscription: _ShardSubscription, reason: str, code: str = "", *, retryable: bool = False
    ) -> None:
        subscription.close(reason)
        request, consumer = subscription.request, subscription.source.consumer
        self._report(SubscriptionEnded(request.split, request.generation, reason, code, consumer, retryable))


def _cut_points(head: EventHead, size: int, at_most: int) -> Iterator[CutPoint]:
    """Divides an event into parts with equal numbers of records and of bytes.

    The bytes are estimated from the JSON, without its envelopes and without base64.
    """
    total = len(head.numbers)
    envelopes = sum(map(len, head.numbers)) + total * _ENVELOPE
    data_size = max(total, size - envelopes) * 3 // 4
    step = -(-total // at_most) if total else 1
    for begin in range(0, total, step):
        last = min(begin + step, total) - 1
        count = last + 1 - begin
        yield CutPoint(
            head.numbers[last], head.arrivals[last], data_size * count // total, count, head.arrivals[begin]
        )
