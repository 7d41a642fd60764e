"""Frames over sockets between planner, agents and tasks, and how the two ends show they know a secret.

A frame is its length in four bytes and so many bytes. Before anything else each end answers a random
challenge with an HMAC of it: whoever does not know the query's secret gets no byte of a stream, and a
task that meets another program at the port notices.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import select
import socket
import struct
from dataclasses import dataclass, field
from typing import Final

from sluice.errors import ServiceError

__all__ = ["Address", "Channel", "accept_peer", "connect"]

_LENGTH: Final = struct.Struct(">I")
_NONCE_BYTES: Final = 32
_DIGEST: Final = "sha256"
_SMALL: Final = 256
_HANDSHAKE_TIMEOUT: Final = 5.0
_COALESCED: Final = 16 * 1024


@dataclass(frozen=True)
class Address:
    """Where an agent listens, and the secret that opens it. Plain data that Spark may pickle."""

    host: str
    port: int
    secret: bytes = field(repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Channel:
    """Frames over one connected socket. One thread may send while another one receives.

    Raises:
        EOFError: the other end has closed.
        OSError: the connection broke, or a timeout set on the socket has passed.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, *parts: bytes | memoryview) -> None:
        """Sends the parts as one frame."""
        length = sum(map(len, parts))
        header = _LENGTH.pack(length)
        if length <= _COALESCED:
            self._socket.sendall(b"".join((header, *parts)))
            return
        self._socket.sendall(header)
        for part in parts:
            self._socket.sendall(part)

    def receive(self, *, at_most: int = 2**31) -> memoryview:
        """The next frame. Raises ServiceError for one that is longer than `at_most` bytes."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > at_most:
            raise ServiceError(f"a frame of {length} bytes where at most {at_most} are expected")
        return self._exactly(length)

    def set_timeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def is_quiet(self) -> bool:
        """Whether the connection stands, as far as is known, and nothing waits to be received."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """From any thread: wakes one that is sending or receiving."""
        with contextlib.suppress(OSError):  # the other end was first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _exactly(self, length: int) -> memoryview:
        buffer = memoryview(bytearray(length))
        done = 0
        while done < length:
            count = self._socket.recv_into(buffer[done:])
            if not count:
                raise EOFError("the other end has closed the connection")
            done += count
        return buffer


def connect(address: Address, *, timeout: float) -> Channel:
    """A channel to whoever listens at `address` and knows its secret.

    Args:
        timeout: seconds, for connecting and for every read and write after that.

    Raises:
        OSError, EOFError: nobody is there, or hangs up.
        ServiceError: what is there does not know the secret.
    """
    connection = socket.create_connection((address.host, address.port), timeout)
    channel = Channel(connection)
    try:
        channel.set_timeout(min(timeout, _HANDSHAKE_TIMEOUT))
        _introduce(channel, address)
        channel.set_timeout(timeout)
    except BaseException:
        channel.close()
        raise
    return channel


def accept_peer(connection: socket.socket, secret: bytes) -> Channel | None:
    """A channel to whoever connected and knows the secret; None, and hung up, for anybody else."""
    channel = Channel(connection)
    try:
        channel.set_timeout(_HANDSHAKE_TIMEOUT)
        challenge = os.urandom(_NONCE_BYTES)
        channel.send(challenge)
        proof = bytes(channel.receive(at_most=_SMALL))
        answer, nonce = proof[:-_NONCE_BYTES], proof[-_NONCE_BYTES:]
        if hmac.compare_digest(answer, _answer(secret, b"client", challenge)):
            channel.send(_answer(secret, b"server", nonce))
            channel.set_timeout(None)
            return channel
    except (OSError, EOFError, ServiceError):
        pass  # a port scanner, or a task that was killed
    channel.close()
    return None


def _introduce(channel: Channel, address: Address) -> None:
    challenge = channel.receive(at_most=_SMALL)
    nonce = os.urandom(_NONCE_BYTES)
    channel.send(_answer(address.secret, b"client", challenge), nonce)
    if not hmac.compare_digest(channel.receive(at_most=_SMALL), _answer(address.secret, b"server", nonce)):
        raise ServiceError(f"what listens at {address} is not the agent of this query")


def _answer(secret: bytes, role: bytes, challenge: bytes | memoryview) -> bytes:
    return hmac.digest(secret, role + challenge, _DIGEST)
