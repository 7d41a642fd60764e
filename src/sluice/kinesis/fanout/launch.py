"""How an agent is started: its command line, its environment, and the first message to it."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass, field
from typing import Final

from sluice.channels.channel import Address
from sluice.kinesis.agent_options import AgentConfig
from sluice.kinesis.options import SourceConfig

__all__ = ["HELD_SIGNALS", "STOP", "AgentSetup", "WorkerAgentSetup", "agent_command"]

STOP: Final = b"s"
"""What the planning process writes into the stop pipe of its agent when the query is stopped."""

HELD_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
"""The agent beside the driver is started with these blocked, and unblocks them when it can handle them."""

_PACKAGE: Final = "sluice.kinesis.fanout"
_SECRET_BYTES: Final = 32


@dataclass(frozen=True)
class AgentSetup:
    """The first message to an agent beside the driver.

    Attributes:
        agent: where agents run, and what they may hold; `config` has it too.
        host: the address that the agent listens on.
        secret: tasks and other agents prove that they know it before they are served.
    """

    config: SourceConfig
    agent: AgentConfig
    host: str
    secret: bytes = field(repr=False)

    @classmethod
    def beside_driver(cls, config: SourceConfig, agent: AgentConfig) -> AgentSetup:
        """With a secret of its own, for the agent of one run of a query."""
        return cls(config, agent, agent.agent_address, os.urandom(_SECRET_BYTES))


@dataclass(frozen=True)
class WorkerAgentSetup(AgentSetup):
    """The first message to an agent on a worker host. Its `host` is its address on the way to the hub.

    Attributes:
        hub: the agent beside the driver, which it joins.
    """

    hub: Address


def agent_command(*descriptors: int) -> tuple[str, ...]:
    """The command line of an agent.

    Args:
        descriptors: for the agent beside the driver, the file descriptors of its link and of its stop
            pipe; none for an agent on a worker host.
    """
    return (sys.executable, "-m", _PACKAGE, *map(str, descriptors))
