"""A task's connection to the query server, over TCP. The writer's thread does not wait for answers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from sluice.channels.channel import Address, Channel, connect
from sluice.errors import SluiceError
from sluice.query_server.protocol import FromServer, ToServer, decode_from_server, encode

__all__ = ["NoServer", "ServerConnection", "TcpServerConnection"]

_log = logging.getLogger(__name__)

_CONNECT_TIMEOUT: Final = 5.0
_PEER_TIMEOUT: Final = 0.5
"""Seconds for which the server may hold up the writer: with half of a message, or by not receiving."""
_RETRY_AFTER: Final = 5.0
"""Seconds from the end of a connection, or of an attempt, to the next attempt."""


class ServerConnection(Protocol):
    """A connection to the query server. No call raises, and none waits for the server to answer.

    Where the server stands still, `receive` may block for the rest of a message, for half a second without a
    byte of it, and `send` while the system has no room for what the server does not take, for half a second
    in all. After that the connection has ended.

    Attributes:
        problem: why there is no connection, for the log; empty as long as the first attempt goes on.
    """

    problem: str

    def connect(self) -> bool:
        """Whether the connection stands, as far as is known. If not, starts to connect, every few seconds."""

    def send(self, message: ToServer) -> None:
        """Sends a message. Does nothing where there is no connection."""

    def receive(self) -> Sequence[FromServer]:
        """The messages that have come."""

    def disconnect(self, problem: str) -> None:
        """Ends the connection; what was sent arrives, if the server is there. `connect` makes another one."""

    def close(self) -> None:
        """Ends the connection for good; what was sent arrives, if the server is there."""


class NoServer:
    """A `ServerConnection` where there is no server.

    Args:
        problem: why.
    """

    def __init__(self, problem: str) -> None:
        self.problem = problem

    def connect(self) -> bool:
        """See `ServerConnection.connect`: never."""
        return False

    def send(self, message: ToServer) -> None:
        """Does nothing."""

    def receive(self) -> Sequence[FromServer]:
        """Nothing comes."""
        return ()

    def disconnect(self, problem: str) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class TcpServerConnection:
    """A `ServerConnection` to the server at an address.

    Args:
        address: of the server.
        clock: monotonic seconds.

    Attributes:
        problem: see `ServerConnection`.
    """

    def __init__(self, address: Address, clock: Callable[[], float] = time.monotonic) -> None:
        self.problem = ""
        self._address = address
        self._clock = clock
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._is_connecting = False
        self._is_closed = False
        self._next_attempt = clock()

    def connect(self) -> bool:
        """See `ServerConnection.connect`. A thread makes the connection."""
        with self._lock:
            if self._channel is not None:
                return True
            if not self._is_connecting and not self._is_closed and self._clock() >= self._next_attempt:
                self._start()
            return False

    def send(self, message: ToServer) -> None:
        """See `ServerConnection.send`."""
        channel = self._channel
        if channel is not None:
            try:
                channel.send(encode(message))
            except OSError as error:
                self.disconnect(f"{self._address}: {error}")

    def receive(self) -> Sequence[FromServer]:
        """See `ServerConnection.receive`."""
        messages: list[FromServer] = []
        channel = self._channel
        try:
            while channel is not None and not channel.is_idle():
                messages.append(decode_from_server(channel.receive()))
        except (OSError, EOFError, SluiceError, msgspec.MsgspecError) as error:
            self.disconnect(f"{self._address}: {error}")
        return messages

    def disconnect(self, problem: str) -> None:
        """See `ServerConnection.disconnect`."""
        with self._lock:
            channel, self._channel = self._channel, None
            self._next_attempt = self._clock() + _RETRY_AFTER
            self.problem = problem
        if channel is not None:
            channel.close()

    def close(self) -> None:
        """See `ServerConnection.close`."""
        with self._lock:
            self._is_closed = True
        self.disconnect("closed")

    def _start(self) -> None:
        """Starts an attempt. The caller has the lock."""
        try:
            threading.Thread(target=self._make, name="sluice-query-server", daemon=True).start()
        except RuntimeError as error:  # the system has no thread left: the next attempt may find one
            self.problem = f"{self._address}: {error}"
            self._next_attempt = self._clock() + _RETRY_AFTER
        else:
            self._is_connecting = True  # the thread waits for the lock before it changes this

    def _make(self) -> None:
        """In a thread of its own."""
        channel: Channel | None = None
        problem = ""
        try:
            channel = connect(self._address, timeout=_CONNECT_TIMEOUT)
            channel.set_timeout(_PEER_TIMEOUT)
        except Exception as error:  # noqa: BLE001 - or it would seem to go on for ever; a host can be no name
            problem = f"{self._address}: {error}"
        with self._lock:
            self._is_connecting = False
            if channel is not None and not self._is_closed:
                self._channel, self.problem = channel, ""
                return
            self.problem = problem
            self._next_attempt = self._clock() + _RETRY_AFTER
        if channel is not None:
            channel.close()
