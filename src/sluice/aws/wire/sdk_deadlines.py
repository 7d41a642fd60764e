"""Gives the requests of SDK clients a deadline, and receives their answers in one piece.

The SDK's timeouts start anew with every byte. A service, or something before it, that sends an answer a byte
at a time would keep its caller for as long as it likes.

The SDK also reads every answer 64 KiB at a time and joins the pieces, which for a page of 10 MiB costs three
times the CPU of reading it at once.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Generator
from typing import Any, Final, cast

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)
from botocore.exceptions import ReadTimeoutError
from botocore.httpsession import URLLib3Session
from urllib3.response import HTTPResponse

from sluice.aws.wire.exchanges import Exchange, TimedConnection
from sluice.aws.wire.watchdog import shared_watchdog

__all__ = ["limit_requests", "read_stream", "shut_down"]

_LIMIT: Final = 120.0
"""Seconds for a request and its answer, in addition to the timeouts of the client: a page of 10 MiB at 90
KiB/s. A body that the caller reads bit by bit is left to the caller."""
_LIMIT_OF_S3: Final = 900.0
"""The same for S3, which sends spaces while it completes an upload."""


class _Response(HTTPResponse):
    def stream(self, *_: Any, **__: Any) -> Generator[bytes, None, None]:
        """Called by the SDK for the whole body."""
        yield self.read()


class _SdkConnection(TimedConnection):
    def getresponse(self) -> Any:
        response = super().getresponse()
        response.__class__ = _Response  # urllib3 has no way to name another class
        return response


# The SDK's stubs do not fit the stubs of its base class.
class _Connection(_SdkConnection, AWSHTTPConnection):  # type: ignore[misc]
    pass


class _TlsConnection(_SdkConnection, AWSHTTPSConnection):  # type: ignore[misc]
    pass


class _Pool(AWSHTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(AWSHTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class _TimedSession(URLLib3Session):
    limit: float

    def send(self, request: Any) -> Any:
        answer: Any = None
        with Exchange(self.limit) as exchange:
            try:
                answer = super().send(request)
                if answer.status_code >= 300:
                    _ = answer.content  # an event stream's error, too, which the SDK would read later
            except Exception:
                if not exchange.was_ended:
                    raise
            exchange.complete()
        if not exchange.was_ended:
            return answer
        # Headers, and a body without a length, end with their connection: they look complete.
        if answer is not None:
            answer.raw.close()
        late = TimeoutError(f"the request and its answer took longer than {self.limit:g} s")
        raise ReadTimeoutError(endpoint_url=request.url, error=late)


def limit_requests(client: Any, limit: float | None = None) -> None:
    """Ends requests of this client that take too long, as if the connection had been lost.

    Args:
        limit: seconds; None: by the service and the client's timeouts.
    """
    # The SDK has no public name for its session. Where it is another one, there are no deadlines.
    session = getattr(getattr(client, "_endpoint", None), "http_session", None)
    pools = getattr(session, "_pool_classes_by_scheme", None)
    if type(session) is not URLLib3Session or not isinstance(pools, dict):
        return
    if limit is None:
        extra = _LIMIT_OF_S3 if client.meta.service_model.service_name == "s3" else _LIMIT
        limit = client.meta.config.connect_timeout + client.meta.config.read_timeout + extra
    pools.update({"http": _Pool, "https": _TlsPool})
    session.__class__ = _TimedSession
    cast("_TimedSession", session).limit = limit


def read_stream(body: Any) -> bytes:
    """Reads a body that the SDK leaves to its caller, such as of ``GetObject``, within the limit.

    Args:
        body: a ``StreamingBody`` of the SDK.

    Raises:
        Exception: as the body.
        ReadTimeoutError: it was not complete in time.
    """
    raw, deadline = getattr(body, "_raw_stream", None), time.monotonic() + _LIMIT
    watchdog = shared_watchdog()
    watchdog.arm(body, deadline, lambda: shut_down(raw))
    try:
        data: bytes = body.read()
    except Exception:
        if time.monotonic() <= deadline:
            raise
    else:
        # A body without a length ends where its connection was shut down.
        if time.monotonic() <= deadline:
            return data
    finally:
        watchdog.disarm(body)
    if raw is not None:
        raw.close()
    late = TimeoutError(f"the answer was not complete after {_LIMIT:g} s")
    raise ReadTimeoutError(endpoint_url="", error=late)


def shut_down(body: Any) -> None:
    """Shuts down the connection of an answer's body, so that a thread that reads it returns at once.

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
