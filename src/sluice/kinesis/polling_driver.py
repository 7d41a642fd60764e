"""Coordinates polling by an agent beside the driver: the agent reads the tips, so the planner need not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluice.kinesis.agent_options import AgentConfig
from sluice.kinesis.driver import SourceCoordinator
from sluice.kinesis.fanout.assignment import FanOutAssignment
from sluice.kinesis.fanout.driver.agent_client import AgentClient
from sluice.kinesis.fanout.driver.agent_place import check_encryption, place_agent
from sluice.kinesis.fanout.driver.near_tip import NearTip
from sluice.kinesis.fanout.launch import AgentSetup
from sluice.kinesis.options import SourceConfig
from sluice.source.offsets import SplitRange
from sluice.source.read_figures import ReadFigures
from sluice.spark_settings import find_spark_settings

__all__ = ["PollingAgentCoordinator"]


class PollingAgentCoordinator(SourceCoordinator):
    """The coordinator of a query whose shards an agent polls."""

    _publisher = "polling"

    def __init__(self, config: SourceConfig, agent: AgentConfig) -> None:
        spark = find_spark_settings()
        setup = AgentSetup.beside_driver(config, agent, place_agent(agent, spark))
        check_encryption(setup)
        figures = ReadFigures()
        streams = {stream.name: "" for stream in config.streams}
        self._agent = AgentClient(setup, streams, renew=None, figures=figures)
        self._near_tip = NearTip(self._agent, self._expect_reads)
        super().__init__(config, subscriptions=self._near_tip, spark=spark, figures=figures)

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
