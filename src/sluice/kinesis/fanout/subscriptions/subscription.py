"""One ``SubscribeToShard`` call: from the request to the payloads of its events, undecoded."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from botocore.exceptions import ClientError

from sluice.aws.clients import client_for
from sluice.aws.connection import ConnectionConfig
from sluice.aws.endpoint_state import endpoint_state
from sluice.aws.errors import translate
from sluice.errors import ServiceError, SluiceError
from sluice.instants import micros_to_datetime
from sluice.kinesis.fanout.subscriptions.event_stream import Frame, FrameReader
from sluice.source.splits import SplitId
from sluice.source.stream_log import IteratorStart

__all__ = ["CLOSED", "OPERATION", "SILENCE_LIMIT", "Subscribing", "Subscription", "subscribe"]

OPERATION: Final = "SubscribeToShard"

# Events come at least every 5 s, empty ones where there are no records. Three of them missing, and a
# moment for the third to be late.
SILENCE_LIMIT: Final = 16.0

# The code of what a reader gets whose subscription was closed by ourselves.
CLOSED: Final = "SubscriptionClosed"

_EVENT: Final = "SubscribeToShardEvent"


class Subscription:
    """What the service pushes after one call. Read by one thread; `close` may come from any.

    Args:
        body: the HTTP answer's body, as urllib3 has it.
        target: what errors name: ``stream/shard``.
        endpoint: what errors name as the place; None where it is not known.
    """

    def __init__(self, body: Any, target: str, endpoint: str | None = None) -> None:
        self._body = body
        self._target = target
        self._endpoint = endpoint
        self._frames = FrameReader(body.read)
        self._is_closed = False
        self._reading = threading.Lock()

    def next_payload(self) -> memoryview | None:
        """Blocks until the next event and gives its JSON; None at the end that the service made.

        Raises:
            ServiceError: the service ended it with an error, the connection failed, or what came is
                damaged. With the code `CLOSED` when `close` was called. Nothing comes after it.
        """
        problem: ServiceError | None = None
        with self._reading:
            try:
                frame = None if self._is_closed else self._next_event()
            except Exception as error:  # noqa: BLE001 - whatever the transport raises must not get further
                problem = self._translated(error)
            else:
                if frame is not None:
                    return frame.payload
            self._release()
        if self._is_closed:
            # Shutting the socket down looks like a failure or like an end, whichever comes first.
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
        """Ends the subscription. A blocked reader is woken at once."""
        self._is_closed = True
        self._shut_down()
        # Where nobody reads there is nobody else to close the connection.
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
                raise _refusal(frame)
            # "initial-response" says nothing; what is not known is for others.
            if headers.get(":event-type") == _EVENT:
                return frame
        return None

    def _translated(self, error: Exception) -> ServiceError:
        return translate(error, operation=OPERATION, target=self._target, endpoint=self._endpoint)

    def _shut_down(self) -> None:
        # Closing would wait for the reader, who holds the lock of the buffer between socket and HTTP.
        shutdown = getattr(self._body, "shutdown", None)
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # it has ended by itself
            if shutdown is not None:
                shutdown()
            else:  # urllib3 before 2.3
                getattr(self._body.connection, "sock", None).shutdown(socket.SHUT_RD)  # type: ignore[union-attr]

    def _release(self) -> None:
        # Not given back to the SDK's pool: with half an answer in it, it is of no use to the next call.
        with contextlib.suppress(Exception):
            self._body.close()


def subscribe(client: Any, consumer_arn: str, split: SplitId, start: IteratorStart) -> Subscription:
    """Calls ``SubscribeToShard`` once.

    Args:
        client: from `sluice.aws.connection.client_for`; its read timeout is how long the connection
            may be silent.

    Raises:
        ServiceError: the call failed. It has not been retried.
    """
    position: dict[str, Any] = {"Type": start.kind}
    if start.sequence_number is not None:
        position["SequenceNumber"] = start.sequence_number
    if start.timestamp is not None:
        position["Timestamp"] = micros_to_datetime(start.timestamp)
    endpoint = client.meta.endpoint_url
    sent = time.time()
    try:
        answer = client.subscribe_to_shard(
            ConsumerARN=consumer_arn, ShardId=split.shard, StartingPosition=position
        )
        endpoint_state(endpoint).record_answer(answer, sent, time.time())
        return Subscription(answer["EventStream"], str(split), endpoint)
    except SluiceError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the SDK raises must not get further
        problem = translate(error, operation=OPERATION, target=str(split), endpoint=endpoint)
    raise problem from None


@dataclass(frozen=True)
class Subscribing:
    """Subscribes to shards for one consumer: plain data that makes its SDK client where it is called.

    Attributes:
        connection: how to reach the service; its read timeout does not count here.
        consumer_arn: the registered consumer.
        silence_limit: seconds without a byte after which a connection counts as dead.
    """

    connection: ConnectionConfig
    consumer_arn: str
    silence_limit: float = SILENCE_LIMIT

    def __call__(self, split: SplitId, start: IteratorStart) -> Subscription:
        """See `subscribe`."""
        config = replace(self.connection, read_timeout=self.silence_limit)
        return subscribe(client_for(config, "kinesis"), self.consumer_arn, split, start)


def _refusal(frame: Frame) -> ClientError:
    """The error that the service ends a stream with, as the SDK would have raised it for an answer."""
    headers = frame.headers
    code = headers.get(":exception-type") or headers.get(":error-code") or "Unknown"
    message = headers.get(":error-message")
    if message is None:
        with contextlib.suppress(msgspec.DecodeError):
            body = msgspec.json.decode(frame.payload)
            if isinstance(body, dict):
                message = body.get("message") or body.get("Message")
    return ClientError({"Error": {"Code": str(code), "Message": str(message or "")}}, OPERATION)
