"""The options of agents, the same whether an agent subscribes to shards or polls them."""

from __future__ import annotations

import os
import select
import socket
from dataclasses import dataclass
from typing import Any, Final

from sluice.options import BIND_HOST, HOST, Kind, Option, OptionValues, choice, size

__all__ = ["AGENT_OPTIONS", "AgentConfig", "agent_from_options", "missing_for_agents"]

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


AGENT = Option(
    "agent",
    choice("driver", "workers", "none"),
    None,
    "Where agents read shards between batches: on the `driver` host, on each worker host (`workers`), or "
    "nowhere (`none`). Batch reads, and polling with `availableNow` or `once`, have no agent.",
    shown_default="`driver` with fan-out, `none` with polling",
)
AGENT_ADDRESS = Option(
    "agentAddress",
    HOST,
    None,
    "Address of the agent on the driver host for tasks, if it differs from `spark.driver.host`.",
    shown_default="the driver's, as Spark knows it; 127.0.0.1 with a `local` master",
)
AGENT_BIND_ADDRESS = Option(
    "agentBindAddress",
    BIND_HOST,
    None,
    "Address that the agent on the driver host listens on, if it differs from `agentAddress`, as in a "
    "container.",
    shown_default="`agentAddress` if given, else as Spark's driver",
)
AGENT_PORTS = Option(
    "agentPorts",
    Kind("ports", "a port, or the first and the last of a range, such as 40000-40100", _parse_ports),
    None,
    "Ports that agents may listen on. A host has one agent per running query, and each takes a free port.",
    shown_default="any free port",
)
AGENT_ENCRYPTION = Option(
    "agentEncryption",
    choice("auto", "tls", "none"),
    "auto",
    "Encryption of connections to agents (TLS 1.3). `auto`: if other hosts may connect. `tls`: always.",
)
AGENT_CERTIFICATE = Option(
    "agentCertificate",
    Kind("path", "the path of a PEM file with a private key and its certificate", _parse_path),
    None,
    "File with a certificate for agents, on each of their hosts. By default each agent makes one when it "
    "starts.",
)
AGENT_BUFFER_SIZE = Option(
    "agentBufferSize",
    size(_MIB),
    256 * _MIB,
    "Size of an agent's buffer. If it is full, the agent stops reading.",
    shown_default="256MiB",
)

_PLACE_OPTIONS: Final[tuple[Option[Any], ...]] = (
    AGENT_ADDRESS,
    AGENT_BIND_ADDRESS,
    AGENT_PORTS,
    AGENT_ENCRYPTION,
    AGENT_CERTIFICATE,
    AGENT_BUFFER_SIZE,
)
AGENT_OPTIONS: Final[tuple[Option[Any], ...]] = (AGENT, *_PLACE_OPTIONS)

_POSIX: Final = ((os, "fork"), (select, "poll"), (socket, "AF_UNIX"))
"""The modules and functions that agents and their clients need."""


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """Where agents run, and how much each may buffer.

    Attributes:
        on_workers: one agent on each worker host; otherwise one on the driver host.
        address: the host at which tasks find the agent on the driver host. None: the host at which executors
            find Spark's driver.
        bind_address: the address on which this agent listens, if it differs.
        ports: the first and the last port that agents may listen on; None: any.
        encryption: ``auto``, ``tls`` or ``none``.
        certificate: a PEM file on each host of an agent; None: each agent makes a certificate.
        buffer_bytes: bytes that one agent may buffer.
    """

    on_workers: bool = False
    address: str | None = None
    bind_address: str | None = None
    ports: tuple[int, int] | None = None
    encryption: str = "auto"
    certificate: str | None = None
    buffer_bytes: int = 256 * _MIB


def missing_for_agents() -> str | None:
    """What agents need and this Python lacks; None if they run."""
    return next((f"{module.__name__}.{name}" for module, name in _POSIX if not hasattr(module, name)), None)


def agent_from_options(values: OptionValues, *, is_fan_out: bool) -> AgentConfig | None:
    """Reads the options of agents; None for no agent. `OptionValues.check` raises the errors.

    Args:
        values: read with AGENT_OPTIONS declared.
        is_fan_out: the source reads by fan-out.
    """
    agent = values.get(AGENT) or ("driver" if is_fan_out else "none")
    if agent == "none":
        if values.given(AGENT) or not values.mentions(AGENT):
            default = "" if values.given(AGENT) else " by default"
            why = f"it has no effect, because '{AGENT.key}' is none{default}: set that to driver or workers"
            values.reject_each(_PLACE_OPTIONS, why)
        return None
    if missing := missing_for_agents():
        why = f"an agent needs Linux or macOS, as Python has no {missing} here; leave it out, or give none"
        values.reject_each(AGENT_OPTIONS, why)
        return None
    if values.get(AGENT_ENCRYPTION) == "none" and values.get(AGENT_CERTIFICATE) is not None:
        values.reject_value(AGENT_CERTIFICATE, f"'{AGENT_ENCRYPTION.key}' is none: it is not used")
    return AgentConfig(
        on_workers=agent == "workers",
        address=values.get(AGENT_ADDRESS),
        bind_address=values.get(AGENT_BIND_ADDRESS),
        ports=values.get(AGENT_PORTS),
        encryption=values.require(AGENT_ENCRYPTION),
        certificate=values.get(AGENT_CERTIFICATE),
        buffer_bytes=values.require(AGENT_BUFFER_SIZE),
    )
