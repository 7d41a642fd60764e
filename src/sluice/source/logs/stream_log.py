"""The interface of a service that keeps streams as logs, and the records it returns.

All instants are whole microseconds since the epoch, in UTC, as in Arrow and Spark.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol

from sluice.errors import ServiceError
from sluice.instants import micros_from_seconds
from sluice.source.model.splits import Split, SplitId

__all__ = [
    "AnyRecord",
    "IteratorStart",
    "Page",
    "Record",
    "StreamInfo",
    "StreamLog",
    "ValueRecord",
    "is_gone",
    "size_in_bytes",
]

_SHARD_RATE: Final = 2 * 2**20
"""Bytes a second that Kinesis allows all polling consumers of a shard together."""
_LONGEST_REFUSAL: Final = 5.0
"""Maximum seconds for which Kinesis refuses reads after a page."""


class AnyRecord(Protocol):
    """One record as the service stores it, before deaggregation.

    Records of other sources have ``size`` (approximate bytes) instead of ``partition_key`` and ``data``;
    see `ValueRecord`.

    Attributes:
        sequence_number: its position in the split. Digits alone compare as a number; other text, of at
            most 128 bytes, compares by its bytes. It rises from record to record.
        arrival: microseconds since the epoch. It need not rise with the sequence number, and may be
            computed at every access.
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
    """An `AnyRecord` that holds plain values."""

    sequence_number: str
    arrival: int
    partition_key: str
    data: bytes


class ValueRecord(NamedTuple):
    """A record with any value, in place of an `AnyRecord`.

    Attributes:
        value: the input of `sluice.source.LogSource.to_record_batch` for a row.
        size: approximate bytes, for ``maxBytesPerTrigger``.
    """

    sequence_number: str
    arrival: int
    value: Any
    size: int = 1


def size_in_bytes(record: Any) -> int:
    """Returns how many bytes a record counts for limits."""
    try:
        return len(record.data) + len(record.partition_key.encode())
    except AttributeError:
        size: int = record.size
        return size


@dataclass(frozen=True, slots=True)
class Page:
    """The answer to one read.

    Attributes:
        records: `AnyRecord` or `ValueRecord`, in the order of their sequence numbers. An empty page may
            come anywhere in a split.
        next_iterator: where to continue reading; None at the end of a closed split.
        millis_behind: how far the end of the page is from the tip (milliseconds); 0 only at the tip.
        size: approximate bytes of data; 0 if not known.
    """

    records: Sequence[Any]
    next_iterator: str | None
    millis_behind: int
    size: int = field(default=0, compare=False)

    @property
    def cost(self) -> float:
        """Seconds after which the service surely accepts another read of the shard; 0 if the size is
        not known.

        "If a call returns [10 MiB], subsequent calls made within the next 5 seconds throw
        ProvisionedThroughputExceededException."
        https://docs.aws.amazon.com/kinesis/latest/APIReference/API_GetRecords.html
        """
        return min(self.size / _SHARD_RATE, _LONGEST_REFUSAL)


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What identifies a stream, and how long it keeps records.

    Attributes:
        created: when it was created (microseconds); 0 if not known. A later stream of the same name has
            another value.
        retention: for how long it keeps records (seconds). By default, for longer than any query runs.
    """

    name: str
    created: int = 0
    retention: float = 100 * 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class IteratorStart:
    """Where an iterator starts, as in Kinesis' ``GetShardIterator``.

    https://docs.aws.amazon.com/kinesis/latest/APIReference/API_GetShardIterator.html
    """

    kind: Literal["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP", "AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"]
    sequence_number: str | None = None
    timestamp: int | None = None
    """Microseconds since the epoch. With ``TRIM_HORIZON``: earlier records are skipped anyway."""


class StreamLog(ABC):
    """A service that keeps streams as ordered, sharded logs.

    The planning process has one log: up to 64 threads named ``sluice-planner`` read splits and list
    them. A task has a log for each range, which one thread named ``sluice-fetch`` reads, or one for all
    its ranges (see `LogSource.open_task`). Threads call a log one at a time, unless it `is_thread_safe`.

    Raise `sluice.errors.ServiceError`, and set the attributes by which Sluice decides: ``missing`` (the
    split or stream), ``invalid_argument`` (the sequence number), ``expired_iterator``, ``throttling``,
    ``retryable``. A throttled or retryable read is repeated for ``readRetryDuration``. A failed listing
    is repeated after ``splitDiscoveryInterval``. The first listing of a query, if it fails, and all
    other errors end the query.

    Attributes:
        is_thread_safe: whether several threads may call the methods at the same time.
        seeks_by_time: whether `get_iterator` accepts ``AT_TIMESTAMP``. Otherwise the planner reads page
            after page to find the end of a batch, and a query that starts at a time reads from the
            oldest record.
        pages_are_sorted: whether the records of a page are known to be in order. Otherwise Sluice checks
            each record, which takes a microsecond.
        closed_splits_end_at_tip: whether a split that is listed as closed ends at its tip. Otherwise a
            page without ``next_iterator`` marks the end.
        split_name: the word for a split in errors and in ``sluice offsets show``, such as ``partition``.
    """

    is_thread_safe: ClassVar[bool] = False
    seeks_by_time: bool = True
    pages_are_sorted: bool = False
    closed_splits_end_at_tip: bool = False
    split_name: str = "split"

    @classmethod
    def format_position(cls, number: str) -> str:
        """Formats a ``sequence_number`` for errors and ``sluice offsets show``."""
        return number

    def describe(self, stream: str) -> StreamInfo:
        """Returns what identifies the stream, and its retention."""
        return StreamInfo(stream)

    @abstractmethod
    def list_splits(self, stream: str) -> Sequence[Split]:
        """Returns all splits that hold or may get records, closed ones included."""

    @abstractmethod
    def get_iterator(self, split: SplitId, start: IteratorStart) -> str | None:
        """Returns an opaque iterator, valid for a few minutes; None if a closed split ends before `start`.

        Raises:
            ServiceError: with ``missing``, if the split does not exist. Until then, Sluice waits for a
                split that a batch needs and no listing has.
        """

    @abstractmethod
    def get_records(self, split: SplitId, iterator: str, limit: int) -> Page:
        """Reads one page of up to `limit` records.

        An expired iterator is not retried, because only the caller knows the position to resume from.
        """

    def number_of(self, split: SplitId, start: IteratorStart) -> str | None:
        """Returns the number (digits) of the first record from `start` on, or the number that the next
        record will get.

        None, the default: numbers of records cannot be counted. A `PositionLog` returns numbers.
        """
        del split, start
        return None

    def is_complete_from(self, split: SplitId, start: IteratorStart) -> bool:
        """Whether no record from `start` on was deleted or has expired; False if not known.

        Called if the record that `start` names is missing: if others may be missing, too, this is a data
        loss. `start` is ``AFTER_SEQUENCE_NUMBER`` or ``AT_SEQUENCE_NUMBER``.
        """
        del split, start
        return False

    def server_time(self) -> int:
        """Returns the time by the service's clock, as far as it is known (microseconds)."""
        return micros_from_seconds(time.time())

    def close(self) -> None:
        """Releases the log's resources. It is not used afterwards."""
        return


def is_gone(log: StreamLog, split: SplitId) -> bool:
    """Whether the service reports that the split does not exist."""
    try:
        log.get_iterator(split, IteratorStart("TRIM_HORIZON"))
    except ServiceError as error:
        return error.missing
    return False
