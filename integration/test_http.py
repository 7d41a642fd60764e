"""Destination http against a real server: connections, certificates, proxies, faults, and Spark in front."""

from __future__ import annotations

import contextlib
import datetime as dt
import gzip
import ipaddress
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pyspark.sql import SparkSession

from sluice.destinations import read_sink
from sluice.destinations.http import HttpDestination
from sluice.errors import ServiceError

COUNT = 1000
FILES = 2


class Reply(NamedTuple):
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed
    after: float = 0.0  # seconds before it answers
    chunked: bool = False  # whether the answer's length is left open
    close: bool = False  # whether the connection is closed behind the answer
    cut: bool = False  # whether the connection is closed in place of an answer


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    server: Server

    def setup(self) -> None:
        super().setup()
        self.server.count_connection()

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        found = self.server.reply_to(Request(self.command, self.path, headers, body))
        time.sleep(found.after)
        self.close_connection = found.close or found.cut
        if not found.cut:
            with contextlib.suppress(OSError):  # the other side may have given up
                self.answer(found)

    def answer(self, found: Reply) -> None:
        self.send_response(found.status)
        for name, value in found.headers.items():
            self.send_header(name, value)
        if found.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif found.status != 204:
            self.send_header("Content-Length", str(len(found.body)))
        self.end_headers()
        if not found.chunked:
            self.wfile.write(found.body)
            return
        for start in range(0, len(found.body), 5):
            part = found.body[start : start + 5]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")

    do_POST = do_PUT = handle_any  # noqa: N815 - names of the standard library

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, reply: Callable[[Request], Reply], tls: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.server_address[1]}"
        if tls is not None:
            # The handshake is made by the thread of the connection, with its first read.
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.requests: list[Request] = []  # all of them
        self.connections = 0  # that were opened
        self.closed = 0  # those of them that the server has closed
        self._reply = reply
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def count_connection(self) -> None:
        with self._lock:
            self.connections += 1

    def reply_to(self, request: Request) -> Reply:
        with self._lock:
            self.requests.append(request)
            return self._reply(request)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._lock:
            self.closed += 1

    def handle_error(self, *_: Any) -> None:
        pass  # handshakes that are to fail

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class Serve:
    """Starts servers, and closes them."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack

    def __call__(
        self, reply: Callable[[Request], Reply] = lambda _: Reply(), tls: ssl.SSLContext | None = None
    ) -> Server:
        server = Server(reply, tls)
        self._stack.callback(server.close)
        return server


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with contextlib.ExitStack() as stack:
        yield Serve(stack)


def destination(url: str, **options: str) -> HttpDestination:
    made = read_sink({"destination": "http", "url": url} | options).destination
    assert isinstance(made, HttpDestination)
    return made


def error_of(made: HttpDestination) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        made.submit([b"1"])
    return caught.value


# --- connections ------------------------------------------------------------------------------------------


def test_a_request_as_the_server_sees_it(serve: Serve) -> None:
    """Method, path and query, headers, credentials and body."""
    server = serve()
    options = {
        "method": "put",
        "basicUser": "me",
        "basicPassword": "secret",
        "header.X-Tenant": "t",
        "compression": "gzip",
    }
    destination(f"{server.url}/a%20b?key=1&x=y", **options).submit([b'{"a":1}', b'{"a":2}'])
    (request,) = server.requests

    assert (request.method, request.path) == ("PUT", "/a%20b?key=1&x=y")
    assert request.headers["authorization"] == "Basic bWU6c2VjcmV0"
    assert request.headers["x-tenant"] == "t"
    assert request.headers["content-length"] == str(len(request.body))
    assert json.loads(gzip.decompress(request.body)) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    "reply",
    [
        Reply(body=b'{"ok": true}'),
        Reply(204),
        Reply(body=b'{"ok": true}' * 9, chunked=True),
        Reply(body=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"}),
        Reply(status=503, body=b"busy"),
    ],
)
def test_a_connection_is_kept_whatever_the_answer(serve: Serve, reply: Reply) -> None:
    """Across epochs too: each has a new destination."""
    server = serve(lambda _: reply)
    for _ in range(4):
        made = destination(server.url)
        with contextlib.suppress(ServiceError):
            made.submit([b"1"])
        made.close()

    assert len(server.requests) == 4
    assert server.connections == 1


def test_an_answer_without_end_is_not_read_to_its_end(serve: Serve) -> None:
    """Memory is bounded, for any answer. The task fails: rows may be written already."""
    server = serve(lambda _: Reply(body=b"x" * 17 * 2**20))
    error = error_of(destination(server.url))

    assert "the answer has more than 16777216 bytes" in str(error)
    assert not error.retryable


# --- certificates -----------------------------------------------------------------------------------------


def certificate(directory: Path, name: str) -> Path:
    """A file with a key and a certificate of 127.0.0.1 that vouches for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.timezone.utc)
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    file = directory / f"{name}.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, form, plain)
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return file


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_certificates_are_checked(serve: Serve, tmp_path: Path) -> None:
    """An unknown certificate is fatal at once, unless a custom bundle has it or checks are off."""
    file = certificate(tmp_path, "server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)
    url = serve(tls=context).url
    strict = destination(url)
    error = error_of(strict)

    assert "CERTIFICATE_VERIFY_FAILED" in str(error)
    assert "check options 'url', 'caBundle'" in str(error)
    assert strict.is_fatal(error)
    with pytest.raises(ssl.SSLCertVerificationError):
        strict.check_connection()
    for trusting in (destination(url, caBundle=str(file)), destination(url, tlsVerification="false")):
        trusting.submit([b"1"])
        assert trusting.check_connection() in url


def test_the_proxy_of_the_environment_is_used(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its password; not for a host of NO_PROXY."""
    proxy, server = serve(), serve()
    monkeypatch.setenv("http_proxy", proxy.url.replace("http://", "http://me:secret@"))
    proxied = destination("http://endpoint.test/rows")
    proxied.submit([b"1"])
    assert proxied.check_connection() == f"the proxy {proxy.url.removeprefix('http://')}"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    destination(f"{server.url}/rows").submit([b"1"])

    assert [request.path for request in proxy.requests] == ["http://endpoint.test/rows"]
    assert proxy.requests[0].headers["proxy-authorization"] == "Basic bWU6c2VjcmV0"
    assert [request.path for request in server.requests] == ["/rows"]


# --- Spark ------------------------------------------------------------------------------------------------


def test_a_stream_through_faults(spark: SparkSession, tmp_path: Path, checkpoint: str, serve: Serve) -> None:
    """Every row arrives, and the one that is refused for good is a dead letter."""
    stored: Counter[int] = Counter()
    refused_once: set[int] = set()
    wholes = [Reply(503, headers={"Retry-After": "0"}), Reply(500), Reply(cut=True)]
    numbers = iter(range(10**9))

    def reply(request: Request) -> Reply:
        assert request.headers["authorization"] == "Bearer open-sesame"
        number = next(numbers)
        if number % 5 == 2:
            return wholes[number // 5 % 3]
        results = []
        for line in request.body.splitlines():
            row = json.loads(line)["id"]
            if row == 77:
                results.append({"status": 400, "error": "no luck"})
            elif row % 7 == 0 and row not in refused_once:
                refused_once.add(row)
                results.append({"status": 429, "error": "later"})
            else:
                stored[row] += 1
                results.append({"status": 201})
        return Reply(207, json.dumps({"items": results}).encode())

    server = serve(reply)
    directory, letters = str(tmp_path / "rows"), tmp_path / "letters"
    frame = spark.range(COUNT).selectExpr("to_json(struct(id, concat('€ ', id) AS name)) AS body")
    frame.repartition(FILES).write.parquet(directory)
    query = (
        spark.readStream.schema("body string")
        .option("maxFilesPerTrigger", 1)
        .parquet(directory)
        .writeStream.format("async-sink")
        .option("destination", "http")
        .option("url", f"{server.url}/rows")
        .option("bodyFormat", "jsonLines")
        .option("bearerToken", "open-sesame")
        .option("resultsPath", "$.items")
        .option("resultErrorPath", "$.error")
        .option("resultStatusPath", "$.status")
        .option("deadLetterPath", str(letters))
        .option("rateLimiting", "none")  # the faults here are not about load
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    kept = [json.loads(line) for file in letters.rglob("*.jsonl") for line in file.read_text().splitlines()]

    assert stored == Counter(n for n in range(COUNT) if n != 77)
    assert ["no luck" in letter["reason"] for letter in kept] == [True]
    assert refused_once == {n for n in range(0, COUNT, 7) if n != 77}
