"""What tests of several destinations share: a network of their own under the SDK, and whole writers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from kinesis_wire import Wire

from sluice.aws.clients import client_for
from sluice.aws.connection import ConnectionConfig
from sluice.destinations import read_sink
from sluice.sink import AsyncSinkConfig, AsyncSinkWriter, NoRateLimitingStrategy, SinkFigures
from sluice.sink.setup import AsyncSinkSetup

CONNECTION = ConnectionConfig(
    region="eu-west-1",
    endpoint_url="http://service.test",
    access_key_id="id",
    secret_access_key="very-secret",
)
# The same for `read_sink`.
OPTIONS = {
    "region": "eu-west-1",
    "endpointUrl": "http://service.test",
    "awsAccessKeyId": "id",
    "awsSecretAccessKey": "very-secret",
}
# As services name them; what every destination must call fatal, and what it must try again.
LASTING = (
    "ResourceNotFoundException",
    "AccessDeniedException",
    "ValidationException",
    "ExpiredTokenException",
    "UnrecognizedClientException",
    "InvalidSignatureException",
)
PASSING = (
    ("ThrottlingException", 400),
    ("RequestLimitExceeded", 400),
    ("InternalFailure", 500),
    ("ServiceUnavailable", 503),
    ("Unheard", 502),
)


class ServiceWire(Wire):
    """Takes the place of the network under the SDK's client of `service`.

    Args:
        service: as the SDK names it.
        respond: told operation and parameters, gives the answer, or the error of the transport. One call
            at a time.
    """

    def __init__(self, service: str, respond: Callable[[str, dict[str, Any]], Any]) -> None:
        super().__init__(respond)
        events = client_for(CONNECTION, service).meta.events
        # Clients are shared: the last one that was installed answers.
        events.unregister(f"before-send.{service}", unique_id="wire")
        events.register(f"before-send.{service}", self.send, unique_id="wire")


def read_async_sink(options: dict[str, str]) -> AsyncSinkSetup:
    """`read_sink` for a destination that is written to in batches."""
    setup = read_sink(options)
    assert isinstance(setup, AsyncSinkSetup)
    return setup


def fast() -> float:
    """A clock a thousand times as fast, so that pauses after refusals take no time."""
    return time.monotonic() * 1000


def write_all(options: dict[str, str], *batches: pa.RecordBatch, **changes: Any) -> SinkFigures:
    """Writes `batches` as a task would, by `options`, with nothing that is due by time.

    Args:
        options: of the destination; how to reach it is added.
        batches: the rows.
        changes: of the writer's configuration.
    """
    setup = read_async_sink(OPTIONS | options)
    settings = vars(setup.config) | {
        "max_time_in_buffer": 1e9,
        "request_timeout": 1e9,
        "max_retry_duration": 1e9,
    }
    writer = AsyncSinkWriter(
        setup.destination, AsyncSinkConfig(**(settings | changes)), NoRateLimitingStrategy(), clock=fast
    )
    try:
        for batch in batches:
            writer.write(batch)
        writer.flush()
    finally:
        writer.close()
    return writer.figures
