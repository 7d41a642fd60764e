"""A fake AWS service below the SDK, and helpers that write through whole writers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from strict_requests import violation
from urllib3._collections import HTTPHeaderDict

from sluice.aws.calling.clients import client_for
from sluice.aws.calling.connection import ConnectionConfig
from sluice.destinations import read_sink
from sluice.sink import AsyncSinkConfig, AsyncSinkWriter, NoRateLimitingStrategy, SinkFigures
from sluice.sink.setup import AsyncSinkSetup

CONNECTION = ConnectionConfig(
    region="eu-west-1",
    endpoint_url="http://service.test",
    access_key_id="id",
    secret_access_key="very-secret",
)
# The same as options.
OPTIONS = {
    "region": "eu-west-1",
    "endpointUrl": "http://service.test",
    "awsAccessKeyId": "id",
    "awsSecretAccessKey": "very-secret",
}
# Error codes that are fatal for every destination; then codes and HTTP statuses that each of them retries.
FATAL_CODES = (
    "ResourceNotFoundException",
    "AccessDeniedException",
    "ValidationException",
    "ExpiredTokenException",
    "UnrecognizedClientException",
    "InvalidSignatureException",
)
TRANSIENT_CODES = (
    ("ThrottlingException", 400),
    ("RequestLimitExceeded", 400),
    ("InternalFailure", 500),
    ("ServiceUnavailable", 503),
    ("Unheard", 502),
)


class _Body:
    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self._body


def answer(body: Mapping[str, Any], status: int = 200) -> AWSResponse:
    """An HTTP response with a JSON body."""
    return raw_answer(json.dumps(body).encode(), status)


def raw_answer(raw: bytes, status: int = 200) -> AWSResponse:
    """An HTTP response with any body."""
    headers: Any = HTTPHeaderDict({"content-length": str(len(raw))})
    return AWSResponse("http://service.test", status, headers, _Body(raw))


def refusal(code: str, message: str = "no", *, status: int = 400) -> AWSResponse:
    """An HTTP response with an error."""
    return answer({"__type": code, "message": message}, status)


VIOLATIONS: list[str] = []
"""What requests had that their service forbids. A test that has one fails: see conftest.py."""


class FakeService:
    """Answers the requests of an SDK client, in the place of the network.

    Args:
        service: as the SDK names it.
        respond: called with operation and parameters, for one request at a time; returns the response, or
            the exception of the transport.

    Attributes:
        calls: operation and parameters of every request.
    """

    def __init__(self, service: str, respond: Callable[[str, dict[str, Any]], Any]) -> None:
        self._service = service
        self._respond = respond
        self._lock = threading.Lock()
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.install(client_for(CONNECTION, service))

    def install(self, client: Any) -> None:
        """Answers for `client` from now on, in the place of the fake that was installed before."""
        client.meta.events.unregister(f"before-send.{self._service}", unique_id="fake")
        client.meta.events.register(f"before-send.{self._service}", self._send, unique_id="fake")

    def _send(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        target = request.headers["X-Amz-Target"]
        operation = (target.decode() if isinstance(target, bytes) else str(target)).rpartition(".")[2]
        body: Any = request.body
        parameters = json.loads(body)
        with self._lock:
            self.calls.append((operation, parameters))
            if problem := violation(operation, parameters):
                VIOLATIONS.append(problem)
            answered = self._respond(operation, parameters)
        if isinstance(answered, Exception):
            raise answered
        response: AWSResponse = answered
        return response


def read_async_sink(options: dict[str, str]) -> AsyncSinkSetup:
    """`read_sink` for a destination that is written to in batches."""
    setup = read_sink(options)
    assert isinstance(setup, AsyncSinkSetup)
    return setup


def fast_clock() -> float:
    """Monotonic seconds, a thousand times as fast, so that pauses after refusals take no time."""
    return time.monotonic() * 1000


def write_all(options: dict[str, str], *batches: pa.RecordBatch, **changes: Any) -> SinkFigures:
    """Writes `batches` as a task would. Nothing times out, and batches are sent when full or at the end.

    Args:
        options: of the destination, without those of the connection.
        batches: the rows.
        changes: to the writer's configuration.
    """
    setup = read_async_sink(OPTIONS | options)
    settings = vars(setup.config) | {
        "max_time_in_buffer": 1e9,
        "request_timeout": 1e9,
        "max_retry_duration": 1e9,
    }
    writer = AsyncSinkWriter(
        setup.destination,
        AsyncSinkConfig(**(settings | changes)),
        NoRateLimitingStrategy(),
        clock=fast_clock,
    )
    try:
        for batch in batches:
            writer.write(batch)
        writer.flush()
    finally:
        writer.close()
    return writer.figures
