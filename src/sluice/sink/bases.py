"""Base classes with the optional methods of the sink's contracts, and their defaults.

Inherit from one to implement only what a destination, writer or strategy needs: what is required is abstract,
and Python names what was forgotten. Objects that do not inherit work as well: where the sink takes one,
`with_defaults` adds the optional methods that it lacks.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from sluice.errors import SluiceError
from sluice.sink.contracts import (
    Committer,
    ElementConverter,
    Epoch,
    GlobalCommitter,
    Origin,
    RequestInfo,
    ResultInfo,
    SinkWriter,
    StructType,
    SubmitResult,
)
from sluice.sink.signatures import not_run_by_a_call
from sluice.sink.well_known_codes import is_throttling_code

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "DEFAULT_DELAY",
    "BaseCommitter",
    "BaseCommittingDestination",
    "BaseDestination",
    "BaseElementConverter",
    "BaseGlobalCommitter",
    "BaseRateLimitingStrategy",
    "BaseSinkWriter",
    "destination_name",
    "run",
    "with_defaults",
]

EntryT = TypeVar("EntryT")
EntryT_co = TypeVar("EntryT_co", covariant=True)
CommT = TypeVar("CommT")
CommT_co = TypeVar("CommT_co", covariant=True)
CommT_contra = TypeVar("CommT_contra", contravariant=True)
GlobalCommT = TypeVar("GlobalCommT")

# How long a request waits before the writer asks a strategy again that cannot say how long (seconds).
DEFAULT_DELAY: Final = 0.05


class BaseDestination(ABC, Generic[EntryT]):
    """A `Destination` with the optional attributes.

    Attributes:
        name: how errors and figures call the destination (``kinesis stream 'x'``); when empty, by the name
            of its class.
        ordering_key: a function of an entry, or None. Entries with equal keys are accepted in their order,
            whatever is refused on the way: the next one is sent when the one before it has been accepted. An
            entry whose key is None is sent at any time. Called on the writer's thread, once, when the entry
            is queued.
        records_in: a function of an entry: how many of the user's records it holds, for figures and
            messages. None: each entry holds one. Limits, batches and rate limiting count entries.
    """

    name: str = ""
    ordering_key: Callable[[EntryT], Hashable | None] | None = None
    records_in: Callable[[EntryT], int] | None = None

    @abstractmethod
    def create_converter(self) -> ElementConverter[EntryT]:
        """See `Destination.create_converter`."""

    @abstractmethod
    def size_in_bytes(self, entry: EntryT) -> int:
        """See `Destination.size_in_bytes`."""

    @abstractmethod
    def submit(self, entries: Sequence[EntryT]) -> SubmitResult[EntryT] | Awaitable[SubmitResult[EntryT]]:
        """See `Destination.submit`."""

    @abstractmethod
    def is_fatal(self, error: Exception) -> bool:
        """See `Destination.is_fatal`."""

    def close(self) -> Awaitable[None] | None:
        """See `Destination.close`."""

    def is_throttling(self, code: str) -> bool | None:
        """Whether entries were refused for load. Rate limiting slows down for load, and for nothing else.

        Args:
            code: the service's: a key of `SubmitResult.codes`, the ``code`` of a `ServiceError`, or the name
                of the class of any other exception.

        Returns:
            True: the service takes less than it is sent. False: it failed, and would have done so at any
            rate. None: the code does not say; the rate limiting strategy finds out. Here, by codes that many
            services use alike.
        """
        return is_throttling_code(code)

    def unpacked(self, entry: EntryT) -> Iterable[object]:
        """The user's records in an entry that was rejected or is too large.

        Each becomes a dead letter of its own.
        """
        return (entry,)

    def figures(self) -> Mapping[str, float]:
        """Figures of the destination's own, for those of the epoch: what it has counted so far.

        Called on the task's thread when all of the task's records are accepted, or after `close` when the
        task has failed; requests that have timed out may still be running. Over the tasks of an epoch figures
        are summed, or the largest one is taken if the name ends in ``_max``. At most 32 names; NaN and
        infinities are left out. An exception is logged and fails nothing.
        """
        return {}


class BaseElementConverter(ABC, Generic[EntryT_co]):
    """An `ElementConverter` with the optional attributes.

    Attributes:
        known_columns: the names of the columns that it takes, as the documentation spells them; None if it
            takes every column, or does not say. Unless `unknownColumns` is ``ignore``, rows with any other
            column are refused where the query starts.
        ignored_columns: columns that it leaves out and that are no mistake. They are not refused.
    """

    known_columns: Sequence[str] | None = None
    ignored_columns: Sequence[str] = ()

    @abstractmethod
    def open(self, schema: StructType) -> None:
        """See `ElementConverter.open`."""

    @abstractmethod
    def convert(self, batch: pa.RecordBatch) -> Iterable[EntryT_co]:
        """See `ElementConverter.convert`."""


class BaseRateLimitingStrategy(ABC):
    """A `RateLimitingStrategy` with the optional methods.

    Attributes:
        forget_in_flight: a method without arguments, called when requests were given up and the strategy
            will not be told their outcome. None: the strategy cannot forget them, and is not used again
            after a failed epoch.
    """

    forget_in_flight: Callable[[], None] | None = None

    def use_clock(self, clock: Callable[[], float]) -> None:  # noqa: B027 - does nothing by default
        """Takes the clock of a writer, in monotonic seconds: that of `RequestInfo.started_at`.

        Called by each writer once, before its first request. A strategy that outlives its writer is called
        again by the next one, and keeps what it has learnt. A strategy that wraps another one passes the
        clock on.
        """

    @abstractmethod
    def register_in_flight_request(self, request: RequestInfo) -> None:
        """See `RateLimitingStrategy.register_in_flight_request`."""

    @abstractmethod
    def register_completed_request(self, result: ResultInfo) -> None:
        """See `RateLimitingStrategy.register_completed_request`."""

    @abstractmethod
    def should_block(self, request: RequestInfo) -> bool:
        """See `RateLimitingStrategy.should_block`."""

    @property
    @abstractmethod
    def max_batch_size(self) -> int:
        """See `RateLimitingStrategy.max_batch_size`."""

    @property
    def max_batch_size_in_bytes(self) -> int:
        """The most bytes of a request of several entries. A larger entry is sent alone."""
        return 2**63 - 1

    def delay(self, request: RequestInfo) -> float:  # noqa: ARG002 - for those who override it
        """Seconds until the writer asks again, called after `should_block` has returned True.

        ``math.inf``: not before an answer has come. The writer also asks after every answer.
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


class BaseSinkWriter(ABC, Generic[CommT_co]):
    """A `SinkWriter` with the optional attributes.

    Attributes:
        bytes: written so far, for the figures of the commit.
        known_columns, ignored_columns: as those of `BaseElementConverter`.
    """

    bytes: int = 0
    known_columns: Sequence[str] | None = None
    ignored_columns: Sequence[str] = ()

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """See `SinkWriter.write`."""

    @abstractmethod
    def prepare_commit(self) -> Sequence[CommT_co]:
        """See `SinkWriter.prepare_commit`."""

    @abstractmethod
    def abort(self) -> None:
        """See `SinkWriter.abort`."""

    @abstractmethod
    def close(self) -> None:
        """See `SinkWriter.close`."""


class BaseCommittingDestination(ABC, Generic[CommT_co]):
    """A `CommittingDestination` with the optional methods. Override at least one of the first two.

    Attributes:
        name: as that of `BaseDestination`.
    """

    name: str = ""

    def check(self) -> None:
        """Finds out whether epochs can be committed, by calling the service.

        Called on the driver when a query starts, and before each commit, so it should remember the answer.

        Raises:
            OptionError: no epoch can be committed; with the reason. The query does not start.
            ServiceError: the service did not say.
        """

    @abstractmethod
    def create_writer(self, schema: StructType, origin: Origin) -> SinkWriter[CommT_co]:
        """See `CommittingDestination.create_writer`."""

    def create_committer(self, epoch: Epoch) -> Committer[Any] | None:  # noqa: ARG002 - as above
        """A committer for the committables of the tasks; None: they need no commit of their own."""
        return None

    def create_global_committer(self, epoch: Epoch) -> GlobalCommitter[Any, Any] | None:  # noqa: ARG002
        """A committer for the epoch as a whole; None: it needs no commit of its own."""
        return None

    def clean_up(self, epoch: Epoch, *, committed: bool) -> None:
        """Removes what killed tasks and killed drivers have left behind.

        Called after each commit (with ``committed=True``) and each abort of an epoch. An exception is logged
        and fails nothing.
        """


class BaseCommitter(ABC, Generic[CommT]):
    """A `Committer` with the optional method."""

    @abstractmethod
    def commit(self, committables: Sequence[CommT]) -> Sequence[CommT]:
        """See `Committer.commit`."""

    @abstractmethod
    def abort(self, committables: Sequence[CommT]) -> None:
        """See `Committer.abort`."""

    def close(self) -> None:
        """Releases what the committer holds, such as connections. Called once, last, whatever has failed.

        An exception is logged and fails nothing.
        """


class BaseGlobalCommitter(ABC, Generic[CommT_contra, GlobalCommT]):
    """A `GlobalCommitter` with the optional method."""

    @abstractmethod
    def filter_recovered_committables(self, committables: Sequence[GlobalCommT]) -> Sequence[GlobalCommT]:
        """See `GlobalCommitter.filter_recovered_committables`."""

    @abstractmethod
    def combine(self, committables: Sequence[CommT_contra]) -> GlobalCommT:
        """See `GlobalCommitter.combine`."""

    @abstractmethod
    def commit(self, committables: Sequence[GlobalCommT]) -> Sequence[GlobalCommT]:
        """See `GlobalCommitter.commit`."""

    @abstractmethod
    def end_of_input(self) -> None:
        """See `GlobalCommitter.end_of_input`."""

    def close(self) -> None:
        """As `BaseCommitter.close`."""


def destination_name(destination: object) -> str:
    """How messages call a destination, of either kind: its ``name``, else the name of its class."""
    return str(getattr(destination, "name", "") or type(destination).__name__)


def with_defaults(implementation: object, base: type[Any]) -> Any:
    """`implementation` as an object that has everything of `base`.

    Args:
        implementation: the user's object.
        base: one of the base classes of this module.

    Returns:
        `implementation` itself if its class inherits from `base`. Else an object that passes everything on to
        it, except for the optional attributes that it lacks (or that are None): these come from `base`.

    Raises:
        SluiceError: a method of it would not run when it is called.
    """
    if isinstance(implementation, _WithDefaults):
        return implementation
    _check_methods(implementation, base)
    return implementation if isinstance(implementation, base) else _WithDefaults(implementation, base)


def _check_methods(implementation: object, base: type[Any]) -> None:
    """Refuses coroutines and generators where nobody awaits or iterates: rows would be lost without an error.

    Raises:
        SluiceError: one of the methods is such a function.
    """
    for name, method in vars(base).items():
        if name.startswith("_"):
            continue
        given = inspect.getattr_static(implementation, name, None)
        given = getattr(given, "__func__", given)  # of a class method or a static one
        # An optional function, such as an ordering key, is None here: nobody awaits what it returns.
        returns = str(method.__annotations__["return"]) if inspect.isfunction(method) else ""
        kind = not_run_by_a_call(given)
        run_later = ("Awaitable",) if kind == "async def" else ("Iterable", "Sequence")
        if kind and not any(each in returns for each in run_later):
            raise SluiceError(
                f"{type(implementation).__name__}.{name} is {kind}, and would not run: it has to be a plain "
                "method. Allowed as async def are 'submit' and 'close' of a destination"
            )


def run(method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Calls a method that nobody waits for, and returns what it returned.

    `with_defaults` refuses methods that are coroutine functions themselves. A plain one may call another one
    that is, or be a decorator's.

    Raises:
        SluiceError: what it returned would have to be awaited or iterated over.
    """
    returned = method(*arguments, **named)
    if inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        if inspect.iscoroutine(returned):
            returned.close()  # or Python warns that nobody has awaited it
        owner = getattr(method, "__self__", None)
        name = getattr(method, "__name__", "a method")
        raise SluiceError(
            f"{name if owner is None else f'{type(owner).__name__}.{name}'} returned a "
            f"{type(returned).__name__}, so none of it has run: it has to do its work before it returns"
        )
    return returned


class _WithDefaults:
    """Passes everything on to `implementation`, except for what is optional in `base` and lacking there."""

    def __init__(self, implementation: object, base: type[Any]) -> None:
        self._implementation = implementation
        self._base = base

    def __getattr__(self, name: str) -> Any:
        optional = vars(self._base)
        if name not in optional or name in self._base.__abstractmethods__:
            return getattr(self._implementation, name)
        # A property that raises AttributeError is there: its error is shown.
        is_there = hasattr(type(self._implementation), name)
        value = getattr(self._implementation, name) if is_there else getattr(self._implementation, name, None)
        if value is not None:
            return value
        default = optional[name]
        return default.__get__(self, self._base) if hasattr(default, "__get__") else default
