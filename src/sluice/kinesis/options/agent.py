"""The options of the agent that polls, and of where any agent runs."""

from __future__ import annotations

import os
import select
import socket
from dataclasses import dataclass
from typing import Any, Final

from sluice.options import BIND_HOST, HOST, Kind, Option, OptionValues, choice, size

__all__ = [
    "POLLING_AGENT_OPTIONS",
    "AgentConfig",
    "PlaceOptions",
    "missing_for_agents",
    "polling_agent_from_options",
]

_MIB: Final = 1024 * 1024

_LAST_PORT: Final = 65_535


def _parse_path(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text.strip()


def _parse_ports(text: str) -> tuple[int, int]:
    first, dash, last = (part.strip() for part in text.partition("-"))
    ports = int(first), int(last if dash else first)
    if not (first + (last if dash else "")).isdecimal() or not 1 <= ports[0] <= ports[1] <= _LAST_PORT:
        raise ValueError(text)
    return ports


class PlaceOptions:
    """The options of where agents listen, how they are reached, and what they hold.

    Fan-out and polling have them under names of their own.

    Args:
        prefix: of their keys.
        agent: what their descriptions call the agent: ``the agent`` or ``the polling agent``.
        buffer_mib: the default of the buffer's size (MiB).
        buffers: the description of that option.
    """

    def __init__(self, prefix: str, agent: str, *, buffer_mib: int, buffers: str) -> None:
        self.address = Option(
            f"{prefix}AgentAddress",
            HOST,
            None,
            f"Address at which tasks find {agent} beside the driver, where that is not the one at which "
            "executors find the driver (`spark.driver.host`).",
            shown_default="the driver's, as Spark knows it; 127.0.0.1 with a `local` master",
        )
        self.bind_address = Option(
            f"{prefix}AgentBindAddress",
            BIND_HOST,
            None,
            f"Address that {agent} beside the driver listens on, where it is not `{prefix}AgentAddress`: in "
            "a container, or behind address translation.",
            shown_default=f"`{prefix}AgentAddress` if given, else as Spark's driver",
        )
        self.ports = Option(
            f"{prefix}AgentPorts",
            Kind("ports", "a port, or the first and the last of a range, such as 40000-40100", _parse_ports),
            None,
            "Ports that agents listen at, each at a free one of them. A host has one agent for each query "
            "that runs.",
            shown_default="any free port",
        )
        self.encryption = Option(
            f"{prefix}Encryption",
            choice("auto", "tls", "none"),
            "auto",
            "Whether connections to agents are encrypted (TLS 1.3). `auto`: where other hosts may open them "
            "and the extra `tls` is installed, else a warning says that they are not. `tls`: in any case.",
        )
        self.certificate = Option(
            f"{prefix}Certificate",
            Kind("path", "the path of a PEM file with a private key and its certificate", _parse_path),
            None,
            "A certificate for agents, in place of one that each makes at its start: a file on each of their "
            "hosts.",
        )
        self.buffer_size = Option(
            f"{prefix}BufferSize",
            size(_MIB),
            buffer_mib * _MIB,
            buffers,
            shown_default=f"{buffer_mib}MiB",
        )

    @property
    def all(self) -> tuple[Option[Any], ...]:
        return (
            self.address,
            self.bind_address,
            self.ports,
            self.encryption,
            self.certificate,
            self.buffer_size,
        )

    def read(self, values: OptionValues) -> dict[str, Any]:
        """Their values, as fields of `AgentConfig`. Notes what is wrong for `OptionValues.check`."""
        if values.get(self.encryption) == "none" and values.get(self.certificate) is not None:
            values.reject_value(self.certificate, f"'{self.encryption.key}' is none: it is not used")
        return {
            "agent_address": values.get(self.address),
            "agent_bind_address": values.get(self.bind_address),
            "agent_ports": values.get(self.ports),
            "encryption": values.require(self.encryption),
            "certificate": values.get(self.certificate),
            "buffer_bytes": values.require(self.buffer_size),
        }


AGENT = Option(
    "pollingAgent",
    choice("driver", "workers", "none"),
    "none",
    "Polling: where shards are polled between batches, near the tip, so that each record is read once and "
    "comes sooner: in one process beside the driver, in one on each worker host, or nowhere. A batch read, "
    "and a run of what is available, has no agent.",
)
_BUFFERS: Final = "Bytes that one polling agent buffers. Shards that find no space there are left to tasks."
PLACE: Final = PlaceOptions("polling", "the polling agent", buffer_mib=64, buffers=_BUFFERS)

POLLING_AGENT_OPTIONS: Final[tuple[Option[Any], ...]] = (AGENT, *PLACE.all)

_POSIX: Final = ((os, "fork"), (select, "poll"), (socket, "AF_UNIX"))
"""What agents and their clients are built on."""


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
    def options(self) -> PlaceOptions:
        """What the fields come from."""
        return PLACE


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
        _refuse_each(values, PLACE.all, f"'{AGENT.key}' is none: there is no agent")
        return None
    if missing := missing_for_agents():
        why = f"an agent needs Linux or macOS, as Python has no {missing} here; leave it out, or give none"
        _refuse_each(values, POLLING_AGENT_OPTIONS, why)
        return None
    return AgentConfig(agent=place, **PLACE.read(values))


def _refuse_each(values: OptionValues, options: tuple[Option[Any], ...], why: str) -> None:
    for option in options:
        if values.given(option):
            values.reject_value(option, why)
