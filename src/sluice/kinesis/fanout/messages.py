"""What planner, agents and tasks say to each other, as msgpack.

Numbers of records are text: msgpack has no integers that long.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from sluice.source.log import IteratorStart
from sluice.source.offsets import After, Position
from sluice.source.splits import SplitId

__all__ = [
    "DOUBTFUL",
    "TAKEN_OVER",
    "Consumers",
    "Coverage",
    "Fetch",
    "FromAgent",
    "Gone",
    "Hosts",
    "Join",
    "Listening",
    "Mark",
    "Progress",
    "ToAgent",
    "Trim",
    "Unwatch",
    "Watch",
    "decode_first_frame",
    "decode_from_agent",
    "decode_to_agent",
    "encode",
    "needed",
]


TAKEN_OVER: Final = "ResourceInUseException"
"""The code of a watch that ended since somebody else has subscribed with the same consumer."""

DOUBTFUL: Final = "RecordsMayHaveExpired"
"""The code of a watch that was given up since only polling can tell whether records are lost."""


class Mark(NamedTuple):
    """A record where a batch may end, and what lies between the mark before and it (itself included)."""

    number: str
    arrival: int  # microseconds
    records: int
    size: int  # bytes
    since: int  # arrival of the first of them, microseconds


class Watch(msgspec.Struct, tag=True, frozen=True):
    """Planner to agent: subscribe to `split` from `start` on.

    ``epoch`` comes back with all that is said of this watch, so that news of an earlier one are told apart.
    """

    split: SplitId
    epoch: int
    start: IteratorStart


class Trim(msgspec.Struct, tag=True, frozen=True):
    """Planner to agent: records up to `number` are done with."""

    split: SplitId
    number: str


class Unwatch(msgspec.Struct, tag=True, frozen=True):
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


class Join(msgspec.Struct, tag=True, frozen=True):
    """Agent on a worker host to the one beside the driver: it may be given shards, and serves them there."""

    host: str
    port: int


class Hosts(msgspec.Struct, tag=True, frozen=True):
    """Agent to planner: the worker hosts that have an agent now."""

    hosts: tuple[str, ...]


class Progress(msgspec.Struct, tag=True, frozen=True):
    """Agent to planner: what an event brought.

    Attributes:
        first: the first record's number since the watch began.
        server: host and port where tasks get what is buffered.
    """

    split: SplitId
    epoch: int
    first: str | None
    marks: tuple[Mark, ...]
    millis_behind: int
    has_ended: bool
    idle_at: int | None  # microseconds
    server: tuple[str, int]


class Gone(msgspec.Struct, tag=True, frozen=True):
    """Agent to planner: nothing more will come of this watch.

    ``code`` is the service's, where it was its doing, or `DOUBTFUL`.
    """

    split: SplitId
    epoch: int
    why: str
    code: str = ""


class Fetch(msgspec.Struct, tag=True, frozen=True):
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


ToAgent = Watch | Trim | Unwatch | Consumers
FromAgent = Listening | Hosts | Progress | Gone
FirstFrame = Fetch | Join

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


def needed(position: Position) -> int | None:
    """The highest number of no record that is needed behind `position`; None where no number says so."""
    if not isinstance(position, After):
        return None
    if position.sub is not None:
        return position.sequence - 1  # the record itself is needed again, for the sub-records left
    return position.sequence if position.next is None else int(position.next) - 1


class Coverage:
    """Which positions a row of events serves: those it began with, and those within it.

    Args:
        start: where the subscription was opened. A record's number there is that of the first record.
    """

    def __init__(self, start: IteratorStart) -> None:
        self._start: IteratorStart | None = start
        self._low = None if start.sequence_number is None else int(start.sequence_number) - 1
        self._passed: int | None = None

    @property
    def has_begun(self) -> bool:
        """Whether it is known what the first record is."""
        return self._low is not None

    def begin(self, first: str) -> None:
        """The number of the first record that came: there is none before it behind the start.

        Behind a position that lies before it there may have been some that expired.
        """
        if self._low is None:
            self._low = int(first) - 1

    def pass_by(self, number: int) -> None:
        """Batches have come to the record `number`: what lies before it is not served any more."""
        self._passed = number if self._passed is None else max(self._passed, number)

    def drop(self, number: int) -> None:
        """Records up to `number` are not held any more."""
        self._start = None
        self.pass_by(number)

    def holds(self, start: IteratorStart, need: int | None) -> bool:
        """Whether all behind a position is there or will come; see `Fetch`.

        Before it has begun that is so, as far as is known, where batches have come to.
        """
        if start == self._start:
            return True
        if need is None or (self._passed is not None and need < self._passed):
            return False
        return self._passed is not None if self._low is None else need >= self._low
