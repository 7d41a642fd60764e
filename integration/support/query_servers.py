"""The servers of queries (`sluice.query_server`) that tests have running, and what they tell tasks."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from integration.support.fan_out import MARK
from integration.support.processes import marked_processes
from sluice.query_server.connection import TcpServerConnection
from sluice.query_server.protocol import MeanRate, ReportRate
from sluice.query_server.rendezvous import Rendezvous
from sluice.query_server.server import ServerSetup

__all__ = ["Listener", "query_servers"]

_MODULE = b"sluice.query_server"


def query_servers(*, bucket: bool) -> list[int]:
    """The processes of this run of the tests that hold a token bucket, or that compare paces."""
    found = []
    for process in marked_processes(f"{MARK}={os.environ[MARK]}"):
        with contextlib.suppress(OSError):  # gone
            if (setup := _setup(process)) is not None and (setup.bucket is not None) == bucket:
                found.append(process)
    return found


def _setup(process: int) -> ServerSetup | None:
    command = Path(f"/proc/{process}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    return msgspec.json.decode(command[-1], type=ServerSetup) if _MODULE in command else None


class Listener:
    """Asks a server what it tells the tasks of a query, and counts as none of them.

    Args:
        server: the process.
        query: the id of the query.

    Attributes:
        told: what it was told.
    """

    def __init__(self, server: int, query: str) -> None:
        setup = _setup(server)
        assert setup is not None
        address = Rendezvous(Path(setup.rendezvous)).read()
        assert address is not None
        self.told: list[MeanRate] = []
        self._connection = TcpServerConnection(address)
        self._query = query

    def listen(self) -> list[MeanRate]:
        """Asks again. Returns all that it was told about two tasks or more."""
        if self._connection.connect():
            self._connection.send(ReportRate(self._query, 0.0))
        self.told += [each for each in self._connection.receive() if isinstance(each, MeanRate)]
        return [each for each in self.told if each.tasks > 1]

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()
