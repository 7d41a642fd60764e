"""Base classes with the optional methods of the sink's contracts, and their defaults.

Inherit from one to implement only what a destination, writer or strategy needs. Objects that do not inherit
work as well: where the sink takes one, `with_defaults` adds the optional methods that it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, TypeVar

from sluice.sink.contracts import (
    Committer,
    CommittingDestination,
    Destination,
    Epoch,
    GlobalCommitter,
    RateLimitingStrategy,
    RequestInfo,
    SinkWriter,
)

__all__ = [
    "DEFAULT_DELAY",
    "BaseCommittingDestination",
    "BaseDestination",
    "BaseRateLimitingStrategy",
    "BaseSinkWriter",
    "destination_name",
    "with_defaults",
]

EntryT = TypeVar("EntryT")
CommT_co = TypeVar("CommT_co", covariant=True)

# How long a request waits before the writer asks a strategy again that cannot say how long (seconds).
DEFAULT_DELAY: Final = 0.05


class BaseDestination(Destination[EntryT]):
    """A `Destination` with the optional attributes.

    Attributes:
        name: how errors and figures call the destination (``kinesis stream 'x'``); when empty, by the name
            of its class.
        ordering_key: a function of an entry, or None. Entries with equal keys are accepted in their order,
            whatever is refused on the way: the next one is sent when the one before it has been accepted. An
            entry whose key is None is sent at any time. Called on the writer's thread, once when the entry is
            queued and once when it is accepted.
        records_in: a function of an entry: how many of the user's records it holds, for figures and
            messages. None: each entry holds one. Limits, batches and rate limiting count entries.
    """

    name: str = ""
    ordering_key: Callable[[EntryT], Hashable | None] | None = None
    records_in: Callable[[EntryT], int] | None = None

    def unpacked(self, entry: EntryT) -> Iterable[object]:
        """The user's records in an entry that was rejected; each becomes a dead letter of its own."""
        return (entry,)


class BaseRateLimitingStrategy(RateLimitingStrategy):
    """A `RateLimitingStrategy` with the optional methods.

    Attributes:
        forget_in_flight: a method without arguments, called when requests were given up and the strategy
            will not be told their outcome. None: the strategy cannot forget them, and is not used again
            after a failed epoch.
    """

    forget_in_flight: Callable[[], None] | None = None

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


class BaseSinkWriter(SinkWriter[CommT_co]):
    """A `SinkWriter` with the optional attribute.

    Attributes:
        bytes: written so far, for the figures of the commit.
    """

    bytes: int = 0


class BaseCommittingDestination(CommittingDestination[CommT_co]):
    """A `CommittingDestination` with the optional methods. Override at least one of the first two.

    Attributes:
        name: as that of `BaseDestination`.
    """

    name: str = ""

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
    """
    if isinstance(implementation, base | _WithDefaults):
        return implementation
    return _WithDefaults(implementation, base)


class _WithDefaults:
    """Passes everything on to `implementation`, except for what is optional in `base` and lacking there."""

    def __init__(self, implementation: object, base: type[Any]) -> None:
        self._implementation = implementation
        self._base = base

    def __getattr__(self, name: str) -> Any:
        optional = vars(self._base)
        if name not in optional:
            return getattr(self._implementation, name)
        value = getattr(self._implementation, name, None)
        if value is not None:
            return value
        default = optional[name]
        return default.__get__(self, self._base) if hasattr(default, "__get__") else default
