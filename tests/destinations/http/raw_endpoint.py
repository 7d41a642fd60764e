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

    At `PAUSE` it waits for the next request, or a moment. After an answer that ends with `CUT` it closes the
    connection; after one that ends with `TRICKLE` it sends a byte now and then.

    Args:
        answers: see above.
        reads_after: seconds until it begins to read a request.

    Attributes:
        url: of the endpoint.
        bodies: of all requests.
        connections: that were opened.
        gone: set when the other end has closed a connection on which an answer trickled.
    """

    CUT = b"\0cut"
    PAUSE = b"\0pause"
    TRICKLE = b"\0trickle"

    def __init__(self, answers: list[bytes], reads_after: float = 0.0) -> None:
        self._answers = iter(answers)
        self._reads_after = reads_after
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/rows"
        self.bodies: list[bytes] = []
        self.connections = 0
        self.gone = threading.Event()
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
                whole = answer.removesuffix(self.CUT).removesuffix(self.TRICKLE)
                for number, part in enumerate(whole.split(self.PAUSE)):
                    if number:
                        select.select([connection], [], [], 0.1)
                    connection.sendall(part)
                if answer.endswith(self.TRICKLE):
                    self._trickle(connection)
                if answer.endswith((self.CUT, self.TRICKLE)):
                    return

    def _trickle(self, connection: socket.socket) -> None:
        try:
            while not select.select([connection], [], [], 0.01)[0]:  # it is readable at its end
                connection.sendall(b"1")
        except OSError:
            pass
        finally:
            self.gone.set()

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
