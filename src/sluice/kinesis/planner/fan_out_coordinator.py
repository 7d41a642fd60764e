"""Coordinates fan-out beside the driver: registers consumers, and runs the agent that holds subscriptions
between batches.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sluice.errors import SluiceError
from sluice.kinesis.consumers import loaded as loaded_consumers
from sluice.kinesis.consumers.registrar import ConsumerRegistrar
from sluice.kinesis.consumers.registration import ensure_all
from sluice.kinesis.options.config import SourceConfig
from sluice.kinesis.options.fan_out import FanOutConfig
from sluice.kinesis.planner.agent_client import AgentClient
from sluice.kinesis.planner.agent_place import check_encryption, place_agent
from sluice.kinesis.planner.agent_process import StopSignals, is_alive
from sluice.kinesis.planner.coordinator import PlannedSource, SourceCoordinator
from sluice.kinesis.shared.assignment import FanOutAssignment
from sluice.kinesis.shared.launch import ON_THIS_HOST, AgentSetup
from sluice.retry import Retrier
from sluice.source.model.offsets import Offsets, SplitRange
from sluice.spark_settings import find_spark_settings

__all__ = ["FanOutCoordinator", "register_for_bounded_read"]

_log = logging.getLogger(__name__)

_AGENT_START: Final = 45.0
"""Seconds that a batch waits for an agent if tasks may not poll. A silent agent is replaced after 30."""

_LOOK_INTERVAL: Final = 10.0
"""Seconds between two looks at the consumers of a query without an agent, at least."""


class FanOutCoordinator(SourceCoordinator):
    """The coordinator of a query that reads by fan-out. It has consumers and an agent."""

    def __init__(self, source: PlannedSource, fan_out: FanOutConfig) -> None:
        config = source.config
        self._driver = os.getppid()
        self._fan_out = fan_out
        self._arns: dict[str, str] = {}
        self._registered = dict(fan_out.registered)
        self._restored: Mapping[str, str] = {}
        self._logged: frozenset[str] = frozenset()
        self._clock = time.monotonic
        self._looking: threading.Thread | None = None
        self._next_look = -math.inf
        spark = find_spark_settings()
        self._has_agent = config.agent is not None
        place = ON_THIS_HOST if config.agent is None else place_agent(config.agent, spark)
        setup = AgentSetup.beside_driver(config, place)
        check_encryption(setup)
        self._agent = AgentClient(setup, self._arns, renew=self._renew_consumer)
        self._agent.release = self._release_consumers
        signals = StopSignals(self._agent.tell_stop)
        self._registrar = ConsumerRegistrar(
            config,
            retrier=Retrier(sleep=signals.sleep),
            on_registered=self._own_consumer,
            registering=signals.held,
        )
        try:
            self._tell_agent()
            for stream in config.streams:
                self._arns[stream.name] = self._ensure_consumer(stream.name)
            self._agent.set_consumers(self._arns)
            for arn in fan_out.registered.values():
                loaded_consumers.forget(arn)
            if not self._has_agent:
                super().__init__(source, spark=spark)
            else:
                self._agent.start()
                super().__init__(source, subscriptions=self._agent, spark=spark)
            self._announce_registered()
        except BaseException:
            self._agent.tell_stop()  # no query begins that could be stopped
            self._agent.close()
            raise

    def restore(self, offsets: Offsets) -> None:
        self._restored = offsets.consumers
        self._restore_registered(offsets.consumers)
        self._announce_registered()

    def assign(self, ranges: Sequence[SplitRange]) -> FanOutAssignment:
        # Spark asks for a batch's tasks when the end of the batch, which was restored, is in the offset log.
        self._logged = frozenset(self._restored.values())
        self._tell_agent()
        if not self._has_agent:
            assignment = FanOutAssignment(dict(self._arns))
            self._look_at_consumers()
            return assignment
        if not self._fan_out.may_poll:
            # Without an agent a task would subscribe itself, and end the subscription of a later agent.
            self._agent.wait_for_agent(_AGENT_START)
        splits = [split_range.split for split_range in ranges]
        agents = self._agent.agents(splits)
        return FanOutAssignment(
            self._arns, agents, self._agent.hub, self._agent.hosts, recoveries=self._agent.recoveries
        )

    def post_report(self) -> None:
        super().post_report()
        if not self._has_agent:
            self._reports.receive()
            self._note_contested()

    def figures(self) -> dict[str, Any]:
        return {**super().figures(), "agent": self._agent.figures()}

    def close(self, *, is_disconnected: bool = False) -> None:
        if is_disconnected and self._registered and is_alive(self._driver):
            self._agent.tell_stop()
        super().close()
        self._agent.close()

    def _note_contested(self) -> None:
        """Takes over from tasks which consumers another reader uses: only the one that subscribes sees it.

        Not where there is an agent: it notices by itself, and what a task takes for another reader, where
        tasks may subscribe as well, may be that agent.
        """
        for stream, arn in self._arns.items():
            if arn in self._figures.contested and arn not in self._agent.contested:
                self._agent.mark_contested(stream, arn)
                self._announce_registered()

    def _own_consumer(self, stream: str, arn: str) -> None:
        """A consumer was registered. From now on the agent deregisters it, whatever ends the query."""
        self._registered[stream] = arn
        self._tell_agent()

    def _ensure_consumer(self, stream: str) -> str:
        arn = self._registrar.ensure(stream).arn
        if self._registered.get(stream) != arn:
            self._registered.pop(stream, None)
        return arn

    def _renew_consumer(self, stream: str) -> str:
        self._arns[stream] = arn = self._ensure_consumer(stream)
        self._announce_registered()
        return arn

    def _look_at_consumers(self) -> None:
        """Registers consumers again that somebody has deleted, beside planning: no agent notices it."""
        now = self._clock()
        if now >= self._next_look and not (self._looking and self._looking.is_alive()):
            self._next_look = now + _LOOK_INTERVAL
            self._looking = threading.Thread(target=self._renew_consumers, daemon=True)
            self._looking.start()

    def _renew_consumers(self) -> None:
        for stream in list(self._arns):
            try:
                self._renew_consumer(stream)
            except SluiceError as error:  # noqa: PERF203 - the others may be there
                _log.warning("%s: the consumer is gone or going, and can't be registered: %s", stream, error)

    def _release_consumers(self) -> None:
        """Deregisters the query's consumers, as no task reaches an agent. They are registered again later."""
        if self._fan_out.deregister:
            for stream, arn in list(self._registered.items()):
                if arn not in self._agent.contested:
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
        """Tells the enumerator, which logs them, and the agent which consumers this query has registered."""
        self._tell_agent()
        self.enumerator.registered = dict(self._registered)
        self.enumerator.contested = self._agent.contested

    def _tell_agent(self) -> None:
        registered = frozenset(self._registered.values())
        self._agent.set_registered(registered, registered & self._logged)
        if registered and self._fan_out.deregister:
            self._agent.start()  # also with agent=none: the agent deregisters when the query is stopped


def register_for_bounded_read(config: SourceConfig, fan_out: FanOutConfig) -> FanOutAssignment:
    """Registers the consumers of a batch read; returns how its tasks use them.

    Raises:
        SluiceError: as `ensure_all`.
    """
    consumers = ensure_all(config)
    for stream, consumer in consumers.items():
        if consumer.registered or fan_out.registered.get(stream) == consumer.arn:
            # Spark does not say when the last task has read, so nothing can deregister it.
            _log.warning(
                "consumer %s was registered for a batch read, and stays registered: "
                "deregister it when you need it no more",
                consumer.arn,
            )
    arns = {stream: consumer.arn for stream, consumer in consumers.items()}
    return FanOutAssignment(arns, is_streaming=False)
