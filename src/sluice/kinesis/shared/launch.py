"""How an agent is started: its command line, its environment, and the first message to it."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass, field
from typing import Final

from sluice.channels.channel import Address
from sluice.hosts import is_loopback
from sluice.kinesis.options.agent import AgentConfig
from sluice.kinesis.options.config import SourceConfig

__all__ = [
    "HELD_SIGNALS",
    "ON_THIS_HOST",
    "STOP",
    "AgentPlace",
    "AgentSetup",
    "WorkerAgentSetup",
    "agent_command",
]

STOP: Final = b"s"
"""The byte that the planning process writes into its agent's stop pipe when the query is stopped."""

HELD_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
"""The agent on the driver host is started with these blocked, and unblocks them when it can handle them."""

_PACKAGE: Final = "sluice.kinesis.agent"
_SECRET_BYTES: Final = 32


@dataclass(frozen=True)
class AgentPlace:
    """Where an agent listens.

    Attributes:
        host: where other processes find it; `SPARK_DRIVER` for the host of Spark's driver. bind: the address
            on which it listens; empty for all addresses of its host.
    """

    host: str
    bind: str

    @property
    def is_on_this_host(self) -> bool:
        """Whether no other host can connect to it."""
        return is_loopback(self.bind)


ON_THIS_HOST: Final = AgentPlace("127.0.0.1", "127.0.0.1")
"""An address that can be reached from this host only."""


@dataclass(frozen=True)
class AgentSetup:
    """The first message to an agent on the driver host.

    Attributes:
        agent: the agents' options, such as ports and buffer size.
        place: where it listens.
        secret: tasks and other agents must prove that they know it.
    """

    config: SourceConfig
    agent: AgentConfig
    place: AgentPlace
    secret: bytes = field(repr=False)

    @property
    def is_encrypted(self) -> bool:
        """Whether connections to the agent are encrypted; by default if other hosts may open them."""
        encryption = self.agent.encryption
        return encryption == "tls" or (encryption == "auto" and not self.place.is_on_this_host)

    @classmethod
    def beside_driver(cls, config: SourceConfig, place: AgentPlace = ON_THIS_HOST) -> AgentSetup:
        """The set-up of the agent of one run of a query, with a new secret."""
        return cls(config, config.agent or AgentConfig(), place, os.urandom(_SECRET_BYTES))


@dataclass(frozen=True)
class WorkerAgentSetup(AgentSetup):
    """The first message to an agent on a worker host. Its place is the address from which it reaches the hub.

    Attributes:
        hub: the agent on the driver host, which it joins.
    """

    hub: Address


def agent_command(*numbers: int) -> tuple[str, ...]:
    """The command line of an agent.

    Args:
        numbers: for the agent on the driver host, the file descriptors of its link and of its stop pipe, and
            the process id of the planning process; none for an agent on a worker host.
    """
    return (sys.executable, "-m", _PACKAGE, *map(str, numbers))
