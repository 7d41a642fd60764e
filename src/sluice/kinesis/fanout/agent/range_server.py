"""Serves ranges to tasks over TCP, to those that know the query's secret."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final

from sluice.kinesis.fanout.agent.shard_buffer import RangeUnavailable
from sluice.kinesis.fanout.channel import Channel, accept_peer
from sluice.kinesis.fanout.protocol import DONE, EVENT, UNAVAILABLE, JoinHub, ReadRange, decode_first_frame

__all__ = ["RangeServer"]

_log = logging.getLogger(__name__)

_LARGEST_REQUEST: Final = 64 * 1024
_BACKLOG: Final = 512


class RangeServer:
    """Accepts tasks at a port of its own choice; a thread for each connection.

    Args:
        host: the address to listen on.
        read: gives the events of a range; raises RangeUnavailable.
        join: takes the connection of an agent on a worker host, and returns when that is gone.
    """

    def __init__(
        self,
        host: str,
        secret: bytes,
        read: Callable[[ReadRange], Iterator[bytes | memoryview]],
        join: Callable[[Channel, JoinHub], None] | None = None,
    ) -> None:
        self._secret = secret
        self._read = read
        self._join = join
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        self.host = host
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="sluice-accept", daemon=True).start()

    def close(self) -> None:
        # Closed alone, it would go on listening for as long as a thread waits in `accept`.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(connection,), name="sluice-serve", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        channel = accept_peer(connection, self._secret)
        if channel is None:
            _log.warning("refused a connection that does not know the query's secret")
            return
        try:
            while True:
                request = decode_first_frame(channel.receive(at_most=_LARGEST_REQUEST))
                if isinstance(request, ReadRange):
                    self._answer(channel, request)
                elif self._join is not None:
                    self._join(channel, request)
                    return
        except (EOFError, OSError):
            pass  # the task has what it wants, or is gone
        finally:
            channel.close()

    def _answer(self, channel: Channel, fetch: ReadRange) -> None:
        try:
            for payload in self._read(fetch):
                channel.send(EVENT, payload)
        except RangeUnavailable as lacking:
            channel.send(UNAVAILABLE, str(lacking).encode())
            return
        channel.send(DONE)
