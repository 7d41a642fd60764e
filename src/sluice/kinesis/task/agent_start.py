"""The first task on a worker host without an agent starts one.

A host is identified by the address from which it reaches the agent on the driver host. Its agent listens
there. Host names are not used: they need not resolve, and may mean the same loopback address everywhere.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import pickle
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from sluice.channels.channel import Address
from sluice.channels.processes import child_environment
from sluice.hosts import is_loopback
from sluice.kinesis.options.agent import AgentConfig
from sluice.kinesis.options.config import SourceConfig
from sluice.kinesis.shared.assignment import FanOutAssignment
from sluice.kinesis.shared.launch import AgentPlace, WorkerAgentSetup, agent_command

__all__ = ["AgentStarter", "address_towards", "start_agent_if_wanted"]

_log = logging.getLogger(__name__)

_START_INTERVAL: Final = 30.0
"""Seconds until another agent is started because the last one has not joined. A working agent joins within 10
s.
"""
_ELSEWHERE: Final = ("192.0.2.1", "2001:db8::1")
"""Addresses for documentation (RFC 5737, RFC 3849), which no host has."""


def address_towards(host: str) -> str:
    """The address of this host from which it reaches another one. Nothing is sent.

    The address in ``SPARK_LOCAL_IP`` is preferred, if the other host can be reached from it.

    The name of this host itself may mean a loopback address (Debian's 127.0.1.1), which is of no use to other
    hosts. Then the result is the address from which this host reaches other networks.

    Args:
        host: address or name of the other one.

    Raises:
        OSError: `host` cannot be reached, or its name does not resolve; or it is this host, which has no
            address that others could use.
    """
    given = _given_address()
    found = _source_towards(host, given)
    if given is None and is_loopback(found) and not is_loopback(host):
        for elsewhere in _ELSEWHERE:
            with contextlib.suppress(OSError):
                return _source_towards(elsewhere, None)
        raise OSError(
            f"{host} is this host, which has loopback addresses only; SPARK_LOCAL_IP may name another"
        )
    return found


def _source_towards(host: str, given: str | None) -> str:
    family, kind, protocol, _, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    for source in (given, None):
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            if source is not None:
                probe.bind((source, 0))
            probe.connect(place)  # on a datagram socket, this only chooses a route
            return str(probe.getsockname()[0])
    raise OSError(f"this host has no way to {host}")


def _given_address() -> str | None:
    given = os.environ.get("SPARK_LOCAL_IP", "")
    try:
        address = ipaddress.ip_address(given)
    except ValueError:
        return None  # not set, or a name
    return None if address.is_unspecified else given


class AgentStarter:
    """Starts agents on this host, one at a time for each hub. Thread-safe.

    Args:
        launch: starts a process.
        find_address: see `address_towards`.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        launch: Callable[[WorkerAgentSetup], subprocess.Popen[bytes]],
        find_address: Callable[[str], str] = address_towards,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launch = launch
        self._find_address = lru_cache(maxsize=16)(find_address)
        self._clock = clock
        self._lock = threading.Lock()
        self._next_start: dict[Address, float] = {}  # by hub (monotonic seconds)
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, config: SourceConfig, agent: AgentConfig, assignment: FanOutAssignment) -> None:
        """Starts an agent, unless the hub knows one here, or one was started a moment ago.

        An agent only speeds reading up, so failures here are no errors of the task.
        """
        hub = assignment.hub
        if hub is None:
            return
        with self._lock:
            now = self._clock()
            self._next_start = {other: at for other, at in self._next_start.items() if at > now}
            if hub in self._next_start:
                return
            # `poll` removes ended processes from the system's table.
            self._processes = [process for process in self._processes if process.poll() is None]
            try:
                host = self._find_address(hub.host)
                if host in assignment.hosts:
                    return
                self._next_start[hub] = now + _START_INTERVAL
                process = self._launch(
                    WorkerAgentSetup(config, agent, AgentPlace(host, host), hub.secret, hub)
                )
            except OSError as error:
                self._next_start[hub] = now + _START_INTERVAL
                _log.warning(
                    "can't start an agent on this host for the one on the driver host at %s; tasks "
                    "here read without one, next attempt in %.0f s: %s",
                    hub,
                    _START_INTERVAL,
                    error,
                )
                return
            self._processes.append(process)
        _log.info(
            "started an agent on %s (process %d); it joins the one at %s",
            host,
            process.pid,
            hub,
        )


def _launch(setup: WorkerAgentSetup) -> subprocess.Popen[bytes]:
    read, write = os.pipe()
    with contextlib.suppress(BrokenPipeError), os.fdopen(write, "wb") as setup_pipe:
        with os.fdopen(read, "rb") as stdin:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                agent_command(),
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env=child_environment(),
            )
        pickle.dump(setup, setup_pipe)
    return process


_shared: Final = AgentStarter(_launch)


def start_agent_if_wanted(config: SourceConfig, assignment: FanOutAssignment) -> None:
    """Starts an agent on this host if agents run on the workers, unless there is one.

    If tasks in two processes each start one, the second agent is refused, and ends. An agent does not end
    with the task or its Python worker, but with the agent on the driver host.
    """
    if config.agent is not None and config.agent.on_workers:
        _shared.start(config, config.agent, assignment)
