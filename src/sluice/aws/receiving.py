"""Receives pages of records in one piece.

The SDK reads every answer 64 KiB at a time and joins the pieces, which for a page of 10 MiB costs three
times the CPU of reading it at once. The event ``before-send`` allows a handler to fulfil a request
(https://botocore.amazonaws.com/v1/documentation/api/latest/topics/events.html); this one does so through
the client's own HTTP session, with its connections, proxies, certificates and timeouts: only how the body
is read differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from botocore.awsrequest import AWSResponse
from urllib3.response import HTTPResponse

__all__ = ["Receiver"]


class Receiver:
    """Handles the events of one client, from several threads."""

    def __init__(self) -> None:
        self._session: Any = None

    def install(self, events: Any, operation: str) -> None:
        """Registers for the answers of an operation, such as ``kinesis.GetRecords``."""
        service = operation.partition(".")[0]
        events.register(f"needs-retry.{service}", self.meet, unique_id="sluice-meet")
        events.register(f"before-send.{operation}", self.send, unique_id="sluice-receive")

    def meet(self, *, response: Any, endpoint: Any, **_: Any) -> None:
        """Of the event ``needs-retry``, which every answer raises: keeps the session it came through.

        Where something else answers in the network's stead, as mocks of the SDK do, that stays so.
        """
        if self._session is None and response is not None and isinstance(response[0].raw, HTTPResponse):
            self._session = getattr(endpoint, "http_session", None)

    def send(self, *, request: Any, **_: Any) -> AWSResponse | None:
        """Of the event ``before-send``: the answer; None, before any answer has come, for the SDK to send.

        Raises:
            Exception: what the SDK's session raises, or while the body is read what urllib3 does.
        """
        if self._session is None:
            return None
        request.stream_output = True  # the session leaves the body unread
        response = self._session.send(request)
        return AWSResponse(
            response.url, response.status_code, response.headers, _Received(response.raw.read())
        )


class _Received:
    """A body that has been read, where the SDK expects one to read."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        yield self._body
