"""Coordinates polling by an agent beside the driver: the agent reads the tips, so the planner need not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluice.kinesis.options.agent import AgentConfig
from sluice.kinesis.planner.agent_client import AgentClient
from sluice.kinesis.planner.agent_place import check_encryption, place_agent
from sluice.kinesis.planner.coordinator import PlannedSource, SourceCoordinator
from sluice.kinesis.planner.near_tip import NearTip
from sluice.kinesis.shared.assignment import FanOutAssignment
from sluice.kinesis.shared.launch import AgentSetup
from sluice.source.model.offsets import SplitRange
from sluice.source.model.read_figures import ReadFigures
from sluice.spark_settings import find_spark_settings

__all__ = ["PollingAgentCoordinator"]


class PollingAgentCoordinator(SourceCoordinator):
    """The coordinator of a query whose shards an agent polls."""

    _publisher = "polling"

    def __init__(self, source: PlannedSource, agent: AgentConfig) -> None:
        config = source.config
        spark = find_spark_settings()
        setup = AgentSetup.beside_driver(config, place_agent(agent, spark))
        check_encryption(setup)
        figures = ReadFigures()
        self._agent = AgentClient(setup, figures=figures)
        self._near_tip = NearTip(self._agent, self._expect_reads)
        super().__init__(source, subscriptions=self._near_tip, spark=spark, figures=figures)

    def _expect_reads(self) -> None:
        self.enumerator.expect_reads()

    def stop_at_available(self) -> None:
        self._near_tip.turn_off()
        super().stop_at_available()

    def assign(self, ranges: Sequence[SplitRange]) -> FanOutAssignment:
        splits = [split_range.split for split_range in ranges]
        agents = self._agent.agents(splits)
        return FanOutAssignment(
            {}, agents, self._agent.hub, self._agent.hosts, recoveries=self._agent.recoveries
        )

    def figures(self) -> dict[str, Any]:
        return {**super().figures(), "agent": self._agent.figures()}
