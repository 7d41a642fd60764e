"""The process that holds the token buckets; run as ``python -m sluice.query_server <setup>``.

It makes a secret, and writes it and where it listens to the file that its `ServerSetup` names. It ends when
the process that it was started for has ended and no task has been connected for a while.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from sluice.channels.acceptor import Acceptor, listen
from sluice.channels.channel import Address, Channel
from sluice.errors import SluiceError
from sluice.query_server.bucket import BucketService, Outgoing
from sluice.query_server.launch import LISTENING, ServerSetup, read_address, write_address
from sluice.query_server.protocol import decode_to_server, encode

__all__ = ["QueryServer", "main"]

_TICK: Final = 0.5
"""The longest time (seconds) between two checks for due messages, and for the server's end."""
_LINGER: Final = 10.0
"""Seconds without a connected task after which a server ends if its owner has ended. If Spark repeats tasks
in new processes, they find the server."""
_SHORTEST_WAIT: Final = 0.001
_PEER_TIMEOUT: Final = 0.5
"""Seconds for which a task may hold up the server: with half of a message, or by not receiving."""
_LONGEST_MESSAGE: Final = 64 * 1024
_START_BYTES: Final = 16
_SECRET_BYTES: Final = 32


class QueryServer:
    """Listens at a free port, and serves tasks in the thread that calls `run`.

    Args:
        host: the address to listen on.

    Attributes:
        address: where tasks connect, with a secret that is made here.

    Raises:
        OSError: this host has no such address.
    """

    def __init__(self, host: str) -> None:
        self._service = BucketService()
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, 0)
        self._numbers = itertools.count(1)
        self._channels: dict[int, Channel] = {}
        self._accepted: queue.SimpleQueue[Channel] = queue.SimpleQueue()
        listener = listen(host)
        port = listener.getsockname()[1]
        self.address = Address(host, port, os.urandom(_SECRET_BYTES), os.urandom(_START_BYTES))
        self._acceptor = Acceptor(listener, self.address, self._accept)
        self._acceptor.start()

    def run(self, is_over: Callable[[float], bool]) -> None:
        """Serves until `is_over`, which is asked twice a second, and closes.

        Args:
            is_over: called with the seconds since a task was connected.
        """
        next_look = used_at = time.monotonic()
        try:
            while True:
                now = time.monotonic()
                if self._service.has_tasks:
                    used_at = now
                if now >= next_look:
                    next_look = now + _TICK
                    if is_over(now - used_at):
                        return
                self._step(min(next_look - now, max(self._service.wait, _SHORTEST_WAIT)))
        finally:
            self.close()

    def _step(self, timeout: float) -> None:
        """Waits for messages for at most `timeout` seconds, and handles them."""
        events = self._selector.select(timeout)
        for key, _ in events:
            if key.data:
                self._receive(key.data)
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
        while not self._accepted.empty():
            self._keep(self._accepted.get())
        self._send(self._service.due(time.monotonic()))

    def close(self) -> None:
        """Closes all connections."""
        self._acceptor.close()
        for number in list(self._channels):
            self._drop(number)
        self._selector.close()
        self._woken.close()
        self._waker.close()

    def _accept(self, channel: Channel) -> None:
        """In the acceptor's thread."""
        self._accepted.put(channel)
        with contextlib.suppress(OSError):  # it is awake, or closed
            self._waker.send(b"w")

    def _keep(self, channel: Channel) -> None:
        number = next(self._numbers)
        channel.set_timeout(_PEER_TIMEOUT)
        self._selector.register(channel, selectors.EVENT_READ, number)
        self._channels[number] = channel

    def _receive(self, number: int) -> None:
        """Handles all that a task has sent. Used tokens are counted before new ones are granted."""
        channel = self._channels[number]
        try:
            while not channel.is_idle():
                message = decode_to_server(channel.receive(at_most=_LONGEST_MESSAGE))
                for _, answer in self._service.handle(number, message, time.monotonic()):
                    channel.send(encode(answer))
        except (OSError, EOFError, SluiceError, msgspec.MsgspecError):
            self._drop(number)

    def _send(self, messages: Iterable[Outgoing]) -> None:
        for number, message in messages:
            channel = self._channels.get(number)
            if channel is not None:
                try:
                    channel.send(encode(message))
                except OSError:
                    self._drop(number)

    def _drop(self, number: int) -> None:
        channel = self._channels.pop(number)
        self._selector.unregister(channel)
        channel.close()
        self._service.lost(number, time.monotonic())


def _is_running(process: int) -> bool:
    """Whether there is a process of this id."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _end(number: int, frame: object) -> None:
    """Handles SIGTERM: leaves no file behind."""
    del number, frame
    sys.exit()


def main(arguments: list[str]) -> None:
    """Runs a server; see the module.

    Args:
        arguments: a `ServerSetup` as JSON.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    signal.signal(signal.SIGTERM, _end)
    for number in (signal.SIGINT, signal.SIGHUP):  # meant for the application in a terminal
        signal.signal(number, signal.SIG_IGN)
    setup = msgspec.json.decode(arguments[0], type=ServerSetup)
    file = Path(setup.file)
    try:
        server = QueryServer(setup.address)
        write_address(file, server.address)
    except OSError as error:
        os.write(1, str(error).encode())
        return
    os.write(1, LISTENING)
    try:
        server.run(lambda unused: unused >= _LINGER and not _is_running(setup.owner))
    finally:
        if read_address(file) == server.address:
            file.unlink()
