"""Coordinates reading beside the driver: creates the enumerator, and what fan-out takes.

A query that polls imports nothing of fan-out.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sluice.kinesis.options import SourceConfig
from sluice.kinesis.source import KinesisSource
from sluice.kinesis.starting_positions import STARTING, AtTimestamp, Latest
from sluice.source.contracts import Coordinator
from sluice.source.offsets import Offsets, SplitRange
from sluice.source.subscriptions import Subscriptions

if TYPE_CHECKING:
    from sluice.kinesis.fanout.assignment import FanOutAssignment

__all__ = [
    "SourceCoordinator",
    "assign_bounded_read",
    "create_coordinator",
    "plan_bounded_read",
]

_log = logging.getLogger(__name__)


def create_coordinator(config: SourceConfig) -> SourceCoordinator:
    """The coordinator of a streaming query. Registers consumers, if the query reads by fan-out.

    Raises:
        OptionError: the user named a consumer that cannot be used.
        ServiceError: a consumer cannot be registered.
    """
    if config.fan_out is None:
        return SourceCoordinator(config)
    from sluice.kinesis.fanout_driver import FanOutCoordinator  # noqa: PLC0415 - see above

    return FanOutCoordinator(config, config.fan_out)


class SourceCoordinator(Coordinator):
    """Plans a streaming query, and says how tasks read its ranges; like Flink's SourceCoordinator.

    This one polls. `create_coordinator` gives the one that a source's options ask for.
    """

    def __init__(self, config: SourceConfig, *, subscriptions: Subscriptions | None = None) -> None:
        super().__init__(KinesisSource(config).create_enumerator(subscriptions=subscriptions))

    def restore(self, offsets: Offsets) -> None:
        """Learns from the offset log which consumers an earlier run of the query registered."""

    def assign(self, ranges: Sequence[SplitRange]) -> FanOutAssignment | None:
        """How tasks read these ranges by fan-out; None: they poll."""
        del ranges
        return None

    def close(self, *, is_disconnected: bool = False) -> None:
        """Ends the enumerator, and the agent where there is one.

        Args:
            is_disconnected: Spark has closed its connection to this process. If the driver lives on, it has
                stopped the query, although its signal may come too late: then the consumers that the query
                registered are deregistered. If the driver has died, they stay for its restart.
        """
        del is_disconnected
        self.enumerator.close()


def plan_bounded_read(config: SourceConfig) -> Sequence[SplitRange]:
    """The ranges of a batch read, from its starting to its ending positions.

    Raises:
        SluiceError: as `StreamEnumerator.bounded`.
    """
    if isinstance(config.start, Latest):
        _log.warning("a batch read from LATEST finds next to nothing: see option '%s'", STARTING.key)
    enumerator = KinesisSource(config).create_enumerator()
    try:
        return enumerator.bounded(config.end.instant if isinstance(config.end, AtTimestamp) else None)
    finally:
        enumerator.close()


def assign_bounded_read(config: SourceConfig) -> FanOutAssignment | None:
    """How the tasks of a batch read use fan-out; None: they poll.

    Raises:
        SluiceError: as `ConsumerRegistrar.ensure`.
    """
    if config.fan_out is None:
        return None
    from sluice.kinesis.fanout_driver import register_for_bounded_read  # noqa: PLC0415 - see above

    return register_for_bounded_read(config, config.fan_out)
