"""Frames arrive whole, and only a peer that knows the secret gets any."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from sluice.errors import ServiceError
from sluice.kinesis.fanout.channel import Address, Channel, accept_peer, connect

SECRET = b"s" * 32


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    left, right = map(Channel, socket.socketpair())
    yield left, right
    left.close()
    right.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def serve(listener: socket.socket, secret: bytes, accepted: list[Channel | None]) -> threading.Thread:
    def run() -> None:
        connection, _ = listener.accept()
        accepted.append(accept_peer(connection, secret))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("size", [0, 1, 16 * 1024, 16 * 1024 + 1, 3_000_000])
def test_a_frame_arrives_whole(pair: tuple[Channel, Channel], size: int) -> None:
    """Whatever its length, and however many parts it was sent in."""
    body = bytes(range(256)) * (size // 256 + 1)
    sender = threading.Thread(target=pair[0].send, args=(b"E", body[:size]))
    sender.start()

    assert bytes(pair[1].receive()) == b"E" + body[:size]

    sender.join()


def test_frames_follow_one_another(pair: tuple[Channel, Channel]) -> None:
    """Each begins where the one before ends."""
    for number in range(5):
        pair[0].send(str(number).encode())

    assert [bytes(pair[1].receive()) for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_connection_that_the_other_end_closes_raises_eof_error(pair: tuple[Channel, Channel]) -> None:
    """After the frames that were sent before."""
    pair[0].send(b"last")
    pair[0].close()

    assert bytes(pair[1].receive()) == b"last"
    with pytest.raises(EOFError):
        pair[1].receive()


def test_a_frame_that_is_cut_short_raises_eof_error() -> None:
    """Its length says that bytes are missing."""
    raw, end = socket.socketpair()
    with raw:
        raw.sendall((100).to_bytes(4, "big") + b"half")
    channel = Channel(end)
    with pytest.raises(EOFError):
        channel.receive()
    channel.close()


def test_a_frame_that_is_too_long_is_refused_before_it_is_read(pair: tuple[Channel, Channel]) -> None:
    """A stranger can't make this process fill its memory."""
    pair[0].send(b"x" * 300)

    with pytest.raises(ServiceError, match="300 bytes where at most 256"):
        pair[1].receive(at_most=256)


def test_a_peer_that_knows_the_secret_is_let_in(listener: socket.socket) -> None:
    """Both ends then exchange frames."""
    accepted: list[Channel | None] = []
    thread = serve(listener, SECRET, accepted)

    channel = connect(Address("127.0.0.1", listener.getsockname()[1], SECRET), timeout=60)
    thread.join()

    assert accepted[0] is not None
    accepted[0].send(b"hello")
    assert bytes(channel.receive()) == b"hello"
    channel.close()
    accepted[0].close()


def test_a_peer_that_does_not_know_the_secret_gets_nothing(listener: socket.socket) -> None:
    """Neither end goes on, and the error does not show the secret that was tried."""
    accepted: list[Channel | None] = []
    thread = serve(listener, SECRET, accepted)

    with pytest.raises((ServiceError, EOFError, OSError)) as caught:
        connect(Address("127.0.0.1", listener.getsockname()[1], b"w" * 32), timeout=60)
    thread.join()

    assert accepted == [None]
    assert "www" not in str(caught.value)


def test_a_task_notices_that_another_program_listens(listener: socket.socket) -> None:
    """The agent of another query may have got the port."""

    def impostor() -> None:
        connection, _ = listener.accept()
        channel = Channel(connection)
        channel.send(b"c" * 32)
        channel.receive()
        channel.send(b"not what the secret makes of the challenge")
        channel.close()

    thread = threading.Thread(target=impostor)
    thread.start()

    with pytest.raises(ServiceError, match="not the agent of this query"):
        connect(Address("127.0.0.1", listener.getsockname()[1], SECRET), timeout=60)
    thread.join()


def test_an_answer_is_good_for_one_challenge_and_one_end() -> None:
    """An answer that was overheard, or is sent back to its sender, proves nothing."""
    from sluice.kinesis.fanout.channel import _answer  # noqa: PLC0415 - the heart of the handshake

    answers = {
        _answer(SECRET, role, nonce) for role in (b"client", b"server") for nonce in (b"a" * 32, b"b" * 32)
    }

    assert len(answers) == 4


def test_an_address_does_not_show_its_secret() -> None:
    """Addresses are in partitions, whose text may come into logs."""
    address = Address("10.0.0.1", 4000, b"topsecret")

    assert "topsecret" not in repr(address)
    assert str(address) == "10.0.0.1:4000"
