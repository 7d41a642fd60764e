"""Gives the requests of SDK clients a deadline.

The SDK's timeouts start anew with every byte. A service, or something before it, that sends the headers of an
answer a byte at a time would keep its caller for as long as it likes.
"""

from __future__ import annotations

from typing import Any, Final, cast

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)
from botocore.exceptions import ReadTimeoutError
from botocore.httpsession import URLLib3Session

from sluice.aws.wire.exchanges import Exchange, TimedConnection

__all__ = ["limit_requests"]

_LIMIT: Final = 120.0
"""Seconds for a request and its answer, in addition to the timeouts of the client. A body that the caller
reads bit by bit is left to the caller."""
_LIMIT_OF_S3: Final = 900.0
"""The same for S3, which sends spaces while it completes an upload."""


# The stubs of the SDK do not fit those of its own base class.
class _Connection(TimedConnection, AWSHTTPConnection):  # type: ignore[misc]
    pass


class _TlsConnection(TimedConnection, AWSHTTPSConnection):  # type: ignore[misc]
    pass


class _Pool(AWSHTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(AWSHTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class _TimedSession(URLLib3Session):
    limit: float

    def send(self, request: Any) -> Any:
        with Exchange(self.limit) as exchange:
            answer = super().send(request)
            exchange.complete()
            if exchange.was_ended:
                # Headers, and a body without a length, end with their connection: they look complete.
                answer.raw.close()
                late = TimeoutError(f"the request and its answer took longer than {self.limit:g} s")
                raise ReadTimeoutError(endpoint_url=request.url, error=late)
            return answer


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
