"""Receives answers in one piece, within a limit of time.

The SDK reads every answer 64 KiB at a time and joins the pieces, which for a page of 10 MiB costs three
times the CPU of reading it at once. And its read timeout starts anew with every byte, so an answer of which
bytes trickle in would be read for ever. A handler of the event ``before-send`` may send a request in the
SDK's place (https://botocore.amazonaws.com/v1/documentation/api/latest/topics/events.html). This one sends it
through the client's own HTTP session, with its connections, proxies, certificates and timeouts; only the
body is read differently.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from botocore.awsrequest import AWSResponse
from botocore.exceptions import ReadTimeoutError
from urllib3.response import HTTPResponse

from sluice.aws.wire.watchdog import Watchdog, shared_watchdog

__all__ = ["BodyReceiver", "read_stream", "shut_down"]

_LIMIT: Final = 120.0
"""Seconds for the body of one answer: 10 MiB at 90 KiB/s. Iterators expire after five minutes."""


class BodyReceiver:
    """Sends the requests of one client. Called from several threads.

    Args:
        clock: monotonic seconds.
        watchdog: ends reads that take too long, by the same clock; None for the one of the process.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, watchdog: Watchdog | None = None) -> None:
        self._clock = clock
        self._watchdog = watchdog
        self._session: Any = None

    def remember_session(self, *, response: Any, endpoint: Any, **_: Any) -> None:
        """Handles ``needs-retry``, which follows every attempt: keeps the session that received an answer.

        Mocks of the SDK answer without a network. No session is kept then, and the mock goes on answering.
        """
        if self._session is None and response is not None and isinstance(response[0].raw, HTTPResponse):
            self._session = getattr(endpoint, "http_session", None)

    def send(self, *, request: Any, **_: Any) -> AWSResponse | None:
        """Handles ``before-send``: returns the answer, or None for the SDK to send the request.

        The SDK sends the requests until the client's first answer, which shows the session. An answer that
        the caller reads bit by bit is left unread, unless it is an error.

        Raises:
            Exception: as the SDK's session, or as urllib3 while the body is read.
        """
        if self._session is None:
            return None
        is_stream = request.stream_output
        request.stream_output = True  # the session leaves the body unread
        response: AWSResponse = self._session.send(request)
        if is_stream and response.status_code < 300:
            return response
        headers: Any = response.headers
        return AWSResponse(response.url, response.status_code, headers, _ReadBody(self._read(response)))

    def _read(self, response: AWSResponse) -> bytes:
        return _read_in_time(response.raw, response.raw.read, response.url, self._clock, self._watchdog)


def read_stream(body: Any) -> bytes:
    """All of a body that the SDK leaves to its caller, such as that of ``GetObject``, within the limit.

    Args:
        body: a ``StreamingBody`` of the SDK.

    Raises:
        Exception: as the body.
        ReadTimeoutError: it was not complete in time.
    """
    return _read_in_time(getattr(body, "_raw_stream", None), body.read, "", time.monotonic)


def _read_in_time(
    raw: Any,
    read: Callable[[], bytes],
    url: str,
    clock: Callable[[], float],
    watchdog: Watchdog | None = None,
) -> bytes:
    deadline = clock() + _LIMIT
    watchdog = watchdog or shared_watchdog()
    watchdog.arm(read, deadline, lambda: shut_down(raw))
    try:
        data = read()
    except Exception:
        if clock() <= deadline:
            raise
    else:
        # A body without a length ends where its connection was shut down.
        if clock() <= deadline:
            return data
    finally:
        watchdog.disarm(read)
    if raw is not None:
        raw.close()
    late = TimeoutError(f"the answer was not complete after {_LIMIT:g} s")
    raise ReadTimeoutError(endpoint_url=url, error=late)


def shut_down(body: Any) -> None:
    """Ends the connection that an answer's body comes through: a thread that waits for it goes on at once.

    Closing the body would wait for that thread, which holds the lock of the socket's buffer.

    Args:
        body: a ``urllib3.HTTPResponse``.
    """
    shutdown = getattr(body, "shutdown", None)
    # The connection may have ended before.
    with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
        if shutdown is not None:
            shutdown()
        else:  # urllib3 before 2.3
            body.connection.sock.shutdown(socket.SHUT_RD)


class _ReadBody:
    """A body that has been read, with the interface of one to read."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        yield self._body
