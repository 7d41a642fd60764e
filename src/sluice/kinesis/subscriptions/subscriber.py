"""Keeps a shard subscribed for as long as it is read: renews, resumes and retries subscriptions."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from sluice.aws.wire.watchdog import Watchdog, shared_watchdog
from sluice.errors import ServiceError
from sluice.kinesis.log.client import KinesisLog
from sluice.kinesis.options.config import SourceConfig
from sluice.kinesis.subscriptions.events import EventHead, decode_head
from sluice.kinesis.subscriptions.reactions import Reaction, reaction_to_call, reaction_to_event
from sluice.kinesis.subscriptions.resume_position import ResumePosition
from sluice.kinesis.subscriptions.subscription import (
    CLOSED,
    OPERATION,
    SILENCE_LIMIT,
    Subscribing,
    Subscription,
)
from sluice.retry import Backoff
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.splits import SplitId

__all__ = [
    "EventSpace",
    "OpenSubscription",
    "PayloadSource",
    "Subscriber",
    "SubscriberSettings",
    "Timing",
    "open_subscriber",
]

_log = logging.getLogger(__name__)

_WAITED: Final = 1.0
"""Seconds. If a reader has waited this long for an event, the event had not arrived when the wait began."""
_SPREAD: Final = 1.0
"""Seconds over which calls are spread after the 5 s between two calls, so that not all come at once."""


class PayloadSource(Protocol):
    """The methods of a `Subscription` that a subscriber uses."""

    def next_payload(self) -> memoryview | bytes | None:
        """See `Subscription.next_payload`."""

    def close(self) -> None:
        """See `Subscription.close`."""


class EventSpace(Protocol):
    """The bounded space for events. Called by the thread that reads the subscriber."""

    def make_space(self, size: int) -> None:
        """Blocks until a message of this size (bytes) may be received."""

    def give_back_space(self) -> None:
        """Gives back the space for an event that has not come, or was not handed out."""


OpenSubscription = Callable[[SplitId, IteratorStart], PayloadSource]


@dataclass(frozen=True)
class SubscriberSettings:
    """When a subscriber retries, renews and gives up. All times are in seconds.

    Attributes:
        backoff: pauses after attempts without an event, and how many of these in a row may fail.
        renew_after: age at which a subscription is replaced. The service ends it at 300.
        renew_spread: renewals come up to this much sooner, so that not all shards renew at once.
        silence_limit: without an event for this long, a subscription counts as dead.
        takeover_after: the service refuses a call sooner than this after the last one.
    """

    backoff: Backoff
    renew_after: float = 270.0
    renew_spread: float = 30.0
    silence_limit: float = SILENCE_LIMIT
    takeover_after: float = 5.0


@dataclass(frozen=True)
class Timing:
    """A subscriber's clock and its waits; tests have their own.

    Attributes:
        clock: monotonic seconds.
        sleep: waits between attempts (seconds); None for a wait that `Subscriber.close` ends.
        jitter: returns a number in [0, 1).
        watchdog: ends reads that take too long, by the same clock; None: the watchdog of the process.
        now: the service's time, as far as answers have shown it (microseconds).
        wall: the local time (microseconds).
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] | None = None
    jitter: Callable[[], float] = random.random
    watchdog: Watchdog | None = None
    now: Callable[[], int] = lambda: time.time_ns() // 1000
    wall: Callable[[], int] = lambda: time.time_ns() // 1000


_REAL_TIME: Final = Timing()


class Subscriber:
    """The events of one shard from a position on, each record once and in order.

    It opens as many subscriptions as it needs, one after the other. It is read by one thread; `close` may
    be called from any.

    Args:
        subscribe: opens one subscription, without retries.
        start: where the first record comes from.

    Attributes:
        space: space for events: none is received without it; None: there is always space. Set it before the
            first call of `next_event`.
        consumer: ARN of the consumer of the current subscription, or of the last call if there is none.
        asked_at: the service has made the last event at this instant of its time or later (microseconds).
            That is when the subscription was asked for, or when the wait for an event without records began:
            an event may wait in a socket while this process does not read, but not before it is made.
    """

    def __init__(
        self,
        subscribe: OpenSubscription,
        split: SplitId,
        start: IteratorStart,
        settings: SubscriberSettings,
        timing: Timing = _REAL_TIME,
    ) -> None:
        self.consumer = ""
        self.asked_at = 0
        self._subscribe = subscribe
        self.space: EventSpace | None = None
        self._split = split
        self._settings = settings
        self._position = ResumePosition(start)
        self._closing = threading.Event()
        self._clock = timing.clock
        self._now = timing.now
        self._wall = timing.wall
        self._sleep = timing.sleep or self._closing.wait
        self._jitter = timing.jitter
        self._watchdog = timing.watchdog or shared_watchdog()
        self._lock = threading.Lock()
        self._current: PayloadSource | None = None
        self._asked_at_monotonic = 0.0  # as `asked_at`, in monotonic seconds
        self._opened_at: float | None = None
        self._renew_at = 0.0
        self._is_first_event = True  # of the current subscription
        self._failures = 0

    def next_event(self) -> tuple[memoryview | bytes, EventHead]:
        """Blocks until the next event with news. Do not call it after an event that `has_ended`.

        Returns:
            The event's payload, and its new records. Records that were handed out before are missing in the
            head (`EventHead.skipped`), but not in the payload.

        Raises:
            ServiceError: the service refuses the subscription, another reader has taken over, too many
                attempts in a row brought nothing, or (code `CLOSED`) `close` was called.
        """
        while True:
            current = self._current or self._connect()
            if self._clock() >= self._renew_at:
                current = self._renew(current)
            began = self._clock()
            try:
                payload = self._read(current)
                head = None if payload is None else decode_head(payload, target=str(self._split))
            except ServiceError as error:
                self._close_current()
                self._handle_error(error)
                continue
            if payload is None or head is None:
                self._handle_end()
                continue
            # The records show the event's time. It may have waited for space.
            if not head.numbers and self._clock() - began >= _WAITED:
                # The wall clock would not do: it may have been set since an answer showed its error.
                self.asked_at += round((began - self._asked_at_monotonic) * 1_000_000)
                self._asked_at_monotonic = began
            fresh = self._advance(head)
            if fresh is not None:
                return payload, fresh

    def make_space(self, size: int) -> None:
        """Blocks until a message of this size may be received. Subscriptions call it. Meanwhile the service
        does not count as silent, because this end does not read.
        """
        if self.space is not None:
            self._watchdog.disarm(self)
            self.space.make_space(size)
            self._begin_silence()

    @property
    def is_open(self) -> bool:
        """Whether there is a subscription, which may be about to be renewed."""
        return self._current is not None

    def close(self) -> None:
        """Ends the subscription. A call of `next_event` that waits for the service ends then."""
        self._closing.set()
        with self._lock:
            current = self._current
        if current is not None:
            current.close()

    # --- one event ------------------------------------------------------------------------------------

    def _read(self, current: PayloadSource) -> memoryview | bytes | None:
        self._give_back_space()
        self._begin_silence()
        try:
            return current.next_payload()
        except ServiceError as error:
            self._give_back_space()
            if error.code != CLOSED or self._closing.is_set():
                raise
        finally:
            self._watchdog.disarm(self)
        limit = self._settings.silence_limit
        raise self._error(f"no event for {limit:g} s", "SubscriptionSilent", retryable=True)

    def _begin_silence(self) -> None:
        with self._lock:
            current = self._current
        if current is not None:
            self._watchdog.arm(self, self._clock() + self._settings.silence_limit, current.close)

    def _give_back_space(self) -> None:
        if self.space is not None:
            self.space.give_back_space()

    def _advance(self, head: EventHead) -> EventHead | None:
        """Returns the new records of an event; None if nothing is new."""
        continuation = self._position.continuation
        fresh = self._position.advance(head, self._asked_at_monotonic)
        if fresh is None:
            self._close_current()
            raise self._error("the record where it resumes is not there any more", "PositionGone")
        # Every subscription begins with an event. This first event counts as progress only if it has new
        # records.
        if fresh.numbers or head.continuation != continuation or not self._is_first_event:
            self._failures = 0
        self._is_first_event = False
        return None if head.numbers and not fresh.numbers and not fresh.has_ended else fresh

    # --- subscriptions --------------------------------------------------------------------------------

    def _connect(self) -> PayloadSource:
        while True:
            try:
                return self._open()
            except ServiceError as error:  # noqa: PERF203 - the loop is there for it
                reaction = reaction_to_call(error)
                if reaction in (Reaction.FAIL, Reaction.REFUSED):
                    raise
                self._wait(error, self._takeover_pause() if reaction is Reaction.IN_USE else None)

    def _renew(self, old: PayloadSource) -> PayloadSource:
        # The new subscription takes over before the old one is closed. Remaining events of the old one are
        # not read, because the new one brings them again.
        try:
            new = self._open()
        except ServiceError as error:
            if self._closing.is_set() or reaction_to_call(error) in (Reaction.FAIL, Reaction.REFUSED):
                raise
            pause = self._settings.takeover_after + self._jitter() * _SPREAD
            _log.info(
                "%s: the subscription cannot be renewed; it stays in use, next attempt in %.1f s: %s",
                self._split,
                pause,
                error,
            )
            self._renew_at = self._clock() + pause
            return old
        old.close()
        return new

    def _open(self) -> PayloadSource:
        """Subscribes from the first starting position that the service accepts."""
        starts = self._position.starts(self._clock())
        for start in starts:
            self._check_not_closed()
            asked_wall, asked_monotonic = self._wall(), self._clock()
            try:
                opened = self._subscribe(self._split, start)
            except ServiceError as error:
                if reaction_to_call(error) is not Reaction.REFUSED or start is starts[-1]:
                    raise
                _log.info(
                    "%s: the service refuses to start %s %s; trying an earlier position: %s",
                    self._split,
                    start.kind,
                    start.sequence_number,
                    error,
                )
                self._position.refuse(start)
                continue
            self._opened_at = self._clock()
            self._asked_at_monotonic = asked_monotonic
            # By now the answer has shown the error of our clock.
            self.asked_at = asked_wall + self._now() - self._wall()
            self._renew_at = (
                self._opened_at + self._settings.renew_after - self._jitter() * self._settings.renew_spread
            )
            self._is_first_event = True
            self._position.resume(start)
            with self._lock:
                self._current = opened
            if self._closing.is_set():  # `close` may have closed the one before
                opened.close()
            return opened
        raise AssertionError("there is always a starting position")

    def _close_current(self) -> None:
        with self._lock:
            current, self._current = self._current, None
        if current is not None:
            current.close()

    def _check_not_closed(self) -> None:
        if self._closing.is_set():
            raise self._error("closed", CLOSED)

    # --- what to do when a subscription ends ----------------------------------------------------------

    def _handle_error(self, error: ServiceError) -> None:
        """Waits before the next attempt, or raises the error."""
        self._check_not_closed()
        reaction = reaction_to_event(error)
        if reaction is Reaction.IN_USE and self._is_first_event:
            # The call came too soon; one implementation says so in the stream.
            self._wait(error, self._takeover_pause())
        elif reaction is Reaction.RETRY:
            self._wait(error)
        else:
            # The newest reader keeps the shard: if two readers took it from each other, neither would make
            # progress.
            raise error

    def _handle_end(self) -> None:
        """The service has ended the subscription, as it does after 5 minutes."""
        age = self._clock() - (self._opened_at or 0.0)
        had_events = not self._is_first_event
        self._close_current()
        self._check_not_closed()
        if had_events and age >= self._settings.takeover_after:
            _log.debug(
                "%s: the service ended the subscription after %.0f s; subscribing again", self._split, age
            )
            return
        self._wait(self._error("the service ended it at once", "SubscriptionEnded", retryable=True))

    def _wait(self, error: ServiceError, pause: float | None = None) -> None:
        """Counts an attempt that brought nothing, and waits. Raises its error if it was the last one."""
        backoff = self._settings.backoff
        if self._failures >= backoff.max_retries:
            raise error
        if pause is None:
            pause = self._jitter() * backoff.ceiling(self._failures)
        self._failures += 1
        _log.info(
            "%s: subscribing again in %.3f s (retry %d of %d): %s",
            self._split,
            pause,
            self._failures,
            backoff.max_retries,
            error,
        )
        self._sleep(pause)
        self._check_not_closed()

    def _takeover_pause(self) -> float:
        """Seconds until SubscribeToShard is allowed again, 5 s after the last call.

        If our last call is longer ago, another reader's call was in the way, and may have been just now.
        """
        rule = self._settings.takeover_after
        rest = rule if self._opened_at is None else self._opened_at + rule - self._clock()
        return (rest if rest > 0 else rule) + self._jitter() * _SPREAD

    def _error(self, cause: str, code: str, *, retryable: bool = False) -> ServiceError:
        return ServiceError(
            f"{OPERATION} of {self._split}: {cause}",
            operation=OPERATION,
            target=str(self._split),
            code=code,
            retryable=retryable,
        )


def open_subscriber(
    config: SourceConfig,
    arn: Callable[[], str],
    split: SplitId,
    start: IteratorStart,
    space: EventSpace | None = None,
) -> Subscriber:
    """Makes a subscriber. It calls the service when its first event is asked for.

    Args:
        arn: returns the consumer's ARN, at each call, because the consumer may have been registered anew.
        space: see `Subscriber.space`.
    """

    def subscribe(split: SplitId, start: IteratorStart) -> Subscription:
        consumer = arn()
        if not subscriber.is_open:
            subscriber.consumer = consumer
        opened = Subscribing(config.connection, consumer)(split, start, subscriber.make_space)
        subscriber.consumer = consumer
        return opened

    timing = Timing(now=KinesisLog.of(config).server_time)
    settings = SubscriberSettings(config.backoffs[OPERATION])
    subscriber = Subscriber(subscribe, split, start, settings, timing)
    subscriber.space = space
    return subscriber
