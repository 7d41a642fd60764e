"""Subscriptions that do what a script says, with a clock of the test."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.aws.wire.watchdog import Watchdog
from sluice.errors import ServiceError
from sluice.kinesis.subscriptions.subscriber import (
    PayloadSource,
    Subscriber,
    SubscriberSettings,
    Timing,
)
from sluice.kinesis.subscriptions.subscription import CLOSED
from sluice.retry import Backoff
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.splits import SplitId

SPLIT = SplitId("s", "shardId-000000000000")
HORIZON = IteratorStart("TRIM_HORIZON")
AT = "AT_SEQUENCE_NUMBER"
AFTER = "AFTER_SEQUENCE_NUMBER"
SETTINGS = SubscriberSettings(Backoff(3, 1.0, 4.0, 2.0), renew_spread=0.0)
HOUR = 3600.0


def error(code: str, *, retryable: bool = False) -> ServiceError:
    return ServiceError(f"{code}!", operation="SubscribeToShard", code=code, retryable=retryable)


IN_USE = error("ResourceInUseException", retryable=True)
RESET = error("ProtocolError", retryable=True)


@dataclass
class Passing:
    """A step in which this much time passes, without anything."""

    seconds: float


@dataclass
class Later:
    """A step in which this much time passes, with empty events that are left out of the script."""

    seconds: float


class Trickle:
    """A step in which bytes come, but never a whole event, until the subscription is closed."""


Step = dict[str, Any] | bytes | ServiceError | Passing | Later | Trickle | None


class Time:
    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.watchdog = Watchdog(self.clock)
        self.watchdog._thread = threading.current_thread()  # so that it starts none: `pass_by` checks

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        self.watchdog.check()


class FakeSubscription:
    """What one call brings, step by step. The service ends it when no step is left."""

    def __init__(self, time: Time, steps: Sequence[Step]) -> None:
        self._time = time
        self._steps = list(steps)
        self.is_closed = False
        self.on_read: Callable[[], None] = lambda: None

    def next_payload(self) -> bytes | None:
        self.on_read()
        while True:
            if self.is_closed:
                raise error(CLOSED)
            step = self._steps.pop(0) if self._steps else None
            if isinstance(step, Passing):
                self._time.pass_by(step.seconds)
            elif isinstance(step, Later):
                self._time.now += step.seconds
            elif isinstance(step, Trickle):
                self._time.pass_by(1.0)
                self._steps.insert(0, step)
            elif isinstance(step, ServiceError):
                raise step
            else:
                return json.dumps(step).encode() if isinstance(step, dict) else step

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Script:
    """The service: each call gets the next entry, which is an error or the steps of a subscription.

    Attributes:
        skew: the known part of the difference between the service's clock and the local one (seconds).
        takes: seconds that a call takes.
        ahead: seconds by which the local clock is ahead of the service's, which the first answer tells.
        jump: seconds by which the local clock is set forward during a call.
    """

    calls: list[ServiceError | Sequence[Step]]
    time: Time = field(default_factory=Time)
    starts: list[IteratorStart] = field(default_factory=list)
    called_at: list[float] = field(default_factory=list)
    opened: list[FakeSubscription] = field(default_factory=list)
    skew: float = 0.0
    takes: float = 0.0
    ahead: float = 0.0
    jump: float = 0.0

    def subscribe(self, split: SplitId, start: IteratorStart) -> PayloadSource:
        assert split == SPLIT
        self.starts.append(start)
        self.called_at.append(self.time.now)
        answer = self.calls.pop(0)
        self.time.now += self.takes
        self.skew = -self.ahead
        self.ahead += self.jump
        if isinstance(answer, ServiceError):
            raise answer
        self.opened.append(FakeSubscription(self.time, answer))
        return self.opened[-1]

    def subscriber(
        self,
        start: IteratorStart = HORIZON,
        settings: SubscriberSettings = SETTINGS,
        jitter: Callable[[], float] = lambda: 0.5,
    ) -> Subscriber:
        time = self.time
        return Subscriber(
            self.subscribe,
            SPLIT,
            start,
            settings,
            Timing(time.clock, time.sleep, jitter, time.watchdog, self._now, self._wall),
        )

    def _now(self) -> int:
        return self._wall() + round(self.skew * 1_000_000)

    def _wall(self) -> int:
        return round((self.time.now + self.ahead) * 1_000_000)


def script(*calls: ServiceError | Sequence[Step]) -> Script:
    return Script(list(calls))


def numbers(subscriber: Subscriber, events: int) -> list[list[str]]:
    """What is new in each of the next events."""
    return [subscriber.next_event()[1].numbers for _ in range(events)]


def start(kind: Any, number: int | str) -> IteratorStart:
    return IteratorStart(kind, sequence_number=str(number))
