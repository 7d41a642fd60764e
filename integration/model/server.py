"""The model behind a socket: AWS JSON 1.1 and CBOR, and event streams in either. On the loopback, unless told
otherwise.

A thread a connection, as HTTP/1.1 has them. Signatures are not checked; the access key is, see
`KinesisModel.expire_credentials`.
"""

from __future__ import annotations

import contextlib
import email.utils
import re
import select
import socket
import socketserver
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from integration.model.clock import SECOND, Clock, RealClock
from integration.model.errors import LOST_ANSWER, ModelError
from integration.model.faults import FaultPlan
from integration.model.laws import Laws
from integration.model.sending import CutError, Sender, WireFaults
from integration.model.service import KinesisModel
from integration.model.subscriptions import Subscription
from integration.model.wire import CODECS, Codec, error_frame, event_frame

LOOPBACK: Final = "127.0.0.1"

_ACCESS_KEY: Final = re.compile(r"Credential=([^/]+)/")
_LATEST_POLL: Final = 0.2  # seconds; subscriptions are woken when something changes
_SOON: Final = 0.02


class ModelServer:
    """Serves a model until it is closed; `port`: 0 for a free one; `host`: an address of this machine."""

    def __init__(self, model: KinesisModel, port: int = 0, host: str = LOOPBACK) -> None:
        self.model = model
        self.host = host
        self.wire = WireFaults()
        self.stopping = threading.Event()
        self._waiting: set[threading.Event] = set()
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._http = _Http((host, port), _Handler)
        self._http.owner = self
        self.port: int = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.serve(model)

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    def serve(self, model: KinesisModel) -> None:
        """Serves another model from now on. Subscriptions that are open stay with theirs."""
        self.model = model
        model.on_change(self._wake)

    def close(self) -> None:
        self.stopping.set()
        self._wake()
        self._http.shutdown()
        self._http.server_close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    @contextlib.contextmanager
    def connected(self, connection: socket.socket) -> Iterator[None]:
        """A connection that `close` ends."""
        with self._lock:
            self._connections.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._connections.discard(connection)

    @contextlib.contextmanager
    def woken(self) -> Iterator[threading.Event]:
        """An event that is set when the model changes."""
        event = threading.Event()
        with self._lock:
            self._waiting.add(event)
        try:
            yield event
        finally:
            with self._lock:
                self._waiting.discard(event)

    def _wake(self) -> None:
        with self._lock:
            for event in self._waiting:
                event.set()


@contextlib.contextmanager
def serving(
    laws: Laws | None = None,
    clock: Clock | None = None,
    seed: int = 0,
    *,
    faults: FaultPlan | None = None,
    port: int = 0,
    host: str = LOOPBACK,
) -> Iterator[ModelServer]:
    """A server in a thread of this process. Its clock runs, unless another one is given."""
    server = ModelServer(KinesisModel(laws, clock or RealClock(), seed, faults=faults), port, host)
    try:
        yield server
    finally:
        server.close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 512
    owner: ModelServer

    def server_bind(self) -> None:
        """Binds, without asking for the host's name, as the base class does."""
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may go away at any moment."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 0
    server: _Http

    def handle(self) -> None:
        with self.server.owner.connected(self.connection), contextlib.suppress(OSError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Says nothing."""

    def do_GET(self) -> None:
        """Whether the server is ready."""
        self._answer(
            200, b"{}", "application/json", Sender(self.connection, None, self.server.owner.stopping)
        )

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        owner = self.server.owner
        operation = self.headers.get("X-Amz-Target", "").partition(".")[2]
        sender = Sender(self.connection, owner.wire.take(operation), owner.stopping)
        try:
            self._operate(operation, body, sender)
        except CutError:
            self.close_connection = True

    def _operate(self, operation: str, body: bytes, sender: Sender) -> None:
        codec = CODECS.get(self.headers.get("Content-Type", ""))
        if codec is None:
            self._answer(415, b"", "text/plain", sender)
            return
        found = _ACCESS_KEY.search(self.headers.get("Authorization", ""))
        try:
            answer = self.server.owner.model.call(
                operation, codec.decode(body), access_key=found[1] if found else "-"
            )
        except ModelError as error:
            if error.code == LOST_ANSWER:
                raise CutError("the answer is lost") from None
            content = codec.encode({"__type": error.code, "message": error.message})
            self._answer(error.status, content, codec.content_type, sender)
            return
        if not sender.is_plain:
            self.server.owner.model.lose(operation, answer)
        if isinstance(subscription := answer.get("EventStream"), Subscription):
            self._stream(subscription, codec, sender)
        else:
            self._answer(200, codec.encode(answer), codec.content_type, sender)

    def _answer(self, status: int, content: bytes, content_type: str, sender: Sender) -> None:
        head = self._head(status, content_type, f"Content-Length: {len(content)}")
        if len(content) < 4096 and sender.is_plain:
            sender.send_head(head + content)
            return
        sender.send_head(head)
        sender.send(content)

    def _head(self, status: int, content_type: str, length: str) -> bytes:
        phrase = self.responses.get(status, ("Status",))[0]
        date = email.utils.formatdate(self.server.owner.model.clock.now() / SECOND, usegmt=True)
        return (
            f"HTTP/1.1 {status} {phrase}\r\nx-amzn-RequestId: {uuid.uuid4()}\r\nDate: {date}\r\n"
            f"Content-Type: {content_type}\r\n{length}\r\n\r\n"
        ).encode("latin-1")

    # --- event streams ---

    def _stream(self, subscription: Subscription, codec: Codec, sender: Sender) -> None:
        try:
            # The client must not take the connection for its next call, which would meet its end.
            framing = "Transfer-Encoding: chunked\r\nConnection: close"
            sender.send_head(self._head(200, "application/vnd.amazon.eventstream", framing))
            sender.send_chunk(event_frame("initial-response", codec.encode({}), codec))
            self._push(subscription, codec, sender)
            sender.send_head(b"0\r\n\r\n")
        finally:
            subscription.close()
            self.close_connection = True

    def _push(self, subscription: Subscription, codec: Codec, sender: Sender) -> None:
        owner = self.server.owner
        with owner.woken() as changed:
            while not owner.stopping.is_set():
                changed.clear()
                try:
                    event = subscription.next_event()
                except ModelError as error:
                    sender.send_chunk(error_frame(error, codec))
                    return
                if event is not None:
                    sender.send_chunk(event_frame("SubscribeToShardEvent", codec.encode(event), codec))
                if subscription.has_ended:
                    return
                if event is None:
                    if self._has_hung_up():
                        return
                    if changed.wait(_LATEST_POLL):
                        # What came may have to wait for the pace of events.
                        owner.stopping.wait(_SOON)

    def _has_hung_up(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
