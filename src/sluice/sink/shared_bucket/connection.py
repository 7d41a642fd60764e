"""A task's connection to the query server, over TCP. The writer's thread does not wait for answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from sluice.channels.channel import Address, Channel, connect
from sluice.errors import SluiceError
from sluice.query_server.protocol import FromServer, ToServer, decode_from_server, encode

__all__ = ["ServerConnection"]

_CONNECT_TIMEOUT: Final = 5.0
_PEER_TIMEOUT: Final = 0.5
"""Seconds for which the server may hold up the writer: with half of a message, or by not receiving."""
_RETRY_AFTER: Final = 2.0
"""Seconds from the end of a connection, or of an attempt, to the next attempt."""


class ServerConnection:
    """A connection to the server at an address. No method raises, and none waits for an answer.

    Args:
        address: of the server.
        clock: monotonic seconds.

    Attributes:
        problem: why there is no connection, for messages; empty until the first attempt fails.
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
        """Returns whether there is a connection. If not, a thread makes one, with pauses between attempts."""
        with self._lock:
            if self._channel is not None:
                return True
            if not self._is_connecting and not self._is_closed and self._clock() >= self._next_attempt:
                self._start()
            return False

    def send(self, message: ToServer) -> None:
        """Sends a message. Does nothing if there is no connection."""
        channel = self._channel
        if channel is not None:
            try:
                channel.send(encode(message))
            except OSError as error:
                self.disconnect(str(error))

    def receive(self) -> Sequence[FromServer]:
        """Returns the messages that have arrived."""
        messages: list[FromServer] = []
        channel = self._channel
        try:
            while channel is not None and not channel.is_idle():
                messages.append(decode_from_server(channel.receive()))
        except (OSError, EOFError, SluiceError, msgspec.MsgspecError) as error:
            self.disconnect(str(error))
        return messages

    def disconnect(self, problem: str) -> None:
        """Ends the connection. What was sent arrives if the server is alive."""
        with self._lock:
            channel, self._channel = self._channel, None
            self._fail(problem)
        if channel is not None:
            channel.close()

    def close(self) -> None:
        """Ends the connection for good."""
        with self._lock:
            self._is_closed = True
        self.disconnect("closed")

    def _fail(self, problem: object) -> None:
        """The caller has the lock."""
        self.problem = f"{self._address}: {problem}"
        self._next_attempt = self._clock() + _RETRY_AFTER

    def _start(self) -> None:
        """Starts an attempt. The caller has the lock."""
        try:
            threading.Thread(target=self._make, name="sluice-query-server", daemon=True).start()
        except RuntimeError as error:  # the system has no thread left
            self._fail(error)
        else:
            self._is_connecting = True  # the thread waits for the lock before it changes this

    def _make(self) -> None:
        channel: Channel | None = None
        problem: Exception | None = None
        try:
            channel = connect(self._address, timeout=_CONNECT_TIMEOUT)
            channel.set_timeout(_PEER_TIMEOUT)
        except Exception as error:  # noqa: BLE001 - the next attempt follows, whatever it is
            problem = error
        with self._lock:
            self._is_connecting = False
            if problem is not None:
                self._fail(problem)
            elif not self._is_closed:
                self._channel = channel
                return
        if channel is not None:
            channel.close()
