"""Coordinates reading beside the driver: creates the enumerator and, for fan-out, registers consumers and
runs the agent that holds subscriptions between batches."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Final

from sluice.errors import SluiceError
from sluice.instants import micros_from_seconds
from sluice.kinesis.client import KinesisLog
from sluice.kinesis.consumers import ConsumerRegistrar
from sluice.kinesis.fanout.assignment import FanOutAssignment
from sluice.kinesis.fanout.driver.agent_client import AgentClient
from sluice.kinesis.fanout.driver.agent_place import check_encryption, find_spark_settings, place_agent
from sluice.kinesis.fanout.driver.agent_process import is_alive, on_stop
from sluice.kinesis.fanout.launch import AgentSetup
from sluice.kinesis.fanout_options import FanOutConfig
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

__all__ = [
    "SourceCoordinator",
    "assign_bounded_read",
    "create_coordinator",
    "create_enumerator",
    "plan_bounded_read",
]

_log = logging.getLogger(__name__)

_AGENT_START: Final = 45.0
"""Seconds that tasks wait for an agent, if they may not poll: one that is silent is replaced after 30."""


def create_coordinator(config: SourceConfig) -> SourceCoordinator:
    """The coordinator of a streaming query. Registers consumers, if the query reads by fan-out.

    Raises:
        OptionError: the user named a consumer that cannot be used.
        ServiceError: a consumer cannot be registered.
    """
    return SourceCoordinator(config) if config.fan_out is None else _FanOutCoordinator(config, config.fan_out)


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


class _FanOutCoordinator(SourceCoordinator):
    """The coordinator of a query that reads by fan-out: has consumers and an agent."""

    def __init__(self, config: SourceConfig, fan_out: FanOutConfig) -> None:
        self._driver = os.getppid()
        self._fan_out = fan_out
        self._registrar = ConsumerRegistrar(config)
        self._registered: dict[str, str] = {}
        self._arns = {stream.name: self._ensure_consumer(stream.name) for stream in config.streams}
        self._restore_registered(fan_out.registered)
        place = place_agent(fan_out, find_spark_settings())
        setup = AgentSetup.beside_driver(config, fan_out, place)
        if fan_out.agent != "none":
            check_encryption(setup)
        self._agent = AgentClient(setup, self._arns, renew=self._renew_consumer)
        self._agent.release = self._release_consumers
        on_stop(self._agent.tell_stop)
        if fan_out.agent == "none":
            super().__init__(config)
        else:
            self._agent.start()
            super().__init__(config, subscriptions=self._agent)
        self._announce_registered()

    def restore_consumers(self, offsets: Offsets) -> None:
        self._restore_registered(offsets.consumers)
        self._announce_registered()

    def assign(self, ranges: Sequence[SplitRange]) -> FanOutAssignment:
        if self._fan_out.agent == "none":
            return FanOutAssignment(self._arns)
        if not self._fan_out.may_poll:
            # Without an agent a task would subscribe itself, and end the subscription of a later agent.
            self._agent.wait_for_agent(_AGENT_START)
        splits = [split_range.split for split_range in ranges]
        return FanOutAssignment(self._arns, self._agent.agents(splits), self._agent.hub, self._agent.hosts)

    def close(self, *, is_disconnected: bool = False) -> None:
        if is_disconnected and self._registered and is_alive(self._driver):
            self._agent.tell_stop()
        super().close()
        self._agent.close()

    def _ensure_consumer(self, stream: str) -> str:
        consumer = self._registrar.ensure(stream)
        if consumer.registered:
            self._registered[stream] = consumer.arn
        elif self._registered.get(stream) != consumer.arn:
            self._registered.pop(stream, None)
        return consumer.arn

    def _renew_consumer(self, stream: str) -> str:
        self._arns[stream] = arn = self._ensure_consumer(stream)
        self._announce_registered()
        return arn

    def _release_consumers(self) -> None:
        """Deregisters what this query has registered, as no task reaches an agent. It is renewed later."""
        if self._fan_out.deregister:
            for stream, arn in list(self._registered.items()):
                self._release_consumer(stream, arn)
            self._announce_registered()

    def _release_consumer(self, stream: str, arn: str) -> None:
        try:
            self._registrar.deregister(arn)
        except SluiceError as error:
            _log.warning("%s: consumer %s stays registered: %s", stream, arn, error)
        else:
            _log.info("%s: deregistered consumer %s, which is not used", stream, arn)
            self._registered.pop(stream, None)

    def _restore_registered(self, registered: Mapping[str, str]) -> None:
        # An ARN has the time of its consumer's registration: an equal one is the same consumer.
        for stream, arn in registered.items():
            if self._arns.get(stream) == arn:
                self._registered[stream] = arn

    def _announce_registered(self) -> None:
        """Has the enumerator log the consumers that this query registered, and the agent deregister them."""
        self._agent.set_registered(frozenset(self._registered.values()))
        self.enumerator.registered = dict(self._registered)
        if self._registered and self._fan_out.deregister:
            self._agent.start()  # also with fanOutAgent=none: the agent deregisters when the query is stopped


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
    registrar = ConsumerRegistrar(config)
    consumers = {stream.name: registrar.ensure(stream.name) for stream in config.streams}
    for stream, consumer in consumers.items():
        if consumer.registered or config.fan_out.registered.get(stream) == consumer.arn:
            # Spark does not say when the last task has read, so nothing can deregister it.
            _log.warning(
                "consumer %s was registered for a batch read, and stays registered: "
                "deregister it when you need it no more",
                consumer.arn,
            )
    arns = {stream: consumer.arn for stream, consumer in consumers.items()}
    return FanOutAssignment(arns, is_streaming=False)
