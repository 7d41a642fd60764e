"""From the sink's options to all that a writer needs. Checks everything, reports it in one error."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sluice.destinations.registry import PLANNED, destination_class
from sluice.errors import OptionError
from sluice.kinesis.connection import CONNECTION_OPTIONS, connection_from_options
from sluice.options import Option, read_options
from sluice.sink.config import AsyncSinkConfig
from sluice.sink.contracts import Destination, RateLimitingStrategy
from sluice.sink.options import DESTINATION, SINK_OPTIONS, config_from_options, strategy_from_options

__all__ = ["FORMAT", "SinkSetup", "read_sink"]

FORMAT: Final = "async-sink"


@dataclass(frozen=True)
class SinkSetup:
    """What the options say.

    Attributes:
        destination: ready to be written to; has touched no network yet.
        config: the writer's.
        create_strategy: makes a rate limiter that has learnt nothing yet.
        key: what a rate limiter has learnt holds for.
    """

    destination: Destination[Any]
    config: AsyncSinkConfig
    create_strategy: Callable[[], RateLimitingStrategy]
    key: Hashable


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
        planned = PLANNED.get((name or "").lower())
        if planned is not None:
            probe = read_options(FORMAT, _all_options(planned), options)
            destination_class(name or "", probe)
        probe.check()
        raise OptionError(f"{FORMAT}: there is no destination {name!r}")
    values = read_options(FORMAT, _all_options(found.OPTIONS), options)
    config = config_from_options(values, found.LIMITS)
    strategy = strategy_from_options(values, found.LIMITS)
    destination = found.from_options(values, connection_from_options(values))
    values.check()
    if config is None or destination is None:
        raise OptionError(f"{FORMAT}: destination {name!r} cannot be made, and does not say why")
    return SinkSetup(destination, config, lambda: strategy(config), key=frozenset(options.items()))


def _all_options(own: Sequence[Option[Any]]) -> list[Option[Any]]:
    return [*SINK_OPTIONS, *CONNECTION_OPTIONS, *own]
