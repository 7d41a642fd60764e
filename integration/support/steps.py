"""The steps of an epoch of the asynchronous sink, at which a test can stop the world.

Nothing in the library helps it. A test's own destinations and listener announce, over a socket, how far they
have come, and wait for the answer; `HoldingProxy` does the same with requests.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from integration.support.holding_proxy import Trap
from sluice.destinations.http import HttpDestination
from sluice.destinations.kinesis import KinesisStreamsDestination
from sluice.sink import SinkProgress

ROWS: Final = "rows"  # a task has its first rows, and has sent nothing
REQUEST: Final = "request"  # a request is in flight: a step of the proxy
ANSWERED: Final = "answered"  # all requests of a task are answered, and it has not ended
ENDED: Final = "ended"  # all tasks have ended, and the commit has not begun
COMMITTING: Final = "committing"  # the commit calls the progress listener

_ADDRESS: Final = "SLUICE_TEST_STEPS"  # inherited by the driver, its JVM and all Python workers
_COMMIT_PROCESS: Final = b"python_streaming_sink_runner"
_TIMEOUT: Final = 300.0


class Steps:
    """Takes announcements, and lets those wait that `trap` catches."""

    def __init__(self) -> None:
        self.trap: Trap | None = None  # where to stop next; None for nowhere
        self.figures: list[dict[str, Any]] = []  # what the progress listener received, in order
        self._lock = threading.Lock()
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                outer._take(self)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Those who announce are killed here: that is what it is for."""

        self._server = Server(("127.0.0.1", 0), Handler)

    @contextlib.contextmanager
    def running(self) -> Iterator[Steps]:
        """Processes that are started meanwhile announce here."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        thread.start()
        os.environ[_ADDRESS] = str(self._server.server_address[1])
        try:
            yield self
        finally:
            del os.environ[_ADDRESS]
            if self.trap is not None:
                self.trap.released.set()
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def _take(self, connection: socketserver.StreamRequestHandler) -> None:
        message = json.loads(connection.rfile.readline())
        with self._lock:
            if message["figures"] is not None:
                self.figures.append(message["figures"])
            trap = self.trap
            caught = trap is not None and trap.catches(message["step"])
        if trap is None or not caught:
            connection.wfile.write(b"\n")
            return
        try:
            trap.released.wait(_TIMEOUT)
            connection.wfile.write(b"\n")
            connection.rfile.read()  # until the sender resumes, or is dead
        finally:
            trap.over.set()


def announce(step: str, figures: Mapping[str, Any] | None = None) -> None:
    with socket.create_connection(("127.0.0.1", int(os.environ[_ADDRESS])), _TIMEOUT) as connection:
        connection.sendall(json.dumps({"step": step, "figures": figures}).encode() + b"\n")
        connection.recv(1)


def committing(progress: SinkProgress) -> None:
    """The progress listener."""
    announce(COMMITTING, json.loads(progress.json))


class _Converter:
    """Announces the first rows of a task."""

    def __init__(self, converter: Any) -> None:
        self._converter = converter
        self._announced = False
        self.known_columns = converter.known_columns
        self.open = converter.open

    def convert(self, batch: pa.RecordBatch) -> Iterable[Any]:
        if not self._announced:
            self._announced = True
            announce(ROWS)
        return self._converter.convert(batch)  # type: ignore[no-any-return]


class _Stepped:
    """Goes before a destination among the bases of a class: the destination then announces its steps."""

    is_closed = False

    @classmethod
    def from_options(cls, values: Any, connection: Any) -> Any:
        if _COMMIT_PROCESS in Path("/proc/self/cmdline").read_bytes():
            announce(ENDED)
        destination: Any = super()
        return destination.from_options(values, connection)

    def create_converter(self) -> Any:
        destination: Any = super()
        return _Converter(destination.create_converter())

    def figures(self) -> Mapping[str, float]:
        if not self.is_closed:  # called as well when a task has failed
            announce(ANSWERED)
        return {}

    def close(self) -> None:
        self.is_closed = True


class SteppedHttp(_Stepped, HttpDestination):
    """``http`` that announces its steps."""


class SteppedKinesis(_Stepped, KinesisStreamsDestination):
    """``kinesis`` that announces its steps."""
