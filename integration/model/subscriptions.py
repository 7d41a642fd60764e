"""SubscribeToShard, and the events of a subscription.

https://docs.aws.amazon.com/kinesis/latest/APIReference/API_SubscribeToShard.html
https://docs.aws.amazon.com/kinesis/latest/APIReference/API_SubscribeToShardEvent.html
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from integration.model.consumers import Consumers
from integration.model.core import Core, Request, require
from integration.model.errors import ModelError
from integration.model.limits import CallLimit
from integration.model.reads import api_record, child_shards, start_place
from integration.model.shards import Place, Reading, Shard
from integration.model.streams import Consumer, Stream


class _Key(NamedTuple):
    """What subscriptions exclude one another by."""

    consumer: str
    shard: str


@dataclass
class _Line:
    """The service's memory of a consumer and a shard, across subscriptions."""

    calls: CallLimit = field(default_factory=CallLimit)
    succeeded: float | None = None
    current: Subscription | None = None
    paid_at: float = 0.0  # when the bytes pushed so far are within the rate


class Subscription:
    """One subscription, polled by `next_event`. Nobody waits inside."""

    def __init__(  # noqa: PLR0917 - made in one place
        self, core: Core, line: _Line, stream: Stream, consumer: Consumer, shard: Shard, place: Place
    ) -> None:
        self.has_ended = False  # nothing comes any more
        self.has_pushed_end = False  # the event that says that the shard has ended was pushed
        self._core = core
        self._line = line
        self._stream = stream
        self._consumer = consumer
        self._shard = shard
        self._place = place
        self._opened = core.clock.elapsed()
        self._last: float | None = None  # when the last event was sent
        self._is_silent = False
        self._was_at_tip = False
        self._is_taken_over = False

    def next_event(self) -> dict[str, Any] | None:
        """The next SubscribeToShardEvent; None: nothing yet, or nothing any more (see `has_ended`)."""
        with self._core.lock:
            if self.has_ended or self._is_silent:
                return None
            self._core.settle()
            self._check_alive()
            return None if self.has_ended else self._push()

    def close(self) -> None:
        """The reader hangs up. The next subscription must wait all the same."""
        self.has_ended = True

    def fall_silent(self) -> None:
        """The connection stays open, and nothing comes any more."""
        self._is_silent = True

    def take_over(self) -> None:
        """Another call has succeeded: this subscription ends with an error."""
        self._is_taken_over = True

    def _check_alive(self) -> None:
        life = self._core.laws.subscription_life
        if self._is_taken_over:
            raise self._ended(
                "ResourceInUseException", "Another active subscription exists for this consumer."
            )
        is_registered = self._stream.consumers.get(self._consumer.name) is self._consumer
        if not is_registered or self._core.streams.get(self._stream.name) is not self._stream:
            raise self._ended("ResourceNotFoundException", f"Consumer {self._consumer.arn} not found.")
        if self._shard.is_expired:
            raise self._ended("ResourceNotFoundException", f"Shard {self._shard.id} does not exist.")
        if life is not None and self._core.clock.elapsed() - self._opened >= life:
            self.has_ended = True

    def _ended(self, code: str, message: str | None = None) -> ModelError:
        self.has_ended = True
        return ModelError(code, message)

    def _push(self) -> dict[str, Any] | None:
        core, laws = self._core, self._core.laws
        elapsed = core.clock.elapsed()
        if self._last is not None and elapsed < self._last + laws.event_interval:
            return None
        if laws.push_bytes is not None and self._line.paid_at > elapsed:
            return None
        reading = self._shard.read(self._place, 10_000, laws.event_bytes, core.clock.now())
        is_news = reading.size > 0 or reading.is_end or not self._was_at_tip
        if self._last is not None and not is_news and elapsed < self._last + laws.heartbeat:
            return None
        if not self._survives_faults():
            return None
        self._place, self._last = reading.place, elapsed
        self._was_at_tip = reading.millis_behind == 0
        if laws.push_bytes is not None:
            self._line.paid_at = max(self._line.paid_at, elapsed - 1.0) + reading.size / laws.push_bytes
        self.has_ended = self.has_pushed_end = reading.is_end
        return self._event(reading)

    def _survives_faults(self) -> bool:
        fault = self._core.faults.draw("SubscribeToShard.event", {"ShardId": self._shard.id})
        if fault is None:
            return True
        if fault.code == "silence":
            self._is_silent = True
        elif fault.code == "end":
            self.has_ended = True
        else:
            self.has_ended = True
            raise fault
        return False

    def _event(self, reading: Reading) -> dict[str, Any]:
        shard = self._shard
        records = shard.take(reading)
        event: dict[str, Any] = {
            "Records": [api_record(record) for record in records],
            "MillisBehindLatest": reading.millis_behind,
        }
        if reading.is_end:
            event["ChildShards"] = child_shards(shard)
        elif records:
            event["ContinuationSequenceNumber"] = records[-1].sequence_number
        else:
            # The place before the next one that is read: nothing behind it has been given yet.
            event["ContinuationSequenceNumber"] = shard.number(
                max(0, reading.place.at - 1), self._core.clock.now()
            )
        return event


class Subscriptions:
    """The operation, and its rules over time."""

    def __init__(self, core: Core, consumers: Consumers) -> None:
        self._core = core
        self._consumers = consumers
        self._lines: dict[_Key, _Line] = {}

    def subscribe_to_shard(self, request: Request) -> dict[str, Any]:
        """The operation. ``EventStream`` of the answer is a `Subscription`."""
        core, laws = self._core, self._core.laws
        stream, consumer = self._consumers.find({"ConsumerARN": require(request, "ConsumerARN")})
        elapsed = core.clock.elapsed()
        line = self._lines.setdefault(_Key(consumer.arn, require(request, "ShardId")), _Line())
        if not line.calls.take(laws.subscribe_calls, elapsed):
            raise ModelError(
                "LimitExceededException", "One call of SubscribeToShard a second, consumer and shard."
            )
        if consumer.status != "ACTIVE":
            raise ModelError("ResourceInUseException", f"Consumer {consumer.arn} is {consumer.status}.")
        shard = core.shard_of(stream, request["ShardId"])
        position = require(request, "StartingPosition")
        place = start_place(core, stream, shard, require(position, "Type"), position)
        wait = laws.resubscribe_after
        if wait is not None and line.succeeded is not None and elapsed - line.succeeded < wait:
            raise ModelError(
                "ResourceInUseException",
                f"Another active subscription exists for this consumer: {core.account}:{stream.name}:"
                f"{shard.id}:{consumer.name}",
            )
        if line.current is not None and not line.current.has_ended:
            line.current.take_over()
        subscription = Subscription(core, line, stream, consumer, shard, place)
        line.current, line.succeeded = subscription, elapsed
        core.changed()
        return {"EventStream": subscription}

    def have_pushed_end(self, stream: str, shard: str) -> bool:
        """Whether a consumer has received the end of a shard."""
        return any(
            f":stream/{stream}/consumer/" in key.consumer
            and key.shard == shard
            and line.current is not None
            and line.current.has_pushed_end
            for key, line in self._lines.items()
        )

    def open_ones(self, stream: str, shard: str) -> list[Subscription]:
        return [
            line.current
            for key, line in self._lines.items()
            if f":stream/{stream}/consumer/" in key.consumer
            and key.shard == shard
            and line.current is not None
            and not line.current.has_ended
        ]
