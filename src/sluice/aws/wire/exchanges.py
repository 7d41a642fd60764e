"""Ends requests over HTTP that last too long, with all that they wait for.

The timeouts of urllib3 start anew with every byte, for each part of a request. An `Exchange` has one deadline
for all parts: making a connection, through a proxy and with TLS, sending, and receiving headers and body.
After it the connection is shut down, so that the thread that waits for it returns at once.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import urllib3
from urllib3 import connection, connectionpool
from urllib3.exceptions import HTTPError

from sluice.aws.wire.watchdog import Watchdog, shared_watchdog
from sluice.errors import redact_urls
from sluice.options import redact_url

__all__ = ["Exchange", "TimedConnection", "current_exchange", "fetch", "proxy_manager"]

_threads: Final = threading.local()


def current_exchange() -> Exchange | None:
    """The exchange that this thread has entered."""
    return getattr(_threads, "exchange", None)


class Exchange:
    """One request and its answer. Enter it in the thread that sends and receives.

    Connections of `TimedConnection` that this thread uses meanwhile belong to it.

    Args:
        seconds: from entering it to its end.
        send_timeout: seconds for sending the request; None: as urllib3 has it.
        watchdog: ends exchanges that are late; None: the process's own.

    Attributes:
        was_ended: whether `end` came before the exchange was complete. What its thread has received or raised
            then means nothing.
    """

    def __init__(
        self, seconds: float, *, send_timeout: float | None = None, watchdog: Watchdog | None = None
    ) -> None:
        self.was_ended = False
        self.send_timeout = send_timeout
        self._seconds = seconds
        self._watchdog = watchdog or shared_watchdog()
        self._lock = threading.Lock()
        self._is_complete = False
        self._connection: connection.HTTPConnection | None = None
        self._socket: Any = None
        self._outer: Exchange | None = None

    def __enter__(self) -> Exchange:  # noqa: PYI034 - Python 3.10 has no Self
        self._outer = current_exchange()
        _threads.exchange = self
        self._watchdog.arm(self, time.monotonic() + self._seconds, self.end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.complete()
        _threads.exchange = self._outer

    def uses(self, connection: connection.HTTPConnection) -> None:
        """Sends and receives the rest of the exchange over this connection.

        Raises:
            TimeoutError: the exchange has been ended.
        """
        with self._lock:
            self._connection = connection
            if connection.sock is not None:
                # The connection may lose it while the answer still holds it.
                self._socket = connection.sock
            if self.was_ended:
                raise TimeoutError("the request was given up")

    def complete(self) -> None:
        """The answer has arrived: other requests may use its connection, and nothing ends it any more."""
        with self._lock:
            self._is_complete = True
            self._connection = self._socket = None
        self._watchdog.disarm(self)

    def end(self) -> None:
        """Shuts the connection down unless the exchange is complete. From any thread."""
        with self._lock:
            if self._is_complete:
                return
            self.was_ended = True
            if self._connection is not None:
                _shut_down(self._socket if self._connection.sock is None else self._connection.sock)


def _shut_down(connected: Any) -> None:
    connected = getattr(connected, "socket", connected)  # TLS inside of TLS is not a socket, but has one
    with contextlib.suppress(OSError, AttributeError):  # it has ended, or there is none yet
        if isinstance(connected, socket.socket):
            # Not `SSLSocket.shutdown`: it would change the state of a connection that another thread uses.
            socket.socket.shutdown(connected, socket.SHUT_RDWR)
        else:
            connected.shutdown(socket.SHUT_RDWR)


class TimedConnection(connection.HTTPConnection):
    """A connection whose requests belong to the exchange of their thread."""

    def connect(self) -> None:
        exchange = current_exchange()
        if exchange is None:
            super().connect()
            return
        exchange.uses(self)
        super().connect()
        exchange.uses(self)

    def request(self, *args: Any, **more: Any) -> None:
        if (exchange := current_exchange()) is not None:
            exchange.uses(self)
        super().request(*args, **more)


class _TimedTlsConnection(TimedConnection, connection.HTTPSConnection):
    pass


class _Pool(connectionpool.HTTPConnectionPool):
    ConnectionCls = TimedConnection


class _TlsPool(connectionpool.HTTPSConnectionPool):
    ConnectionCls = _TimedTlsConnection


def fetch(url: str, *, seconds: float, at_most: int) -> bytes:
    """The content at a URL, without retries and without a proxy.

    Args:
        seconds: for the whole exchange.
        at_most: bytes that are read.

    Raises:
        OSError: there is none, or not in time.
    """
    try:
        manager = urllib3.PoolManager()
        manager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
        with manager, Exchange(seconds) as exchange:
            response = manager.request("GET", url, timeout=seconds, retries=False, preload_content=False)
            try:
                content = response.read(at_most, decode_content=True)
            finally:
                response.close()
            if response.status != HTTPStatus.OK:
                raise OSError(f"HTTP status {response.status} {response.reason}")
            exchange.complete()
            if exchange.was_ended:
                raise TimeoutError(f"no whole answer within {seconds:g} s")
            return content
    except (HTTPError, ValueError) as error:
        raise OSError(str(error)) from error


def proxy_manager(proxy: str, **settings: Any) -> urllib3.ProxyManager:
    """Connections through a proxy, with the user and the password of its URL.

    Args:
        proxy: its URL, as the environment has it.
        settings: of the connections.

    Raises:
        ValueError: the URL cannot be used. The message does not show the password.
    """
    try:
        login = _login_of(proxy)
        headers = urllib3.make_headers(proxy_basic_auth=login) if login else None
        return urllib3.ProxyManager(proxy, proxy_headers=headers, **settings)
    except (HTTPError, ValueError) as error:
        shown = redact_url(proxy)  # as a whole: a password may have any character
        raise ValueError(
            f"the environment names the proxy {shown!r}, which cannot be used: "
            f"{redact_urls(str(error).replace(proxy, shown))}"
        ) from None


def _login_of(proxy: str) -> str | None:
    """User and password; None without a user. Raises ValueError if it is not clear where they end."""
    parts = urlsplit(proxy)
    if "@" in proxy and "@" not in parts.netloc:
        raise ValueError("a '/', '?' or '#' of its password has to be escaped, as %2F, %3F or %23")
    return f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
