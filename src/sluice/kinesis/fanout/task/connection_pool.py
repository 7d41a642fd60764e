"""Connections of a process to agents, kept from one range to the next: a small range costs less than a
handshake, and a task may read many of them, many times a second."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from sluice.kinesis.fanout.channel import Address, Channel, connect

__all__ = ["Connections", "shared_connections"]

_LIMIT: Final = 64
"""Connections kept to one agent: a task reads no more ranges than that side by side."""


class Connections:
    """Channels on which nothing is under way. Thread-safe.

    Args:
        open_channel: connects to an agent; see `connect`.
        limit: how many are kept for one agent.
    """

    def __init__(
        self, open_channel: Callable[[Address, float], Channel] | None = None, *, limit: int = _LIMIT
    ) -> None:
        self._open = open_channel or (lambda address, timeout: connect(address, timeout=timeout))
        self._limit = limit
        self._kept: dict[Address, list[Channel]] = {}
        self._lock = threading.Lock()

    def take(self, address: Address, *, timeout: float) -> Channel:
        """One that was kept, or a new one.

        Raises:
            OSError, EOFError, ServiceError: as `connect`.
        """
        with self._lock:
            kept = self._kept.get(address, [])
            while kept:
                channel = kept.pop()
                if channel.is_quiet():
                    channel.set_timeout(timeout)
                    return channel
                channel.close()
            self._drop_dead()
        return self._open(address, timeout)

    def keep(self, address: Address, channel: Channel) -> None:
        """Takes back one on which all has been said; closes it where there are enough."""
        with self._lock:
            kept = self._kept.setdefault(address, [])
            if len(kept) < self._limit:
                kept.append(channel)
                return
        channel.close()

    def _drop_dead(self) -> None:
        """Agents die, and their successors have other addresses: nobody asks for those connections again."""
        for kept in self._kept.values():
            for channel in [each for each in kept if not each.is_quiet()]:
                kept.remove(channel)
                channel.close()
        self._kept = {address: kept for address, kept in self._kept.items() if kept}


_shared: Final = Connections()


def shared_connections() -> Connections:
    """Those of this process, which Spark gives one task after the other."""
    return _shared
