"""A small HTTP server for what ``sluice top`` and Prometheus read."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from sluice.errors import SluiceError
from sluice.metrics.board import Board
from sluice.metrics.exporters import Exporter

__all__ = ["JSON_PATH", "JsonExporter", "Page"]

JSON_PATH: Final = "/sluice.json"
_TIMEOUT: Final = 5.0
"""Seconds that a client may be silent."""
_LONGEST: Final = 30.0
"""Seconds from a connection to its end. A client that sends a byte now and then is never silent."""

Page = Callable[[], tuple[str, bytes]]
"""Makes the content type and the body of a page."""


class JsonExporter(Exporter):
    """Serves all figures as JSON, at ``/sluice.json``: the address that ``sluice top`` takes.

    There is no password: if other hosts can connect, let only those do who may see names of streams and how
    much is read and written.

    Args:
        port: 0 for any that is free.
        host: the address to listen on. The default serves this host only.
    """

    def __init__(self, port: int = 4747, host: str = "127.0.0.1") -> None:
        self._wanted = host, port
        self._server: ThreadingHTTPServer | None = None

    @property
    def address(self) -> str:
        """``host:port``, once the listener has started it."""
        host, port = self._wanted if self._server is None else self._server.server_address[:2]
        return f"{host!s}:{port}"

    def start(self, board: Board) -> None:
        """Listens.

        Raises:
            SluiceError: the port is taken, or the host is none of this machine's addresses.
        """
        pages = self.pages(board)

        class Handler(BaseHTTPRequestHandler):
            timeout = _TIMEOUT

            def do_GET(self) -> None:
                page = pages.get(self.path.partition("?")[0])
                if page is None:
                    self.send_error(HTTPStatus.NOT_FOUND, f"there are {', '.join(pages)}")
                    return
                kind, body = page()
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Does not log scrapes."""

        try:
            self._server = _Server(self._wanted, Handler)
        except (OSError, OverflowError) as error:  # the latter: a port beyond 65535
            host, port = self._wanted
            raise SluiceError(
                f"{type(self).__name__}: can't listen on {host}:{port}: {error}; port 0 takes a free one"
            ) from error
        threading.Thread(target=self._server.serve_forever, name="sluice-metrics", daemon=True).start()

    def pages(self, board: Board) -> Mapping[str, Page]:
        """What is served, by path."""
        return {JSON_PATH: lambda: ("application/json", json.dumps(board.to_json()).encode())}

    def close(self) -> None:
        """Ends the server."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # The library's default lets a second server listen on a port that is taken.
    allow_reuse_port = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._deadlines: dict[Any, float] = {}
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._deadlines[request] = time.monotonic() + _LONGEST
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called twice a second: ends the connections that have lasted too long."""
        now = time.monotonic()
        for request, deadline in list(self._deadlines.items()):
            if now > deadline:
                with contextlib.suppress(OSError):  # it ends by itself at this moment
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Does not log that a client has left in the middle of an answer."""
