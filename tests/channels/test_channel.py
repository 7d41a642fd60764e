"""Frames arrive whole, and a connection opens only to the agent that is meant."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from sluice.channels.channel import Address, Channel, connect, frame_of
from sluice.channels.handshake import ServerHandshake
from sluice.errors import ServiceError

SECRET = b"s" * 32
START = b"start" * 3
PATIENT = 60.0


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    left, right = map(Channel, socket.socketpair())
    yield left, right
    left.close()
    right.close()


class Agents:
    """What listens at one port: for each connection the function that handles it, one after the other."""

    def __init__(self, *handlers: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1], SECRET, START)
        self._handlers = handlers
        self._kept: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for handler in self._handlers:
            connection, _ = self._listener.accept()
            self._kept.append(connection)
            with contextlib.suppress(OSError):  # the other end is gone
                handler(connection)

    def close(self) -> None:
        self._thread.join(PATIENT)
        for each in (*self._kept, self._listener):
            each.close()


@pytest.fixture
def listen() -> Iterator[Callable[..., Agents]]:
    made: list[Agents] = []

    def listen(*handlers: Callable[[socket.socket], None]) -> Agents:
        made.append(Agents(*handlers))
        return made[-1]

    yield listen
    for agents in made:
        agents.close()


def serve(connection: socket.socket) -> None:
    """An agent that sends one frame when the handshake is done."""
    host, port = connection.getsockname()
    handshake = ServerHandshake(SECRET, Address(host, port, SECRET, START).binding)
    while handshake.missing:
        connection.sendall(handshake.receive(connection.recv(handshake.missing)))
    Channel(connection).send(b"hello")


@pytest.mark.parametrize("size", [0, 1, 16 * 1024, 16 * 1024 + 1, 3_000_000])
def test_a_frame_arrives_whole(pair: tuple[Channel, Channel], size: int) -> None:
    """For any length, and any number of parts."""
    body = bytes(range(256)) * (size // 256 + 1)
    sender = threading.Thread(target=pair[0].send, args=(b"E", body[:size]))
    sender.start()

    assert bytes(pair[1].receive()) == b"E" + body[:size]

    sender.join()


def test_a_frame_may_be_sent_without_waiting_for_the_other_end(pair: tuple[Channel, Channel]) -> None:
    """As much as it takes goes out, and the rest when it takes more."""
    frame = frame_of(bytes(3_000_000))
    sent = pair[0].send_some(frame)

    assert 0 < sent < len(frame)
    assert pair[0].send_some(frame[sent:]) == 0

    def send_rest() -> None:
        done = sent
        while done < len(frame):
            pair[0].wait_until_writable(PATIENT)
            done += pair[0].send_some(frame[done:])

    sender = threading.Thread(target=send_rest)
    sender.start()
    assert len(pair[1].receive()) == 3_000_000
    sender.join()


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
    """The other end can't make this process fill its memory."""
    pair[0].send(b"x" * 300)

    with pytest.raises(ServiceError, match="300 bytes where at most 256"):
        pair[1].receive(at_most=256)


def test_a_connection_opens_to_the_agent_that_is_meant(listen: Callable[..., Agents]) -> None:
    """Both ends then exchange frames, and know the other's address."""
    channel = connect(listen(serve).address, timeout=PATIENT)

    assert bytes(channel.receive()) == b"hello"
    assert channel.remote_host == "127.0.0.1"
    channel.close()
    assert channel.remote_host is None


def test_a_task_notices_that_another_program_listens(listen: Callable[..., Agents]) -> None:
    """The error does not show the secret."""
    agents = listen(lambda connection: connection.sendall(b"n" * 64))

    with pytest.raises(ServiceError, match="not the server of this query") as caught:
        connect(agents.address, timeout=PATIENT)

    assert "sss" not in str(caught.value)


def test_an_agent_that_closes_a_connection_early_is_asked_again(listen: Callable[..., Agents]) -> None:
    """It is flooded with connections, and closes the oldest of those it does not know yet."""

    def close_early(connection: socket.socket) -> None:
        connection.close()

    channel = connect(listen(close_early, close_early, serve).address, timeout=PATIENT)
    assert bytes(channel.receive()) == b"hello"
    channel.close()

    with pytest.raises((EOFError, OSError)):
        connect(listen(close_early, close_early, close_early).address, timeout=PATIENT)


@pytest.mark.parametrize("count", [2, 5])
def test_all_addresses_of_a_host_have_one_deadline(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """None of them answers. Each is tried."""
    now = 0.0
    tried: list[str] = []

    class Silent:
        def __init__(self, *_: object) -> None:
            self.timeout = 0.0

        def settimeout(self, seconds: float) -> None:
            self.timeout = seconds

        def connect(self, place: tuple[str, int]) -> None:
            nonlocal now
            tried.append(place[0])
            now += self.timeout
            raise TimeoutError("timed out")

        def close(self) -> None:
            pass

    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"10.0.0.{n}", 4000)) for n in range(count)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "socket", Silent)
    with pytest.raises(TimeoutError):
        connect(Address("agents", 4000, SECRET, START), timeout=PATIENT, clock=lambda: now)

    assert tried == [place[0] for *_, place in found]
    assert now == pytest.approx(5.0)


def test_a_handshake_that_trickles_is_given_up(listen: Callable[..., Agents]) -> None:
    """The seconds are for all of it, not for each byte."""
    asked = threading.Semaphore(0)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.5
        asked.release()
        return now

    def trickle(connection: socket.socket) -> None:
        while asked.acquire(timeout=PATIENT):
            connection.send(b"n")  # fails when the other end is gone

    agents = listen(trickle)
    with pytest.raises(TimeoutError):
        connect(agents.address, timeout=PATIENT, clock=clock)
    assert now > 5.0
    asked.release(60)


def test_a_frame_that_trickles_is_given_up() -> None:
    """A timeout is for the whole frame, not for each byte."""
    raw, end = socket.socketpair()
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0
        raw.send(b"\0")
        return now

    channel = Channel(end, clock)
    channel.set_timeout(10.0)
    raw.send((100).to_bytes(4, "big"))
    with raw, pytest.raises(TimeoutError):
        channel.receive()
    assert 10.0 < now < 20.0
    channel.close()


def test_an_address_does_not_show_its_secret() -> None:
    """Addresses are in partitions, whose text may come into logs."""
    address = Address("10.0.0.1", 4000, b"topsecret", b"start")

    assert "topsecret" not in repr(address)
    assert str(address) == "10.0.0.1:4000"
    assert str(Address("2001:db8::1", 4000, b"topsecret", b"start")) == "[2001:db8::1]:4000"
