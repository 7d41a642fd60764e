"""The model behind a socket, on the loopback alone, for unmodified clients: AWS JSON 1.0, unsigned."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import msgspec

from integration.model.errors import LOST_ANSWER, ModelError
from integration.streams_model.model import StreamsModel

_LOOPBACK: Final = "127.0.0.1"


@contextlib.contextmanager
def serving(model: StreamsModel, port: int = 0) -> Iterator[str]:
    class Handler(_Handler):
        served = model

    server = ThreadingHTTPServer((_LOOPBACK, port), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://{_LOOPBACK}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    served: StreamsModel

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Says nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        operation = self.headers.get("X-Amz-Target", "").partition(".")[2]
        try:
            self._answer(200, self.served.call(operation, msgspec.json.decode(body or b"{}")))
        except ModelError as error:
            if error.code == LOST_ANSWER:
                self.close_connection = True
                return
            code = f"com.amazonaws.dynamodb.v20120810#{error.code}"
            self._answer(error.status, {"__type": code, "message": error.message})

    def _answer(self, status: int, answer: Mapping[str, Any]) -> None:
        content = msgspec.json.encode(answer)
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("x-amzn-RequestId", str(uuid.uuid4()))
        self.end_headers()
        with contextlib.suppress(OSError):  # clients may go away at any moment
            self.wfile.write(content)
