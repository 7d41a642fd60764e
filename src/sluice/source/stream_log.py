"""The narrow interface behind which a stream service stands, and what it hands out.

``sluice.kinesis.client`` implements it against Kinesis; tests implement it in memory. Nothing here
knows an SDK. Instants are whole microseconds since the epoch, in UTC, as Arrow and Spark keep them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from sluice.source.splits import Split, SplitId

__all__ = ["AnyRecord", "IteratorStart", "Page", "Record", "RecordPublisher", "StreamInfo", "StreamLog"]


class AnyRecord(Protocol):
    """One record as the service stores it, before deaggregation, whatever object holds it.

    Attributes:
        arrival: microseconds since the epoch; not guaranteed to rise with the sequence number. It may be
            derived each time it is asked for.
    """

    @property
    def sequence_number(self) -> str: ...
    @property
    def arrival(self) -> int: ...
    @property
    def partition_key(self) -> str: ...
    @property
    def data(self) -> bytes: ...


class Record(NamedTuple):
    """The plain `AnyRecord`."""

    sequence_number: str
    arrival: int
    partition_key: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Page:
    """The answer to one read.

    Attributes:
        records: in sequence order; may be empty anywhere in a split, not only at its tip.
        next_iterator: where to read on; None at the end of a closed split.
        millis_behind: how far the page's end is from the tip, in ms; only 0 means the tip.
    """

    records: Sequence[AnyRecord]
    next_iterator: str | None
    millis_behind: int


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What identifies a stream and how long it keeps records.

    Attributes:
        created: when it was created (microseconds): a stream deleted and created again differs.
        retention: seconds.
    """

    name: str
    created: int
    retention: float


@dataclass(frozen=True, slots=True)
class IteratorStart:
    """Where an iterator starts; the kinds are those of Kinesis' ``GetShardIterator``."""

    kind: Literal["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP", "AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"]
    sequence_number: str | None = None
    timestamp: int | None = None  # microseconds since the epoch


class StreamLog(Protocol):
    """A service that keeps streams as ordered, sharded logs.

    Every method retries what is worth retrier before it raises `sluice.errors.ServiceError`, whose
    attributes say what to make of it: ``missing``, ``throttling``, ``expired_iterator``,
    ``invalid_argument``, ``retryable``. All methods may be called from several threads.
    """

    def describe(self, stream: str) -> StreamInfo:
        """The stream's identity and retention."""

    def list_splits(self, stream: str) -> Sequence[Split]:
        """All splits that still hold records or may get some, closed ones included."""

    def get_iterator(self, split: SplitId, start: IteratorStart) -> str | None:
        """An opaque iterator, good for some minutes. None where a closed split ends before `start`."""

    def get_records(self, split: SplitId, iterator: str, limit: int) -> Page:
        """Reads one page of at most `limit` records.

        Not retried when the iterator has expired: the caller knows where it was.
        """

    def server_time(self) -> int:
        """Now, by the service's clock as far as known (microseconds)."""


class RecordPublisher(Protocol):
    """Pages of one split that a service pushes, from a position on.

    Attributes:
        is_gapless: nothing is missing between the position and the first page, which whoever gives the
            publisher has seen to. Else it begins with the record that shows where the position is.
    """

    is_gapless: bool

    def next_page(self) -> Page:
        """Blocks until the next event.

        Its records may be none; ``next_iterator`` is None only at the end of a closed split, and any text
        else. Records that were handed out before, or that lie before the position, may come again.

        Raises:
            ServiceError: this publisher is over; what has been handed out stays valid.
        """

    def close(self) -> None:
        """Releases what the publisher holds. May be called twice, and after the publisher has ended."""
