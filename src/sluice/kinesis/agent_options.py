"""The options of the agent that polls, and what is told to any agent of where it runs."""

from __future__ import annotations

import os
import select
import socket
from dataclasses import dataclass
from typing import Any, Final

from sluice.options import HOST, Option, OptionValues, choice, size

__all__ = ["POLLING_AGENT_OPTIONS", "AgentConfig", "missing_for_agents", "polling_agent_from_options"]

_MIB: Final = 1024 * 1024

AGENT = Option(
    "pollingAgent",
    choice("driver", "workers", "none"),
    "none",
    "Polling: where shards are polled between batches, near the tip, so that each record is read once and "
    "comes sooner: in one process beside the driver, in one on each worker host, or nowhere. A batch read, "
    "and a run of what is available, has no agent.",
)
AGENT_ADDRESS = Option(
    "pollingAgentAddress",
    HOST,
    None,
    "Address at which tasks find the polling agent beside the driver, where that is not the one at which "
    "executors find the driver (`spark.driver.host`).",
    shown_default="the driver's, as Spark knows it; 127.0.0.1 with a `local` master",
)
BUFFER_SIZE = Option(
    "pollingBufferSize",
    size(_MIB),
    64 * _MIB,
    "Bytes that one polling agent buffers. Shards that find no space there are left to tasks.",
    shown_default="64MiB",
)

POLLING_AGENT_OPTIONS: Final[tuple[Option[Any], ...]] = (AGENT, AGENT_ADDRESS, BUFFER_SIZE)

_POSIX: Final = ((os, "fork"), (select, "poll"), (socket, "AF_UNIX"))
"""What agents, and those who talk to them, are built on."""


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """Where an agent runs, and what it may hold.

    Attributes:
        agent: ``driver``, ``workers`` or ``none``.
        agent_address: the host at which tasks find the agent beside the driver. None: the one at which Spark
            finds the driver.
        agent_bind_address: the address that this agent listens on, where it is another one.
        agent_ports: the first and the last port that agents may listen at; None: any.
        encryption: ``auto``, ``tls`` or ``none``.
        certificate: a PEM file on each host of an agent; None: each agent makes a certificate.
        buffer_bytes: bytes that one agent may buffer.
    """

    agent: str = "driver"
    agent_address: str | None = None
    agent_bind_address: str | None = None
    agent_ports: tuple[int, int] | None = None
    encryption: str = "auto"
    certificate: str | None = None
    buffer_bytes: int = 256 * _MIB

    @property
    def address_key(self) -> str:
        """The option that `agent_address` comes from."""
        return AGENT_ADDRESS.key


def missing_for_agents() -> str | None:
    """What Python lacks here that agents are built on; None where they run."""
    return next((f"{module.__name__}.{name}" for module, name in _POSIX if not hasattr(module, name)), None)


def polling_agent_from_options(values: OptionValues, *, is_polling: bool) -> AgentConfig | None:
    """Reads the options of the agent that polls; None for none. Notes what is wrong for `OptionValues.check`.

    Args:
        values: read with POLLING_AGENT_OPTIONS declared.
        is_polling: the source is read by polling.
    """
    if not is_polling:
        _refuse_each(values, POLLING_AGENT_OPTIONS, "it is for polling, and this source reads by fan-out")
        return None
    place = values.require(AGENT)
    if place == "none":
        _refuse_each(values, (AGENT_ADDRESS, BUFFER_SIZE), f"'{AGENT.key}' is none: there is no agent")
        return None
    if missing := missing_for_agents():
        why = f"an agent needs Linux or macOS, as Python has no {missing} here; leave it out, or give none"
        _refuse_each(values, POLLING_AGENT_OPTIONS, why)
        return None
    return AgentConfig(
        agent=place, agent_address=values.get(AGENT_ADDRESS), buffer_bytes=values.require(BUFFER_SIZE)
    )


def _refuse_each(values: OptionValues, options: tuple[Option[Any], ...], why: str) -> None:
    for option in options:
        if values.given(option):
            values.reject_value(option, why)
