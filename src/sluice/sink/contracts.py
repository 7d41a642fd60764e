"""The contracts of the sink: destinations (FLIP-171), rate limiting (FLIP-242), committers (FLIP-143).

Inherit from these classes: Python reports missing methods, and optional ones have defaults. An object that
has the required methods without inheriting works, too. docs/architecture.md lists the differences from Flink.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from sluice.sink.rate.causes import Cause, cause_of

if TYPE_CHECKING:
    import pyarrow as pa

    from sluice.sink.config import AsyncSinkConfig

__all__ = [
    "DEFAULT_DELAY",
    "Committer",
    "CommittingDestination",
    "Destination",
    "ElementConverter",
    "Epoch",
    "GlobalCommitter",
    "Origin",
    "RateLimitingStrategy",
    "Rejection",
    "RequestInfo",
    "ResultInfo",
    "SinkWriter",
    "StructType",
    "SubmitResult",
]

EntryT = TypeVar("EntryT")
EntryT_co = TypeVar("EntryT_co", covariant=True)
CommT = TypeVar("CommT")
GlobalCommT = TypeVar("GlobalCommT")

# Seconds until the writer asks a strategy again that cannot say how long a request must wait.
DEFAULT_DELAY: Final = 0.05


class StructType(Protocol):
    """A schema, such as PySpark's `StructType`. The sink itself does not import PySpark."""

    @property
    def fields(self) -> Sequence[Any]:
        """The columns: each has a ``name`` and a ``dataType``, with a method ``simpleString``."""


class ElementConverter(ABC, Generic[EntryT_co]):
    """Turns rows into the entries that a destination accepts.

    Attributes:
        known_columns: the names of the columns that it writes, as the documentation spells them; None if it
            takes every column, or does not say. Unless `unknownColumns` is ``ignore``, rows with any other
            column are refused where the query starts.
        ignored_columns: columns that it leaves out on purpose. They are not refused.
    """

    known_columns: Sequence[str] | None = None
    ignored_columns: Sequence[str] = ()

    @abstractmethod
    def open(self, schema: StructType, origin: Origin) -> None:
        """Checks the schema of the rows. Called once when the query starts, and once in every task.

        Args:
            schema: of the rows.
            origin: the task; at the start of the query, when there is none, its batch is None and its
                partition 0. The parameter may be left out.

        Raises:
            OptionError: the destination cannot take such rows. The query fails before any row is written.
        """

    @abstractmethod
    def convert(self, batch: pa.RecordBatch) -> Iterable[EntryT_co]:
        """Returns the entries of a batch, in the order of its rows.

        Make them lazily: the writer only takes as many as it has room for.

        With a dead letter queue, the writer passes slices of a batch. If `convert` raises, the writer halves
        the slice and tries again, until it has found the invalid rows. So a converter must not keep state
        from one call to the next.

        Raises:
            InvalidRecordError: a row can never be delivered. The message holds none of the row's data.
        """


@dataclass(frozen=True)
class Rejection(Generic[EntryT]):
    """An entry that the service will never accept. The reason holds none of the entry's data."""

    entry: EntryT
    reason: str


@dataclass(frozen=True)
class SubmitResult(Generic[EntryT]):
    """The outcome of an answered request. Entries in neither sequence were accepted.

    Attributes:
        failed: the refused entries that the writer sends again: the submitted objects themselves, in their
            order.
        codes: the number of entries refused with each error code, for messages.
        rejected: the entries that the service will never accept. They become dead letters; without
            `deadLetterPath`, or with `failOnError`, the first of them fails the task.
        retry_after: seconds that the service asks to wait before another request; None if it does not say.
    """

    failed: Sequence[EntryT] = ()
    codes: Mapping[str, int] = field(default_factory=dict)
    rejected: Sequence[Rejection[EntryT]] = ()
    retry_after: float | None = None


class Destination(ABC, Generic[EntryT]):
    """A batch API to write to (FLIP-171).

    A destination sends a batch; the writer decides when, how much, and what to send again.

    Attributes:
        name: in errors and figures (``kinesis stream 'x'``); if empty, the name of the class.
        ordering_key: a function of an entry, or None. Of entries with equal keys, one is sent only after the
            one before it has been accepted. An entry whose key is None is sent at any time. Called once per
            entry, on the writer's thread.
        records_in: a function that returns the number of the user's records in an entry, for figures and
            messages. None: each entry holds one. Limits, batches and rate limiting count entries.
    """

    name: str = ""
    ordering_key: Callable[[EntryT], Hashable | None] | None = None
    records_in: Callable[[EntryT], int] | None = None

    @abstractmethod
    def create_converter(self) -> ElementConverter[EntryT]:
        """Returns a new converter; each writer has its own."""

    @abstractmethod
    def size_in_bytes(self, entry: EntryT) -> int:
        """The size of an entry as the service counts it."""

    @abstractmethod
    def submit(self, entries: Sequence[EntryT]) -> SubmitResult[EntryT] | Awaitable[SubmitResult[EntryT]]:
        """Sends one request, without retries, and waits for its answer.

        Several run at a time, each on its own thread. A coroutine function runs on the task's event
        loop, and is cancelled after `request_timeout` and when the task fails. An exception means that no
        entry is known to have been accepted.
        """

    @abstractmethod
    def is_fatal(self, error: Exception) -> bool:
        """Judges an exception that `submit` raised: True fails the task, False sends the batch again."""

    def close(self) -> Awaitable[None] | None:
        """Releases the destination's resources. Requests of a failed task may still be running.

        A coroutine function runs on the event loop after the last request has ended.
        """
        return None

    def create_strategy(self, config: AsyncSinkConfig) -> RateLimitingStrategy | None:  # noqa: ARG002
        """The rate limiting strategy of a writer if option `rateLimiting` is not given (FLIP-242).

        None: the default, `aimd`.
        """
        return None

    def is_throttling(self, code: str) -> bool:
        """Whether a code means load. Rate limiting only slows down for load.

        Args:
            code: a key of `SubmitResult.codes`, the ``code`` of a `ServiceError`, or the class name of any
                other exception.

        Returns:
            True: the service takes less than it is sent. False: it failed, and would have done so at any
            rate. By default, as `sluice.sink.rate.causes` says.
        """
        return cause_of(code) is Cause.LOAD

    def unpacked(self, entry: EntryT) -> Iterable[object]:
        """Returns the user's records in a rejected or oversized entry. Each becomes a dead letter."""
        return (entry,)

    def figures(self) -> Mapping[str, float]:
        """The destination's counters, by name, for the progress of the epoch.

        Called on the task's thread when all records are accepted, or after `close` if the task has failed.
        Figures of several tasks are summed, or the largest one is taken if the name ends in ``_max``. At most
        32 names; NaN and infinities are left out. An exception is logged and fails nothing.
        """
        return {}


@dataclass(frozen=True)
class RequestInfo:
    """A request that is about to be sent.

    Attributes:
        batch_size: its entries.
        size_in_bytes: bytes, as `Destination.size_in_bytes` counts them; 0 if not known.
        started_at: when it is sent, in seconds of the writer's monotonic clock, as `ResultInfo.started_at` of
            its answer says; None if it is not sent yet, or that is not known.
    """

    batch_size: int
    size_in_bytes: int = field(default=0, compare=False)
    started_at: float | None = field(default=None, compare=False)


@dataclass(frozen=True)
class ResultInfo:
    """The outcome of a request, with the reasons why entries were not accepted.

    Attributes:
        failed_messages: the entries that were not accepted and are to be sent again.
        batch_size: the entries of the request.
        throttled_messages: the part of `failed_messages` that was refused for load. The others failed.
        seconds: from sending the request until it was answered, or given up; None if not known.
        started_at: when the request was sent, in seconds of the writer's monotonic clock; None if not known.
    """

    failed_messages: int
    batch_size: int
    throttled_messages: int = 0
    seconds: float | None = field(default=None, compare=False)
    started_at: float | None = field(default=None, compare=False)

    @property
    def accepted(self) -> int:
        """The entries that the writer does not send again."""
        return self.batch_size - self.failed_messages


class RateLimitingStrategy(ABC):
    """Decides when a request must wait, and how large it may be (FLIP-242). Called by one thread at a time.

    A strategy outlives an epoch: the next task of the same query in the same Python worker continues with it.

    Attributes:
        forget_in_flight: a method without arguments, called when requests were given up, so that
            `register_completed_request` is not called for them. None: the strategy cannot forget them, and is
            not used again after a failed epoch.
    """

    forget_in_flight: Callable[[], None] | None = None

    def use_clock(self, clock: Callable[[], float]) -> None:  # noqa: B027 - does nothing by default
        """Takes the clock of a writer, in monotonic seconds: the clock of `RequestInfo.started_at`.

        Called once by each writer, before its first request. A strategy that wraps another one passes the
        clock on.
        """

    @abstractmethod
    def register_in_flight_request(self, request: RequestInfo) -> None:
        """A request was sent."""

    @abstractmethod
    def register_completed_request(self, result: ResultInfo) -> None:
        """A request has ended. If it timed out or failed as a whole, all its entries count as failed."""

    @abstractmethod
    def should_block(self, request: RequestInfo) -> bool:
        """Whether this request must wait. Has no side effects: it may be called any number of times."""

    @property
    @abstractmethod
    def max_batch_size(self) -> int:
        """The most entries that the next request may have."""

    @property
    def max_batch_size_in_bytes(self) -> int:
        """The most bytes of a request of several entries. A larger entry is sent alone."""
        return 2**63 - 1

    def delay(self, request: RequestInfo) -> float:  # noqa: ARG002 - for those who override it
        """Seconds until the writer asks again, called after `should_block` has returned True.

        ``math.inf``: not before an answer has come. The writer also asks after every answer.

        Raises:
            Exception: the task fails with it.
        """
        return DEFAULT_DELAY

    @property
    def limit(self) -> int:
        """Entries that may be in flight, for the figures of the commit."""
        return self.max_batch_size

    @property
    def rate(self) -> float | None:
        """Entries a second, for the figures of the commit; None if the strategy has no rate."""
        return None


@dataclass(frozen=True)
class Epoch:
    """What is committed as one: a micro-batch of a streaming query, or a whole batch write.

    Attributes:
        query: Spark's id of the streaming query, the same after every restart; or `txnAppId`; else None.
        run: the id of this run of the query, or of the batch write; never used twice.
        batch: the id of the micro-batch, which a new run may write again after a restart; or `txnVersion`;
            else None: a batch write is never repeated.
        content: a digest of the batch. It is the same whenever this batch is repeated, and another one if
            Spark plans a batch anew under an old id, as with an older checkpoint. Store it with the commit,
            and compare. None if it is not known.
        is_transaction: whether this is a batch write with `txnAppId` and `txnVersion`.
    """

    query: str | None
    run: str
    batch: int | None
    content: str | None = None
    is_transaction: bool = False


@dataclass(frozen=True)
class Origin:
    """One attempt of a task.

    Attributes:
        destination: its name.
        query: Spark's id of the streaming query, the same after every restart; None in a batch write.
        run: the id of this run of the query (a restart begins another run), or of the batch write.
        batch: the id of the micro-batch; None in a batch write. In `foreachBatch`, a destination that is not
            two-phase gets the query and the micro-batch around the write.
        partition: Spark's number of the task in the batch.
        attempt: Spark's id of the attempt; no two attempts have the same.
    """

    destination: str
    query: str | None = None
    run: str = ""
    batch: int | None = None
    partition: int = 0
    attempt: int = 0


class SinkWriter(ABC, Generic[CommT]):
    """Writes the rows of one task, durable and not yet visible (FLIP-143).

    One thread calls `write` for every batch of rows, then `prepare_commit`, or `abort` after an exception,
    and finally `close`. If a worker is killed, `CommittingDestination.clean_up` removes the remains.

    Attributes:
        bytes: written so far, for the figures of the commit.
        known_columns, ignored_columns: see `ElementConverter`.
    """

    bytes: int = 0
    known_columns: Sequence[str] | None = None
    ignored_columns: Sequence[str] = ()

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Writes rows. The batch has the columns of the schema that `create_writer` got.

        Raises:
            SluiceError: if it is retryable, the call is repeated with the same batch for `maxRetryDuration`,
                so none of its rows may be written. So are `prepare_commit` and `create_writer`.
            Exception: the task fails, after `abort`.
        """

    @abstractmethod
    def prepare_commit(self) -> Sequence[CommT]:
        """Makes all rows durable; if there are rows, returns the committables with which a committer makes
        them visible.

        Spark pickles these committables for the driver. If that fails, the task fails after `abort`.
        """

    @abstractmethod
    def abort(self) -> None:
        """Removes what was written."""

    def close(self) -> None:
        """Releases threads and files. Called once, last. If it raises, the task fails after `abort`."""

    def figures(self) -> Mapping[str, float]:
        """As `Destination.figures`. Called once, after `prepare_commit`."""
        return {}


class CommittingDestination(ABC, Generic[CommT]):
    """A destination that makes an epoch visible only when the whole epoch is written (two-phase, FLIP-143).

    It overrides `create_committer`, `create_global_committer` or both. With both, the `Committer` commits
    first, and the `GlobalCommitter` then commits the epoch as a whole; its `filter_recovered_committables` is
    called before either commits. Destination and committers are created anew for each commit and abort.

    Its class has ``OPTIONS`` and ``from_options`` like any destination, and no ``LIMITS``.
    """

    name: str = ""
    """See `Destination`."""

    def check(self) -> None:
        """Asks the service whether epochs can be committed.

        Called on the driver when a query starts, and before each commit, so it should remember the answer.

        Raises:
            OptionError: no epoch can be committed; the query does not start.
            ServiceError: the service did not answer that.
        """

    @abstractmethod
    def create_writer(self, schema: StructType, origin: Origin) -> SinkWriter[CommT]:
        """Returns a writer for one task; calls no service yet.

        Also called once at the start of the query, to check the columns; that writer is closed at once.

        Raises:
            OptionError: the destination cannot take such columns.
        """

    def create_committer(self, epoch: Epoch) -> Committer[Any] | None:  # noqa: ARG002 - as above
        """A committer for the committables of the tasks; None: they need no commit."""
        return None

    def create_global_committer(self, epoch: Epoch) -> GlobalCommitter[Any, Any] | None:  # noqa: ARG002
        """A committer for the epoch as a whole; None: it needs no commit."""
        return None

    def clean_up(self, epoch: Epoch, *, committed: bool) -> None:
        """Removes the remains of killed tasks and drivers; called after each commit and each abort.

        An exception is logged and fails nothing.
        """


class Committer(ABC, Generic[CommT]):
    """Makes the rows that an epoch's tasks have written visible (FLIP-143).

    `commit` and `abort` are idempotent: they may be called again for the same epoch, after a restart with the
    committables of the new run. A committer does not learn whether the epoch was committed before a crash: a
    destination that must know has a `GlobalCommitter` as well.
    """

    @abstractmethod
    def commit(self, committables: Sequence[CommT]) -> Sequence[CommT]:
        """Commits; returns the committables to try again after a pause. Raises:
        SluiceError: if it is retryable, the call is repeated for `maxRetryDuration`.
        Exception: the query fails with this message.
        """

    @abstractmethod
    def abort(self, committables: Sequence[CommT]) -> None:
        """Removes the tasks' rows, except for committed ones."""

    def close(self) -> None:
        """Releases connections. Called once, last, even after a failure. An exception is logged."""

    def figures(self) -> Mapping[str, float]:
        """As `Destination.figures`. Called once, before `close`; lost if the epoch was not committed."""
        return {}


class GlobalCommitter(ABC, Generic[CommT, GlobalCommT]):
    """Commits an epoch as a whole (FLIP-143). Idempotent, and repeated after errors, like `Committer`."""

    @abstractmethod
    def filter_recovered_committables(self, committables: Sequence[GlobalCommT]) -> Sequence[GlobalCommT]:
        """Returns the committables that are not committed yet."""

    @abstractmethod
    def combine(self, committables: Sequence[CommT]) -> GlobalCommT:
        """Combines the committables of all tasks into one."""

    @abstractmethod
    def commit(self, committables: Sequence[GlobalCommT]) -> Sequence[GlobalCommT]:
        """Commits; returns those to try again after a pause."""

    def end_of_input(self) -> None:
        """Called after a batch write was committed. Never called in a streaming query."""

    def close(self) -> None:
        """As `Committer.close`."""

    def figures(self) -> Mapping[str, float]:
        """As `Committer.figures`."""
        return {}
