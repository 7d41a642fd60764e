"""Answers received in one piece, within a deadline. `integration/test_trickling_peers.py` has more peers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError
from kinesis_transport import forget_process_state
from urllib3.response import HTTPResponse

from sluice.aws.calling.clients import client_for
from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.errors import translate
from sluice.aws.wire import sdk_deadlines, watchdog

PAGE = b'{"Records": [], "MillisBehindLatest": 7, "NextShardIterator": "' + b"x" * 1_000_000 + b'"}'
HEAD = b"HTTP/1.1 %d OK\r\nConnection: close\r\n"
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders/consumer/me:1"


@pytest.fixture
def client_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], Any]]:
    """Makes a client that is answered with some bytes, and then with a blank every 50 ms."""
    monkeypatch.setattr(watchdog, "_INTERVAL", 0.02)
    monkeypatch.setattr(sdk_deadlines, "_LIMIT", -64.0)  # with the timeouts: a second
    server, ends = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def serve(answer: bytes) -> None:
        connection, _ = server.accept()
        connection.recv(65_536)
        try:
            connection.sendall(answer)
            while not ends.wait(0.05):
                connection.sendall(b" ")
        except OSError:
            pass
        connection.close()

    def make(answer: bytes) -> Any:
        threading.Thread(target=serve, args=(answer,), daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        config = ConnectionConfig(
            region="eu-west-1", endpoint_url=url, access_key_id="a", secret_access_key="b"
        )
        return client_for(config, "kinesis")

    yield make
    ends.set()
    server.close()
    forget_process_state()


def test_a_body_is_read_at_once(client_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    read = HTTPResponse.read

    def recorded(self: HTTPResponse, amt: int | None = None, **more: Any) -> bytes:
        asked.append(amt)
        return read(self, amt, **more)

    monkeypatch.setattr(HTTPResponse, "read", recorded)
    client = client_of(HEAD % 200 + b"Content-Length: %d\r\n\r\n" % len(PAGE) + PAGE)

    assert client.get_records(ShardIterator="i")["MillisBehindLatest"] == 7
    assert asked == [None]


@pytest.mark.parametrize("length", [b"", b"Content-Length: 5000000\r\n"])
def test_a_body_that_trickles_is_given_up(client_of: Any, length: bytes) -> None:
    """A body without a length ends where its connection does, and the transport takes it for whole."""
    client = client_of(HEAD % 200 + length + b"\r\n" + PAGE)
    with pytest.raises(ReadTimeoutError) as caught:
        client.get_records(ShardIterator="i")

    error = translate(caught.value, operation="GetRecords", target="s", endpoint=None)
    assert error.retryable
    assert "the request and its answer took longer than 1 s" in str(error)


def test_an_error_instead_of_events_is_read_within_the_deadline(client_of: Any) -> None:
    """A subscriber that waited for one could not even be closed."""
    client = client_of(HEAD % 500 + b"\r\n" + b"{")
    at = {"Type": "LATEST"}
    with pytest.raises(ReadTimeoutError):
        client.subscribe_to_shard(ConsumerARN=ARN, ShardId="shardId-000000000000", StartingPosition=at)


def test_events_are_left_to_their_reader(client_of: Any) -> None:
    answer = client_of(HEAD % 200 + b"\r\nabc").subscribe_to_shard(
        ConsumerARN=ARN, ShardId="shardId-000000000000", StartingPosition={"Type": "LATEST"}
    )

    assert answer["EventStream"].read(3) == b"abc"
    answer["EventStream"].close()


def test_a_body_that_is_cut_short_is_retryable(client_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Event, "wait", lambda *_: True)  # the server hangs up
    with pytest.raises(ConnectionClosedError) as caught:
        client_of(HEAD % 200 + b"Content-Length: 9\r\n\r\n{}").get_records(ShardIterator="i")

    assert translate(caught.value, operation="GetRecords", target="s", endpoint=None).retryable
