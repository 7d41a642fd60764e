"""Frames over sockets between planner, agents and tasks, and the handshake that proves a shared secret.

A frame is its length in four bytes, and that many bytes. Before the first frame each end answers a random
challenge of the other with an HMAC of the challenge. An end that does not know the query's secret gets no
byte of a stream, and a task finds out when another program listens at the agent's port.
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

__all__ = ["Address", "Channel", "accept_peer", "connect", "frame_of"]

_LENGTH: Final = struct.Struct(">I")
_NONCE_BYTES: Final = 32
_DIGEST: Final = "sha256"
_LONGEST_HANDSHAKE_FRAME: Final = 256
_HANDSHAKE_TIMEOUT: Final = 5.0
"""Seconds for each frame of the handshake."""
_SENT_AT_ONCE: Final = 16 * 1024
"""Bytes up to which the parts of a frame are joined: one call of the system instead of one for each part."""
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""The system notices within a minute that the other end's host is gone, where nothing else does."""


@dataclass(frozen=True)
class Address:
    """Where an agent listens, and the secret that it asks for. Plain data that Spark may pickle."""

    host: str
    port: int
    secret: bytes = field(repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Channel:
    """Frames over one connected socket. One thread may send while another one receives.

    All methods that send or receive raise:
        EOFError: the other end has closed the connection.
        OSError: the connection broke, or the timeout has passed.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                if (option := getattr(socket, name, None)) is not None:
                    connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def send(self, *parts: bytes | memoryview) -> None:
        """Sends the parts as one frame."""
        length = sum(map(len, parts))
        header = _LENGTH.pack(length)
        if length <= _SENT_AT_ONCE:
            self._socket.sendall(b"".join((header, *parts)))
            return
        self._socket.sendall(header)
        for part in parts:
            self._socket.sendall(part)

    def send_some(self, data: bytes | bytearray) -> int:
        """Sends as much as the other end takes at once. Returns how many bytes that was; never blocks.

        Args:
            data: frames, from `frame_of`, or the rest of such bytes.
        """
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def wait_until_writable(self, seconds: float) -> None:
        """Blocks until `send_some` can send something, or the connection has ended; for at most `seconds`."""
        poll = select.poll()
        with contextlib.suppress(ValueError):  # closed
            poll.register(self._socket, select.POLLOUT)
            poll.poll(seconds * 1000)

    def limit_unacknowledged(self, seconds: float) -> None:
        """Has the connection break when the other end's host acknowledges nothing for this long.

        Only where the system can do that (Linux), and not between processes of one host.
        """
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        if option is not None and self._socket.family in (socket.AF_INET, socket.AF_INET6):
            self._socket.setsockopt(socket.IPPROTO_TCP, option, round(seconds * 1000))

    def receive(self, *, at_most: int = 2**31) -> memoryview:
        """Blocks until the next frame is there.

        Args:
            at_most: bytes of the longest frame that is taken.

        Raises:
            ServiceError: the frame is longer.
        """
        (length,) = _LENGTH.unpack(self._receive_exactly(_LENGTH.size))
        if length > at_most:
            raise ServiceError(f"a frame of {length} bytes where at most {at_most} are expected")
        return self._receive_exactly(length)

    def set_timeout(self, seconds: float | None) -> None:
        """Sets how long a call may block; None for as long as it takes."""
        self._socket.settimeout(seconds)

    def is_idle(self) -> bool:
        """Whether the connection stands, as far as this end knows, and nothing waits to be received."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Closes the connection. May be called from any thread: one that sends or receives is woken."""
        with contextlib.suppress(OSError):  # the other end has closed it before
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _receive_exactly(self, length: int) -> memoryview:
        buffer = memoryview(bytearray(length))
        done = 0
        while done < length:
            count = self._socket.recv_into(buffer[done:])
            if not count:
                raise EOFError("the other end has closed the connection")
            done += count
        return buffer


def frame_of(message: bytes) -> bytes:
    """The message as a frame."""
    return _LENGTH.pack(len(message)) + message


def connect(address: Address, *, timeout: float) -> Channel:
    """Connects to an agent.

    Args:
        timeout: seconds, for connecting and for every send and receive after that.

    Raises:
        OSError, EOFError: nothing listens at the address, or it closes the connection.
        ServiceError: what listens there does not know the secret.
    """
    connection = socket.create_connection((address.host, address.port), timeout)
    channel = Channel(connection)
    try:
        channel.set_timeout(min(timeout, _HANDSHAKE_TIMEOUT))
        _authenticate(channel, address)
        channel.set_timeout(timeout)
    except BaseException:
        channel.close()
        raise
    return channel


def accept_peer(connection: socket.socket, secret: bytes) -> Channel | None:
    """Checks that what has connected knows the secret. Otherwise closes the connection and returns None."""
    channel = Channel(connection)
    try:
        channel.set_timeout(_HANDSHAKE_TIMEOUT)
        challenge = os.urandom(_NONCE_BYTES)
        channel.send(challenge)
        proof = bytes(channel.receive(at_most=_LONGEST_HANDSHAKE_FRAME))
        answer, nonce = proof[:-_NONCE_BYTES], proof[-_NONCE_BYTES:]
        if hmac.compare_digest(answer, _answer(secret, b"client", challenge)):
            channel.send(_answer(secret, b"server", nonce))
            channel.set_timeout(None)
            return channel
    except (OSError, EOFError, ServiceError):
        pass  # a port scanner, or a task that was killed
    channel.close()
    return None


def _authenticate(channel: Channel, address: Address) -> None:
    """The connecting end's half of the handshake; `accept_peer` is the other."""
    challenge = channel.receive(at_most=_LONGEST_HANDSHAKE_FRAME)
    nonce = os.urandom(_NONCE_BYTES)
    channel.send(_answer(address.secret, b"client", challenge), nonce)
    answer = channel.receive(at_most=_LONGEST_HANDSHAKE_FRAME)
    if not hmac.compare_digest(answer, _answer(address.secret, b"server", nonce)):
        raise ServiceError(f"what listens at {address} is not the agent of this query")


def _answer(secret: bytes, role: bytes, challenge: bytes | memoryview) -> bytes:
    """What proves the secret. `role` keeps an answer from being sent back as the other end's."""
    return hmac.digest(secret, role + challenge, _DIGEST)
