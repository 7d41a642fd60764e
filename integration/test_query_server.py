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
from sluice.errors import SluiceError
from sluice.query_server import launch
from sluice.query_server.launch import find_or_start
from sluice.query_server.protocol import AcquireTokens, FromServer, Granted, Join, TokensUsed, encode
from sluice.query_server.server import QueryServer
from sluice.sink.shared_bucket.connection import ServerConnection

SOON = 60.0
HOST = "127.0.0.1"


def until(condition: Callable[[], object], seconds: float = SOON) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def address() -> Iterator[Address]:
    """Of a server in a thread."""
    server = QueryServer(HOST)
    over = threading.Event()
    thread = threading.Thread(target=server.run, args=(lambda _: over.is_set(),))
    thread.start()
    yield server.address
    over.set()
    thread.join()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where servers' addresses are, for this test alone. Servers of a slow machine have time to answer."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(launch, "_ANSWER_TIMEOUT", SOON)
    monkeypatch.setattr(launch, "_START_TIMEOUT", 120.0)
    return tmp_path / f"sluice-{os.getuid()}"


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    """A process for servers to end with, as PySpark's daemon."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def take_tokens(address: Address, tokens: float) -> ServerConnection:
    """Connects, joins, asks, and returns when the tokens have come; nothing blocks."""
    connection = ServerConnection(address)
    until(connection.connect)
    connection.send(Join("q", 100.0, 50.0, starts_full=True))
    connection.send(AcquireTokens(tokens))
    heard: list[FromServer] = []
    until(lambda: heard.extend(connection.receive()) or Granted(tokens) in heard)  # type: ignore[func-returns-value]
    connection.send(TokensUsed(tokens))
    return connection


def is_gone(address: Address) -> bool:
    try:
        socket.create_connection((address.host, address.port), 1.0).close()
    except OSError:
        return True
    return False


def test_a_task_gets_tokens(address: Address) -> None:
    connection = take_tokens(address, 10.0)
    connection.close()
    assert not connection.connect()


def test_a_stranger_gets_nothing(address: Address) -> None:
    """Without the secret the connection is closed, and tasks are served as before."""
    connection = ServerConnection(Address(address.host, address.port, b"x" * 32, address.start))
    connection.connect()
    until(lambda: connection.problem)
    assert not connection.connect()
    take_tokens(address, 10.0).close()


def test_a_task_that_talks_nonsense_stops_nobody(address: Address) -> None:
    """Garbage, half of a message, a message before joining, an end without a word."""
    for content in (b"\xff\xff", encode(AcquireTokens(5.0)), encode(TokensUsed(5.0))):
        channel = connect(address, timeout=SOON)
        channel.send(content)
        channel.close()
    half = connect(address, timeout=SOON)
    half._socket.sendall(b"\0\0\0")
    try:
        take_tokens(address, 10.0).close()
    finally:
        half.close()


def test_a_connection_says_why_it_failed() -> None:
    """Nothing listens there; it tries again after a pause only."""
    now = [0.0]
    with held_port() as port:
        connection = ServerConnection(Address(HOST, port, b"s" * 32, b"s"), lambda: now[0])
        assert not connection.connect()
        until(lambda: connection.problem)
        assert str(port) in connection.problem
        threads = threading.active_count()
        assert not connection.connect()
        assert threading.active_count() <= threads


def test_a_server_is_found_again(directory: Path, owner: subprocess.Popen[bytes]) -> None:
    """By all writers of a Spark application."""
    address = find_or_start(HOST, owner=owner.pid)
    assert find_or_start(HOST, owner=owner.pid) == address
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    connection = take_tokens(address, 10.0)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    time.sleep(12.0)  # longer than it lingers
    take_tokens(address, 10.0).close()
    connection.close()
    until(lambda: is_gone(address))
    until(lambda: not list(directory.iterdir()))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_is_gone_or_silent_is_replaced(
    directory: Path,
    owner: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    """By the next writer. One that was silent serves its tasks again, and is not found any more."""
    first = find_or_start(HOST, owner=owner.pid)
    process = launch._started[-1]
    os.kill(process.pid, number)
    monkeypatch.setattr(launch, "_ANSWER_TIMEOUT", 3.0)
    second = find_or_start(HOST, owner=owner.pid)
    assert second != first
    if number == signal.SIGSTOP:
        process.send_signal(signal.SIGCONT)
        take_tokens(first, 10.0).close()
        process.terminate()
    process.wait(SOON)
    monkeypatch.setattr(launch, "_ANSWER_TIMEOUT", SOON)
    assert find_or_start(HOST, owner=owner.pid) == second
    assert len(list(directory.iterdir())) == 1


def test_a_directory_of_others_is_not_used(directory: Path) -> None:
    """The secret would be theirs. The query fails at its start."""
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(SluiceError, match="not a directory of this user alone"):
        find_or_start(HOST)
    assert not list(directory.iterdir())


def test_an_address_that_is_not_ours(directory: Path, owner: subprocess.Popen[bytes]) -> None:
    """The query fails at its start, and the error names the option."""
    with pytest.raises(SluiceError, match=r"192\.0\.2\.1: .*ssign.*tokenBucketAddress"):
        find_or_start("192.0.2.1", owner=owner.pid)
    assert not list(directory.iterdir())
