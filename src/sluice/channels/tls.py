"""TLS between the hosts of a query.

A server that speaks TLS has a certificate: its own, made at its start, or the user's. A client
has the certificate's fingerprint, which came with the server's address: from the server to the planning
process, and in Spark's own task data to tasks. So no authority signs it, and it needs no name. A task proves
itself as without TLS, by the query's secret (`sluice.channels.handshake`).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final, cast

from sluice.errors import ServiceError

__all__ = [
    "Certificate",
    "TlsSocket",
    "connect_tls",
    "load_certificate",
    "make_certificate",
]

_RECEIVED_AT_ONCE: Final = 256 * 1024
"""Bytes."""
_ENCRYPTED_AT_ONCE: Final = 256 * 1024
"""Bytes."""
_LIFE: Final = timedelta(days=3650)
"""How long a certificate is valid. Clients don't check it: they know the fingerprint, and the server ends
with the query."""


@dataclass(frozen=True)
class Certificate:
    """The certificate of a server, with its key.

    Attributes:
        fingerprint: SHA-256 of the certificate.
        context: for connections that the server accepts.
    """

    fingerprint: bytes
    context: ssl.SSLContext = field(repr=False, compare=False)


def make_certificate() -> Certificate:
    """A self-signed certificate, for this process.

    Raises:
        ImportError: `cryptography` is not installed.
    """
    # Imported here because tasks, which make no certificate, would wait for it.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    now = datetime.now(timezone.utc)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _LIFE)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    # OpenSSL reads certificates from files alone. Only this user can read this one, which is deleted soon.
    descriptor, path = tempfile.mkstemp(prefix="sluice-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(private + certificate.public_bytes(pem))
        return load_certificate(path)
    finally:
        Path(path).unlink(missing_ok=True)


def load_certificate(path: str) -> Certificate:
    """A certificate and its key, in one PEM file.

    Raises:
        OSError: the file can't be read, or holds something else.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # no connection is resumed; a ticket would make an idle one look busy
    context.load_cert_chain(path, password="")  # a key with a passphrase is refused; OpenSSL would ask for it
    text = Path(path).read_text(encoding="ascii", errors="replace")
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    first = begin + text.partition(begin)[2].partition(end)[0] + end
    return Certificate(hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).digest(), context)


def connect_tls(
    connection: socket.socket, fingerprint: bytes, clock: Callable[[], float] = time.monotonic
) -> TlsSocket:
    """Begins TLS on a connection to a server, within the connection's timeout.

    Args:
        fingerprint: of the server's certificate.
        clock: monotonic seconds.

    Raises:
        OSError, EOFError: it fails; `ssl.SSLError` is an OSError.
        ServiceError: what listens there has another certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the fingerprint is checked instead of a name
    context.verify_mode = ssl.CERT_NONE
    tls = TlsSocket(connection, context, server_side=False, clock=clock)
    if not hmac.compare_digest(hashlib.sha256(tls.handshake()).digest(), fingerprint):
        raise ServiceError("its certificate does not belong to this query's server")
    return tls


class TlsSocket:
    """A TLS connection over a connected socket, used like a socket.

    One thread may send while another one receives. OpenSSL does not allow that by itself, so TLS works in
    memory under a lock that is never held while waiting, and the socket is read and written outside of it.

    All methods that send or receive raise OSError. A timeout limits a whole call, as with a socket, though a
    TLS record may arrive in many pieces.
    """

    def __init__(
        self,
        connection: socket.socket,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._socket = connection
        self._clock = clock
        self._timeout = connection.gettimeout()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._unsent = memoryview(b"")  # encrypted data that the socket has not taken
        self._unsent_length = 0  # the length of that data before it was encrypted

    # --- the interface of a socket ------------------------------------------------------------------------

    @property
    def family(self) -> socket.AddressFamily:
        return self._socket.family

    def fileno(self) -> int:
        return self._socket.fileno()

    def getsockname(self) -> Any:
        return self._socket.getsockname()

    def getpeername(self) -> Any:
        return self._socket.getpeername()

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self._socket.setsockopt(level, option, value)

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds
        self._socket.settimeout(seconds)

    def setblocking(self, flag: bool) -> None:
        self.settimeout(None if flag else 0.0)

    def shutdown(self, how: int) -> None:
        self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()

    # --- receiving ------------------------------------------------------------------------------------

    @property
    def has_pending(self) -> bool:
        """Whether data was received from the socket and not taken yet."""
        with self._lock:
            return self._tls.pending() > 0 or self._incoming.pending > 0

    def handshake(self) -> bytes:
        """Waits for the end of TLS' own handshake. Returns the other end's certificate."""
        give_up_at = self._deadline()
        while True:
            with self._lock, contextlib.suppress(ssl.SSLWantReadError):
                self._tls.do_handshake()
                break
            if give_up_at is not None:
                self._socket.settimeout(self._left(give_up_at))
            self._send_own()
            if not self._receive():
                raise EOFError("the other end has closed the connection")
        self._socket.settimeout(self._timeout)
        self._send_own()
        return self._tls.getpeercert(binary_form=True) or b""

    def recv(self, size: int) -> bytes:
        """See `socket.socket.recv`. Without blocking, raises BlockingIOError for less than a TLS record."""
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(buffer)])

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """See `socket.socket.recv_into`. Receives as much as has arrived, even from several TLS records."""
        view = memoryview(buffer)
        give_up_at: float | None = None
        while True:
            with self._lock:
                count, has_ended = self._take(view)
            if count or has_ended:
                return count
            if give_up_at is None:
                give_up_at = self._deadline()
            else:  # a record has begun, and may end within the timeout
                self._left(give_up_at)
            self._send_own()
            self._receive()

    def _deadline(self) -> float | None:
        """When the current call has to end; None if nothing limits it."""
        return self._clock() + self._timeout if self._timeout else None

    def _left(self, deadline: float) -> float:
        if (seconds := deadline - self._clock()) <= 0:
            raise TimeoutError("timed out")
        return seconds

    def _take(self, view: memoryview) -> tuple[int, bool]:
        """Fills `view`. Returns how many bytes it took, and whether none follow."""
        done = 0
        try:
            while done < len(view):
                count = cast("int", self._tls.read(len(view) - done, view[done:]))
                if not count:
                    return done, True
                done += count
        except ssl.SSLWantReadError:
            return done, False
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return done, True
        return done, False

    def _receive(self) -> bool:
        """Receives what the socket has. False: the other end has closed it."""
        data = self._socket.recv(_RECEIVED_AT_ONCE)
        with self._lock:
            if data:
                self._incoming.write(data)
            else:
                self._incoming.write_eof()
        return bool(data)

    # --- sending --------------------------------------------------------------------------------------

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Sends all of it, unlike a socket."""
        self.sendall(data)
        return len(data)

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
        """See `socket.socket.sendall`."""
        view = memoryview(data)
        with self._sending:
            for begin in range(0, len(view), _ENCRYPTED_AT_ONCE):
                self._socket.sendall(self._encrypt(view[begin : begin + _ENCRYPTED_AT_ONCE]))

    def send_some(self, data: bytes | bytearray) -> int:
        """Sends as much as the other end takes at once, without blocking. Returns how many bytes that was.

        Encrypted data that was not taken is kept, and counts when it is sent. So the next call has to begin
        with the same bytes.
        """
        done = 0
        with self._sending:
            while done < len(data):
                if not self._unsent:
                    piece = bytes(data[done : done + _ENCRYPTED_AT_ONCE])
                    self._unsent, self._unsent_length = memoryview(self._encrypt(piece)), len(piece)
                try:
                    sent = self._socket.send(self._unsent, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    break
                self._unsent = self._unsent[sent:]
                if not self._unsent:
                    done += self._unsent_length
        return done

    def _encrypt(self, data: bytes | memoryview) -> bytes:
        with self._lock:
            done = 0
            while done < len(data):
                done += self._tls.write(data[done:])
            return self._outgoing.read()

    def _send_own(self) -> None:
        """Sends what TLS has to say itself: its handshake."""
        if self._outgoing.pending:
            with self._sending:
                with self._lock:
                    data = self._outgoing.read()
                if self._unsent:  # this comes behind it
                    self._unsent = memoryview(bytes(self._unsent) + data)
                else:
                    self._socket.sendall(data)
