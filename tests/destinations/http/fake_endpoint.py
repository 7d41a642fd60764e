"""An HTTP endpoint in memory, and helpers that write to it through whole writers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from urllib3._collections import HTTPHeaderDict

from sluice.destinations import read_sink
from sluice.destinations.common import first_contact
from sluice.destinations.http import HttpDestination
from sluice.destinations.http.transport import Answer, HttpTransport
from sluice.sink import AsyncSinkConfig, AsyncSinkWriter, NoRateLimitingStrategy, SinkFigures
from sluice.sink.contracts import Origin
from sluice.sink.letters.dead_letters import LocalDeadLetterQueue
from sluice.sink.setup import AsyncSinkSetup

HTTP = {"destination": "http", "url": "https://orders.test/v1/rows"}
Respond = Callable[[bytes], Answer | Exception]


def answer(status: int = 200, body: Any = b"", **headers: str) -> Answer:
    """An answer; a body that is no bytes becomes JSON. `Retry_After` is the header ``Retry-After``."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields: Any = HTTPHeaderDict({name.replace("_", "-"): value for name, value in headers.items()})
    return Answer(status, "", fields, raw)


class Endpoint:
    """Answers in the place of the network, one request at a time.

    Attributes:
        bodies: of all requests.
        headers: of the last request.
    """

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self._lock = threading.Lock()
        self.bodies: list[bytes] = []
        self.headers: Mapping[str, str] = {}

    def send(self, _: HttpTransport, body: bytes, headers: Mapping[str, str]) -> Answer:
        with self._lock:
            self.bodies.append(body)
            self.headers = headers
            answered = self._respond(body)
        if isinstance(answered, Exception):
            raise answered
        return answered


def in_place_of_the_network(monkeypatch: pytest.MonkeyPatch) -> Callable[[Respond], Endpoint]:
    """Makes the endpoint that all requests of a test go to; it has not answered this process before."""
    monkeypatch.setattr(first_contact, "_answered", set())

    def install(respond: Respond) -> Endpoint:
        made = Endpoint(respond)

        def send(transport: HttpTransport, body: bytes, headers: Mapping[str, str]) -> Answer:
            return made.send(transport, body, headers)

        monkeypatch.setattr(HttpTransport, "send", send)
        return made

    return install


def setup_of(**options: str) -> AsyncSinkSetup:
    """`read_sink` for the endpoint."""
    setup = read_sink(HTTP | options)
    assert isinstance(setup, AsyncSinkSetup)
    return setup


def destination(**options: str) -> HttpDestination:
    """The destination; `send` of the transport is a fake's."""
    made = setup_of(**options).destination
    assert isinstance(made, HttpDestination)
    return made


def rows(bodies: Sequence[Any], kind: pa.DataType | None = None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(bodies, kind or pa.string())], names=["body"])


def numbers(count: int) -> pa.RecordBatch:
    return rows([json.dumps({"n": n}) for n in range(count)])


def sent(body: bytes) -> list[int]:
    """The numbers in an array of documents."""
    return [document["n"] for document in json.loads(body)]


def fast_clock() -> float:
    """Monotonic seconds, a thousand times as fast, so that pauses after refusals take no time."""
    return time.monotonic() * 1000


def write_all(
    batch: pa.RecordBatch,
    letters: Path | None = None,
    changes: Mapping[str, Any] | None = None,
    **options: str,
) -> SinkFigures:
    """Writes `batch` as a task would. Nothing times out, and batches are sent when full or at the end."""
    setup = setup_of(**options)
    patient = {"max_time_in_buffer": 1e9, "request_timeout": 1e9, "max_retry_duration": 1e9}
    config: AsyncSinkConfig = replace(setup.config, **(patient | dict(changes or {})))
    queue = None if letters is None else LocalDeadLetterQueue(letters, Origin("http"))
    writer = AsyncSinkWriter(
        setup.destination,
        config,
        NoRateLimitingStrategy(),
        clock=fast_clock,
        dead_letters=queue,
        converter=setup.new_converter(),
    )
    try:
        writer.write(batch)
        writer.flush()
    finally:
        writer.close()
    return writer.figures


def letters_in(directory: Path) -> Iterator[dict[str, Any]]:
    for file in directory.rglob("*.jsonl"):
        yield from map(json.loads, file.read_text().splitlines())
