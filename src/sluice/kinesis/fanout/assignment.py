"""What a task must know to read by fan-out: plain data that goes with each partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.kinesis.fanout.channel import Address
from sluice.source.splits import SplitId

__all__ = ["FanOutAssignment"]


@dataclass(frozen=True)
class FanOutAssignment:
    """How ranges may be had otherwise than by polling.

    Attributes:
        arns: the consumer of each stream.
        agents: who has buffered what was pushed of a split; where one is missing nobody has.
        hub: the agent beside the driver, which agents on worker hosts join.
        hosts: worker hosts that have an agent.
        is_streaming: another batch follows, and agents hold subscriptions for it.
    """

    arns: Mapping[str, str]
    agents: Mapping[SplitId, Address] = field(default_factory=dict)
    hub: Address | None = None
    hosts: frozenset[str] = frozenset()
    is_streaming: bool = True
