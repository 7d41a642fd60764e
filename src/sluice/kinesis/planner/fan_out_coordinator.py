"""Coordinates fan-out on the driver host: registers consumers, and runs the agent that keeps subscriptions
open between batches.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from sluice.kinesis.consumers.ownership import QueryConsumers
from sluice.kinesis.options.config import SourceConfig
from sluice.kinesis.options.fan_out import FanOutConfig
from sluice.kinesis.planner.agent_client import AgentClient
from sluice.kinesis.planner.agent_coordinator import AgentCoordinator
from sluice.kinesis.planner.agent_place import set_up_agent
from sluice.kinesis.planner.agent_process import StopSignals, is_alive
from sluice.kinesis.planner.coordinator import PlannedSource
from sluice.kinesis.shared.assignment import FanOutAssignment
from sluice.retry import Retrier
from sluice.source.model.offsets import Offsets, SplitRange
from sluice.spark_settings import find_spark_settings

__all__ = ["FanOutCoordinator", "register_for_bounded_read"]

_log = logging.getLogger(__name__)

_AGENT_START: Final = 45.0
"""Seconds that a batch waits for an agent if tasks may not poll. A silent agent is replaced after 30."""

_LOOK_INTERVAL: Final = 10.0
"""The shortest time between two checks of the consumers of a query without an agent (seconds)."""


class FanOutCoordinator(AgentCoordinator):
    """The coordinator of a query that reads by fan-out. It has consumers and an agent."""

    def __init__(self, source: PlannedSource, fan_out: FanOutConfig) -> None:
        config = source.config
        self._driver = os.getppid()
        self._may_poll = fan_out.may_poll
        self._clock = time.monotonic
        self._looking: threading.Thread | None = None
        self._next_look = -math.inf
        spark = find_spark_settings()
        self._has_agent = config.agent is not None
        setup = set_up_agent(config, spark)
        signals = StopSignals()
        retrier = Retrier(sleep=signals.sleep)
        self._consumers = QueryConsumers(config, retrier=retrier, registering=signals.held)
        self._agent = AgentClient(setup, self._consumers)
        signals.handle(self._agent.tell_stop)
        try:
            self._consumers.ensure_all()
            if self._has_agent:
                self._agent.start()
            super().__init__(source, subscriptions=self._agent if self._has_agent else None, spark=spark)
            self.enumerator.own_consumers = lambda: self._consumers.own
        except BaseException:
            self._agent.tell_stop()  # no query begins that could be stopped
            self._agent.close()
            raise

    def restore(self, offsets: Offsets) -> None:
        self._consumers.restore(offsets.consumers)

    def assign(self, ranges: Sequence[SplitRange]) -> FanOutAssignment:
        # When Spark asks for a batch's tasks, the end of the batch, which was restored, is in the offset log.
        self._consumers.record_logged()
        if not self._has_agent:
            assignment = FanOutAssignment(self._consumers.arns)
            self._look_at_consumers()
            return assignment
        if not self._may_poll:
            # Without an agent a task would subscribe itself, and end the subscription of a later agent.
            self._agent.wait_for_agent(_AGENT_START)
        return super().assign(ranges)

    @property
    def _arns(self) -> Mapping[str, str]:
        return self._consumers.arns

    def post_report(self) -> None:
        super().post_report()
        if not self._has_agent:
            # Only the subscribing task sees another reader. An agent notices by itself, and the reader that a
            # task reports may be the agent.
            self._reports.receive()
            for stream, arn in self._consumers.arns.items():
                if arn in self._figures.contested:
                    self._consumers.contest(stream, arn)

    def close(self, *, is_disconnected: bool = False) -> None:
        if is_disconnected and self._consumers.going and is_alive(self._driver):
            self._agent.tell_stop()
        super().close()
        self._agent.close()

    def _look_at_consumers(self) -> None:
        """Registers deleted consumers again, in parallel to planning: no agent notices them."""
        now = self._clock()
        if now >= self._next_look and not (self._looking and self._looking.is_alive()):
            self._next_look = now + _LOOK_INTERVAL
            self._looking = threading.Thread(target=self._renew_consumers, daemon=True)
            self._looking.start()

    def _renew_consumers(self) -> None:
        for stream in self._consumers.arns:
            self._consumers.renew(stream)


def register_for_bounded_read(config: SourceConfig) -> FanOutAssignment:
    """Registers the consumers of a batch read; returns the assignment for its tasks.

    Raises:
        SluiceError: as `QueryConsumers.ensure_all`. Consumers that this call registered are deregistered
            first, unless ``consumerDeregistration`` is ``never``.
    """
    consumers = QueryConsumers(config)
    try:
        consumers.ensure_all()
    except BaseException:
        consumers.release()
        raise
    for arn in consumers.own.values():
        # Spark does not say when the last task has read, so nothing can deregister it.
        _log.warning(
            "consumer %s was registered for a batch read, and stays registered: "
            "deregister it when you need it no more",
            arn,
        )
    return FanOutAssignment(consumers.arns, is_streaming=False)
