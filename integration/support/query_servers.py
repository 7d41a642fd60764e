"""The query servers (`sluice.query_server`) that tests have running."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from integration.support.fan_out import MARK
from integration.support.processes import marked_processes

_MODULE = b"sluice.query_server"


def query_servers() -> list[int]:
    """The query servers of this run of the tests, by process id."""
    found = []
    for process in marked_processes(f"{MARK}={os.environ[MARK]}"):
        with contextlib.suppress(OSError):  # gone
            if _MODULE in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0"):
                found.append(process)
    return found
