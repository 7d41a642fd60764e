"""What a sink is made of: converters, destinations, rate limiting, committers (FLIP-171, -242, -143).

Only contracts: no Spark, no SDK, no thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from sluice.sink.dead_letters import Origin

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
    """What is asked of the type of a column. PySpark's `DataType` fulfils it."""

    def simpleString(self) -> str:  # noqa: N802 - PySpark's name
        """The type as SQL spells it: ``binary``, ``map<string,int>``."""


class StructField(Protocol):
    """What is asked of a column. PySpark's `StructField` fulfils it."""

    @property
    def name(self) -> str: ...
    @property
    def dataType(self) -> Any: ...  # noqa: N802 - PySpark's name; a `DataType`


class StructType(Protocol):
    """What is asked of a schema. PySpark's `StructType` fulfils it; this layer does not know PySpark."""

    @property
    def fields(self) -> Sequence[Any]: ...  # of `StructField`


class ElementConverter(Protocol[EntryT_co]):
    """Turns rows into what a destination takes.

    `open` is called first, once where the query starts and once in every task. It refuses a schema
    that cannot work with `sluice.errors.OptionError`, so that the query fails before any row.
    """

    def open(self, schema: StructType) -> None:
        """Learns, and checks, the schema of the rows to come."""

    def convert(self, batch: pa.RecordBatch) -> Iterable[EntryT_co]:
        """The entries of a batch, in the order of its rows.

        Best lazy: the writer takes from it only what it has room for. With a dead letter queue the
        writer calls it with slices of a batch, and takes from a slice all or nothing: where it raises,
        the slice is halved and tried again, down to the rows that are to blame. So a converter neither
        sorts valid rows from invalid ones itself, nor keeps anything from one call to the next.

        Raises:
            InvalidRecordError: a row can never be delivered. The message holds none of its data.
        """


@dataclass(frozen=True)
class Rejection(Generic[EntryT]):
    """An entry that the service will never take, and why; the reason holds none of its data."""

    entry: EntryT
    reason: str


@dataclass(frozen=True)
class SubmitResult(Generic[EntryT]):
    """What became of a request that was answered. What is in neither sequence was accepted.

    Attributes:
        failed: the entries that were refused, in the order they had: the objects that were
            submitted, not copies. They are sent again.
        codes: for messages and figures, how many entries were refused with which code.
        rejected: the entries that are refused for good, whatever is tried: they become dead letters, or
            fail the task where there is no `deadLetterPath` (or `failOnError` is true).
    """

    failed: Sequence[EntryT] = ()
    codes: Mapping[str, int] = field(default_factory=dict)
    rejected: Sequence[Rejection[EntryT]] = ()


class Destination(Protocol[EntryT]):
    """A batch API to write to. It says how; when, how much and what again is the writer's business.

    A destination may have an attribute ``name``, by which errors name it (``kinesis stream 'x'``).

    It may have an attribute ``ordering_key``, a function of an entry (or None): entries with the same key
    are accepted in their order, whatever is refused on the way, because the next one is sent only when
    the one before has been accepted. A key of None lets an entry go at any time. Called on the writer's
    thread, once when an entry is queued and once when it is accepted.

    Where an entry may hold several of the user's records, it may have ``records_in``, a function of an
    entry: how many they are, by which figures and messages count; and ``unpacked``, a function of an entry:
    those records, which become one dead letter each. Limits, batches and rate limiting count entries.
    """

    def create_converter(self) -> ElementConverter[EntryT]:
        """A converter of its own for every writer."""

    def size_in_bytes(self, entry: EntryT) -> int:
        """The size of an entry as the service counts it."""

    def submit(self, entries: Sequence[EntryT]) -> SubmitResult[EntryT]:
        """Sends one request and waits for its answer. Runs on a thread of its own, several at a time.

        Does not retry. An exception means that nothing is known to have been accepted.
        """

    def is_fatal(self, error: Exception) -> bool:
        """Of an exception that `submit` raised: True to stop, False to send the whole batch again."""

    def close(self) -> None:
        """Lets go of what this instance holds. Requests that were given up may still be running."""


@dataclass(frozen=True)
class RequestInfo:
    """A request about to be sent.

    Attributes:
        batch_size: how many entries it really has, not how many it might have had.
    """

    batch_size: int


@dataclass(frozen=True)
class ResultInfo:
    """What became of a request: ``failed_messages`` of its ``batch_size`` entries were not accepted."""

    failed_messages: int
    batch_size: int


class RateLimitingStrategy(Protocol):
    """Says what, when and how much to slow down (FLIP-242). Called by one thread at a time.

    It outlives an epoch: what it learnt holds in the next one of the same Python worker. Beside what
    is here, a strategy may have:

    - ``forget_in_flight()``: called when requests were given up and their outcome will never be known.
      A strategy without it starts afresh after a failed epoch.
    - ``delay(request) -> float``: called after `should_block` said yes; in how many seconds it is worth
      asking again. ``math.inf``: only an answer can change it. A strategy that goes by time has it, so
      that the writer sleeps exactly as long; one without it is asked again every 50 ms, and after
      every answer.
    - ``limit`` and ``rate``: the entries that may be in flight, and entries a second (or None), as
      the commit's log line shows them.
    """

    def register_in_flight_request(self, request: RequestInfo) -> None:
        """A request was sent."""

    def register_completed_request(self, result: ResultInfo) -> None:
        """A request came back, or timed out (then all of it counts as failed)."""

    def should_block(self, request: RequestInfo) -> bool:
        """Whether this request must wait. Has no side effects."""

    @property
    def max_batch_size(self) -> int:
        """The most entries that the next request may have."""


@dataclass(frozen=True)
class Epoch:
    """What is committed as one: a micro-batch of a streaming query, or a whole batch write.

    Attributes:
        query: Spark's id of the streaming query, the same after every restart; None in a batch write.
        run: the id of this run of the query, or of the batch write: never the same twice.
        batch: the micro-batch; after a restart the same one may come again, from another run.
            None in a batch write, which is never tried again.
    """

    query: str | None
    run: str
    batch: int | None


class SinkWriter(Protocol[CommT_co]):
    """Writes the rows of one task, and leaves them durable and invisible (FLIP-143).

    Called by one thread: `write` for every batch of rows, then `prepare_commit`, or `abort` if anything
    was raised; `close` in any case. A worker that is killed calls nothing more: what it leaves behind is
    the business of `CommittingDestination`.

    A writer may have an attribute ``bytes``: how many it has written, for the figures of the commit.
    """

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes rows."""

    def prepare_commit(self) -> Sequence[CommT_co]:
        """Returns when all rows are durable; what is returned is all that is needed to make them visible.

        Committables are plain data: Spark pickles them and brings them to the driver. A task that had no
        rows best returns none.
        """

    def abort(self) -> None:
        """Removes what was written."""

    def close(self) -> None:
        """Lets go of threads and files. Called once, last."""


class CommittingDestination(Protocol[CommT_co]):
    """A destination that shows nothing of an epoch before all of it is written (two-phase).

    Beside what is here it has one of these, or both:

    - ``create_committer(epoch: Epoch) -> Committer``
    - ``create_global_committer(epoch: Epoch) -> GlobalCommitter``

    With both, the `Committer` comes first, and the `GlobalCommitter` seals the epoch; its
    `filter_recovered_committables` is asked before either. Each call of Spark gets committers of its own, in
    a process that need not be the one of the call before.

    It may have ``clean_up(epoch: Epoch, *, committed: bool)``: called after each commit and each abort, to
    remove what earlier attempts (killed tasks, killed drivers) have left behind. What it raises is logged,
    and fails nothing.

    Its class has ``OPTIONS`` and ``from_options`` like that of any destination, and no ``LIMITS``: batching,
    retrier and rate limiting are its own affair. It may have an attribute ``name``, like any destination.
    """

    def create_writer(self, schema: StructType, origin: Origin) -> SinkWriter[CommT_co]:
        """A writer for one task; touches no network yet.

        Called once where the query starts too (and the writer closed at once), so that columns that
        cannot work are refused with `sluice.errors.OptionError` before any row.
        """


class Committer(Protocol[CommT]):
    """Makes visible what the tasks of an epoch left behind (FLIP-143).

    Both methods may be called again for the same epoch, and after a restart they are, with committables of
    the new run: both are idempotent. A committer alone cannot tell an epoch that was committed before a
    crash: one that has to is a `GlobalCommitter`, too.
    """

    def commit(self, committables: Sequence[CommT]) -> Sequence[CommT]:
        """Commits; returns those to try again, after a pause.

        A `sluice.errors.SluiceError` that is retryable has all of them tried again, and its message is the
        reason that is given when that does not help. Anything else that is raised fails the query.
        """

    def abort(self, committables: Sequence[CommT]) -> None:
        """Undoes what was prepared. Leaves alone what is committed, if any of it is."""


class GlobalCommitter(Protocol[CommT_contra, GlobalCommT]):
    """Commits an epoch as one (FLIP-143). Idempotent, like `Committer`, and tried again like it."""

    def filter_recovered_committables(self, committables: Sequence[GlobalCommT]) -> Sequence[GlobalCommT]:
        """After a restart: those that are not committed yet."""

    def combine(self, committables: Sequence[CommT_contra]) -> GlobalCommT:
        """One committable out of those of all tasks."""

    def commit(self, committables: Sequence[GlobalCommT]) -> Sequence[GlobalCommT]:
        """Commits; returns those to try again."""

    def end_of_input(self) -> None:
        """There will be no more epochs: a batch write is committed. A streaming query never says so."""
