"""Coordinates reading beside the driver: creates the enumerator, and what fan-out or a polling agent takes.

A query that polls without an agent imports nothing of these.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sluice.instants import micros_from_seconds
from sluice.kinesis.client import KinesisLog
from sluice.kinesis.options import SourceConfig
from sluice.kinesis.starting_positions import (
    STARTING,
    AtTimestamp,
    Latest,
    initial_positions,
    starting_text,
)
from sluice.source.data_loss import DataLossPolicy
from sluice.source.enumerator import EnumeratorSettings, StreamEnumerator
from sluice.source.offsets import Offsets, SplitRange
from sluice.source.planner import Planner, PlannerSettings
from sluice.source.probe import Probe, ProbeSettings
from sluice.source.subscriptions import Subscriptions

if TYPE_CHECKING:
    from sluice.kinesis.fanout.assignment import FanOutAssignment

__all__ = [
    "SourceCoordinator",
    "assign_bounded_read",
    "create_coordinator",
    "create_enumerator",
    "plan_bounded_read",
]

_log = logging.getLogger(__name__)


def create_coordinator(config: SourceConfig) -> SourceCoordinator:
    """The coordinator of a streaming query. Registers consumers, if the query reads by fan-out.

    Raises:
        OptionError: the user named a consumer that cannot be used.
        ServiceError: a consumer cannot be registered.
    """
    if config.polling_agent is not None:
        from sluice.kinesis.polling_driver import PollingAgentCoordinator  # noqa: PLC0415 - see above

        return PollingAgentCoordinator(config, config.polling_agent)
    if config.fan_out is None:
        return SourceCoordinator(config)
    from sluice.kinesis.fanout_driver import FanOutCoordinator  # noqa: PLC0415 - see above

    return FanOutCoordinator(config, config.fan_out)


def create_enumerator(
    config: SourceConfig, *, subscriptions: Subscriptions | None = None
) -> StreamEnumerator:
    """The enumerator that finds shards and plans batches.

    Args:
        config: the options of the source.
        subscriptions: says how far subscriptions have come; shards without one are probed. None: all are.
    """
    log = KinesisLog.of(config)
    data_loss = DataLossPolicy(log, config.fail_on_data_loss, log.server_time)
    probe = Probe(log, data_loss, ProbeSettings(pause=time.sleep))
    settings = EnumeratorSettings(
        [stream.name for stream in config.streams],
        initial_positions(config.start),
        config.shard_discovery_interval,
        starting_text(config.start),
        max_family=config.shards_per_task,
    )
    max_drift = None if config.max_drift is None else micros_from_seconds(config.max_drift)
    planner = Planner(probe, log.server_time, PlannerSettings(config.fail_on_data_loss, max_drift))
    return StreamEnumerator(settings, probe, planner, subscriptions=subscriptions)


class SourceCoordinator:
    """Plans a streaming query, and says how tasks read its ranges; like Flink's SourceCoordinator.

    This one polls. `create_coordinator` gives the one that a source's options ask for.

    Attributes:
        enumerator: finds shards and plans batches.
    """

    def __init__(self, config: SourceConfig, *, subscriptions: Subscriptions | None = None) -> None:
        self.enumerator: StreamEnumerator = create_enumerator(config, subscriptions=subscriptions)

    def restore_consumers(self, offsets: Offsets) -> None:
        """Learns from the offset log which consumers an earlier run of the query registered."""

    def stop_at_available(self) -> None:
        """Makes the run end at what is available; see `StreamEnumerator.stop_at_available`."""
        self.enumerator.stop_at_available()

    def assign(self, ranges: Sequence[SplitRange]) -> FanOutAssignment | None:
        """How tasks read these ranges from agents, or by fan-out; None: they poll."""
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
    enumerator = create_enumerator(config)
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
