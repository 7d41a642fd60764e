"""A transport in place of the network: returns the answers of a test, and keeps the requests.

It answers in the form that it was asked in, as the service does.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from integration.model import cbor
from integration.model.wire import TIMES
from urllib3._collections import HTTPHeaderDict

from sluice.aws import endpoint_state
from sluice.aws.calling import clients

Answer = AWSResponse | Exception

URL = "http://127.0.0.1:9"
OPTIONS = {
    "endpointUrl": URL,
    "region": "eu-west-1",
    "awsAccessKeyId": "AKIDEXAMPLE",
    "awsSecretAccessKey": "hush",
}
"""Connection options with which a client never reaches a network."""


def forget_process_state() -> None:
    """Drops clients, sessions and states of endpoints, which otherwise live as long as the process."""
    clients._clients.clear()
    clients._sessions.clear()
    clients._refused.clear()
    endpoint_state._states.clear()


def as_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def header(request: AWSPreparedRequest, name: str) -> str:
    return as_text(request.headers.get(name, ""))


class RawBody:
    """The raw body of an answer, as botocore reads it."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, **_: Any) -> Any:
        yield self._body


class Transport:
    """Takes the place of the network under an SDK client, through botocore's before-send event."""

    def __init__(self, answer: Callable[[str, dict[str, Any]], Answer]) -> None:
        self._answer = answer
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.requests: list[AWSPreparedRequest] = []

    def install(self, client: Any) -> None:
        service = client.meta.service_model.service_id.hyphenize()
        # Tests share clients: the last transport that was installed answers.
        client.meta.events.unregister(f"before-send.{service}", unique_id="transport")
        client.meta.events.register(f"before-send.{service}", self.send, unique_id="transport")

    def send(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        operation = header(request, "X-Amz-Target").rpartition(".")[2]
        is_cbor = "cbor" in header(request, "Content-Type")
        params = cbor.decode(as_bytes(request.body)) if is_cbor else self._params(operation, request)
        self.calls.append((operation, params))
        self.requests.append(request)
        answer = self._answer(operation, params)
        if isinstance(answer, Exception):
            raise answer
        return in_cbor(answer) if is_cbor else answer

    def _params(self, operation: str, request: AWSPreparedRequest) -> dict[str, Any]:
        body = as_text(request.body or b"")
        params: dict[str, Any] = json.loads(body) if operation else {"body": body}
        return params


def in_cbor(answer: AWSResponse) -> AWSResponse:
    """The answer in CBOR, if it is JSON."""
    try:
        value = json.loads(b"".join(answer.raw.stream()))
    except (ValueError, AttributeError):
        return answer
    for record in value.get("Records", ()):
        if isinstance(record.get("Data"), str):
            record["Data"] = base64.b64decode(record["Data"])
    raw = cbor.encode(value, TIMES)
    headers: Any = HTTPHeaderDict(answer.headers)
    headers["content-length"], headers["content-type"] = str(len(raw)), "application/x-amz-cbor-1.1"
    return AWSResponse(answer.url, answer.status_code, headers, RawBody(raw))


def answer(
    body: Mapping[str, Any] | bytes, status: int = 200, headers: Mapping[str, str] | None = None
) -> AWSResponse:
    """An HTTP answer; a mapping becomes JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    every: Any = HTTPHeaderDict({"content-length": str(len(raw))} | dict(headers or {}))
    return AWSResponse("http://fake", status, every, RawBody(raw))


def refusal(code: str, message: str = "no", status: int = 400) -> AWSResponse:
    """An error answer of a JSON service."""
    return answer({"__type": code, "message": message}, status)
