"""Connections that read past informational responses (1xx), which http.client does for 100 alone.

An endpoint may send any number of them before its answer, as ``103 Early Hints`` or ``102 Processing``
(https://www.rfc-editor.org/rfc/rfc9110#section-15.2). One that is taken for the answer leaves the answer
itself on the connection, where the next request reads it: a row that is refused would count as accepted.
"""

from __future__ import annotations

import http.client
from typing import Final

import urllib3
from urllib3 import connection, connectionpool

from sluice.destinations.http.sending import PatientConnection

__all__ = ["is_informational", "read_past_informational_responses"]

# No endpoint needs more. One that goes on for ever must not hold a thread for ever.
_MOST: Final = 100
# Nothing of HTTP follows on a connection that has switched protocols: there is no answer to wait for.
_SWITCHED: Final = 101


def is_informational(status: int) -> bool:
    """Whether a status is not that of an answer."""
    return 100 <= status < 200


def read_past_informational_responses(manager: urllib3.PoolManager) -> None:
    """Makes the connections of `manager` read on to the answer itself.

    Where none comes, the status is that of the last informational response. The caller must then close the
    connection.
    """
    manager.pool_classes_by_scheme = {"http": HTTPConnectionPool, "https": HTTPSConnectionPool}


class _Response(http.client.HTTPResponse):
    def begin(self) -> None:
        for _ in range(_MOST):
            self._begin()
            if not is_informational(self.status) or self.status == _SWITCHED:
                return
            # http.client reads a status and headers where it has none yet.
            self.headers = self.msg = None  # type: ignore[assignment]
        self._begin()

    def _begin(self) -> None:
        super().begin()
        # urllib3 logs headers that cannot be read, as they came: an endpoint may repeat credentials in them.
        self.headers.defects = []
        self.headers.set_payload("")


# Messages of urllib3 begin with the names of these classes: they are those that users know.


class HTTPConnection(PatientConnection):
    response_class = _Response


class HTTPSConnection(PatientConnection, connection.HTTPSConnection):
    response_class = _Response


class HTTPConnectionPool(connectionpool.HTTPConnectionPool):
    ConnectionCls = HTTPConnection


class HTTPSConnectionPool(connectionpool.HTTPSConnectionPool):
    ConnectionCls = HTTPSConnection
