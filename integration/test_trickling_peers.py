"""A peer that sends a byte now and then, at each socket that the project opens: no wait lasts for ever."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config

from sluice.aws.calling.clients import client_for, credentials_for
from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.wire import sdk_deadlines, watchdog
from sluice.channels import acceptor as acceptor_module
from sluice.channels import channel as channel_module
from sluice.channels.acceptor import Acceptor, listen
from sluice.channels.channel import Address, Channel, connect
from sluice.channels.handshake import ServerHandshake
from sluice.channels.tls import make_certificate
from sluice.cli import top_view
from sluice.cli.checks.sink import check_connection
from sluice.destinations.common.bucket import Bucket
from sluice.destinations.http.transport import HttpTransport
from sluice.destinations.registry import read_sink
from sluice.metrics import JsonExporter, endpoint
from sluice.metrics.board import Board
from sluice.query_server.launch import _answers
from sluice.retry import Retrier

PATIENT = 60.0
SECRET = b"s" * 32
START = b"start" * 3
TLS = b"\x16\x03\x03\x3f\xff"
"""The start of a record of 16 KiB."""
STATUS = b"HTTP/1.1 200 "
HEADERS = b"HTTP/1.1 200 OK\r\nx-trace: "
BODY = b"HTTP/1.1 200 OK\r\netag: x\r\ncontent-length: 1000000\r\n\r\n{"
WITHOUT_LENGTH = b"HTTP/1.1 200 OK\r\netag: x\r\n\r\n{"
PARTS = (b"", STATUS, HEADERS, BODY, WITHOUT_LENGTH)
SHARDS = (
    b'HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-json-1.1\r\ncontent-length: 13\r\n\r\n{"Shards":[]}'
)


class Trickler:
    """Accepts connections, and trickles on each until the other end closes it.

    `begun`: what it sends at once; then a byte now and then; `answers`: what it answers to the first
    requests; `prepare`: is called with each connection before.
    """

    def __init__(
        self,
        begun: bytes = b"",
        answers: tuple[bytes, ...] = (),
        prepare: Callable[[socket.socket], object] = lambda _: None,
    ) -> None:
        self._begun = begun
        self._answers = list(answers)
        self._prepare = prepare
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                thread = threading.Thread(target=self._trickle, args=(connection,), daemon=True)
                thread.start()
                self._threads.append(thread)

    def _trickle(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self._prepare(connection)
            while self._answers and connection.recv(65536):
                connection.sendall(self._answers.pop(0))
            connection.sendall(self._begun)
            while True:
                select.select([], [], [], 0.02)
                connection.sendall(b"1")

    @property
    def is_asked(self) -> bool:
        return bool(self._threads)

    def check_that_all_are_closed(self) -> None:
        """By the other end."""
        assert self._threads
        for thread in self._threads:
            thread.join(PATIENT)
            assert not thread.is_alive(), "a connection is left behind"

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def trickler() -> Iterator[Callable[..., Trickler]]:
    made: list[Trickler] = []

    def make(*arguments: Any) -> Trickler:
        made.append(Trickler(*arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """All limits are tenths of a second."""
    monkeypatch.setattr(watchdog, "_INTERVAL", 0.02)
    monkeypatch.setattr(sdk_deadlines, "_LIMIT", 0.3)
    monkeypatch.setattr(sdk_deadlines, "_LIMIT_OF_S3", 0.3)
    monkeypatch.setattr(channel_module, "_HANDSHAKE_TIMEOUT", 0.3)
    monkeypatch.setattr(acceptor_module, "_HANDSHAKE_TIMEOUT", 0.3)
    monkeypatch.setattr(acceptor_module, "_TICK", 0.02)
    monkeypatch.setattr(top_view, "_TIMEOUT", 0.3)
    monkeypatch.setattr(endpoint, "_LONGEST", 0.3)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def fails_in_time(call: Callable[[], object]) -> BaseException:
    """The error with which the call ends."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - whichever it is
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENT)
    assert not thread.is_alive(), "it waits for ever"
    assert raised, "it succeeds"
    return raised[0]


# --- agents and the query server -----------------------------------------------------------------------


@pytest.mark.parametrize(("begun", "fingerprint"), [(b"", b""), (TLS, b"f" * 32)])
def test_connecting_to_an_agent_ends(
    trickler: Callable[..., Trickler], begun: bytes, fingerprint: bytes
) -> None:
    peer = trickler(begun)
    address = Address("127.0.0.1", peer.port, SECRET, START, fingerprint)

    assert isinstance(fails_in_time(lambda: connect(address, timeout=5.0)), TimeoutError)
    peer.check_that_all_are_closed()


def shake_hands(connection: socket.socket) -> None:
    host, port = connection.getsockname()
    handshake = ServerHandshake(SECRET, Address(host, port, SECRET, START).binding)
    while handshake.missing:
        connection.sendall(handshake.receive(connection.recv(handshake.missing)))


def test_a_message_of_an_agent_ends(trickler: Callable[..., Trickler]) -> None:
    peer = trickler((100_000).to_bytes(4, "big"), (), shake_hands)
    channel = connect(Address("127.0.0.1", peer.port, SECRET, START), timeout=0.3)

    assert isinstance(fails_in_time(channel.receive), TimeoutError)
    channel.close()
    peer.check_that_all_are_closed()


def test_the_answer_of_a_query_server_ends(trickler: Callable[..., Trickler]) -> None:
    peer = trickler((60_000).to_bytes(4, "big"), (), shake_hands)
    answered: list[bool] = []
    address = Address("127.0.0.1", peer.port, SECRET, START)
    thread = threading.Thread(target=lambda: answered.append(_answers(address)), daemon=True)
    thread.start()
    thread.join(PATIENT)

    assert answered == [False]
    peer.check_that_all_are_closed()


@pytest.mark.parametrize("encrypts", [False, True])
def test_a_client_of_an_agent_that_trickles_is_closed(*, encrypts: bool) -> None:
    listener = listen("127.0.0.1")
    address = Address("127.0.0.1", listener.getsockname()[1], SECRET, START)
    tls = make_certificate().context if encrypts else None
    acceptor = Acceptor(listener, address, Channel.close, tls=tls)
    acceptor.start()
    try:
        with socket.create_connection(("127.0.0.1", address.port)) as client:
            client.sendall(TLS if encrypts else b"")
            assert trickles_until_closed(client)
    finally:
        acceptor.close()


def trickles_until_closed(client: socket.socket) -> bool:
    """Whether the server closes the connection."""
    ended = threading.Event()

    def trickle() -> None:
        with contextlib.suppress(OSError):
            while True:
                client.sendall(b"1")
                if select.select([client], [], [], 0.02)[0] and not client.recv(4096):
                    break
        ended.set()

    threading.Thread(target=trickle, daemon=True).start()
    return ended.wait(PATIENT)


# --- the destination http ------------------------------------------------------------------------------


def http_transport(url: str) -> HttpTransport:
    return HttpTransport(url=url, connect_timeout=0.3, read_timeout=5.0, request_timeout=0.3, verify=False)


@pytest.mark.parametrize("begun", PARTS)
def test_a_request_to_an_endpoint_ends(trickler: Callable[..., Trickler], begun: bytes) -> None:
    peer = trickler(begun)
    to = http_transport(f"http://127.0.0.1:{peer.port}/rows")

    fails_in_time(lambda: to.send(b"[1]", {}))
    peer.check_that_all_are_closed()


def test_tls_with_an_endpoint_ends(trickler: Callable[..., Trickler]) -> None:
    peer = trickler(TLS)
    to = http_transport(f"https://127.0.0.1:{peer.port}/rows")

    fails_in_time(lambda: to.send(b"[1]", {}))
    peer.check_that_all_are_closed()


@pytest.mark.parametrize(("scheme", "begun"), [("http", STATUS), ("http", HEADERS), ("https", TLS)])
def test_a_proxy_to_an_endpoint_ends(
    trickler: Callable[..., Trickler], monkeypatch: pytest.MonkeyPatch, scheme: str, begun: bytes
) -> None:
    peer = trickler(begun)
    monkeypatch.setenv("HTTPS_PROXY", f"{scheme}://127.0.0.1:{peer.port}")
    to = http_transport("https://endpoint.test/rows")

    fails_in_time(lambda: to.send(b"[1]", {}))
    peer.check_that_all_are_closed()


# --- AWS -----------------------------------------------------------------------------------------------


def config_for(peer: Trickler, scheme: str = "http", **more: Any) -> ConnectionConfig:
    return ConnectionConfig(
        region="eu-west-1",
        endpoint_url=f"{scheme}://127.0.0.1:{peer.port}",
        access_key_id="a",
        secret_access_key="b",  # noqa: S106
        connect_timeout=0.2,
        read_timeout=0.5,
        **more,
    )


@pytest.mark.parametrize("begun", PARTS)
@pytest.mark.parametrize("answers", [(), (SHARDS,)])
def test_a_call_of_a_service_ends(
    trickler: Callable[..., Trickler], begun: bytes, answers: tuple[bytes, ...]
) -> None:
    """The first of a client, and the ones after it, which are received in another way."""
    peer = trickler(begun, answers)
    client = client_for(config_for(peer), "kinesis")
    for _ in answers:
        client.list_shards(StreamName="clicks")

    fails_in_time(lambda: client.list_shards(StreamName="clicks"))
    peer.check_that_all_are_closed()


def test_tls_with_a_service_ends(trickler: Callable[..., Trickler]) -> None:
    peer = trickler(TLS)
    client = client_for(config_for(peer, "https"), "kinesis")

    fails_in_time(lambda: client.list_shards(StreamName="clicks"))
    peer.check_that_all_are_closed()


@pytest.mark.parametrize("begun", PARTS)
def test_assuming_a_role_ends(trickler: Callable[..., Trickler], begun: bytes) -> None:
    peer = trickler(begun)
    config = config_for(peer, role_arn="arn:aws:iam::123456789012:role/reader")

    fails_in_time(lambda: credentials_for(config))
    peer.check_that_all_are_closed()


def give_up(_: float) -> None:
    raise TimeoutError("no other attempt in this test")


@pytest.mark.parametrize("begun", PARTS)
def test_an_object_of_s3_ends(trickler: Callable[..., Trickler], begun: bytes) -> None:
    peer = trickler(begun)
    bucket = Bucket("manifests", config_for(peer), retrier=Retrier(sleep=give_up))

    fails_in_time(lambda: bucket.get("epoch-1"))
    peer.check_that_all_are_closed()


@pytest.mark.parametrize("begun", PARTS)
def test_sending_figures_to_cloudwatch_ends(trickler: Callable[..., Trickler], begun: bytes) -> None:
    peer = trickler(begun)
    client: Any = boto3.client(
        "cloudwatch",
        region_name="eu-west-1",
        endpoint_url=f"http://127.0.0.1:{peer.port}",
        aws_access_key_id="a",
        aws_secret_access_key="b",  # noqa: S106
        config=Config(retries={"total_max_attempts": 1}),
    )
    sdk_deadlines.limit_requests(client, 0.3)

    for _ in range(20):  # on a slow machine the time may be over before it is connected
        fails_in_time(lambda: client.put_metric_data(Namespace="n", MetricData=[]))
        if peer.is_asked:
            break
    peer.check_that_all_are_closed()


# --- the command and the listener ----------------------------------------------------------------------


@pytest.mark.parametrize("begun", PARTS)
def test_a_request_to_a_listener_ends(trickler: Callable[..., Trickler], begun: bytes) -> None:
    peer = trickler(begun)

    fails_in_time(lambda: top_view.look_at_listener(f"127.0.0.1:{peer.port}", 0.0))
    peer.check_that_all_are_closed()


def test_a_check_of_an_endpoint_ends(trickler: Callable[..., Trickler]) -> None:
    peer = trickler(TLS)
    found: list[tuple[str, ...]] = []

    class Findings:
        def add(self, *finding: str) -> None:
            found.append(finding)

    findings: Any = Findings()
    options = {"destination": "http", "url": f"https://127.0.0.1:{peer.port}", "connectTimeout": "200ms"}
    endpoint: Any = read_sink(options).destination
    thread = threading.Thread(target=check_connection, args=(findings, endpoint), daemon=True)
    thread.start()
    thread.join(PATIENT)

    assert [each[1] for each in found] == ["failed"]
    peer.check_that_all_are_closed()


def test_a_client_of_a_listener_that_trickles_is_closed() -> None:
    exporter = JsonExporter(port=0)
    exporter.start(Board())
    host, _, port = exporter.address.rpartition(":")
    try:
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"GET /")
            assert trickles_until_closed(client)
    finally:
        exporter.close()
