"""Receives pages of records in one piece.

The SDK reads every answer 64 KiB at a time and joins the pieces, which for a page of 10 MiB costs three
times the CPU of reading it at once. A handler of the event ``before-send`` may send a request in the SDK's
place (https://botocore.amazonaws.com/v1/documentation/api/latest/topics/events.html). This one sends it
through the client's own HTTP session, with its connections, proxies, certificates and timeouts; only the
body is read differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from botocore.awsrequest import AWSResponse
from urllib3.response import HTTPResponse

__all__ = ["PageReceiver"]


class PageReceiver:
    """Sends the requests of one client. Called from several threads."""

    def __init__(self) -> None:
        self._session: Any = None

    def remember_session(self, *, response: Any, endpoint: Any, **_: Any) -> None:
        """Handles ``needs-retry``, which follows every attempt: keeps the session that received an answer.

        Mocks of the SDK answer without a network. No session is kept then, and the mock goes on answering.
        """
        if self._session is None and response is not None and isinstance(response[0].raw, HTTPResponse):
            self._session = getattr(endpoint, "http_session", None)

    def send(self, *, request: Any, **_: Any) -> AWSResponse | None:
        """Handles ``before-send``: returns the answer, or None for the SDK to send the request.

        The SDK sends the requests until the client's first answer, which shows the session.

        Raises:
            Exception: as the SDK's session, or as urllib3 while the body is read.
        """
        if self._session is None:
            return None
        request.stream_output = True  # the session leaves the body unread
        response = self._session.send(request)
        body = _ReadBody(response.raw.read())
        return AWSResponse(response.url, response.status_code, response.headers, body)


class _ReadBody:
    """A body that has been read, with the interface of one to read."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        yield self._body
