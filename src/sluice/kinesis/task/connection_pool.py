"""Connections of a process to agents, kept from one range to the next.

A handshake costs more than a small range, and a task may read many small ranges many times a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from sluice.channels.channel import Address, Channel, connect

__all__ = ["SHARED_POOL", "ConnectionPool"]

_LIMIT: Final = 64
"""How many idle connections to one agent are kept: a task reads no more ranges in parallel."""


class ConnectionPool:
    """Idle connections by agent. Thread-safe.

    Args:
        open_channel: connects to an agent, with a timeout in seconds; by default `connect`.
        limit: idle connections that are kept to one agent.
    """

    def __init__(
        self, open_channel: Callable[[Address, float], Channel] | None = None, *, limit: int = _LIMIT
    ) -> None:
        self._open = open_channel or (lambda address, timeout: connect(address, timeout=timeout))
        self._limit = limit
        self._idle: dict[Address, list[Channel]] = {}
        self._lock = threading.Lock()

    def acquire(self, address: Address, *, timeout: float, is_new: bool = False) -> Channel:
        """An idle connection, or a new one.

        Agents close connections that have been idle for a while. A connection may be closed just after
        `acquire` returned it: then its user asks for a new one.

        Args:
            timeout: seconds; as in `connect`.
            is_new: opens one in any case.

        Raises:
            OSError, EOFError, ServiceError: as `connect`.
        """
        with self._lock:
            idle = [] if is_new else self._idle.get(address, [])
            while idle:
                channel = idle.pop()
                if channel.is_idle():
                    channel.set_timeout(timeout)
                    return channel
                channel.close()
            self._close_broken()
        return self._open(address, timeout)

    def release(self, address: Address, channel: Channel) -> None:
        """Takes back a connection without an outstanding answer; closes it if the pool is full."""
        with self._lock:
            if len(self._idle.get(address, [])) >= self._limit:
                self._close_broken()
            idle = self._idle.setdefault(address, [])
            if len(idle) < self._limit:
                idle.append(channel)
                return
        channel.close()

    def _close_broken(self) -> None:
        """Closes connections that agents have closed: idle ones, and connections to dead agents."""
        for idle in self._idle.values():
            for channel in [each for each in idle if not each.is_idle()]:
                idle.remove(channel)
                channel.close()
        self._idle = {address: idle for address, idle in self._idle.items() if idle}


SHARED_POOL: Final = ConnectionPool()
"""The pool of this process: Spark runs one task after the other in it."""
