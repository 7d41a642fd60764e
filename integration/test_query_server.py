"""The query server and connections to it over sockets on loopback; and the process that is found again."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.support.servers import held_port
from sluice.channels.channel import Address, connect
from sluice.query_server import launch
from sluice.query_server.connection import TcpServerConnection
from sluice.query_server.launch import (
    ServerSettings,
    find_or_start,
    rendezvous_directory,
)
from sluice.query_server.protocol import (
    AcquireTokens,
    FromServer,
    Granted,
    Join,
    Members,
    TokensUsed,
    encode,
)
from sluice.query_server.rendezvous import Rendezvous
from sluice.query_server.server import QueryServer
from sluice.query_server.service import BucketService

SOON = 30.0
SETTINGS = ServerSettings(100.0, 50.0, "127.0.0.1")


def until(condition: Callable[[], object], seconds: float = SOON) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def address() -> Iterator[Address]:
    """Of a server in a thread."""
    server = QueryServer(BucketService(100.0, 50.0, time.monotonic()), "127.0.0.1")
    over = threading.Event()
    thread = threading.Thread(target=server.run, args=(lambda _: over.is_set(),))
    thread.start()
    yield server.address
    over.set()
    thread.join()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where rendezvous files are, for this test alone. Servers of a slow machine have time to answer."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(launch, "_ANSWER_TIMEOUT", SOON)
    monkeypatch.setattr(launch, "_START_TIMEOUT", 120.0)
    return rendezvous_directory()


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    """A process for servers to end with, as PySpark's daemon."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def receive(connection: TcpServerConnection, kind: type[FromServer]) -> FromServer:
    found: list[FromServer] = []

    def has_come() -> bool:
        found.extend(each for each in connection.receive() if isinstance(each, kind))
        return bool(found)

    until(has_come)
    return found[0]


def is_gone(address: Address) -> bool:
    try:
        socket.create_connection((address.host, address.port), 1.0).close()
    except OSError:
        return True
    return False


def test_a_task_gets_tokens(address: Address) -> None:
    """Connecting, joining, asking; nothing blocks."""
    connection = TcpServerConnection(address)
    until(connection.connect)
    connection.send(Join("q", "", "1", True))
    assert receive(connection, Members) == Members(1)
    connection.send(AcquireTokens(10.0))
    granted = receive(connection, Granted)
    assert isinstance(granted, Granted)
    assert granted.tokens == 10.0
    connection.send(TokensUsed(10.0))
    connection.close()
    assert not connection.connect()


def test_a_stranger_gets_nothing(address: Address) -> None:
    """Without the secret the connection is closed, and tasks are served as before."""
    stranger = Address(address.host, address.port, b"x" * 32, address.start)
    connection = TcpServerConnection(stranger)
    connection.connect()
    until(lambda: connection.problem)
    assert not connection.connect()
    test_a_task_gets_tokens(address)


def test_a_task_that_talks_nonsense_stops_nobody(address: Address) -> None:
    """Garbage, half of a message, a message before joining, an end without a word."""
    for content in (b"\xff\xff", encode(AcquireTokens(5.0)), encode(TokensUsed(5.0))):
        channel = connect(address, timeout=SOON)
        channel.send(content)
        channel.close()
    half = connect(address, timeout=SOON)
    half._socket.sendall(b"\0\0\0")
    try:
        test_a_task_gets_tokens(address)
    finally:
        half.close()


def test_a_connection_says_why_it_is_not_there() -> None:
    """Nothing listens there; it tries again after a pause only."""
    now = [0.0]
    with held_port() as port:
        connection = TcpServerConnection(Address("127.0.0.1", port, b"s" * 32, b"s"), lambda: now[0])
        assert not connection.connect()
        until(lambda: connection.problem)
        assert str(port) in connection.problem
        threads = threading.active_count()
        assert not connection.connect()
        assert threading.active_count() <= threads


def test_a_server_is_found_again(directory: Path, owner: subprocess.Popen[bytes]) -> None:
    """By each writer of the query; not by those with other options. It ends with its owner, killed, and
    leaves nothing.
    """
    first = find_or_start(SETTINGS, {"a": "1"}, owner=owner.pid)
    assert first is not None
    assert find_or_start(SETTINGS, {"a": "1"}, owner=owner.pid) == first
    other = find_or_start(SETTINGS, {"a": "2"}, owner=owner.pid)
    assert other is not None
    assert other.port != first.port
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    until(lambda: is_gone(first) and is_gone(other))
    until(lambda: not directory.exists())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_is_gone_or_silent_is_replaced(
    directory: Path,
    owner: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    """By the next writer. One that comes back ends, as it is not found any more."""
    first = find_or_start(SETTINGS, {}, owner=owner.pid)
    assert first is not None
    process = launch._started[-1]
    os.kill(process.pid, number)
    monkeypatch.setattr(launch, "_ANSWER_TIMEOUT", 3.0)
    second = find_or_start(SETTINGS, {}, owner=owner.pid)
    assert second is not None
    assert second != first
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.wait(SOON)
    assert Rendezvous(next(directory.iterdir())).read() == second


def test_what_a_killed_server_has_left_is_removed(directory: Path, owner: subprocess.Popen[bytes]) -> None:
    """By the next one that starts, of any query."""
    directory.mkdir(mode=0o700)
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    (directory / f"{dead.pid}-abc").touch()
    assert find_or_start(SETTINGS, {}, owner=owner.pid) is not None
    assert [path.name.partition("-")[0] for path in directory.iterdir()] == [str(owner.pid)]


def test_a_directory_of_others_is_not_used(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The secret would be theirs. The query goes on without a server, and a warning says so."""
    directory.mkdir()
    directory.chmod(0o777)
    assert find_or_start(SETTINGS, {}) is None
    assert "not a directory of this user alone" in caplog.text
    assert not list(directory.iterdir())


def test_an_address_that_is_not_ours(
    directory: Path, owner: subprocess.Popen[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """The query goes on without a server, and a warning names the option."""
    elsewhere = ServerSettings(1.0, 1.0, "192.0.2.1")
    assert find_or_start(elsewhere, {}, owner=owner.pid) is None
    assert "tokenBucketAddress" in caplog.text
    assert not list(directory.iterdir())
