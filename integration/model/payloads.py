"""Subscriptions of the model as the library's agent reads them, in process.

`ModelSubscribing` stands where `sluice.kinesis.subscriptions.subscription.Subscribing` does: it opens
a subscription, and what it opens gives the payload of one event after the other. Waiting passes the model's
time.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

from integration.model.clock import SECOND, Clock
from integration.model.errors import LOST_ANSWER, ModelError
from integration.model.log import service_error
from integration.model.service import KinesisModel
from integration.model.subscriptions import Subscription
from integration.model.wire import CODECS
from sluice.errors import ServiceError
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.splits import SplitId

_OPERATION = "SubscribeToShard"
_STEP = 0.25  # seconds of the model


class ModelPayloads:
    """One subscription. Its events are in JSON and in CBOR by turns, as where agents and tasks of different
    options or versions meet.

    `silence_limit`: seconds without an event after which the connection counts as dead.
    """

    def __init__(self, subscription: Subscription, target: str, clock: Clock, silence_limit: float) -> None:
        self._subscription = subscription
        self._target = target
        self._clock = clock
        self._silence_limit = silence_limit
        self._codecs = cycle(CODECS.values())

    def next_payload(self) -> bytes | None:
        """The next event; None at the end that the service made."""
        until = self._clock.elapsed() + self._silence_limit
        while self._clock.elapsed() < until:
            try:
                event = self._subscription.next_event()
            except ModelError as error:
                raise service_error(error, _OPERATION, self._target) from None
            if event is not None:
                return next(self._codecs).encode(event)
            if self._subscription.has_ended:
                return None
            self._clock.sleep(_STEP)
        self.close()
        raise ServiceError(
            f"{_OPERATION} of {self._target}: no event for {self._silence_limit:g} s",
            operation=_OPERATION,
            target=self._target,
            code="ReadTimeoutError",
            retryable=True,
        )

    def close(self) -> None:
        self._subscription.close()


class ModelSubscribing:
    """Subscribes one consumer; `consumer_arn`: of a consumer that is registered with the model."""

    def __init__(self, model: KinesisModel, consumer_arn: str, *, silence_limit: float = 16.0) -> None:
        self.opened: list[ModelPayloads] = []
        self._model = model
        self._consumer_arn = consumer_arn
        self._silence_limit = silence_limit

    @classmethod
    def register(cls, model: KinesisModel, stream: str, name: str = "tests") -> ModelSubscribing:
        """Registers a consumer, and waits by the model's clock until it is ACTIVE."""
        summary = model.call("DescribeStreamSummary", {"StreamName": stream})["StreamDescriptionSummary"]
        request = {"StreamARN": summary["StreamARN"], "ConsumerName": name}
        arn: str = model.call("RegisterStreamConsumer", request)["Consumer"]["ConsumerARN"]
        while _status(model.call, arn) != "ACTIVE":
            model.clock.sleep(0.5)
        return cls(model, arn)

    def __call__(self, split: SplitId, start: IteratorStart) -> ModelPayloads:
        position: dict[str, Any] = {"Type": start.kind}
        if start.sequence_number is not None:
            position["SequenceNumber"] = start.sequence_number
        if start.timestamp is not None:
            position["Timestamp"] = start.timestamp / SECOND
        request = {"ConsumerARN": self._consumer_arn, "ShardId": split.shard, "StartingPosition": position}
        try:
            subscription = self._model.call(_OPERATION, request)["EventStream"]
        except ModelError as error:
            if error.code == LOST_ANSWER:
                # The service has subscribed: the 5 s rule holds, and nobody listens.
                for lost in self._model.subscriptions(*split):
                    lost.close()
            raise service_error(error, _OPERATION, str(split)) from None
        payloads = ModelPayloads(subscription, str(split), self._model.clock, self._silence_limit)
        self.opened.append(payloads)
        return payloads


def _status(call: Callable[..., dict[str, Any]], arn: str) -> str:
    answer = call("DescribeStreamConsumer", {"ConsumerARN": arn})
    return str(answer["ConsumerDescription"]["ConsumerStatus"])
