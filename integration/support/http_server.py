"""A server of HTTP whose answers are a function of the request, bytes of target and headers included."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

__all__ = ["Sent", "http_server"]


class Sent(NamedTuple):
    """A request as it came. `headers` are in their order, with their names in lower case."""

    method: str
    target: str
    headers: Sequence[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """The only header of this name."""
        found = [value for each, value in self.headers if each == name]
        assert len(found) < 2, found
        return found[0] if found else None


Respond = Callable[[Sent], tuple[int, bytes]]


@contextlib.contextmanager
def http_server(respond: Respond) -> Iterator[str]:
    """Serves until the block ends; its value is the server's URL. `respond` runs in many threads."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = [(name.lower(), value) for name, value in self.headers.items()]
            # The standard library shortens slashes at the beginning of `self.path`.
            target = self.requestline.split(" ")[1]
            status, answer = respond(Sent(self.command, target, headers, body))
            with contextlib.suppress(OSError):
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        do_PUT = do_POST  # noqa: N815 - a name of the standard library

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
