"""The data that a task needs to read by fan-out: plain data that Spark sends along with each partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sluice.channels.channel import Address
from sluice.source.model.splits import SplitId

__all__ = ["FanOutAssignment"]


@dataclass(frozen=True)
class FanOutAssignment:
    """Where a task reads ranges without polling.

    Attributes:
        arns: stream's name to the ARN of its consumer.
        agents: the agent that has a subscription to a shard; a shard without one is missing here.
        hub: the agent on the driver host, which agents on worker hosts join; None: it does not listen.
        hosts: worker hosts that have an agent.
        recoveries: how often agents have recovered: after a new recovery, tasks try agents again that they
            avoid.
        is_streaming: another batch follows, for which agents keep subscriptions open.
    """

    arns: Mapping[str, str]
    agents: Mapping[SplitId, Address] = field(default_factory=dict)
    hub: Address | None = None
    hosts: frozenset[str] = frozenset()
    is_streaming: bool = True
    recoveries: int = 0

    def found_at(self, driver_host: str) -> FanOutAssignment:
        """The same assignment, with the host of Spark's driver for servers that listen there."""
        located = {address: address.found_at(driver_host) for address in {*self.agents.values()}}
        return replace(
            self,
            agents={split: located[address] for split, address in self.agents.items()},
            hub=None if self.hub is None else self.hub.found_at(driver_host),
        )

    def only(self, splits: Iterable[SplitId]) -> FanOutAssignment:
        """The part of the assignment for a task that reads these shards."""
        wanted = list(splits)
        streams = {split.stream for split in wanted}
        return replace(
            self,
            arns={stream: arn for stream, arn in self.arns.items() if stream in streams},
            agents={split: self.agents[split] for split in wanted if split in self.agents},
        )
