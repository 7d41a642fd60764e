"""An endpoint on the loopback interface that answers with bytes as they are given."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from typing import BinaryIO


class RawEndpoint:
    """Answers each request, on whichever connection it comes, with the next of `answers`.

    At `PAUSE` it waits for the next request, or a moment. An answer that ends with `CUT` is followed by the
    end of the connection.

    Args:
        answers: see above.
        reads_after: seconds until it begins to read a request.

    Attributes:
        url: of the endpoint.
        bodies: of all requests.
        connections: that were opened.
    """

    CUT = b"\0cut"
    PAUSE = b"\0pause"

    def __init__(self, answers: list[bytes], reads_after: float = 0.0) -> None:
        self._answers = iter(answers)
        self._reads_after = reads_after
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/rows"
        self.bodies: list[bytes] = []
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream, contextlib.suppress(OSError):
            while (body := self._next_body(stream)) is not None:
                self.bodies.append(body)
                answer = next(self._answers)
                for number, part in enumerate(answer.removesuffix(self.CUT).split(self.PAUSE)):
                    if number:
                        select.select([connection], [], [], 0.1)
                    connection.sendall(part)
                if answer.endswith(self.CUT):
                    return

    def _next_body(self, stream: BinaryIO) -> bytes | None:
        select.select([], [], [], self._reads_after)
        return _body_of_a_request(stream)


@contextlib.contextmanager
def raw_endpoint(*answers: bytes, reads_after: float = 0.0) -> Iterator[RawEndpoint]:
    endpoint = RawEndpoint(list(answers), reads_after)
    try:
        yield endpoint
    finally:
        endpoint.close()


def _body_of_a_request(stream: BinaryIO) -> bytes | None:
    """None at the end of the connection."""
    length = 0
    while line := stream.readline().strip().lower():
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return stream.read(length) if length else None
