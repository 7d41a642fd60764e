"""Coordinates reading by an agent on the driver host: neither planner nor tasks read the shards that the
agent covers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sluice.kinesis.planner.agent_client import AgentClient
from sluice.kinesis.planner.agent_place import set_up_agent
from sluice.kinesis.planner.coordinator import PlannedSource, SourceCoordinator
from sluice.kinesis.planner.near_tip import NearTip
from sluice.kinesis.shared.assignment import FanOutAssignment
from sluice.source.model.offsets import SplitRange
from sluice.source.model.read_figures import ReadFigures
from sluice.spark_settings import find_spark_settings

__all__ = ["AgentCoordinator", "PollingAgentCoordinator"]


class AgentCoordinator(SourceCoordinator):
    """The coordinator of a query with an agent, which polls or subscribes."""

    _agent: AgentClient

    @property
    def _arns(self) -> Mapping[str, str]:
        """Stream's name to the ARN of its consumer."""
        return {}

    def assign(self, ranges: Sequence[SplitRange]) -> FanOutAssignment:
        agents = self._agent.agents([split_range.split for split_range in ranges])
        hub, hosts, recoveries = self._agent.hub, self._agent.hosts, self._agent.recoveries
        return FanOutAssignment(self._arns, agents, hub, hosts, recoveries=recoveries)

    def figures(self) -> dict[str, Any]:
        return {**super().figures(), "agent": self._agent.figures()}


class PollingAgentCoordinator(AgentCoordinator):
    """The coordinator of a query whose shards an agent polls."""

    _publisher = "polling"

    def __init__(self, source: PlannedSource) -> None:
        spark = find_spark_settings()
        figures = ReadFigures()
        self._agent = AgentClient(set_up_agent(source.config, spark), figures=figures)
        self._near_tip = NearTip(self._agent, lambda: self.enumerator.expect_reads())  # noqa: PLW0108 - made below
        super().__init__(source, subscriptions=self._near_tip, spark=spark, figures=figures)

    def stop_at_available(self) -> None:
        self._near_tip.turn_off()
        super().stop_at_available()
