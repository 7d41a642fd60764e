"""Serves ranges to tasks over TCP, and takes in agents on worker hosts that join."""

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

_LONGEST_REQUEST: Final = 64 * 1024
_BACKLOG: Final = 512


class RangeServer:
    """Listens at a free port, and serves each connection in a thread of its own.

    Args:
        host: the address to listen on.
        secret: a connection that does not prove that it knows it is closed.
        read: gives the events of a range; raises RangeUnavailable.
        join: takes the connection of an agent on a worker host, and returns when that agent is gone. None
            where no agent may join.
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
        """Accepts no more connections. Those that are open are served on."""
        # Without a shutdown the port stays open until the thread in `accept` returns.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # `close` was called
            threading.Thread(target=self._serve, args=(connection,), name="sluice-serve", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        channel = accept_peer(connection, self._secret)
        if channel is None:
            _log.warning("port %d: closed a connection that did not prove the query's secret", self.port)
            return
        try:
            while True:
                request = decode_first_frame(channel.receive(at_most=_LONGEST_REQUEST))
                if isinstance(request, ReadRange):
                    self._answer(channel, request)
                elif self._join is not None:
                    self._join(channel, request)
                    return
        except (EOFError, OSError):
            pass  # the task has all it asked for, or is gone
        finally:
            channel.close()

    def _answer(self, channel: Channel, request: ReadRange) -> None:
        try:
            for payload in self._read(request):
                channel.send(EVENT, payload)
        except RangeUnavailable as reason:
            channel.send(UNAVAILABLE, str(reason).encode())
            return
        channel.send(DONE)
