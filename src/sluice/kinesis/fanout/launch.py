"""What it takes to start a fan-out agent, beside the driver or on a worker host."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Final

from sluice.kinesis.fanout.channel import Address
from sluice.kinesis.options import SourceConfig

__all__ = ["STOP", "AgentSetup", "agent_command", "agent_environment"]

STOP: Final = b"s"
"""What the planning process writes to its agent when the query is stopped."""

_PACKAGE: Final = "sluice.kinesis.fanout"


@dataclass(frozen=True)
class AgentSetup:
    """The first message to an agent.

    Attributes:
        host: address that the agent listens on.
        secret: what tasks and other agents have to know to be served.
        hub: on a worker host, the agent beside the driver; None for the agent beside the driver.
    """

    config: SourceConfig
    host: str
    secret: bytes
    hub: Address | None = None


def agent_command(*descriptors: int) -> tuple[str, ...]:
    """The command line of an agent.

    Args:
        descriptors: beside the driver, the open file descriptors of the link and of the stop pipe; on a
            worker host none.
    """
    return (sys.executable, "-m", _PACKAGE, *map(str, descriptors))


def agent_environment() -> dict[str, str]:
    """The environment of this process, with the module path that Spark has set up in it."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
