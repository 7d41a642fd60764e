"""Connections that give an endpoint time to read a request, and log nothing of what it answers.

urllib3 sends within the timeout for making a connection, which is short. An endpoint that is busy, or that a
slow line leads to, may need longer for a large body.
"""

from __future__ import annotations

import http.client
from typing import Any, Final

from urllib3 import connection, connectionpool
from urllib3.exceptions import ConnectTimeoutError

from sluice.aws.wire.exchanges import TimedConnection, current_exchange

__all__ = ["POOLS"]


class _Response(http.client.HTTPResponse):
    def begin(self) -> None:
        super().begin()
        # urllib3 logs headers that cannot be read, as they came: an endpoint may repeat credentials in them.
        self.headers.defects = []
        self.headers.set_payload("")


# Messages of urllib3 begin with the names of these classes: they are those that users know.


class HTTPConnection(TimedConnection):
    """Sends a request within the time of its exchange, and makes connections within the pool's timeout."""

    response_class = _Response

    def connect(self) -> None:
        exchange = current_exchange()
        try:
            super().connect()
        except TimeoutError as error:
            if exchange is not None and exchange.was_ended:
                raise
            # This timeout is the handshake's: urllib3 would report a read timeout, as if the endpoint were
            # reachable.
            text = f"no TLS connection within {self.timeout:g} s (connectTimeout)"
            raise ConnectTimeoutError(self, text) from error
        if exchange is not None and self.sock is not None:
            self.sock.settimeout(exchange.send_timeout)

    def request(self, *args: Any, **more: Any) -> None:
        exchange = current_exchange()
        if exchange is not None and self.sock is not None:
            # urllib3 sets it for what it sends on a connection that is made.
            self.timeout = exchange.send_timeout
        super().request(*args, **more)


class HTTPSConnection(HTTPConnection, connection.HTTPSConnection):
    pass


class HTTPConnectionPool(connectionpool.HTTPConnectionPool):
    ConnectionCls = HTTPConnection


class HTTPSConnectionPool(connectionpool.HTTPSConnectionPool):
    ConnectionCls = HTTPSConnection


POOLS: Final = {"http": HTTPConnectionPool, "https": HTTPSConnectionPool}
"""What a pool manager makes connections with, by scheme."""
