"""What planner, agents and tasks say to each other, as msgpack.

Numbers of records are text: msgpack has no integers that long.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sluice.source.splits import SplitId
from sluice.source.stream_log import IteratorStart
from sluice.source.subscriptions import SubscriptionProgress

__all__ = [
    "DONE",
    "EVENT",
    "INTEGRITY_PROBLEM",
    "TAKEN_OVER",
    "UNAVAILABLE",
    "Acknowledge",
    "Consumers",
    "EventReceived",
    "FromAgent",
    "JoinHub",
    "Listening",
    "ReadRange",
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
"""The code of a watch that ended since somebody else has subscribed with the same consumer."""

INTEGRITY_PROBLEM: Final = "RecordsMayHaveExpired"
"""The code of a watch that was given up since only polling can tell whether records are lost."""


EVENT: Final = b"E"
"""An event's payload follows."""
DONE: Final = b"D"
"""That was the range, or all there is of a shard that has ended."""
UNAVAILABLE: Final = b"L"
"""The agent can't serve what is left of the range; why follows."""


class Subscribe(msgspec.Struct, tag=True, frozen=True):
    """Planner to agent: subscribe to `split` from `start` on.

    ``generation`` comes back with all that is said of this watch: news of an earlier one are told apart by it.
    """

    split: SplitId
    generation: int
    start: IteratorStart


class Acknowledge(msgspec.Struct, tag=True, frozen=True):
    """Planner to agent: records up to `number` are done with."""

    split: SplitId
    number: str


class Unsubscribe(msgspec.Struct, tag=True, frozen=True):
    """Planner to agent: this split is not needed any more."""

    split: SplitId


class Consumers(msgspec.Struct, tag=True, frozen=True):
    """Planner to agent: the ARN of each stream's consumer, and those to deregister at a stop."""

    arns: dict[str, str]
    registered: tuple[str, ...]


class Listening(msgspec.Struct, tag=True, frozen=True):
    """Agent to planner: tasks are served at this port."""

    host: str
    port: int


class JoinHub(msgspec.Struct, tag=True, frozen=True):
    """Agent on a worker host to the one beside the driver: it may be given shards, and serves them there."""

    host: str
    port: int


class WorkerHosts(msgspec.Struct, tag=True, frozen=True):
    """Agent to planner: the worker hosts that have an agent now."""

    hosts: tuple[str, ...]


class EventReceived(msgspec.Struct, tag=True, frozen=True):
    """Agent to planner: what an event of a subscription brought.

    Attributes:
        first: sequence number of the first record since the subscription began; None before it came.
        progress: the cut points of this event alone.
        server: host and port where tasks get the records.
    """

    split: SplitId
    generation: int
    first: str | None
    progress: SubscriptionProgress
    server: tuple[str, int]


class SubscriptionEnded(msgspec.Struct, tag=True, frozen=True):
    """Agent to planner: nothing more will come of this watch.

    ``code`` is the service's, where it was its doing, or `INTEGRITY_PROBLEM`.
    """

    split: SplitId
    generation: int
    why: str
    code: str = ""


class ReadRange(msgspec.Struct, tag=True, frozen=True):
    """Task to agent: the events that hold the records behind a position, up to `end`.

    Attributes:
        start: where an iterator for the position would start.
        need: the highest number that is not needed, as `needed` has it.
        end: number of the last record; None for all until the split ends.
        patience: seconds without news after which the task is told that the agent lacks the range.
    """

    split: SplitId
    start: IteratorStart
    need: str | None
    end: str | None
    patience: float


ToAgent = Subscribe | Acknowledge | Unsubscribe | Consumers
FromAgent = Listening | WorkerHosts | EventReceived | SubscriptionEnded
FirstFrame = ReadRange | JoinHub

_encoder: Final = msgspec.msgpack.Encoder()
_to_agent: Final = msgspec.msgpack.Decoder(ToAgent)
_from_agent: Final = msgspec.msgpack.Decoder(FromAgent)
_first_frame: Final = msgspec.msgpack.Decoder(FirstFrame)


def encode(message: ToAgent | FromAgent | FirstFrame) -> bytes:
    return _encoder.encode(message)


def decode_to_agent(frame: memoryview) -> ToAgent:
    message: ToAgent = _to_agent.decode(frame)
    return message


def decode_from_agent(frame: memoryview) -> FromAgent:
    message: FromAgent = _from_agent.decode(frame)
    return message


def decode_first_frame(frame: memoryview) -> FirstFrame:
    """What a connection to an agent begins with (and, of a task, every further request)."""
    message: FirstFrame = _first_frame.decode(frame)
    return message
