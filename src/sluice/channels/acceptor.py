"""Accepts connections to a server, and keeps those on which no request is being answered.

One thread does this for all connections, so that a connection that says nothing costs a descriptor and no
thread. Any program that reaches the server's port may connect. So connections that have not proved the
query's secret are kept few and not for long, and the thread never waits for their bytes.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import queue
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from sluice.channels.channel import Address, Channel
from sluice.channels.handshake import HandshakeError, ServerHandshake
from sluice.channels.tls import TlsSocket

__all__ = ["Acceptor", "Listener", "RareWarning", "listen"]

_log = logging.getLogger(__name__)

_HANDSHAKE_TIMEOUT: Final = 5.0
"""Seconds for a whole handshake."""
_IDLE_TIMEOUT: Final = 60.0
"""Seconds without a request after which a connection is closed. Tasks open another one when they need it."""
_MOST_STRANGERS: Final = 128
"""Connections at a time that have not yet sent "hello", which needs the secret and which a task sends at
once. The oldest makes room for a new one."""
_MOST_GREETED: Final = 256
"""The same for connections that have sent it, and have not finished the handshake."""
_ACCEPTED_AT_ONCE: Final = 32
"""Connections accepted before others are served again."""
_PAUSE: Final = 0.1
"""Seconds for which nothing is accepted after an attempt has failed."""
_TICK: Final = 1.0
"""Seconds between two checks for connections that are too old."""
_WARNING_INTERVAL: Final = 60.0
"""Seconds between two warnings of one kind, at least."""
_BACKLOG: Final = 512
"""Connections that the system keeps until they are accepted."""

_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Listener(Protocol):
    """What an acceptor needs of a listening socket."""

    def accept(self) -> tuple[socket.socket, object]: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...


class RareWarning:
    """A warning that strangers can cause as often as they like, logged once a minute at most."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left_out = 0
        self._next = -math.inf
        self._lock = threading.Lock()

    def log(self, text: str, *arguments: object) -> None:
        """Logs a sentence, with the number of those that were left out since the last one."""
        with self._lock:
            now = self._clock()
            if now < self._next:
                self._left_out += 1
                return
            left_out, self._left_out, self._next = self._left_out, 0, now + _WARNING_INTERVAL
        more = f" ({left_out} more since the last such line)" if left_out else ""
        _log.warning("%s%s", text % arguments, more)


@dataclass(eq=False, slots=True)
class _Stranger:
    """A connection whose handshake is not done."""

    connection: socket.socket | TlsSocket
    handshake: ServerHandshake
    deadline: float


class Acceptor:
    """Accepts connections, and hands out each one on which a request begins.

    Args:
        listener: does not block.
        address: the address that tasks get; handshakes are bound to it.
        on_request: is given a connection that has something to receive, and has to give it back to `watch`,
            or close it. Called from the acceptor's thread, which it may not block.
        clock: monotonic seconds.
        tls: the context with the server's certificate; None: connections are not encrypted.
    """

    def __init__(
        self,
        listener: Listener,
        address: Address,
        on_request: Callable[[Channel], None],
        clock: Callable[[], float] = time.monotonic,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._listener = listener
        self._address = address
        self._on_request = on_request
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._take_wake_up)
        self._selector.register(listener.fileno(), selectors.EVENT_READ, self._accept)
        self._resume_at: float | None = None  # accepting pauses until then
        # Each in the order of age, the oldest first.
        self._strangers: dict[_Stranger, None] = {}
        self._greeted: dict[_Stranger, None] = {}
        self._idle: dict[Channel, float] = {}
        self._returned: queue.SimpleQueue[Channel] = queue.SimpleQueue()
        self._is_closing = self._is_closed = False
        self._refused = RareWarning(clock)
        self._failed = RareWarning(clock)
        self._thread = threading.Thread(target=self._run, name="sluice-accept", daemon=True)

    def start(self) -> None:
        """Runs `step` in a thread until `close`."""
        self._thread.start()

    def watch(self, channel: Channel) -> None:
        """Keeps a connection until its next request, or until it has been idle too long. From any thread."""
        self._returned.put(channel)
        if self._is_closed:
            self._close_returned()
        else:
            self._wake()

    def close(self) -> None:
        """Accepts nothing more, and closes the connections that it keeps. From any other thread."""
        self._is_closing = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
        else:
            self._close_all()

    def step(self, timeout: float | None) -> None:
        """Handles what has come. Waits for it, at most `timeout` seconds; None: without a limit.

        Never raises: what fails is logged, and the next step follows.
        """
        try:
            for key, _ in self._selector.select(timeout):
                key.data()
            self._take_returned()
            self._close_old()
        except Exception:  # noqa: BLE001 - no thread but this one accepts connections
            self._failed.log("port %d: a connection cannot be handled, and is ignored", self._address.port)
            _log.debug("the error was", exc_info=True)
            self._pause()

    # --- the thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closing:
            is_quiet = not (self._strangers or self._greeted or self._idle or self._resume_at)
            self.step(None if is_quiet else _PAUSE if self._resume_at else _TICK)
        self._close_all()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it is awake, or closed
            self._waker.send(b"w")

    def _take_wake_up(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)

    def _take_returned(self) -> None:
        while not self._returned.empty():
            channel = self._returned.get()
            try:
                self._keep(channel)
            except (OSError, ValueError, KeyError):  # closed meanwhile, or no memory to watch it
                channel.close()

    def _keep(self, channel: Channel) -> None:
        self._selector.register(channel, selectors.EVENT_READ, lambda: self._hand_out(channel))
        self._idle[channel] = self._clock() + _IDLE_TIMEOUT
        if channel.has_pending:  # a request came with the end of the handshake
            self._hand_out(channel)

    def _hand_out(self, channel: Channel) -> None:
        if self._idle.pop(channel, None) is not None:
            self._selector.unregister(channel)
            self._on_request(channel)

    def _close_returned(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._returned.get_nowait().close()

    def _close_all(self) -> None:
        self._is_closed = True
        self._close_returned()
        for stranger in [*self._strangers, *self._greeted]:
            self._drop(stranger)
        for channel in list(self._idle):
            self._drop_idle(channel)
        self._selector.close()
        self._listener.close()
        self._woken.close()
        self._waker.close()

    # --- accepting ------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return  # none is left, or one has gone again
            except OSError as error:
                self._handle_failure(error)
                return
            self._welcome(connection)

    def _handle_failure(self, error: OSError) -> None:
        """An attempt to accept has failed. There is always another one."""
        self._failed.log(
            "port %d: can't accept a connection, next attempt in %g s; tasks do without meanwhile: %s",
            self._address.port,
            _PAUSE,
            error,
        )
        if error.errno not in _EXHAUSTED or not self._make_room():
            self._pause()

    def _make_room(self) -> bool:
        """Closes the connection that is worth least, so that there is a descriptor for a new one."""
        if self._strangers:
            self._refuse(next(iter(self._strangers)))
        elif self._idle:
            self._drop_idle(next(iter(self._idle)))
        else:
            return False
        return True

    def _pause(self) -> None:
        if self._resume_at is None:
            self._selector.unregister(self._listener.fileno())
        self._resume_at = self._clock() + _PAUSE

    def _resume(self) -> None:
        self._selector.register(self._listener.fileno(), selectors.EVENT_READ, self._accept)
        self._resume_at = None

    # --- handshakes -----------------------------------------------------------------------------------

    def _welcome(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        tls = self._tls
        connection = accepted if tls is None else TlsSocket(accepted, tls, server_side=True)
        if len(self._strangers) >= _MOST_STRANGERS:
            self._refuse(next(iter(self._strangers)))
        handshake = ServerHandshake(self._address.secret, self._address.binding)
        stranger = _Stranger(connection, handshake, self._clock() + _HANDSHAKE_TIMEOUT)
        try:
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear(stranger))
        except OSError:
            connection.close()
            raise
        self._strangers[stranger] = None
        self._hear(stranger)  # a task speaks first

    def _hear(self, stranger: _Stranger) -> None:
        if stranger not in self._strangers and stranger not in self._greeted:
            return  # dropped while its turn was coming
        try:
            self._advance(stranger)
            while not stranger.handshake.is_done and _has_pending(stranger.connection):
                self._advance(stranger)
        except BlockingIOError:
            return
        except (EOFError, ConnectionError):  # a scanner, or a task that did not wait while this process hung
            self._drop(stranger)
        except Exception:  # noqa: BLE001 - after any failure, the connection is closed
            self._refuse(stranger)

    def _advance(self, stranger: _Stranger) -> None:
        connection, handshake = stranger.connection, stranger.handshake
        data = connection.recv(handshake.missing)
        if not data:
            raise EOFError
        answer = handshake.receive(data)
        if answer and connection.send(answer) != len(answer):
            raise HandshakeError("it does not receive")
        if handshake.is_done:
            connection.setblocking(True)
            channel = Channel(connection)
            self._forget(stranger)
            self._keep(channel)
        elif handshake.was_greeted and stranger in self._strangers:
            del self._strangers[stranger]
            if len(self._greeted) >= _MOST_GREETED:
                self._refuse(next(iter(self._greeted)))
            self._greeted[stranger] = None

    def _refuse(self, stranger: _Stranger) -> None:
        self._refused.log(
            "port %d: closed a connection that did not prove the query's secret", self._address.port
        )
        self._drop(stranger)

    def _forget(self, stranger: _Stranger) -> None:
        self._strangers.pop(stranger, None)
        self._greeted.pop(stranger, None)
        self._selector.unregister(stranger.connection)

    def _drop(self, stranger: _Stranger) -> None:
        self._forget(stranger)
        stranger.connection.close()

    # --- age ------------------------------------------------------------------------------------------

    def _close_old(self) -> None:
        now = self._clock()
        if self._resume_at is not None and self._resume_at <= now:
            self._resume()
        for strangers in (self._strangers, self._greeted):
            while strangers and (oldest := next(iter(strangers))).deadline <= now:
                self._refuse(oldest)
        while self._idle and self._idle[oldest_idle := next(iter(self._idle))] <= now:
            self._drop_idle(oldest_idle)

    def _drop_idle(self, channel: Channel) -> None:
        del self._idle[channel]
        self._selector.unregister(channel)
        channel.close()


def _has_pending(connection: socket.socket | TlsSocket) -> bool:
    return isinstance(connection, TlsSocket) and connection.has_pending


def listen(host: str, ports: tuple[int, int] | None = None) -> socket.socket:
    """A socket for an acceptor, at a free port.

    Args:
        host: an address of this host, a name of one, or empty for all addresses.
        ports: the first and the last port of the range from which it takes a free one; None: any.

    Raises:
        OSError: this host has no such address, or none of the ports is free.
    """
    first, last = ports or (0, 0)
    for port in range(first, last + 1):
        try:
            listener = _listen_at(host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and port < last:
                continue
            if ports is not None and error.errno == errno.EADDRINUSE:
                raise OSError(error.errno, f"no port from {first} to {last} is free") from None
            raise
        listener.setblocking(False)
        return listener
    raise AssertionError("a range of ports is never empty")


def _listen_at(host: str, port: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    if not host:
        return socket.create_server(("", port), backlog=_BACKLOG)
    family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(place[:2], family=family, backlog=_BACKLOG)
