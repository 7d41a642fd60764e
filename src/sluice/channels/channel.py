"""Frames over sockets between the processes of a query.

A frame is its length in four bytes, and that many bytes. Over TCP a handshake comes before the first frame
(see `handshake`). An end that does not know the query's secret gets no byte of a stream, and a task finds out
when another program listens at the server's port. Where the server has a certificate, all of this is
encrypted (see `tls`).
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from sluice.channels.handshake import ANSWER_BYTES, ClientHandshake, HandshakeError
from sluice.channels.tls import TlsSocket, connect_tls
from sluice.errors import ServiceError

__all__ = ["SPARK_DRIVER", "Address", "Channel", "connect", "frame_of"]

_LENGTH: Final = struct.Struct(">I")
_LONGEST_FRAME: Final = 32 * 1024 * 1024
"""Bytes. The longest event of a subscription of fan-out has 24 MiB at most, and other messages are short."""
_SENT_AT_ONCE: Final = 16 * 1024
"""Bytes up to which the parts of a frame are joined: one call of the system instead of one for each part."""
_HANDSHAKE_TIMEOUT: Final = 5.0
"""Seconds from the attempt to connect to the end of the handshake, TLS included."""
_SLOWEST: Final = 256 * 1024
"""Bytes a second. A frame has the time that it takes at this rate, in addition to the channel's timeout."""
_ATTEMPTS: Final = 3
"""Attempts to connect. A server with very many connections may close one before its handshake has come."""
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""Socket options by which the system notices within a minute that the other end's host has failed."""


SPARK_DRIVER: Final = ""
"""Stands for the host at which Spark's executors find the driver. Tasks know it; the planning process does
not, because Spark passes it no settings."""


@dataclass(frozen=True)
class Address:
    """Where a server listens, and the secret that clients have to prove. Plain data that Spark may pickle.

    Attributes:
        host: the host that tasks get; may be `SPARK_DRIVER` until a task fills it in.
        secret: of the query; all its servers of a kind may have the same.
        start: random bytes of this server's start. Another server at the same port has others.
        fingerprint: of the server's certificate; empty if it speaks no TLS.
    """

    host: str
    port: int
    secret: bytes = field(repr=False)
    start: bytes = field(repr=False)
    fingerprint: bytes = field(default=b"", repr=False)

    def __str__(self) -> str:
        host = self.host or "spark.driver.host"
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def binding(self) -> bytes:
        """What a handshake with this server is bound to: not its host, which clients may name otherwise."""
        return b"%d:%b%d" % (len(self.start), self.start, self.port)

    def found_at(self, driver_host: str) -> Address:
        """The same address, with the host of Spark's driver in place of `SPARK_DRIVER`."""
        return replace(self, host=driver_host) if self.host == SPARK_DRIVER else self


class Channel:
    """Frames over one connected socket. One thread may send while another one receives.

    All methods that send or receive raise:
        EOFError: the other end has closed the connection.
        OSError: the connection broke, or the timeout has passed.

    Args:
        connection: the socket.
        clock: monotonic seconds.
    """

    def __init__(
        self, connection: socket.socket | TlsSocket, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._socket = connection
        self._clock = clock
        self._timeout: float | None = None
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                if (option := getattr(socket, name, None)) is not None:
                    connection.setsockopt(socket.IPPROTO_TCP, option, value)

    @property
    def has_pending(self) -> bool:
        """Whether data was received and not taken yet, which selectors don't know of."""
        return isinstance(self._socket, TlsSocket) and self._socket.has_pending

    @property
    def remote_host(self) -> str | None:
        """The other end's address as this end sees it; None within a host, or if it has closed."""
        try:
            name = self._socket.getpeername()
        except OSError:
            return None
        return _plain(str(name[0])) if isinstance(name, tuple) else None

    def fileno(self) -> int:
        """The file descriptor, for selectors; -1 after `close`."""
        return self._socket.fileno()

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
        if isinstance(self._socket, TlsSocket):
            return self._socket.send_some(data)
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
        """Makes the connection break when the other end's host acknowledges nothing for this long.

        Only where the system can do that (Linux), and not between processes of one host.
        """
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        if option is not None and self._socket.family in (socket.AF_INET, socket.AF_INET6):
            self._socket.setsockopt(socket.IPPROTO_TCP, option, round(seconds * 1000))

    def receive(self, *, at_most: int = _LONGEST_FRAME) -> memoryview:
        """Blocks until the next frame has arrived.

        With a timeout, a frame that arrives in pieces has its own deadline: the timeout, plus the time that
        the frame takes at a slow line's rate.

        Args:
            at_most: bytes of the longest frame that is taken.

        Raises:
            ServiceError: the frame is longer.
        """
        (length,) = _LENGTH.unpack(_receive_exactly(self._socket, _LENGTH.size, self._left(_LENGTH.size)))
        if length > at_most:
            raise ServiceError(f"a frame of {length} bytes where at most {at_most} are expected")
        return _receive_exactly(self._socket, length, self._left(length))

    def _left(self, length: int) -> Callable[[], float] | None:
        if self._timeout is None:
            return None
        return _countdown(self._clock, self._timeout + length / _SLOWEST)

    def set_timeout(self, seconds: float | None) -> None:
        """Sets how long a call may block; None for as long as it takes."""
        self._timeout = seconds
        self._socket.settimeout(seconds)

    def is_idle(self, seconds: float = 0.0) -> bool:
        """Whether the connection is open, as far as this end knows, and there is nothing to receive.

        Args:
            seconds: how long to wait for something, at most.
        """
        if self.has_pending:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(seconds * 1000)

    def close(self) -> None:
        """Closes the connection. May be called from any thread; it wakes a sending or receiving one."""
        with contextlib.suppress(OSError):  # the other end has closed it before
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _plain(address: str) -> str:
    """An IPv4 address without the prefix that a socket for both protocols gives it."""
    return address.removeprefix("::ffff:") if "." in address else address


def frame_of(message: bytes) -> bytes:
    """The message as a frame."""
    return _LENGTH.pack(len(message)) + message


def connect(
    address: Address,
    *,
    timeout: float,
    source: str | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Channel:
    """Connects to a server.

    Args:
        timeout: seconds, for connecting with the handshake (5 at most), and for every send and receive after
            that.
        source: this host's address to connect from; None: the system chooses one.
        clock: monotonic seconds.

    Raises:
        OSError, EOFError: nothing listens at the address, or it closes the connection.
        ServiceError: what listens there is not this server.
    """
    left = _countdown(clock, min(timeout, _HANDSHAKE_TIMEOUT))
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
            return _connect_once(address, timeout, source, clock, left)
    return _connect_once(address, timeout, source, clock, left)


def _connect_once(
    address: Address,
    timeout: float,
    source: str | None,
    clock: Callable[[], float],
    left: Callable[[], float],
) -> Channel:
    """Connects once.

    Args:
        left: gives the seconds that are left, and raises TimeoutError if there are none.
    """
    connection: socket.socket | TlsSocket
    connection = accepted = _open(address, source, left)
    channel = Channel(connection)
    try:
        if address.fingerprint:
            accepted.settimeout(left())
            connection = connect_tls(accepted, address.fingerprint, clock)
            channel = Channel(connection)
        handshake = ClientHandshake(address.secret, address.binding)
        connection.sendall(handshake.hello())
        answer = _receive_exactly(connection, ANSWER_BYTES, lambda: connection.settimeout(left()))
        connection.sendall(handshake.prove(bytes(answer)))
        channel.set_timeout(timeout)
    except (HandshakeError, ServiceError):
        channel.close()
        raise ServiceError(f"what listens at {address} is not the server of this query") from None
    except BaseException:
        channel.close()
        raise
    return channel


def _open(address: Address, source: str | None, left: Callable[[], float]) -> socket.socket:
    """As `socket.create_connection`, but with one deadline: each address of the host has its share of it."""
    places = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    failure = OSError(f"{address.host!r} has no address")
    for number, (family, kind, protocol, _, place) in enumerate(places):
        connection = None
        try:
            connection = socket.socket(family, kind, protocol)  # fails if the host has no IPv6
            connection.settimeout(left() / (len(places) - number))
            if source is not None:
                connection.bind((source, 0))
            connection.connect(place)
        except OSError as error:
            failure = error
            if connection is not None:
                connection.close()
        else:
            return connection
    raise failure


def _countdown(clock: Callable[[], float], seconds: float) -> Callable[[], float]:
    """Gives the seconds that are left, and raises TimeoutError if there are none."""
    deadline = clock() + seconds

    def left() -> float:
        if (rest := deadline - clock()) <= 0:
            raise TimeoutError("timed out")
        return rest

    return left


def _receive_exactly(
    connection: socket.socket | TlsSocket, length: int, before_each: Callable[[], object] | None = None
) -> memoryview:
    """Receives `length` bytes.

    Args:
        before_each: called before each part; raises TimeoutError if the time for all of them has passed. Each
            part has the socket's timeout.
    """
    buffer = memoryview(bytearray(length))
    done = 0
    while done < length:
        if before_each is not None:
            before_each()
        count = connection.recv_into(buffer[done:])
        if not count:
            raise EOFError("the other end has closed the connection")
        done += count
    return buffer
