"""A transport in place of the network: answers what a test hands it, keeps what was sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from urllib3._collections import HTTPHeaderDict


class _Body:
    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self._body


class Wire:
    """Takes the place of the network under an SDK client, through botocore's before-send event."""

    def __init__(self, respond: Callable[[str, dict[str, Any]], Any]) -> None:
        self._respond = respond
        self._lock = threading.Lock()
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def install(self, client: Any) -> None:
        # Clients are shared: the last one that was installed answers.
        client.meta.events.unregister("before-send.kinesis", unique_id="wire")
        client.meta.events.register("before-send.kinesis", self.send, unique_id="wire")

    def send(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        target = request.headers["X-Amz-Target"]
        operation = (target.decode() if isinstance(target, bytes) else str(target)).rpartition(".")[2]
        body: Any = request.body
        params = json.loads(body)
        with self._lock:
            self.calls.append((operation, params))
            answered = self._respond(operation, params)
        if isinstance(answered, Exception):
            raise answered
        response: AWSResponse = answered
        return response


def answer(body: Mapping[str, Any], status: int = 200) -> AWSResponse:
    raw = json.dumps(body).encode()
    headers: Any = HTTPHeaderDict({"content-length": str(len(raw))})
    return AWSResponse("http://kinesis.test", status, headers, _Body(raw))


def refusal(code: str, message: str = "no", *, status: int = 400) -> AWSResponse:
    return answer({"__type": code, "message": message}, status)
