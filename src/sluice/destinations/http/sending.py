"""Connections that give an endpoint time to read a request.

urllib3 sends within the timeout for making a connection, which is short. An endpoint that is busy, or that a
slow line leads to, may need longer for a large body.
"""

from __future__ import annotations

from typing import Any

from urllib3 import connection
from urllib3.exceptions import ConnectTimeoutError

__all__ = ["PatientConnection", "TimedBody"]


class TimedBody(bytes):
    """The body of a request.

    Attributes:
        seconds: that the endpoint may take to read it.
    """

    seconds: float

    @classmethod
    def of(cls, body: bytes, seconds: float) -> TimedBody:
        made = cls(body)
        made.seconds = seconds
        return made


class PatientConnection(connection.HTTPConnection):
    """Sends a `TimedBody` within its own time, and makes connections within the pool's timeout."""

    _seconds: float | None = None

    def connect(self) -> None:
        try:
            super().connect()
        except TimeoutError as error:
            # Of the handshake: urllib3 would call it a timeout of reading, as of an endpoint that is there.
            text = f"no TLS connection within {self.timeout:g} s (connectTimeout)"
            raise ConnectTimeoutError(self, text) from error
        if self._seconds is not None and self.sock is not None:
            self.sock.settimeout(self._seconds)

    def request(self, method: str, url: str, body: Any = None, *args: Any, **more: Any) -> None:
        self._seconds = body.seconds if isinstance(body, TimedBody) else None
        if self._seconds is not None and self.sock is not None:
            self.timeout = self._seconds  # urllib3 sets it for what it sends on a connection that is made
        super().request(method, url, body, *args, **more)
