"""Finds a destination's class by name, and reads the options of a sink.

A destination is built in, registered as an entry point of the group ``sluice.destinations``, or given as
``package.module:Name``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, cast

from sluice.aws.calling.connection import CONNECTION_OPTIONS, ConnectionConfig, connection_from_options
from sluice.destinations.common.object_settings import OBJECT_OPTIONS, ObjectSettings
from sluice.errors import OptionError
from sluice.option_names import Explained
from sluice.options import SPARK_KEYS, Option, OptionValues, read_options
from sluice.sink import Origin, SinkLimits
from sluice.sink.committing.epoch_commit import is_committing
from sluice.sink.letters.dead_letters import CheckedDeadLetterQueue, LocalDeadLetterQueue
from sluice.sink.options import (
    ASYNC_OPTIONS,
    DEAD_LETTER_PATH,
    DESTINATION,
    ELEMENT_CONVERTER,
    MAX_RETRY_DURATION,
    PROGRESS_LISTENER,
    SINK_OPTIONS,
    TXN_APP_ID,
    TXN_OPTIONS,
    TXN_VERSION,
    UNKNOWN_COLUMNS,
    config_from_options,
    load_progress_listener,
)
from sluice.sink.rate_limiting_options import shared_bucket_from_options, strategy_from_options
from sluice.sink.reporting.progress import ProgressListener
from sluice.sink.setup import AsyncSinkSetup, CommittingSinkSetup, SinkSetup
from sluice.sink.user_code.loading import ConverterFactory, converter_factory, load_object

__all__ = [
    "ENTRY_POINT_GROUP",
    "FORMAT",
    "DestinationClass",
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
    "http": "sluice.destinations.http:HttpDestination",
    "s3": "sluice.destinations.files:S3Destination",
    "files": "sluice.destinations.files:FilesDestination",
}
# Imported only where it is used, like the destinations.
_PLANNED_BATCH: Final = "sluice.destinations.planned_batches:planned_batch"
_CHECKPOINT: Final = "checkpointlocation"
_S3_DEAD_LETTERS: Final = "sluice.destinations.s3_dead_letters:S3DeadLetterQueue"

_MODULE_AND_NAME: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*\Z")


class DestinationClass(Protocol):
    """What the class of a destination must have, besides the methods of `Destination`.

    The class of a two-phase destination has the methods of `CommittingDestination` instead, and no `LIMITS`.

    Attributes:
        OPTIONS: the destination's own options, without those of the sink and of the connection. Of the sink's
            options, only `destination`, `unknownColumns`, `progressListener`, `maxRetryDuration`, `txnAppId`
            and `txnVersion` apply to a two-phase destination.
        LIMITS: the service's limits, which are the defaults of the batching options.
    """

    OPTIONS: ClassVar[Sequence[Option[Any]]]
    LIMITS: ClassVar[SinkLimits]

    @classmethod
    def from_options(cls, values: OptionValues, connection: ConnectionConfig) -> Any:
        """Makes the destination; calls no service.

        Called on the driver to check the options, in every task to write, and when an epoch is committed. An
        option that cannot work is noted with ``values.reject``; the result may then be None.
        """


def read_sink(options: Mapping[str, str]) -> SinkSetup:
    """Reads the options of a sink and makes its destination. Calls no service.

    Args:
        options: as Spark passes them: keys in any case, values as text.

    Returns:
        An `AsyncSinkSetup`, or a `CommittingSinkSetup` if the destination is two-phase. Its listener is not
        loaded: tasks may not have its module.

    Raises:
        OptionError: names everything that is wrong with the options.
    """
    # Destination and converter come first, because they decide which other options there are.
    classes = read_options(FORMAT, [DESTINATION, ELEMENT_CONVERTER], options, also=options)
    if not classes.mentions(DESTINATION):
        raise OptionError(f"{FORMAT}: option '{DESTINATION.key}' is required: {_allowed_names()}")
    classes.check()
    name, converter = classes.require(DESTINATION), classes.get(ELEMENT_CONVERTER)
    found = destination_class(name)
    factory = None if converter is None else converter_factory(converter)
    declared = [*SINK_OPTIONS, *CONNECTION_OPTIONS, *found.OPTIONS, *(factory.options if factory else ())]
    if not is_committing(found):
        declared += [each for each in OBJECT_OPTIONS if not any(own.takes(each.key) for own in declared)]
    unknown = [key for key in options if not any(option.takes(key) for option in declared)]
    foreign = (*getattr(found, "FOREIGN_NAMES", ()), *_of_other_destinations(unknown, name))
    values = read_options(FORMAT, declared, options, foreign=foreign)
    connection = connection_from_options(values)
    setup: SinkSetup | None
    if is_committing(found):
        for option in ASYNC_OPTIONS:
            if values.given(option) and option is not MAX_RETRY_DURATION:
                values.reject(option.key, f"is not for destination '{name}', which does not send batches")
        setup = _committing_setup(found, values, connection, options)
    else:
        for option in TXN_OPTIONS:
            if values.given(option):
                why = f"is for destinations that commit: '{name}' writes a repeated batch again"
                values.reject(option.key, why)
        setup = _async_setup(found, values, connection, options)
        if setup is not None and factory is not None:
            setup = _with_converter(setup, factory, values)
    values.check()
    if setup is None:
        raise OptionError(f"{FORMAT}: destination {name!r} was not made: its from_options gave no reason")
    return setup


def _of_other_destinations(keys: Sequence[str], name: str) -> Iterator[Explained]:
    """The options among `keys`, which destination `name` does not have, that other built-in ones do."""
    for key in keys:
        if key.lower() not in SPARK_KEYS:  # else every start of a query would import all destinations
            owners = [
                f"'{each}'"
                for each in _BUILT_IN
                if any(option.takes(key) for option in destination_class(each).OPTIONS)
            ]
            if owners:
                why = f"is for destination {' or '.join(owners)}: this is destination '{name}'"
                yield Explained(key, FORMAT, why)


def _committing_setup(
    found: type[DestinationClass],
    values: OptionValues,
    connection: ConnectionConfig,
    options: Mapping[str, str],
) -> CommittingSinkSetup | None:
    application, version = values.get(TXN_APP_ID), values.get(TXN_VERSION)
    for option, other in (TXN_OPTIONS, TXN_OPTIONS[::-1]):
        if values.given(option) and not values.mentions(other):
            values.reject(other.key, f"is required with '{option.key}'")
    destination = found.from_options(values, connection)
    if destination is None:
        return None
    return CommittingSinkSetup(
        destination=destination,
        load_listener=_load_listener(values.get(PROGRESS_LISTENER)),
        ignores_unknown_columns=values.require(UNKNOWN_COLUMNS) == "ignore",
        transaction=None if application is None or version is None else (application, version),
        content=_content(options, connection),
        max_retry_duration=values.require(MAX_RETRY_DURATION),
    )


def _content(options: Mapping[str, str], connection: ConnectionConfig) -> Callable[[int], str | None]:
    """See `CommittingSinkSetup.content`. If Spark's settings name the checkpoint, there is no option."""
    checkpoint = next((value for key, value in options.items() if key.lower() == _CHECKPOINT), None)
    if checkpoint is None:
        return lambda _batch: None
    return lambda batch: cast("str | None", load_object(_PLANNED_BATCH)(checkpoint, batch, connection))


def _async_setup(
    found: type[DestinationClass],
    values: OptionValues,
    connection: ConnectionConfig,
    options: Mapping[str, str],
) -> AsyncSinkSetup | None:
    config = config_from_options(values, found.LIMITS)
    destination = found.from_options(values, connection)
    create_strategy = strategy_from_options(values, found.LIMITS, destination)
    if config is None or destination is None:
        return None
    return AsyncSinkSetup(
        destination=destination,
        config=config,
        create_strategy=lambda: create_strategy(config),
        strategy_cache_key=frozenset(options.items()),
        shared_bucket=shared_bucket_from_options(values, options),
        dead_letters=_dead_letters(values, connection, found.OPTIONS),
        load_listener=_load_listener(values.get(PROGRESS_LISTENER)),
        ignores_unknown_columns=values.require(UNKNOWN_COLUMNS) == "ignore",
    )


def _with_converter(setup: AsyncSinkSetup, factory: ConverterFactory, values: OptionValues) -> AsyncSinkSetup:
    try:
        factory.create(values, setup.destination)
    except OptionError as error:
        values.reject_value(ELEMENT_CONVERTER, str(error))
    return replace(setup, create_converter=lambda: factory.create(values, setup.destination))


def destination_class(name: str) -> type[DestinationClass]:
    """Imports the class of a destination.

    Args:
        name: the value of the option ``destination``.

    Raises:
        OptionError: there is no such destination, or its class cannot be loaded or lacks an attribute.
    """
    key = name.lower()
    if key in _BUILT_IN:
        return cast("type[DestinationClass]", load_object(_BUILT_IN[key]))
    entry_points = metadata.entry_points(group=ENTRY_POINT_GROUP)
    location = next((point.value for point in entry_points if point.name.lower() == key), name)
    if _MODULE_AND_NAME.match(location) is None:
        raise _unusable(name, f"allowed are {_allowed_names()}")
    try:
        loaded = load_object(location)
    except (ImportError, AttributeError) as error:
        raise _unusable(name, f"{location} cannot be loaded: {error}") from None
    required = ("OPTIONS", "from_options", "create_writer" if is_committing(loaded) else "LIMITS")
    missing = [attribute for attribute in required if not hasattr(loaded, attribute)]
    if missing:
        raise _unusable(name, f"{location} has no {', '.join(missing)}")
    return cast("type[DestinationClass]", loaded)


def _allowed_names() -> str:
    entry_points = metadata.entry_points(group=ENTRY_POINT_GROUP)
    names = sorted({*_BUILT_IN, *(point.name for point in entry_points)})
    return ", ".join([*names, "or package.module:Name"])


def _unusable(name: str, why: str) -> OptionError:
    return OptionError(f"{FORMAT}: option '{DESTINATION.key}' is {name!r}: {why}")


def _load_listener(name: str | None) -> Callable[[], ProgressListener] | None:
    return None if name is None else lambda: load_progress_listener(name)


def _dead_letters(
    values: OptionValues, connection: ConnectionConfig, own: Sequence[Option[Any]]
) -> Callable[[Origin], CheckedDeadLetterQueue] | None:
    """What makes the queue of a task. `own` are options of the destination, which may have the same names."""
    path = values.get(DEAD_LETTER_PATH)
    of_objects = [each for each in OBJECT_OPTIONS if not any(option.takes(each.key) for option in own)]
    if path is None or not path.startswith("s3://"):
        for option in of_objects:
            if values.given(option):
                values.reject(
                    option.key, f"is for dead letters in S3: it needs '{DEAD_LETTER_PATH.key}' s3://..."
                )
        return None if path is None else lambda origin: LocalDeadLetterQueue(Path(path), origin)
    settings = ObjectSettings.of(values, of_objects)
    patience = values.require(MAX_RETRY_DURATION)

    def in_s3(origin: Origin) -> CheckedDeadLetterQueue:
        queue: CheckedDeadLetterQueue = load_object(_S3_DEAD_LETTERS)(
            path, connection, origin, settings, patience=patience
        )
        return queue

    return in_s3
