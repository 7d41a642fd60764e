"""Agents on worker hosts: started by the first task there that finds none."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import subprocess
import threading
import time
from typing import Final

from sluice.kinesis.fanout.assignment import FanOutAssignment
from sluice.kinesis.fanout.launch import AgentSetup, agent_command, agent_environment
from sluice.kinesis.options import SourceConfig

__all__ = ["start_agent_here", "worker_host"]

_log = logging.getLogger(__name__)

_PAUSE: Final = 10.0
"""Seconds in which an agent that has been started joins, or has failed to."""

_lock = threading.Lock()
_started: dict[tuple[str, int], tuple[float, subprocess.Popen[bytes]]] = {}


def worker_host() -> str:
    """The address by which other hosts reach this one: what Spark was told to use, or the host's own."""
    return os.environ.get("SPARK_LOCAL_IP") or socket.gethostbyname(socket.gethostname())


def start_agent_here(config: SourceConfig, access: FanOutAssignment) -> None:
    """Starts an agent on this host, unless the one beside the driver knows of one.

    Of two that are started at once the second one is turned away, and ends. An agent outlives the task
    and its Python worker: it ends with the one beside the driver.
    """
    host = worker_host()
    if access.hub is None or host in access.hosts:
        return
    hub = (access.hub.host, access.hub.port)
    with _lock:
        started, _ = _started.get(hub, (None, None))
        if started is not None and time.monotonic() - started < _PAUSE:
            return
        setup = AgentSetup(config, host, access.hub.secret, access.hub)
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            agent_command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            env=agent_environment(),
        )
        assert process.stdin is not None  # noqa: S101 - as asked for
        with process.stdin as stdin:
            stdin.write(pickle.dumps(setup))
        _started[hub] = time.monotonic(), process
        _log.info("started a fan-out agent on %s, process %d", host, process.pid)
