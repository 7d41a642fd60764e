"""Channels over TLS: what a channel does without, it does with, and it opens to one certificate alone."""

from __future__ import annotations

import socket
import ssl
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.channels import tls
from sluice.channels.acceptor import Acceptor, listen
from sluice.channels.channel import Address, Channel, connect
from sluice.channels.tls import Certificate, TlsSocket, connect_tls, load_certificate, make_certificate
from sluice.errors import ServiceError

SECRET = b"k" * 32
PATIENT = 60.0


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return make_certificate()


@pytest.fixture
def pair(certificate: Certificate) -> Iterator[tuple[Channel, Channel]]:
    """Both ends of a connection: of who connects, and of the server."""
    ours, theirs = socket.socketpair()
    accepted = TlsSocket(theirs, certificate.context, server_side=True)
    with ThreadPoolExecutor(1) as pool:
        shaken = pool.submit(accepted.handshake)
        connected = connect_tls(ours, certificate.fingerprint)
        shaken.result(PATIENT)
    left, right = Channel(connected), Channel(accepted)
    for channel in (left, right):
        channel.set_timeout(PATIENT)
    yield left, right
    left.close()
    right.close()


def in_thread(target: Callable[..., object], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("size", [0, 1, 16 * 1024, 16 * 1024 + 1, 3_000_000])
def test_a_frame_arrives_whole(pair: tuple[Channel, Channel], size: int) -> None:
    """In both directions."""
    body = bytes(range(256)) * (size // 256 + 1)
    for sender, receiver in (pair, pair[::-1]):
        thread = in_thread(sender.send, b"E", body[:size])
        assert bytes(receiver.receive()) == b"E" + body[:size]
        thread.join()


def test_nothing_but_tls_1_3_is_spoken(pair: tuple[Channel, Channel], certificate: Certificate) -> None:
    """Neither end takes less, and what passes is not readable."""
    assert pair[0]._socket._tls.version() == "TLSv1.3"  # type: ignore[union-attr]
    ours, theirs = socket.socketpair()
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2

    def connect_old() -> None:
        with pytest.raises(ssl.SSLError):
            old.wrap_socket(ours)

    thread = in_thread(connect_old)
    with closing(theirs), pytest.raises(ssl.SSLError, match=r"(?i)version|protocol"):
        TlsSocket(theirs, certificate.context, server_side=True).handshake()
    theirs.close()
    thread.join(PATIENT)
    ours.close()


def test_a_connection_is_idle_until_something_comes(pair: tuple[Channel, Channel]) -> None:
    """Also where it was received together with something else: the socket has nothing left then."""
    left, right = pair
    assert left.is_idle()
    assert right.is_idle()
    assert not left.has_pending
    left.send(b"one")
    left.send(b"two")
    assert not right.is_idle(PATIENT)
    assert bytes(right.receive()) == b"one"
    assert not right.is_idle()
    assert bytes(right.receive()) == b"two"
    assert right.is_idle()


def test_changed_bytes_break_the_connection(certificate: Certificate) -> None:
    """Somebody between two hosts can end a connection, and no more."""
    ours, theirs = socket.socketpair()
    accepted = TlsSocket(theirs, certificate.context, server_side=True)
    with ThreadPoolExecutor(1) as pool:
        shaken = pool.submit(accepted.handshake)
        connect_tls(ours, certificate.fingerprint)
        shaken.result(PATIENT)
    ours.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))

    with (
        closing(ours),
        closing(Channel(accepted)) as channel,
        pytest.raises(OSError, match=r"(?i)mac|decrypt"),
    ):
        channel.receive()


# --- servers ----------------------------------------------------------------------------------------------


@contextmanager
def listening(certificate: Certificate | None) -> Iterator[Address]:
    """A server that lets everybody in who proves the secret, and says nothing."""
    listener = listen("127.0.0.1")
    fingerprint = b"" if certificate is None else certificate.fingerprint
    address = Address("127.0.0.1", listener.getsockname()[1], SECRET, b"start", fingerprint)
    context = None if certificate is None else certificate.context
    acceptor = Acceptor(listener, address, Channel.close, tls=context)
    acceptor.start()
    with closing(acceptor):
        yield address


RECORD = b"\x16\x03\x03\x3f\xff"
"""The start of a record of 16 KiB."""


def test_a_handshake_that_trickles_is_given_up() -> None:
    """The seconds for connecting are for all of it, also if a server sends a byte of TLS now and then."""
    now = 0.0
    kept: list[socket.socket] = []

    def clock() -> float:
        nonlocal now
        now += 0.5
        if now > 1.0 and not kept:
            kept.append(listener.accept()[0])
            kept[0].send(RECORD)
        for each in kept:
            each.send(b"\x02")
        assert now < 60.0
        return now

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        address = Address("127.0.0.1", port, SECRET, b"start", fingerprint=b"f" * 32)
        with pytest.raises(TimeoutError):
            connect(address, timeout=PATIENT, clock=clock)
    for each in kept:
        each.close()
    assert 5.0 < now < 10.0


def test_a_record_that_trickles_is_given_up(certificate: Certificate) -> None:
    """A timeout is for the whole call, as with a socket."""
    ours, theirs = socket.socketpair()
    now = 0.0
    is_trickling = False

    def clock() -> float:
        nonlocal now
        if is_trickling:
            now += 1.0
            theirs.send(b"\x02")
        assert now < 100.0
        return now

    ours.settimeout(PATIENT)
    accepted = TlsSocket(theirs, certificate.context, server_side=True)
    shaken = in_thread(accepted.handshake)
    connected = connect_tls(ours, certificate.fingerprint, clock)
    shaken.join(PATIENT)
    connected.settimeout(10.0)
    is_trickling = True
    theirs.send(b"\x17" + RECORD[1:])
    with pytest.raises(TimeoutError):
        connected.recv(100)
    assert 10.0 < now < 20.0
    connected.close()
    accepted.close()


def test_another_certificate_is_not_the_server_that_is_meant(certificate: Certificate) -> None:
    """Whoever stands between has one, too. The proof of the secret is not sent to it."""
    with listening(certificate) as address:
        other = replace(address, fingerprint=make_certificate().fingerprint)
        with pytest.raises(ServiceError, match="not the server of this query"):
            connect(other, timeout=PATIENT)


def test_a_task_without_the_certificate_does_not_get_in(certificate: Certificate) -> None:
    """Nor does a task that expects TLS if there is none."""
    with listening(certificate) as address, pytest.raises((OSError, EOFError)):
        connect(replace(address, fingerprint=b""), timeout=5.0)
    with listening(None) as address, pytest.raises((OSError, EOFError)):
        connect(replace(address, fingerprint=certificate.fingerprint), timeout=5.0)


# --- certificates -----------------------------------------------------------------------------------------


def test_a_certificate_that_was_made_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """OpenSSL wants a file, which nobody else may read."""
    modes: list[int] = []
    load = tls.load_certificate

    def watched(path: str) -> Certificate:
        modes.append(stat.S_IMODE(Path(path).stat().st_mode))
        return load(path)

    monkeypatch.setattr(tls, "load_certificate", watched)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    assert make_certificate().fingerprint != make_certificate().fingerprint
    assert modes == [0o600, 0o600]
    assert list(tmp_path.iterdir()) == []


def test_the_users_certificate_is_pinned_as_well(tmp_path: Path) -> None:
    """The key may come first or last, and others that have signed it follow."""
    made: list[bytes] = []
    for _ in range(2):
        path = tmp_path / "made.pem"
        load = tls.load_certificate

        def keep(file: str, load: Callable[[str], Certificate] = load, path: Path = path) -> Certificate:
            path.write_bytes(Path(file).read_bytes())
            return load(file)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tls, "load_certificate", keep)
            expected = make_certificate()
        made.append(path.read_bytes())
        assert load_certificate(str(path)).fingerprint == expected.fingerprint
    first, second = (text.decode().partition("-----BEGIN CERTIFICATE") for text in made)
    chain = tmp_path / "chain.pem"
    chain.write_text("".join(second[1:]) + "".join(first[1:]) + second[0])

    assert load_certificate(str(chain)).fingerprint == expected.fingerprint
    with listening(load_certificate(str(chain))) as address, closing(connect(address, timeout=PATIENT)):
        pass
