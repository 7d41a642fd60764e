"""A proxy before a server that stops the world at a given request, so that a driver can be killed there.

Nothing in the library helps it: it tells the steps by the requests that they make; for S3, those of a commit.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

BEFORE = "before"  # the request never reaches the server
AFTER = "after"  # it does, and its answer never comes back
LATE = "late"  # it reaches the server when its sender is dead
PASSED = "passed"  # it is answered as ever; the trap only tells

_TIMEOUT = 300.0


def step_of(method: str, target: str) -> str:
    """Which step of a commit a request is; empty for none that matters."""
    parts = urlsplit(target)
    query = parse_qs(parts.query, keep_blank_values=True)
    if "uploads" in query:
        return "create" if method == "POST" else "orphans"
    if "uploadId" in query:
        return {"PUT": "part", "POST": "complete", "DELETE": "abort"}.get(method, "")
    if "list-type" in query:  # whether an epoch is committed, and the remains of others
        return "look"
    if "/pending/" in parts.path:
        return {"PUT": "note", "GET": "settle", "DELETE": "forget"}.get(method, "")
    if "/_sluice/" in parts.path:
        return {"PUT": "manifest", "GET": "settle"}.get(method, "")
    return ""


@dataclass
class Trap:
    """Where the world stops: at a step, after so many requests of that step have passed."""

    step: str
    phase: str
    skip: int = 0
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        """Lets the request pass, if it was caught, and returns when it has ended."""
        self.released.set()
        if self.reached.is_set():
            assert self.over.wait(_TIMEOUT)

    def catches(self, step: str) -> bool:
        """Whether this request is the one; call it with the proxy's lock held."""
        if step != self.step or self.reached.is_set():
            return False
        self.skip -= 1
        if self.skip >= 0:
            return False
        self.reached.set()
        return True


class _Server(http.server.ThreadingHTTPServer):
    def __init__(self, handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        self.connected: set[Any] = set()  # the addresses of clients
        self.changed = threading.Condition()
        super().__init__(("127.0.0.1", 0), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self.changed:
            self.connected.add(client_address)
            self.changed.notify_all()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self.changed:
                self.connected.discard(client_address)
                self.changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients die here: that is what it is for."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class HoldingProxy:
    """Passes requests on, but those that `trap` catches.

    `upstream`: the URL of the server; `step_of`: which step a request is, by its method and target.
    """

    def __init__(self, upstream: str, step_of: Callable[[str, str], str] = step_of) -> None:
        self.trap: Trap | None = None  # where to stop next; None for nowhere
        self.requests = 0  # that have come so far
        self._step_of = step_of
        self._lock = threading.Lock()
        self._upstream = urlsplit(upstream).netloc
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = _TIMEOUT

            def _any(self) -> None:
                outer.handle(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any  # noqa: N815 - names of http.server

            def log_message(self, *_: Any) -> None:
                pass

        self._server = _Server(Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextlib.contextmanager
    def running(self) -> Iterator[HoldingProxy]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield self
        finally:
            if self.trap:
                self.trap.released.set()
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def wait_until_left(self) -> None:
        """Returns when all requests of dead clients have ended. There may be no others."""
        server = self._server
        with socket.create_connection(("127.0.0.1", server.server_port)) as last, server.changed:
            address = last.getsockname()
            # It is accepted after all connections that were made before.
            assert server.changed.wait_for(lambda: address in server.connected, _TIMEOUT)
        with server.changed:
            assert server.changed.wait_for(lambda: not server.connected, _TIMEOUT)

    def handle(self, request: http.server.BaseHTTPRequestHandler) -> None:
        """One request."""
        length = int(request.headers.get("Content-Length") or 0)
        body = request.rfile.read(length)
        if len(body) < length:  # its sender died over it
            request.close_connection = True
            return
        with self._lock:
            self.requests += 1
            trap = self.trap
            caught = trap is not None and trap.catches(self._step_of(request.command, request.path))
        if trap is None or not caught:
            self._pass_on(request, body, PASSED, None)
            return
        try:
            self._pass_on(request, body, trap.phase, trap)
        finally:
            trap.over.set()

    def _pass_on(
        self, request: http.server.BaseHTTPRequestHandler, body: bytes, phase: str, trap: Trap | None
    ) -> None:
        if trap is not None and phase in (BEFORE, LATE):
            trap.released.wait(_TIMEOUT)
        if phase == BEFORE:
            request.close_connection = True
            return
        answer, content = self._forward(request, body)
        if trap is not None and phase == AFTER:
            trap.released.wait(_TIMEOUT)
        if phase in (AFTER, LATE):
            request.close_connection = True
            return
        with contextlib.suppress(OSError):  # whoever asked is dead
            request.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    request.send_header(name, value)
            length = answer.getheader("Content-Length") if request.command == "HEAD" else str(len(content))
            request.send_header("Content-Length", length or "0")
            request.end_headers()
            request.wfile.write(content)

    def _forward(
        self, request: http.server.BaseHTTPRequestHandler, body: bytes
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection(self._upstream, timeout=_TIMEOUT)
        try:
            hop = ("expect", "connection", "transfer-encoding")
            headers = {name: value for name, value in request.headers.items() if name.lower() not in hop}
            connection.request(request.command, request.path, body, headers)
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()
