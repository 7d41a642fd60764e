"""Destinations by name: built in, by entry point, or by ``package.module:Name``."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, ClassVar, Final, Protocol, cast

from sluice.kinesis.connection import ConnectionConfig
from sluice.options import TEXT, Option, OptionValues, choice
from sluice.sink.config import SinkLimits
from sluice.sink.contracts import Destination
from sluice.sink.options import DESTINATION

__all__ = ["ENTRY_POINT_GROUP", "PLANNED", "DestinationClass", "destination_class"]

ENTRY_POINT_GROUP: Final = "sluice.destinations"

_BUILT_IN: Final[Mapping[str, str]] = {
    "kinesis": "sluice.destinations.kinesis:KinesisStreamsDestination",
}

# Destinations that are not built yet, with their options: each is refused by name.
PLANNED: Final[Mapping[str, tuple[Option[Any], ...]]] = {
    "firehose": (Option("deliveryStream", TEXT, None, "Name of the delivery stream.", supported=False),),
    "dynamodb": (
        Option("tableName", TEXT, None, "Name of the table.", supported=False),
        Option("operationColumn", TEXT, None, "Column that holds `PUT` or `DELETE`.", supported=False),
        Option("keyColumns", TEXT, None, "Columns of the table's key.", supported=False),
    ),
    "sqs": (Option("queueUrl", TEXT, None, "URL of the queue.", supported=False),),
    "s3": (
        Option("path", TEXT, None, "`s3://bucket/prefix`.", supported=False),
        Option("fileFormat", choice("parquet", "jsonl"), None, "Format of the files.", supported=False),
    ),
}

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


def destination_class(name: str, values: OptionValues) -> type[DestinationClass] | None:
    """The class of the destination called `name`. If there is none, `values` is told why.

    Args:
        name: as given for the option ``destination``.
        values: where problems are noted.
    """
    key = name.lower()
    if key in _BUILT_IN:
        return cast("type[DestinationClass]", _load(_BUILT_IN[key]))
    if key in PLANNED:
        values.reject(DESTINATION.key, f"({name!r} given) is not supported yet")
        return None
    found = metadata.entry_points(group=ENTRY_POINT_GROUP)
    where = next((point.value for point in found if point.name.lower() == key), name)
    if _MODULE_AND_NAME.match(where) is None:
        known = sorted({*_BUILT_IN, *PLANNED, *(point.name for point in found)})
        allowed = ", ".join(known)
        values.reject(DESTINATION.key, f"is {name!r}: allowed are {allowed}, or package.module:Name")
        return None
    try:
        loaded = _load(where)
    except (ImportError, AttributeError) as error:
        values.reject(DESTINATION.key, f"is {name!r}: {where} cannot be loaded: {error}")
        return None
    missing = [part for part in ("OPTIONS", "LIMITS", "from_options") if not hasattr(loaded, part)]
    if missing:
        values.reject(DESTINATION.key, f"is {name!r}: {where} has no {', '.join(missing)}")
        return None
    return cast("type[DestinationClass]", loaded)


def _load(where: str) -> Any:
    module, _, names = where.partition(":")
    loaded: Any = importlib.import_module(module)
    for name in names.split("."):
        loaded = getattr(loaded, name)
    return loaded
