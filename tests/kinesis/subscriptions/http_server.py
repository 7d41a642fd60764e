"""An HTTP server on the loopback interface, whose answers a test writes byte by byte."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.amazon.eventstream\r\n"
    b"x-amzn-RequestId: request-1\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


END = b"0\r\n\r\n"


def refusal(code: str, status: int = 400) -> bytes:
    body = json.dumps({"__type": code, "message": "no"}).encode()
    return b"HTTP/1.1 %d Bad\r\nContent-Type: application/x-amz-json-1.1\r\nContent-Length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


class Connection:
    """The server's end of one request."""

    def __init__(self, sock: socket.socket, body: dict[str, Any]) -> None:
        self._socket = sock
        self.body = body

    def send(self, *data: bytes) -> None:
        self._socket.sendall(b"".join(data))

    def reset(self) -> None:
        """Ends the connection so that the client gets an error, not an end."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def wait_until_left(self) -> None:
        """Blocks until the client has closed the connection."""
        self._socket.settimeout(120)
        with contextlib.suppress(ConnectionError):
            while self._socket.recv(65536):
                pass


class Server:
    """Gives every request to `answer`, in a separate thread, and then closes the connection."""

    def __init__(self, answer: Callable[[Connection], None]) -> None:
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.bodies: list[dict[str, Any]] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with sock, sock.makefile("rb") as reading:
            length = 0
            while (line := reading.readline().strip()) != b"":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            self.bodies.append(json.loads(reading.read(length)))
            with contextlib.suppress(OSError):
                self._answer(Connection(sock, self.bodies[-1]))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(60)


@contextlib.contextmanager
def serving(answer: Callable[[Connection], None]) -> Iterator[Server]:
    server = Server(answer)
    try:
        yield server
    finally:
        server.close()
