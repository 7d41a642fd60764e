"""What plans a streaming query, in the process beside the driver: the enumerator and, in fan-out mode,
the consumers and the agent that holds subscriptions between batches."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Final

from sluice.kinesis.client import KinesisLog
from sluice.kinesis.consumers import ConsumerRegistrar
from sluice.kinesis.fanout.assignment import FanOutAssignment
from sluice.kinesis.fanout.driver.agent_client import AgentClient
from sluice.kinesis.fanout.driver.agent_process import is_alive, on_stop
from sluice.kinesis.fanout.launch import AgentSetup
from sluice.kinesis.options import SourceConfig
from sluice.kinesis.starting_positions import STARTING, AtTimestamp, Latest, initial_positions
from sluice.source.data_loss import DataLossPolicy
from sluice.source.enumerator import EnumeratorSettings, StreamEnumerator
from sluice.source.offsets import Offsets, SplitRange
from sluice.source.planner import Planner
from sluice.source.probe import Probe, ProbeSettings
from sluice.source.subscriptions import Subscriptions

__all__ = ["StreamPlanning", "bounded_assignment", "make_enumerator", "plan_bounded_read"]

_log = logging.getLogger(__name__)

_AGENT_START: Final = 10.0
"""Seconds that an agent gets to start, where nothing else may read."""


class StreamPlanning:
    """The enumerator of a streaming query, and how its tasks get at what has been pushed.

    Raises:
        OptionError: a consumer that the user named can't be used.
        ServiceError: a consumer can't be registered.
    """

    def __init__(self, config: SourceConfig) -> None:
        self._driver = os.getppid()
        self._fan_out = config.fan_out
        self._registered: dict[str, str] = {}
        self._arns: dict[str, str] = {}
        self._link: AgentClient | None = None
        if self._fan_out is not None:
            self._consumers = ConsumerRegistrar(config)
            self._arns = {stream.name: self._ensure(stream.name) for stream in config.streams}
            self._note(self._fan_out.registered)
            self._link = AgentClient(
                AgentSetup.beside_driver(config, self._fan_out), self._arns, renew=self._renew
            )
            on_stop(self._link.tell_stop)
        holds = self._fan_out is not None and self._fan_out.agent != "none"
        if holds and self._link is not None:
            self._link.start()
        self.enumerator: StreamEnumerator = make_enumerator(
            config, subscriptions=self._link if holds else None
        )
        self._tell_registered()

    def recall(self, offsets: Offsets) -> None:
        """Learns from logged offsets which consumers an earlier run of the query registered."""
        if self._link is not None:
            self._note(offsets.consumers)
            self._tell_registered()

    def access(self, ranges: Sequence[SplitRange]) -> FanOutAssignment | None:
        """How tasks may read these ranges otherwise than by polling."""
        if self._link is None or self._fan_out is None:
            return None
        if self._fan_out.agent == "none":
            return FanOutAssignment(self._arns)
        if not self._fan_out.may_poll:
            # A task without an agent would have to subscribe itself, and take the shard from the agent.
            self._link.wait_for_agent(_AGENT_START)
        splits = [split_range.split for split_range in ranges]
        return FanOutAssignment(self._arns, self._link.agents(splits), self._link.hub, self._link.hosts)

    def close(self, *, has_hung_up: bool = False) -> None:
        """Lets go of everything.

        Args:
            has_hung_up: Spark has closed its connection. A driver that lives on has stopped the query, and
                its signal that says so may come late; else the driver is dead, and will be back.
        """
        if has_hung_up and self._link is not None and self._registered and is_alive(self._driver):
            self._link.tell_stop()
        self.enumerator.close()
        if self._link is not None:
            self._link.close()

    def _ensure(self, stream: str) -> str:
        consumer = self._consumers.ensure(stream)
        if consumer.registered:
            self._registered[stream] = consumer.arn
        elif self._registered.get(stream) != consumer.arn:
            self._registered.pop(stream, None)
        return consumer.arn

    def _renew(self, stream: str) -> str:
        self._arns[stream] = arn = self._ensure(stream)
        self._tell_registered()
        return arn

    def _note(self, registered: Mapping[str, str]) -> None:
        """An ARN says when its consumer was registered: one that is in use now is still that very one."""
        for stream, arn in registered.items():
            if self._arns.get(stream) == arn:
                self._registered[stream] = arn

    def _tell_registered(self) -> None:
        if self._link is None:
            return
        self._link.set_registered(frozenset(self._registered.values()))
        self.enumerator.registered = dict(self._registered)
        if self._registered and self._fan_out is not None and self._fan_out.deregister:
            self._link.start()  # it deregisters at a stop, also where it holds no subscriptions


def make_enumerator(config: SourceConfig, *, subscriptions: Subscriptions | None = None) -> StreamEnumerator:
    """What finds shards and plans batches, for the process beside the driver.

    Args:
        subscriptions: knows what is pushed; without it everything is probed.
    """
    log = KinesisLog.of(config)
    data_loss = DataLossPolicy(log, config.fail_on_data_loss, log.server_time)
    probe = Probe(log, data_loss, ProbeSettings(pause=time.sleep))
    settings = EnumeratorSettings(
        [stream.name for stream in config.streams],
        initial_positions(config.start),
        config.shard_discovery_interval,
    )
    planner = Planner(probe, log.server_time, fail_on_missing=config.fail_on_data_loss)
    return StreamEnumerator(settings, probe, planner, subscriptions=subscriptions)


def plan_bounded_read(config: SourceConfig) -> Sequence[SplitRange]:
    """The ranges of a batch read: everything from the starting to the ending positions as of now.

    Raises:
        SluiceError: what `StreamEnumerator.bounded` raises.
    """
    if isinstance(config.start, Latest):
        _log.warning("a batch read from LATEST finds next to nothing: see option '%s'", STARTING.key)
    enumerator = make_enumerator(config)
    try:
        return enumerator.bounded(config.end.instant if isinstance(config.end, AtTimestamp) else None)
    finally:
        enumerator.close()


def bounded_assignment(config: SourceConfig) -> FanOutAssignment | None:
    """How the tasks of a batch read may read by fan-out; None where they poll.

    Raises:
        SluiceError: a consumer can't be had.
    """
    if config.fan_out is None:
        return None
    consumers = ConsumerRegistrar(config)
    found = {stream.name: consumers.ensure(stream.name) for stream in config.streams}
    for stream, consumer in found.items():
        if consumer.registered or config.fan_out.registered.get(stream) == consumer.arn:
            # Nobody says when the last task has read: then it could be deregistered.
            _log.warning("consumer %s was registered for a batch read, and stays registered", consumer.arn)
    return FanOutAssignment({stream: consumer.arn for stream, consumer in found.items()}, is_streaming=False)
