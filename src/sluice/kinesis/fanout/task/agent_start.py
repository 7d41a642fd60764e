"""Starts the fan-out agent of a worker host, by the first task there that finds none."""

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
from sluice.kinesis.fanout.launch import WorkerAgentSetup, agent_command, agent_environment
from sluice.kinesis.fanout_options import FanOutConfig
from sluice.kinesis.options import SourceConfig

__all__ = ["start_agent_here", "worker_host"]

_log = logging.getLogger(__name__)

_JOIN_TIMEOUT: Final = 10.0
"""Seconds within which an agent that was started has joined. If it has not, another one is started."""

_lock = threading.Lock()
_started: dict[tuple[str, int], tuple[float, subprocess.Popen[bytes]]] = {}


def worker_host() -> str:
    """The address at which other hosts reach this one: the one that Spark was given, or the host's own."""
    return os.environ.get("SPARK_LOCAL_IP") or socket.gethostbyname(socket.gethostname())


def start_agent_here(config: SourceConfig, fan_out: FanOutConfig, assignment: FanOutAssignment) -> None:
    """Starts an agent on this host, unless the agent beside the driver knows one here.

    Where two tasks start one each, the second one is not let in, and ends. An agent does not end with the
    task or its Python worker, but with the agent beside the driver.
    """
    host, hub = worker_host(), assignment.hub
    if hub is None or host in assignment.hosts:
        return
    with _lock:
        started, _ = _started.get((hub.host, hub.port), (None, None))
        if started is not None and time.monotonic() - started < _JOIN_TIMEOUT:
            return
        process = _start(WorkerAgentSetup(config, fan_out, host, hub.secret, hub))
        _started[hub.host, hub.port] = time.monotonic(), process
        _log.info(
            "started a fan-out agent on %s (process %d); it joins the one at %s", host, process.pid, hub
        )


def _start(setup: WorkerAgentSetup) -> subprocess.Popen[bytes]:
    read, write = os.pipe()
    with os.fdopen(write, "wb") as setup_pipe:
        with os.fdopen(read, "rb") as stdin:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                agent_command(),
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env=agent_environment(),
            )
        pickle.dump(setup, setup_pipe)
    return process
