"""One ``SubscribeToShard`` call, and the payloads of the events that it brings."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from botocore.exceptions import ClientError

from sluice.aws.calling.calls import failure_of
from sluice.aws.calling.clients import client_for
from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.endpoint_state import endpoint_state
from sluice.aws.errors import DamagedAnswerError, endpoint_of, translate
from sluice.aws.wire.cbor import Decoder, is_cbor
from sluice.aws.wire.request_bodies import exact_time
from sluice.aws.wire.sdk_deadlines import shut_down
from sluice.errors import ServiceError
from sluice.kinesis.subscriptions.event_stream import Frame, FrameReader
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.splits import SplitId

__all__ = ["CLOSED", "OPERATION", "SILENCE_LIMIT", "Subscribing", "Subscription"]

OPERATION: Final = "SubscribeToShard"

SILENCE_LIMIT: Final = 16.0
"""Seconds without an event after which a subscription counts as dead: the time of three events, and a moment.
Events come at least every 5 s; without records they are empty.
"""

CLOSED: Final = "SubscriptionClosed"
"""The code of the error that a reader gets after `Subscription.close`."""

_EVENT: Final = "SubscribeToShardEvent"


class Subscription:
    """The events that one call brings. Read by one thread; `close` may be called from any.

    Args:
        body: the body of the HTTP answer, a ``urllib3.HTTPResponse``.
        target: ``stream/shard``, for errors.
        endpoint: the called URL, for errors; None if not known.
        make_space: see `FrameReader`.
    """

    def __init__(
        self,
        body: Any,
        target: str,
        endpoint: str | None = None,
        make_space: Callable[[int], None] = lambda _size: None,
    ) -> None:
        self._body = body
        self._target = target
        self._endpoint = endpoint
        self._frames = FrameReader(body.read, make_space)
        self._is_closed = False
        self._reading = threading.Lock()

    def next_payload(self) -> memoryview | None:
        """Blocks until the next event. Do not call it again after it has returned None or raised.

        Returns:
            The event in JSON or CBOR; None if the service has ended the subscription, as it does after 5
            minutes.

        Raises:
            ServiceError: the service ended the subscription with an error, the connection failed, or a
                message is damaged; with the code `CLOSED`, `close` was called.
        """
        problem: ServiceError | None = None
        with self._reading:
            try:
                frame = None if self._is_closed else self._next_event()
            except Exception as error:  # noqa: BLE001 - errors of the transport do not leave this module
                problem = self._translated(error)
            else:
                if frame is not None:
                    return frame.payload
            self._release()
        if self._is_closed:
            # The transport reports a shut-down socket as a failure, or as the end.
            raise ServiceError(
                f"{OPERATION} of {self._target}: closed",
                operation=OPERATION,
                target=self._target,
                code=CLOSED,
            ) from None
        if problem is not None:
            raise problem from None
        return None

    def close(self) -> None:
        """Ends the subscription. A call of `next_payload` that blocks raises at once."""
        self._is_closed = True
        shut_down(self._body)
        # A reader closes the connection itself. Without a reader, it is closed here.
        if self._reading.acquire(blocking=False):
            try:
                self._release()
            finally:
                self._reading.release()

    def _next_event(self) -> Frame | None:
        while (frame := self._frames.next()) is not None:
            headers = frame.headers
            kind = headers.get(":message-type", "event")
            if kind != "event":
                raise _error_of(frame)
            # Other messages are the empty "initial-response", and maybe unknown kinds.
            if headers.get(":event-type") == _EVENT:
                return frame
        return None

    def _translated(self, error: Exception) -> ServiceError:
        return translate(error, operation=OPERATION, target=self._target, endpoint=self._endpoint)

    def _release(self) -> None:
        # The connection is closed, and not returned to the SDK's pool, because it may still hold a part of
        # the answer.
        with contextlib.suppress(Exception):
            self._body.close()


@dataclass(frozen=True)
class Subscribing:
    """Subscribes to shards with one consumer. Plain data: the SDK client is made when it is called.

    Attributes:
        connection: how to reach the service. `silence_limit` replaces its read timeout.
        silence_limit: seconds without a byte after which a connection counts as dead.
    """

    connection: ConnectionConfig
    consumer_arn: str
    silence_limit: float = SILENCE_LIMIT

    def __call__(
        self,
        split: SplitId,
        start: IteratorStart,
        make_space: Callable[[int], None] = lambda _size: None,
    ) -> Subscription:
        """Calls ``SubscribeToShard`` once.

        Args:
            make_space: see `FrameReader`.

        Raises:
            ServiceError: the call failed. It is not retried.
        """
        position: Any = {"Type": start.kind}
        if start.sequence_number is not None:
            position["SequenceNumber"] = start.sequence_number
        if start.timestamp is not None:
            position = exact_time(start.timestamp, **position)
        config = replace(self.connection, read_timeout=self.silence_limit)
        client = client_for(config, "kinesis")
        endpoint = client.meta.endpoint_url
        state, sent = endpoint_state(endpoint), time.time()
        try:
            answer = client.subscribe_to_shard(
                ConsumerARN=self.consumer_arn, ShardId=split.shard, StartingPosition=position
            )
            state.record_answer(answer, sent, time.time())
            return Subscription(answer["EventStream"], str(split), endpoint, make_space)
        except Exception as error:  # noqa: BLE001 - errors of the SDK do not leave this module
            if isinstance(error, ClientError) and error.operation_name == OPERATION:
                state.record_answer(error.response, sent, time.time())
            at = endpoint_of(error, endpoint)
            problem = failure_of(error, config, OPERATION, str(split), at)
        raise problem from None


def _error_of(frame: Frame) -> ClientError:
    """The error in a message, as the SDK raises it for an answer."""
    headers = frame.headers
    code = headers.get(":exception-type") or headers.get(":error-code") or "Unknown"
    message = headers.get(":error-message")
    if message is None:
        with contextlib.suppress(msgspec.DecodeError, DamagedAnswerError):
            payload = bytes(frame.payload)
            body = Decoder(payload).decode() if is_cbor(payload) else msgspec.json.decode(payload)
            if isinstance(body, dict):
                message = body.get("message") or body.get("Message")
    return ClientError({"Error": {"Code": str(code), "Message": str(message or "")}}, OPERATION)
