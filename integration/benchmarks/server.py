"""A Kinesis that answers with prepared bytes, so that what reads from it is what gets measured.

A loopback HTTP server in a process of its own. It knows as many operations as it is given; one that
gives pieces is answered as the service does an event stream, by chunked transfer. Nothing is checked,
signed or kept, and no rule of the service is enforced.
"""

from __future__ import annotations

import base64
import contextlib
import json
import multiprocessing
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar
from zlib import crc32

__all__ = [
    "Operations",
    "bare_call",
    "bare_read",
    "event",
    "initial_response",
    "page",
    "sequence_number",
    "serving",
    "takes_bytes",
]

LOOPBACK = "127.0.0.1"
READY_TIMEOUT = 30.0
NUMBERS_START = 49 * 10**54  # numbers of the service have 56 digits
EVENT_STREAM = "application/vnd.amazon.eventstream"

Operations = Mapping[str, Callable[[Any], Mapping[str, Any] | bytes | Iterable[bytes]]]
"""By name, what makes the answer to a request: JSON (bytes of it, where it is prepared), or the pieces
of an event stream. A function that `takes_bytes` is given the request's body as it came."""

CallableT = TypeVar("CallableT", bound=Callable[..., Any])


def takes_bytes(function: CallableT) -> CallableT:
    """Marks an operation whose requests are too large to be taken apart for every call."""
    function.takes_bytes = True  # type: ignore[attr-defined]
    return function


def sequence_number(index: int) -> str:
    """That of the record `index` of a shard."""
    return str(NUMBERS_START + index)


def event(first: int, data: Sequence[bytes], *, arrival: float, millis_behind: int = 0) -> bytes:
    """One SubscribeToShardEvent, framed.

    Args:
        first: index of its first record in the shard.
        arrival: of all records (seconds since the epoch).
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


def page(numbers: Sequence[str], data: bytes, *, arrival: float) -> bytes:
    """The records of a GetRecords answer: JSON without its closing brace."""
    records = [
        {
            "SequenceNumber": number,
            "ApproximateArrivalTimestamp": arrival,
            "Data": base64.b64encode(data).decode(),
            "PartitionKey": f"key-{index:06d}",
        }
        for index, number in enumerate(numbers)
    ]
    return json.dumps({"Records": records}, separators=(",", ":")).encode()[:-1]


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
    """The endpoint of a server in a process of its own, which calls `make` for its operations."""
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
    """Asks for an event stream and takes `size` bytes of it without looking at them; gives how many."""
    host, _, port = endpoint.removeprefix("http://").partition(":")
    body = json.dumps(request).encode()
    target = f"X-Amz-Target: Kinesis_20131202.{operation}"
    head = f"POST / HTTP/1.1\r\n{target}\r\nContent-Length: {len(body)}\r\n\r\n"
    buffer = bytearray(1 << 20)
    done = 0
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + body)
        while done < size and (count := connection.recv_into(buffer)):
            done += count
    return done


def bare_call(endpoint: str, operation: str, bodies: Iterable[bytes]) -> int:
    """Sends requests one after the other and takes the answers without looking at them; their bytes."""
    host, _, port = endpoint.removeprefix("http://").partition(":")
    buffer = bytearray(1 << 20)
    done = 0
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as answers:
        for body in bodies:
            target = f"X-Amz-Target: Kinesis_20131202.{operation}"
            connection.sendall(f"POST / HTTP/1.1\r\n{target}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
            connection.sendall(body)
            size = 0
            while line := answers.readline().strip():
                if line.lower().startswith(b"content-length"):
                    size = int(line.partition(b":")[2])
            done += size
            while size:
                size -= answers.readinto(memoryview(buffer)[: min(size, len(buffer))])
    return done


def _serve(parent: Connection, make: Callable[..., Operations], arguments: Sequence[object]) -> None:
    operations = make(*arguments)
    listener = socket.create_server((LOOPBACK, 0), backlog=512)
    threading.Thread(target=_accept, args=(listener, operations), daemon=True).start()
    parent.send(listener.getsockname()[1])
    with contextlib.suppress(EOFError, OSError):
        parent.recv()  # until the parent closes its end, or is gone
    os._exit(0)


def _accept(listener: socket.socket, operations: Operations) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_talk, args=(connection, operations), daemon=True).start()


def _talk(connection: socket.socket, operations: Operations) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection, connection.makefile("rb") as requests, contextlib.suppress(OSError):
        while requests.readline():
            headers: dict[str, str] = {}
            while line := requests.readline().strip():
                name, _, value = line.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            body = requests.read(int(headers.get("content-length", "0")))
            operate = operations[headers["x-amz-target"].partition(".")[2]]
            answer = operate(body if getattr(operate, "takes_bytes", False) else json.loads(body))
            if isinstance(answer, Mapping):
                _send_json(connection, json.dumps(answer).encode())
            elif isinstance(answer, bytes):
                _send_json(connection, answer)
            else:
                _send_stream(connection, answer)


def _send_json(connection: socket.socket, body: bytes) -> None:
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode())
    connection.sendall(body)


def _send_stream(connection: socket.socket, pieces: Iterable[bytes]) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {EVENT_STREAM}\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection.sendall(head.encode())
    for piece in pieces:
        connection.sendall(b"%x\r\n" % len(piece))
        connection.sendall(piece)
        connection.sendall(b"\r\n")
    connection.sendall(b"0\r\n\r\n")
