"""A Kinesis that answers with prepared bytes, so that its clients are measured and not the server.

It is a loopback HTTP server in a separate process. It serves the operations that it is given; the pieces
of an event stream are sent with chunked transfer encoding, as Kinesis does. It checks no request and no
signature, keeps nothing and enforces no limits.
"""

from __future__ import annotations

import base64
import contextlib
import json
import multiprocessing
import os
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from integration.model import cbor
from integration.model.wire import TIMES

LOOPBACK = "127.0.0.1"
READY_TIMEOUT = 30.0
NUMBERS_START = 49 * 10**54  # sequence numbers of Kinesis have 56 digits
ANSWER_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.1\r\n"
REFUSAL_HEAD = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/x-amz-json-1.1\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.amazon.eventstream\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
JSON, CBOR = "application/x-amz-json-1.1", "application/x-amz-cbor-1.1"
_CHUNK = 1 << 20  # bytes taken from a socket at a time

Operations = Mapping[str, Callable[[Any], Any]]
"""By name, a function that answers a request: with JSON (as bytes where it is prepared), a `Page`, a
`Refusal`, or the pieces of an event stream. A function marked by `takes_bytes` gets the body of the request
as bytes."""

CallableT = TypeVar("CallableT", bound=Callable[..., Any])


def takes_bytes(function: CallableT) -> CallableT:
    """Marks an operation whose requests are too large to be parsed at every call."""
    function.takes_bytes = True  # type: ignore[attr-defined]
    return function


def sequence_number(index: int) -> str:
    """The sequence number of the record `index` of a shard."""
    return str(NUMBERS_START + index)


def event(first: int, data: Sequence[bytes], *, arrival: float, millis_behind: int = 0) -> bytes:
    """One SubscribeToShardEvent, framed.

    `first`: index of its first record in the shard; `arrival`: arrival time of all records (seconds since the
    epoch); `millis_behind`: how far the event is from the tip of the shard (milliseconds).
    """
    records = [
        {
            "SequenceNumber": sequence_number(first + index),
            "ApproximateArrivalTimestamp": arrival,
            "Data": base64.b64encode(each).decode(),
            "PartitionKey": f"key-{first + index:012d}",
        }
        for index, each in enumerate(data)
    ]
    content = {
        "Records": records,
        "ContinuationSequenceNumber": sequence_number(first + len(data) - 1),
        "MillisBehindLatest": millis_behind,
    }
    return _message("SubscribeToShardEvent", json.dumps(content, separators=(",", ":")).encode())


class Refusal(NamedTuple):
    """An error of the service."""

    code: str


class Page(NamedTuple):
    """An answer to GetRecords without its end, in both forms that it may be asked for in."""

    json: bytes
    cbor: bytes

    def numbered(self, placeholder: str, number: str) -> Page:
        """The page with another text of the same length in its sequence numbers."""
        old, new = placeholder.encode(), number.encode()
        return Page(self.json.replace(old, new), self.cbor.replace(old, new))

    def ended(self, **fields: Any) -> Page:
        """The whole answer, with these fields behind its records."""
        return Page(self.json + b"," + json.dumps(fields).encode()[1:], self.cbor + cbor.encode(fields)[1:])


def page(numbers: Sequence[str], data: bytes, *, arrival: float) -> Page:
    """The records of a GetRecords answer."""
    records = [
        {
            "ApproximateArrivalTimestamp": arrival,
            "Data": data,
            "PartitionKey": f"key-{index:06d}",
            "SequenceNumber": number,
        }
        for index, number in enumerate(numbers)
    ]
    in_cbor = cbor.encode({"Records": records}, TIMES)
    in_json = [{**record, "Data": base64.b64encode(data).decode()} for record in records]
    return Page(json.dumps({"Records": in_json}, separators=(",", ":")).encode()[:-1], in_cbor[:-1])


def initial_response() -> bytes:
    """What every event stream begins with."""
    return _message("initial-response", b"{}")


def _message(kind: str, payload: bytes) -> bytes:
    headers = b"".join(
        bytes([len(name)]) + name + b"\x07" + struct.pack("!H", len(value)) + value
        for name, value in (
            (b":event-type", kind.encode()),
            (b":content-type", b"application/json"),
            (b":message-type", b"event"),
        )
    )
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    start = prelude + struct.pack("!I", crc32(prelude)) + headers
    return start + payload + struct.pack("!I", crc32(payload, crc32(start)))


@contextlib.contextmanager
def serving(make: Callable[..., Operations], *arguments: object) -> Iterator[str]:
    """Runs a server, whose process calls `make(*arguments)` for its operations, and gives its endpoint."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(READY_TIMEOUT):
            raise TimeoutError("the benchmark's server does not start")
        yield f"http://{LOOPBACK}:{ours.recv()}"
    finally:
        ours.close()
        process.join(5.0)
        if process.is_alive():
            process.kill()
            process.join()


def bare_read(endpoint: str, operation: str, request: Mapping[str, Any], size: int) -> int:
    """Asks for an event stream and receives `size` bytes without parsing them. Returns how many came."""
    buffer = bytearray(_CHUNK)
    done = 0
    with _connected(endpoint) as connection:
        _send(connection, *_request(operation, json.dumps(request).encode()))
        while done < size and (count := connection.recv_into(buffer)):
            done += count
    return done


def bare_call(endpoint: str, operation: str, bodies: Iterable[bytes], *, content_type: str = JSON) -> int:
    """Sends requests one after the other and does not parse the answers. Returns their bytes."""
    buffer = bytearray(_CHUNK)
    done = 0
    with _connected(endpoint) as connection:
        for body in bodies:
            _send(connection, *_request(operation, body, content_type))
            count = _receive(connection, buffer)
            while (start := buffer.find(b"\r\n\r\n", 0, count)) < 0:
                count += _receive(connection, memoryview(buffer)[count:])
            length = re.search(rb"(?i)content-length: *(\d+)", buffer[:start])
            size = int(length[1]) if length else 0
            left = size - (count - start - 4)
            while left:
                left -= _receive(connection, buffer)
            done += size
    return done


def _connected(endpoint: str) -> socket.socket:
    host, _, port = endpoint.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)))
    _prepare_socket(connection)
    return connection


def _receive(connection: socket.socket, buffer: bytearray | memoryview) -> int:
    count = connection.recv_into(buffer)
    if not count:
        raise ConnectionError("the benchmark's server has hung up")
    return count


def _prepare_socket(connection: socket.socket) -> None:
    # A small packet must not wait for the other side's delayed acknowledgement (40 ms).
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _request(operation: str, body: bytes, content_type: str = JSON) -> tuple[bytes, bytes]:
    target = f"Kinesis_20131202.{operation}"
    head = (
        f"POST / HTTP/1.1\r\nX-Amz-Target: {target}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode(), body


def _send(connection: socket.socket, *parts: bytes) -> None:
    """Sends the parts in order, in as few packets as possible and without copying them."""
    left = [memoryview(part) for part in parts]
    while left:
        sent = connection.sendmsg(left)
        while left and sent >= len(left[0]):
            sent -= len(left.pop(0))
        if sent:
            left[0] = left[0][sent:]


def _serve(parent: Connection, make: Callable[..., Operations], arguments: Sequence[object]) -> None:
    operations = make(*arguments)
    listener = socket.create_server((LOOPBACK, 0), backlog=512)
    threading.Thread(target=_accept, args=(listener, operations), daemon=True).start()
    parent.send(listener.getsockname()[1])
    with contextlib.suppress(EOFError, OSError):
        parent.recv()  # until the parent closes its end, or dies
    os._exit(0)


def _accept(listener: socket.socket, operations: Operations) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_talk, args=(connection, operations), daemon=True).start()


def _talk(connection: socket.socket, operations: Operations) -> None:
    _prepare_socket(connection)
    with connection, connection.makefile("rb") as requests, contextlib.suppress(OSError):
        while requests.readline():
            headers: dict[str, str] = {}
            while line := requests.readline().strip():
                name, _, value = line.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            body = requests.read(int(headers.get("content-length", "0")))
            operate = operations[headers["x-amz-target"].partition(".")[2]]
            is_cbor = "cbor" in headers.get("content-type", "")
            read = cbor.decode if is_cbor else json.loads
            answer = operate(body if getattr(operate, "takes_bytes", False) else read(body))
            if isinstance(answer, Page):
                answer = answer.cbor if is_cbor else answer.json
            if isinstance(answer, Mapping):
                answer = json.dumps(answer).encode()
            if isinstance(answer, Refusal):
                body = json.dumps({"__type": answer.code, "message": answer.code}).encode()
                _send(connection, b"%bContent-Length: %d\r\n\r\n" % (REFUSAL_HEAD, len(body)), body)
            elif isinstance(answer, bytes):
                _send(connection, b"%bContent-Length: %d\r\n\r\n" % (ANSWER_HEAD, len(answer)), answer)
            else:
                _send_stream(connection, answer)


def _send_stream(connection: socket.socket, pieces: Iterable[bytes]) -> None:
    _send(connection, STREAM_HEAD)
    for piece in pieces:
        _send(connection, b"%x\r\n" % len(piece), piece, b"\r\n")
    _send(connection, b"0\r\n\r\n")
