"""Keeps one shard subscribed: renews, resumes and retries, and hands out each record once, in order."""

from __future__ import annotations

import enum
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from sluice.errors import ServiceError
from sluice.kinesis.fanout.subscriptions.events import EventHead, decode_head
from sluice.kinesis.fanout.subscriptions.subscription import (
    CLOSED,
    OPERATION,
    SILENCE_LIMIT,
    Subscribing,
    Subscription,
)
from sluice.kinesis.fanout.subscriptions.watchdog import Overseer, shared_watchdog
from sluice.kinesis.options import SourceConfig
from sluice.retry import Backoff
from sluice.source.splits import SplitId
from sluice.source.stream_log import IteratorStart

__all__ = [
    "NEVER_TRIMMED",
    "OpenSubscription",
    "Payloads",
    "Subscriber",
    "SubscriberSettings",
    "open_subscriber",
]

_log = logging.getLogger(__name__)

NEVER_TRIMMED: Final = 12 * 3600.0
"""Seconds. The shortest retention is 24 h: nothing within half of it can have been trimmed."""

# Waits for the 5 s rule are spread over this many seconds on top.
_SPREAD: Final = 1.0


class Payloads(Protocol):
    """What `sluice.kinesis.fanout.subscriptions.subscription.Subscription` is to its subscriber."""

    def next_payload(self) -> memoryview | bytes | None:
        """See `Subscription.next_payload`."""

    def close(self) -> None:
        """See `Subscription.close`."""


OpenSubscription = Callable[[SplitId, IteratorStart], Payloads]


class _Verdict(enum.Enum):
    RETRY = enum.auto()
    IN_USE = enum.auto()  # on the call: too soon after another one; in the stream: another one took over
    REFUSED = enum.auto()  # as FATAL, but another starting position may do
    FATAL = enum.auto()


# The errors that https://docs.aws.amazon.com/kinesis/latest/APIReference/API_SubscribeToShard.html and
# .../API_SubscribeToShardEventStream.html name. Of all others, their own `retryable` says it.
_VERDICTS: Final[Mapping[str, _Verdict]] = {
    "AccessDeniedException": _Verdict.FATAL,
    "InternalFailureException": _Verdict.RETRY,
    "InvalidArgumentException": _Verdict.REFUSED,
    "KMSAccessDeniedException": _Verdict.FATAL,
    "KMSDisabledException": _Verdict.FATAL,
    "KMSInvalidStateException": _Verdict.FATAL,
    "KMSNotFoundException": _Verdict.FATAL,
    "KMSOptInRequired": _Verdict.FATAL,
    "KMSThrottlingException": _Verdict.RETRY,
    "LimitExceededException": _Verdict.RETRY,
    "ResourceInUseException": _Verdict.IN_USE,
    "ResourceNotFoundException": _Verdict.REFUSED,
}


def _verdict(error: ServiceError) -> _Verdict:
    return _VERDICTS.get(error.code, _Verdict.RETRY if error.retryable else _Verdict.FATAL)


@dataclass(frozen=True)
class SubscriberSettings:
    """When a subscriber does what; times in seconds.

    Attributes:
        backoff: between fruitless attempts, and how many of them in a row are one too many.
        renew_after: age at which a subscription is replaced; the service ends it at 300.
        renew_spread: renewals come up to this much sooner, so that shards do not renew all at once.
        silence_limit: wait for an event after which a subscription counts as dead.
        takeover_after: the service refuses a second call that comes sooner than this.
    """

    backoff: Backoff
    renew_after: float = 270.0
    renew_spread: float = 30.0
    silence_limit: float = SILENCE_LIMIT
    takeover_after: float = 5.0


class Subscriber:
    """One shard's events, from a position on, across as many subscriptions as it takes.

    Read by one thread; `close` may come from any.

    Args:
        subscribe: opens one subscription, without retries.
        start: where the first record comes from.
        watchdog: ends reads that wait too long, by the same clock.
        sleep: waits between attempts; without one `close` cuts them short.
        clock: monotonic seconds.
        jitter: a number in [0, 1).

    Attributes:
        was_taken_over: another reader has subscribed with the same consumer, which ended this one.
    """

    def __init__(  # noqa: PLR0913 - the last four are for tests
        self,
        subscribe: OpenSubscription,
        split: SplitId,
        start: IteratorStart,
        settings: SubscriberSettings,
        *,
        watchdog: Overseer | None = None,
        sleep: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.was_taken_over = False
        self._subscribe = subscribe
        self._split = split
        self._settings = settings
        self._place = _Place(start)
        self._watchdog = watchdog or shared_watchdog()
        self._closing = threading.Event()
        self._sleep = sleep or self._closing.wait
        self._clock = clock
        self._jitter = jitter
        self._lock = threading.Lock()
        self._current: Payloads | None = None
        self._opened_at: float | None = None
        self._renew_at = 0.0
        self._is_first_event = True  # of the current subscription
        self._failures = 0

    def next_event(self) -> tuple[memoryview | bytes, EventHead]:
        """Blocks until the next event that says anything new: its JSON, and what is new of it.

        Where records come a second time the payload has them too, and the head leaves them out
        (`EventHead.skipped`). Not to be called again after an event that `has_ended`.

        Raises:
            ServiceError: the service refuses, another reader took over, too many attempts in a row
                were fruitless, or (code `CLOSED`) `close` was called. What was handed out stays valid.
        """
        while True:
            current = self._current or self._connect()
            if self._clock() >= self._renew_at:
                current = self._renew(current)
            try:
                payload = self._read(current)
                head = None if payload is None else decode_head(payload, target=str(self._split))
            except ServiceError as error:
                self._leave()
                self._judge_loss_of_stream(error)
                continue
            if payload is None or head is None:
                self._note_end()
                continue
            news = self._take(head)
            if news is not None:
                return payload, news

    def close(self) -> None:
        """Ends the subscription and wakes whoever waits in `next_event`."""
        self._closing.set()
        with self._lock:
            current = self._current
        if current is not None:
            current.close()

    # --- one event ------------------------------------------------------------------------------------

    def _read(self, current: Payloads) -> memoryview | bytes | None:
        limit = self._settings.silence_limit
        self._watchdog.arm(self, self._clock() + limit, current.close)
        try:
            return current.next_payload()
        except ServiceError as error:
            if error.code != CLOSED or self._closing.is_set():
                raise
        finally:
            self._watchdog.disarm(self)
        raise self._problem(f"no event for {limit:g} s", "SubscriptionSilent")

    def _take(self, head: EventHead) -> EventHead | None:
        had_records = bool(head.numbers)
        before = self._place.continuation
        news = self._place.take(head, self._clock())
        if news is None:
            self._leave()
            raise ServiceError(
                f"{OPERATION} of {self._split}: the record it is to resume at is gone",
                operation=OPERATION,
                target=str(self._split),
                code="PositionGone",
            )
        # The event that comes at once shows little: only what moves on, or a later sign of life, does.
        if news.numbers or head.continuation != before or not self._is_first_event:
            self._failures = 0
        self._is_first_event = False
        return None if had_records and not news.numbers and not news.has_ended else news

    # --- opening and leaving --------------------------------------------------------------------------

    def _connect(self) -> Payloads:
        while True:
            try:
                return self._open()
            except ServiceError as error:  # noqa: PERF203 - the loop is there for it
                verdict = _verdict(error)
                if verdict in (_Verdict.FATAL, _Verdict.REFUSED):
                    raise
                self._wait(error, self._rest_of_rule() if verdict is _Verdict.IN_USE else None)

    def _renew(self, old: Payloads) -> Payloads:
        # The new one takes over before the old one is left; what the old one still holds comes again.
        try:
            new = self._open()
        except ServiceError as error:
            if self._closing.is_set() or _verdict(error) in (_Verdict.FATAL, _Verdict.REFUSED):
                raise
            pause = self._settings.takeover_after + self._jitter() * _SPREAD
            _log.info("%s: renewal is tried again in %.1f s: %s", self._split, pause, error)
            self._renew_at = self._clock() + pause
            return old
        old.close()
        return new

    def _open(self) -> Payloads:
        """Subscribes from the first starting position that the service takes."""
        starts = self._place.starts(self._clock())
        for start in starts:
            self._check_open()
            try:
                opened = self._subscribe(self._split, start)
            except ServiceError as error:
                if _verdict(error) is not _Verdict.REFUSED or start is starts[-1]:
                    raise
                _log.info("%s: %s is refused: %s", self._split, start, error)
                self._place.refuse(start)
                continue
            self._opened_at = self._clock()
            self._renew_at = (
                self._opened_at + self._settings.renew_after - self._jitter() * self._settings.renew_spread
            )
            self._is_first_event = True
            self._place.resume(start)
            with self._lock:
                self._current = opened
            if self._closing.is_set():  # `close` may have seen the one before
                opened.close()
            return opened
        raise AssertionError("there is always a starting position")

    def _leave(self) -> None:
        with self._lock:
            current, self._current = self._current, None
        if current is not None:
            current.close()

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise ServiceError(
                f"{OPERATION} of {self._split}: closed",
                operation=OPERATION,
                target=str(self._split),
                code=CLOSED,
            )

    # --- what to do about an end ----------------------------------------------------------------------

    def _judge_loss_of_stream(self, error: ServiceError) -> None:
        if self._closing.is_set():
            self._check_open()
        verdict = _verdict(error)
        if verdict is _Verdict.IN_USE and self._is_first_event:
            # The call itself was refused; one implementation says so in the stream.
            self._wait(error, self._rest_of_rule())
        elif verdict is _Verdict.RETRY:
            self._wait(error)
        else:
            # Taking it back would only start a fight that both lose: the newest reader keeps it.
            self.was_taken_over = verdict is _Verdict.IN_USE
            raise error

    def _note_end(self) -> None:
        age = self._clock() - (self._opened_at or 0.0)
        was_fruitful = not self._is_first_event
        self._leave()
        self._check_open()
        if was_fruitful and age >= self._settings.takeover_after:
            _log.debug("%s: the service ended the subscription after %.0f s", self._split, age)
            return
        self._wait(self._problem("the service ended it at once", "SubscriptionEnded"))

    def _wait(self, error: ServiceError, pause: float | None = None) -> None:
        """Counts an attempt that brought nothing, and waits; raises it when it was the last."""
        backoff = self._settings.backoff
        if self._failures >= backoff.max_retries:
            raise error
        if pause is None:
            pause = self._jitter() * backoff.ceiling(self._failures)
        self._failures += 1
        _log.info("retry %d of %d in %.3f s: %s", self._failures, backoff.max_retries, pause, error)
        self._sleep(pause)
        self._check_open()

    def _rest_of_rule(self) -> float:
        """What is left of the 5 s since the last call, which is somebody else's if not our own."""
        rule = self._settings.takeover_after
        rest = rule if self._opened_at is None else self._opened_at + rule - self._clock()
        return (rest if rest > 0 else rule) + self._jitter() * _SPREAD

    def _problem(self, what: str, code: str) -> ServiceError:
        return ServiceError(
            f"{OPERATION} of {self._split}: {what}",
            operation=OPERATION,
            target=str(self._split),
            code=code,
            retryable=True,
        )


class _Place:
    """How far a shard has been handed out, and where a subscription may go on from there."""

    def __init__(self, start: IteratorStart) -> None:
        self.continuation: str | None = None
        self._start = start
        self._last: str | None = None
        self._done = -1
        self._age = 0.0  # how old a record right behind here is at most, when it was `_seen_at`
        self._seen_at: float | None = None
        self._refused: str | None = None
        self._anchor: int | None = None

    def take(self, head: EventHead, now: float) -> EventHead | None:
        """Moves on; gives what is new of an event. None: it does not connect to what came before."""
        if self._anchor is not None and (head.numbers or head.millis_behind == 0 or head.has_ended):
            if not head.numbers or int(head.numbers[0]) > self._anchor:
                return None
            self._anchor = None
        news = head
        if head.numbers and int(head.numbers[0]) <= self._done:
            skipped = sum(int(number) <= self._done for number in head.numbers)
            news = msgspec.structs.replace(
                head, numbers=head.numbers[skipped:], arrivals=head.arrivals[skipped:], skipped=skipped
            )
        if news.numbers:
            self._last = news.numbers[-1]
            self._done = int(self._last)
        self.continuation = head.continuation
        self._age, self._seen_at = head.millis_behind / 1000, now
        return news

    def starts(self, now: float) -> list[IteratorStart]:
        """Where to go on, best first; there is at least one."""
        if self._seen_at is None:
            return [self._start]
        if self._last is not None and self._age + now - self._seen_at > NEVER_TRIMMED:
            # The service starts at the horizon without a word if this is trimmed by now. So the last
            # record is asked for once more: if it does not come, what was behind it may be gone too.
            return [IteratorStart("AT_SEQUENCE_NUMBER", sequence_number=self._last)]
        # A continuation may belong to no record, and not every service knows such a number.
        numbers = [self.continuation] if self.continuation != self._refused else []
        starts = [
            IteratorStart("AFTER_SEQUENCE_NUMBER", sequence_number=number)
            for number in dict.fromkeys([*numbers, self._last])
            if number is not None
        ]
        if self._last is None and self._start.kind != "LATEST":
            starts.append(self._start)
        return starts or [self._start]

    def refuse(self, start: IteratorStart) -> None:
        """The service does not take a position that `starts` gave."""
        if start.sequence_number == self.continuation:
            self._refused = self.continuation

    def resume(self, start: IteratorStart) -> None:
        """A subscription was opened at a position that `starts` gave."""
        again = self._seen_at is not None and start.kind == "AT_SEQUENCE_NUMBER" and self._last is not None
        self._anchor = self._done if again else None


def open_subscriber(
    config: SourceConfig, arn: Callable[[], str], split: SplitId, start: IteratorStart
) -> Subscriber:
    """A subscriber that calls nobody before its first event is asked for.

    Args:
        arn: the consumer's, asked for at every call: the consumer may be registered anew.
    """

    def subscribe(split: SplitId, start: IteratorStart) -> Subscription:
        return Subscribing(config.connection, arn())(split, start)

    return Subscriber(subscribe, split, start, SubscriberSettings(config.backoffs[OPERATION]))
