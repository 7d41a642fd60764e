"""The messages between planner, agents and tasks, as msgpack.

Sequence numbers travel as text: they do not fit into msgpack's integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from sluice.channels.channel import Address
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.splits import SplitId
from sluice.source.state.subscriptions import SubscriptionProgress

__all__ = [
    "DONE",
    "EVENT",
    "FAR_BEHIND",
    "INTEGRITY_PROBLEM",
    "TAKEN_OVER",
    "UNAVAILABLE",
    "Acknowledge",
    "BufferHeld",
    "CallsCounted",
    "ConsumersChanged",
    "EventReceived",
    "FromAgent",
    "JoinHub",
    "Listening",
    "RangesAsked",
    "ReadRange",
    "Server",
    "Subscribe",
    "SubscriptionEnded",
    "ToAgent",
    "Unsubscribe",
    "WorkerHosts",
    "decode_first_frame",
    "decode_from_agent",
    "decode_to_agent",
    "encode",
]


TAKEN_OVER: Final = "ResourceInUseException"
"""The service's code for a subscription that ended because another reader subscribed with its consumer, or
because its consumer is being deleted.
"""

INTEGRITY_PROBLEM: Final = "RecordsMayHaveExpired"
"""The code of a subscription that the agent ended because only polling can show whether records are lost."""


FAR_BEHIND: Final = "FarBehindTip"
"""The code of a shard that the agent does not poll for now, because tasks reach its tip sooner."""

EVENT: Final = b"E"
"""First byte of a frame in an answer to `ReadRange`: the payload of an event follows."""
DONE: Final = b"D"
"""The same: every event of the range has been sent, or every event of a shard that has ended."""
UNAVAILABLE: Final = b"U"
"""The same: the agent can't serve the rest of the range; the reason follows as text."""


class Server(NamedTuple):
    """Where tasks connect to an agent: the fields of `Address` without the secret, which the planner has."""

    host: str
    port: int
    start: bytes
    fingerprint: bytes = b""

    def address(self, secret: bytes) -> Address:
        """The full address, with the secret that clients have to know."""
        return Address(self.host, self.port, secret, self.start, self.fingerprint)


class Subscribe(msgspec.Struct, tag=True, frozen=True):
    """Planner to agent: subscribe to a shard, in place of any earlier subscription to it.

    Attributes:
        generation: comes back in every message about this subscription. The planner ignores messages of an
            earlier generation that are still in flight.
    """

    split: SplitId
    generation: int
    start: IteratorStart


class Acknowledge(msgspec.Struct, tag=True, frozen=True):
    """Planner to agent: the next batch starts behind a sequence number; drop the records up to it."""

    split: SplitId
    number: str


class Unsubscribe(msgspec.Struct, tag=True, frozen=True):
    """Planner to agent: end the subscription to a shard, and drop its buffered events."""

    split: SplitId


class ConsumersChanged(msgspec.Struct, tag=True, frozen=True):
    """Planner to agent: the consumers to subscribe with.

    Attributes:
        arns: stream's name to the ARN of its consumer.
        registered: ARNs of those that the agent deregisters when the query is stopped.
        logged: the part of `registered` that the offset log names. After a crash these stay for the next run,
            which recognises them by the log. It could not recognise the others.
    """

    arns: dict[str, str]
    registered: tuple[str, ...]
    logged: tuple[str, ...] = ()


class Listening(msgspec.Struct, tag=True, frozen=True):
    """Agent to planner: where tasks, and agents on worker hosts, may connect."""

    server: Server


class StartFailed(msgspec.Struct, tag=True, frozen=True):
    """Agent to planner, in place of `Listening`: it can't start, and ends.

    Attributes:
        reason: for the log.
    """

    reason: str


class JoinHub(msgspec.Struct, tag=True, frozen=True):
    """Agent on a worker host to the agent on the driver host: shards may be assigned to it.

    Attributes:
        server: where tasks may connect to it.
    """

    server: Server


class WorkerHosts(msgspec.Struct, tag=True, frozen=True):
    """Agent to planner: the worker hosts that have an agent, and the hosts whose agent is silent."""

    hosts: tuple[str, ...]
    silent: tuple[str, ...] = ()


class BufferHeld(msgspec.Struct, tag=True, frozen=True):
    """Agent to planner, once a second while it changes: how full the buffer is.

    Attributes:
        host: of the agent.
        held, limit: bytes.
    """

    host: str
    held: int
    limit: int


class RangesAsked(msgspec.Struct, tag=True, frozen=True):
    """Agent to planner: how many ranges tasks have asked for since the last such message."""

    count: int


class CallsCounted(msgspec.Struct, tag=True, frozen=True):
    """Agent to planner, once a second while there are any: its reads that were refused or repeated since the
    last such message.

    Attributes:
        refused: because of load.
        retries: reads that were repeated, refused or failed.
    """

    split: SplitId
    refused: int
    retries: int


class EventReceived(msgspec.Struct, tag=True, frozen=True):
    """Agent to planner: what an event of a subscription brought.

    Attributes:
        first: sequence number of the subscription's first record; None before it came.
        progress: the cut points of this event alone.
        server: the agent that has the records.
    """

    split: SplitId
    generation: int
    first: str | None
    progress: SubscriptionProgress
    server: Server


class SubscriptionEnded(msgspec.Struct, tag=True, frozen=True):
    """Agent to planner: the subscription has ended, and its buffered events are dropped.

    Attributes:
        reason: a sentence for the log.
        code: of the service, if it ended or refused the subscription; `INTEGRITY_PROBLEM` or
            `FAR_BEHIND`; or empty, if another subscription may follow at once.
        consumer: ARN of the consumer that it was subscribed with; empty if the agent does not know it.
        retryable: of the `ServiceError` that ended it.
    """

    split: SplitId
    generation: int
    reason: str
    code: str = ""
    consumer: str = ""
    retryable: bool = False


class ReadRange(msgspec.Struct, tag=True, frozen=True):
    """Task to agent: send the events that hold the records of a range.

    Attributes:
        start: where an iterator for the range's start would start.
        after: `exclusive_start` of the range's start.
        end: sequence number of the range's last record; None for all records until the shard ends.
        max_wait: seconds without an event after which the agent answers `UNAVAILABLE`.
    """

    split: SplitId
    start: IteratorStart
    after: str | None
    end: str | None
    max_wait: float


ToAgent = Subscribe | Acknowledge | Unsubscribe | ConsumersChanged
FromAgent = (
    Listening
    | StartFailed
    | WorkerHosts
    | BufferHeld
    | RangesAsked
    | CallsCounted
    | EventReceived
    | SubscriptionEnded
)
FirstFrame = ReadRange | JoinHub

_encoder: Final = msgspec.msgpack.Encoder()
decode_to_agent: Final[Callable[[memoryview], ToAgent]] = msgspec.msgpack.Decoder(ToAgent).decode
decode_from_agent: Final[Callable[[memoryview], FromAgent]] = msgspec.msgpack.Decoder(FromAgent).decode
decode_first_frame: Final[Callable[[memoryview], FirstFrame]] = msgspec.msgpack.Decoder(FirstFrame).decode
"""Decodes the first frame of a connection to an agent, and every further frame that a task sends."""


def encode(message: ToAgent | FromAgent | FirstFrame) -> bytes:
    return _encoder.encode(message)
