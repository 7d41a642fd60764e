"""From the sink's options to all that a writer needs: which destination, and how it is set.

A destination is built in, registered as an entry point, or named as ``package.module:Name``.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, cast

from sluice.aws.connection import CONNECTION_OPTIONS, ConnectionConfig, connection_from_options
from sluice.errors import OptionError
from sluice.options import Option, OptionValues, read_options
from sluice.sink.committing import is_committing
from sluice.sink.config import AsyncSinkConfig, SinkLimits
from sluice.sink.contracts import CommittingDestination, Destination, RateLimitingStrategy
from sluice.sink.dead_letters import DeadLetterQueue, LocalDeadLetterQueue, Origin
from sluice.sink.options import (
    ASYNC_OPTIONS,
    DEAD_LETTER_PATH,
    DESTINATION,
    SINK_OPTIONS,
    config_from_options,
    progress_listener_from_options,
    strategy_from_options,
)
from sluice.sink.progress import SinkProgress

__all__ = [
    "ENTRY_POINT_GROUP",
    "FORMAT",
    "AsyncSettings",
    "CommittingDestinationClass",
    "DestinationClass",
    "SinkSetup",
    "destination_class",
    "read_sink",
]

FORMAT: Final = "async-sink"
ENTRY_POINT_GROUP: Final = "sluice.destinations"

_BUILT_IN: Final[Mapping[str, str]] = {
    "kinesis": "sluice.destinations.kinesis:KinesisStreamsDestination",
    "firehose": "sluice.destinations.firehose:FirehoseDestination",
    "dynamodb": "sluice.destinations.dynamodb:DynamoDbDestination",
    "sqs": "sluice.destinations.sqs:SqsDestination",
    "s3": "sluice.destinations.s3:S3Destination",
}

_S3_DEAD_LETTERS: Final = "sluice.destinations.s3_dead_letters:S3DeadLetterQueue"

_PARTS: Final = ("OPTIONS", "LIMITS", "from_options")
_PARTS_OF_COMMITTING: Final = ("OPTIONS", "from_options", "create_writer")

_MODULE_AND_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*\Z")


class DestinationClass(Protocol):
    """What the sink asks of the class of a destination, beside the `Destination` it makes.

    Attributes:
        OPTIONS: the options of its own; those every destination has, and those of the connection, are
            not repeated.
        LIMITS: what the service takes: the defaults of batching and back-pressure.
    """

    OPTIONS: ClassVar[Sequence[Option[Any]]]
    LIMITS: ClassVar[SinkLimits]

    @classmethod
    def from_options(cls, values: OptionValues, connection: ConnectionConfig) -> Destination[Any] | None:
        """Makes the destination. Called on the driver, to check, and in every task, to write.

        Touches no network. What cannot be is noted with ``values.reject`` (then None may be returned).
        """


class CommittingDestinationClass(Protocol):
    """The same of a two-phase destination, which batches and retries by itself.

    Attributes:
        OPTIONS: the options of its own. Of those that every destination has it takes `destination` and
            `progressListener`, and those of the connection.
    """

    OPTIONS: ClassVar[Sequence[Option[Any]]]

    @classmethod
    def from_options(
        cls, values: OptionValues, connection: ConnectionConfig
    ) -> CommittingDestination[Any] | None:
        """As that of `DestinationClass`; called where an epoch is committed, too."""


@dataclass(frozen=True)
class AsyncSettings:
    """What the options say to the async writer.

    Attributes:
        config: the writer's.
        create_strategy: makes a rate limiter that has learnt nothing yet.
        key: what a rate limiter has learnt holds for.
        dead_letters: makes the queue of a task; None where there is no `deadLetterPath`.
    """

    config: AsyncSinkConfig
    create_strategy: Callable[[], RateLimitingStrategy]
    key: Hashable
    dead_letters: Callable[[Origin], DeadLetterQueue] | None = None


@dataclass(frozen=True)
class SinkSetup:
    """What the options say.

    Attributes:
        destination: a `Destination` or a `CommittingDestination`; has touched no network yet.
        writing: for the async writer; None for a two-phase destination, which has a writer of its own and
            none of the properties below.
        progress_listener: told of every commit and abort.
    """

    destination: Any
    writing: AsyncSettings | None
    progress_listener: Callable[[SinkProgress], object] | None = None

    @property
    def committing(self) -> CommittingDestination[Any] | None:
        """The destination, if it is two-phase."""
        return cast("CommittingDestination[Any]", self.destination) if self.writing is None else None

    @property
    def config(self) -> AsyncSinkConfig:
        return self._writing.config

    @property
    def create_strategy(self) -> Callable[[], RateLimitingStrategy]:
        return self._writing.create_strategy

    @property
    def key(self) -> Hashable:
        return self._writing.key

    @property
    def dead_letters(self) -> Callable[[Origin], DeadLetterQueue] | None:
        return self._writing.dead_letters

    @property
    def _writing(self) -> AsyncSettings:
        if self.writing is None:
            raise TypeError("a two-phase destination is not written to by the async writer")
        return self.writing


def read_sink(options: Mapping[str, str]) -> SinkSetup:
    """Reads the options of the sink. Makes no call to any service.

    Raises:
        OptionError: names everything that is wrong with them.
    """
    # The destination first: it decides which other options there are.
    probe = read_options(FORMAT, [DESTINATION], options, also=options)
    name = probe.get(DESTINATION)
    found = destination_class(name, probe) if name is not None else None
    if found is None or name is None:
        probe.check()
        raise OptionError(f"{FORMAT}: there is no destination {name!r}")
    values = read_options(FORMAT, [*SINK_OPTIONS, *CONNECTION_OPTIONS, *found.OPTIONS], options)
    connection = connection_from_options(values)
    writing: AsyncSettings | None = None
    if is_committing(found):
        for option in ASYNC_OPTIONS:
            if values.given(option):
                values.reject(
                    option.key, f"is not for destination '{name}', which is not written to in batches"
                )
    else:
        writing = _async_settings(values, cast("type[DestinationClass]", found).LIMITS, connection, options)
    listener = progress_listener_from_options(values)
    destination = found.from_options(values, connection)
    values.check()
    if destination is None or (writing is None and not is_committing(found)):
        raise OptionError(f"{FORMAT}: destination {name!r} cannot be made, and does not say why")
    return SinkSetup(destination, writing, listener)


def _async_settings(
    values: OptionValues, limits: SinkLimits, connection: ConnectionConfig, options: Mapping[str, str]
) -> AsyncSettings | None:
    """What the async writer is told. What cannot be is noted in `values`, and None may be given back."""
    config = config_from_options(values, limits)
    strategy = strategy_from_options(values, limits)
    if config is None:
        return None
    return AsyncSettings(
        config,
        lambda: strategy(config),
        key=frozenset(options.items()),
        dead_letters=_dead_letters(values.get(DEAD_LETTER_PATH), connection),
    )


def destination_class(
    name: str, values: OptionValues
) -> type[DestinationClass | CommittingDestinationClass] | None:
    """The class of the destination called `name`. If there is none, `values` is told why.

    Args:
        name: as given for the option ``destination``.
        values: where problems are noted.
    """
    key = name.lower()
    if key in _BUILT_IN:
        return cast("type[DestinationClass]", _load(_BUILT_IN[key]))
    found = metadata.entry_points(group=ENTRY_POINT_GROUP)
    where = next((point.value for point in found if point.name.lower() == key), name)
    if _MODULE_AND_NAME.match(where) is None:
        known = sorted({*_BUILT_IN, *(point.name for point in found)})
        allowed = ", ".join(known)
        values.reject(DESTINATION.key, f"is {name!r}: allowed are {allowed}, or package.module:Name")
        return None
    try:
        loaded = _load(where)
    except (ImportError, AttributeError) as error:
        values.reject(DESTINATION.key, f"is {name!r}: {where} cannot be loaded: {error}")
        return None
    parts = _PARTS_OF_COMMITTING if is_committing(loaded) else _PARTS
    missing = [part for part in parts if not hasattr(loaded, part)]
    if missing:
        values.reject(DESTINATION.key, f"is {name!r}: {where} has no {', '.join(missing)}")
        return None
    return cast("type[DestinationClass]", loaded)


def _dead_letters(
    path: str | None, connection: ConnectionConfig
) -> Callable[[Origin], DeadLetterQueue] | None:
    if path is None:
        return None
    if not path.startswith("s3://"):
        return lambda origin: LocalDeadLetterQueue(Path(path), origin)

    def in_s3(origin: Origin) -> DeadLetterQueue:
        queue: DeadLetterQueue = _load(_S3_DEAD_LETTERS)(path, connection, origin)
        return queue

    return in_s3


def _load(where: str) -> Any:
    module, _, names = where.partition(":")
    loaded: Any = importlib.import_module(module)
    for name in names.split("."):
        loaded = getattr(loaded, name)
    return loaded
