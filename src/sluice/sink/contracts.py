"""The contracts of the sink: destinations (FLIP-171), rate limiting (FLIP-242), committers (FLIP-143).

Each contract is a protocol: any object with these methods will do. Optional methods stand in
`sluice.sink.bases`, with their defaults. What differs from Flink is in docs/flips.md.

- https://cwiki.apache.org/confluence/display/FLINK/FLIP-171%3A+Async+Sink
- https://cwiki.apache.org/confluence/display/FLINK/FLIP-242%3A+Introduce+configurable+RateLimitingStrategy+for+Async+Sink
- https://cwiki.apache.org/confluence/display/FLINK/FLIP-143%3A+Unified+Sink+API
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Committer",
    "CommittingDestination",
    "DataType",
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
    "StructField",
    "StructType",
    "SubmitResult",
]

EntryT = TypeVar("EntryT")
EntryT_co = TypeVar("EntryT_co", covariant=True)
CommT = TypeVar("CommT")
CommT_co = TypeVar("CommT_co", covariant=True)
CommT_contra = TypeVar("CommT_contra", contravariant=True)
GlobalCommT = TypeVar("GlobalCommT")


class DataType(Protocol):
    """The type of a column, such as PySpark's `DataType`."""

    def simpleString(self) -> str:  # noqa: N802 - PySpark's name
        """The type as SQL spells it: ``binary``, ``map<string,int>``."""


class StructField(Protocol):
    """A column, such as PySpark's `StructField`."""

    @property
    def name(self) -> str: ...
    @property
    def dataType(self) -> Any: ...  # noqa: N802 - PySpark's name; a `DataType`


class StructType(Protocol):
    """A schema, such as PySpark's `StructType`. The sink itself does not import PySpark."""

    @property
    def fields(self) -> Sequence[Any]: ...  # of `StructField`


class ElementConverter(Protocol[EntryT_co]):
    """Turns rows into the entries that a destination takes.

    `open` is called first: once where the query starts, and once in every task.
    `sluice.sink.BaseElementConverter` has the optional attributes: the columns that it takes.
    """

    def open(self, schema: StructType) -> None:
        """Checks the schema of the rows to come.

        Raises:
            OptionError: the destination cannot take such rows. The query fails before any row is written.
        """

    def convert(self, batch: pa.RecordBatch) -> Iterable[EntryT_co]:
        """Returns the entries of a batch, in the order of its rows.

        Make them lazily: the writer takes only as many as it has room for.

        With a dead letter queue, the writer passes slices of a batch, and converts all of a slice before it
        sends any of it. When `convert` raises, the writer halves the slice and tries again, until it has
        found the invalid rows. So a converter keeps no state from one call to the next.

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
    """The outcome of a request that was answered. Entries in neither sequence were accepted.

    Attributes:
        failed: the entries that were refused and are to be sent again: the submitted objects themselves, in
            their order.
        codes: the number of entries refused with each error code, for messages.
        rejected: the entries that the service will never accept. They become dead letters; without
            `deadLetterPath`, or with `failOnError`, the first of them fails the task.
        retry_after: seconds that the service asks to wait before another request; None if it does not say.
    """

    failed: Sequence[EntryT] = ()
    codes: Mapping[str, int] = field(default_factory=dict)
    rejected: Sequence[Rejection[EntryT]] = ()
    retry_after: float | None = None


class Destination(Protocol[EntryT]):
    """A batch API to write to (FLIP-171).

    A destination knows how to send a batch; the writer decides when, how much, and what to send again.
    `sluice.sink.BaseDestination` has the optional attributes: a name for messages, an ordering key, and how
    many records an entry holds.
    """

    def create_converter(self) -> ElementConverter[EntryT]:
        """Returns a new converter; each writer has its own."""

    def size_in_bytes(self, entry: EntryT) -> int:
        """The size of an entry as the service counts it."""

    def submit(self, entries: Sequence[EntryT]) -> SubmitResult[EntryT] | Awaitable[SubmitResult[EntryT]]:
        """Sends one request, without retries, and waits for its answer.

        Runs on a thread of its own; several run at a time. A coroutine function (``async def submit``) runs
        on the task's event loop instead, and is cancelled after `request_timeout` and when the task fails. An
        exception means that no entry is known to have been accepted.
        """

    def is_fatal(self, error: Exception) -> bool:
        """Judges an exception that `submit` raised: True fails the task, False sends the batch again."""

    def close(self) -> Awaitable[None] | None:
        """Releases what the destination holds. Requests of a task that failed may still be running.

        A coroutine function runs on the event loop, when no request does any more.
        """


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
    """The outcome of a request, and why entries were not accepted.

    Attributes:
        failed_messages: the entries that were not accepted and are to be sent again.
        batch_size: the entries of the request.
        throttled_messages: those of `failed_messages` that were refused for load.
        seconds: from sending the request until it was answered, or given up; None if not known.
        started_at: when the request was sent, in seconds of the writer's monotonic clock; None if not known.
        failed_otherwise: those of `failed_messages` that failed for a reason that is not load. Of all others
            the cause is not known: see `untold`.
    """

    failed_messages: int
    batch_size: int
    throttled_messages: int = 0
    seconds: float | None = field(default=None, compare=False)
    started_at: float | None = field(default=None, compare=False)
    failed_otherwise: int = 0

    @property
    def accepted(self) -> int:
        """The entries that are not to be sent again."""
        return self.batch_size - self.failed_messages

    @property
    def untold(self) -> int:
        """The entries that were not accepted and may have been refused for load, or not."""
        return self.failed_messages - self.throttled_messages - self.failed_otherwise


class RateLimitingStrategy(Protocol):
    """Decides when a request must wait, and how large it may be (FLIP-242). Called by one thread at a time.

    A strategy outlives an epoch: the next task of the same query in the same Python worker continues with it.
    `sluice.sink.BaseRateLimitingStrategy` has the optional methods.
    """

    def register_in_flight_request(self, request: RequestInfo) -> None:
        """A request was sent."""

    def register_completed_request(self, result: ResultInfo) -> None:
        """A request has ended. If it timed out or failed as a whole, all its entries count as failed."""

    def should_block(self, request: RequestInfo) -> bool:
        """Whether this request must wait. Has no side effects: it may be called any number of times."""

    @property
    def max_batch_size(self) -> int:
        """The most entries that the next request may have."""


@dataclass(frozen=True)
class Epoch:
    """What is committed as one: a micro-batch of a streaming query, or a whole batch write.

    Attributes:
        query: Spark's id of the streaming query, the same after every restart; with `txnAppId`, that id; None
            in any other batch write.
        run: the id of this run of the query, or of the batch write; never used twice.
        batch: the id of the micro-batch, or `txnVersion`. After a restart, a new run may write the same batch
            again. None in a batch write without `txnVersion`, which is never repeated.
        content: what the batch holds, as a digest: the same whenever this batch is repeated, and another one
            if Spark plans a batch anew under an id that was used before, as with an older checkpoint. Keep it
            with what is committed, and compare. None if it is not known.
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
        query: Spark's id of the streaming query; None in a batch write.
        run: the id of this run of the query (a restart begins another run), or of the batch write.
        batch: the id of the micro-batch; None in a batch write.
        partition, attempt: Spark's numbers of the task and of its attempt.
    """

    destination: str
    query: str | None = None
    run: str = ""
    batch: int | None = None
    partition: int = 0
    attempt: int = 0


class SinkWriter(Protocol[CommT_co]):
    """Writes the rows of one task, durable and not yet visible (FLIP-143).

    One thread calls `write` for every batch of rows, then `prepare_commit`, or `abort` if anything was
    raised, and at last `close`. When a worker is killed, nothing more is called: `clean_up` of the
    destination removes what such a task has left behind.

    `sluice.sink.BaseSinkWriter` has the optional attributes.
    """

    def write(self, batch: pa.RecordBatch) -> None:
        """Writes the rows of a `pyarrow.RecordBatch`, which has the columns of `create_writer`'s schema.

        Called once for each batch that Spark passes to the task, if it succeeds.

        Raises:
            SluiceError: if it is retryable, the call is repeated with the same batch for `maxRetryDuration`,
                so none of its rows may be written by then. `prepare_commit` and `create_writer` are repeated
                likewise.
            Exception: the task fails with it, after `abort`.
        """

    def prepare_commit(self) -> Sequence[CommT_co]:
        """Makes all rows durable; returns what a committer needs to make them visible.

        Committables are plain data: Spark pickles them and brings them to the driver. If one of them
        cannot be pickled, `abort` is called, and the task fails. Return an empty sequence if the task had no
        rows.
        """

    def abort(self) -> None:
        """Removes what was written."""

    def close(self) -> None:
        """Releases threads and files. Called once, last.

        If it raises after `prepare_commit`, the task fails, and `abort` is called after it.
        """


class CommittingDestination(Protocol[CommT_co]):
    """A destination that shows nothing of an epoch before all of it is written (two-phase, FLIP-143).

    In addition it has at least one of these, each returning a committer or None:

    - ``create_committer(epoch: Epoch) -> Committer``
    - ``create_global_committer(epoch: Epoch) -> GlobalCommitter``

    With both, the `Committer` commits first, and the `GlobalCommitter` then commits the epoch as a whole; its
    `filter_recovered_committables` is called before either commits. Spark commits and aborts in a process of
    its own, with a destination and committers made anew each time.

    Its class has ``OPTIONS`` and ``from_options`` like that of any destination, and no ``LIMITS``: batching,
    retries and rate limiting are its own business. `sluice.sink.BaseCommittingDestination` has the optional
    methods: a name for messages, and cleaning up.
    """

    def create_writer(self, schema: StructType, origin: Origin) -> SinkWriter[CommT_co]:
        """Returns a writer for one task; calls no service yet.

        Also called once where the query starts, to check the columns; that writer is closed at once.

        Raises:
            OptionError: the destination cannot take such columns.
        """


class Committer(Protocol[CommT]):
    """Makes visible what the tasks of an epoch have written (FLIP-143).

    Both methods are idempotent. They may be called again for the same epoch; after a restart they are, with
    the committables of the new run. A committer is not told whether the epoch was committed before a crash: a
    destination that must know has a `GlobalCommitter` as well.

    `sluice.sink.BaseCommitter` has the optional method: `close`, which is called last in any case.
    """

    def commit(self, committables: Sequence[CommT]) -> Sequence[CommT]:
        """Commits; returns those to try again after a pause.

        Raises:
            SluiceError: if it is retryable, all that were passed to this call are tried again after a pause;
                else, or when no attempt is left, the query fails with this message. Any other exception
                fails the query.
        """

    def abort(self, committables: Sequence[CommT]) -> None:
        """Removes what the tasks have written, except for what is committed already."""


class GlobalCommitter(Protocol[CommT_contra, GlobalCommT]):
    """Commits an epoch as a whole (FLIP-143). Idempotent like `Committer`.

    After a retryable `SluiceError` of any method, the method is called again after a pause, with the same
    arguments. Any other exception fails the query.

    `sluice.sink.BaseGlobalCommitter` has the optional method: `close`, which is called last in any case.
    """

    def filter_recovered_committables(self, committables: Sequence[GlobalCommT]) -> Sequence[GlobalCommT]:
        """Returns those that are not committed yet.

        Raises:
            SluiceError: see the class.
        """

    def combine(self, committables: Sequence[CommT_contra]) -> GlobalCommT:
        """Combines the committables of all tasks into one.

        Raises:
            SluiceError: see the class.
        """

    def commit(self, committables: Sequence[GlobalCommT]) -> Sequence[GlobalCommT]:
        """Commits; returns those to try again after a pause.

        Raises:
            SluiceError: see the class.
        """

    def end_of_input(self) -> None:
        """Called after a batch write was committed. Never called in a streaming query."""
