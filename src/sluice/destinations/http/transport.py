"""Sends HTTP requests over kept connections, by urllib3."""

from __future__ import annotations

import re
import ssl
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
import urllib3.exceptions as http

from sluice.aws.errors import is_lasting_tls
from sluice.aws.wire.exchanges import Exchange, proxy_manager
from sluice.destinations.http.sending import POOLS
from sluice.errors import OptionError
from sluice.instants import http_date

__all__ = [
    "Answer",
    "HttpTransport",
    "LateAnswerError",
    "SendTimeoutError",
    "TooLargeAnswerError",
    "UnreadableAnswerError",
    "is_lasting",
    "is_unanswered",
    "proxy_for",
]

# An answer holds the results of one request. More than this is no answer to it.
_MAX_ANSWER: Final = 16 * 1024 * 1024  # bytes
_MAX_POOLS: Final = 8

_SECONDS: Final = re.compile(r"\d{1,9}(\.\d{1,9})?")


class Answer(NamedTuple):
    """An answer, whatever its status. `headers` ignores case.

    Attributes:
        has_end: whether the answer shows where its body ends. Otherwise the body ends with the connection,
            and a broken connection looks like an empty body.
    """

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes
    has_end: bool = True

    @property
    def retry_after(self) -> float | None:
        """Seconds that it asks to wait; None if it does not, or not in a form that is allowed.

        A date is compared with the answer's own: the clocks of two hosts differ. Without one it is not used.
        """
        text = self.headers.get("retry-after", "").strip()
        if _SECONDS.fullmatch(text):
            return float(text)
        until, now = http_date(text), http_date(self.headers.get("date", ""))
        return None if until is None or now is None else max(0.0, (until - now).total_seconds())


class TooLargeAnswerError(Exception):
    """An answer goes on and on."""


class SendTimeoutError(Exception):
    """Something takes connections, but does not read the request in time."""


class LateAnswerError(Exception):
    """Something takes requests, but a request and its answer together take too long."""


class UnreadableAnswerError(Exception):
    """Something answers, but not with an answer that can be read.

    Attributes:
        code: the name of the error that says why, for figures.
    """

    def __init__(self, cause: Exception | str) -> None:
        super().__init__(str(cause))
        self.code = type(self if isinstance(cause, str) else cause).__name__


@dataclass(frozen=True, kw_only=True)
class HttpTransport:
    """Sends requests to one URL. Plain data: connections belong to the process, and outlive an epoch.

    Attributes:
        url: where to.
        method: of HTTP.
        connect_timeout: seconds to wait for a connection.
        read_timeout: seconds to wait for the endpoint to read a request, and then for data of its answer.
        request_timeout: seconds for a request as a whole: the connection, the request and all of its answer.
        connections: kept open at most.
        verify: whether the certificate of the endpoint is checked.
        ca_bundle: a file of certificates to trust; None for the system's.
        client_certificate: a file with a certificate and its key, to identify with; None for none.
        max_answer: bytes of the largest answer that is read.
    """

    url: str
    method: str = "POST"
    connect_timeout: float = 5.0
    read_timeout: float = 60.0
    request_timeout: float = 600.0
    connections: int = 8
    verify: bool = True
    ca_bundle: str | None = None
    client_certificate: str | None = None
    max_answer: int = _MAX_ANSWER

    def send(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Sends one request and reads its answer, without retries and without following redirects.

        Raises:
            urllib3.exceptions.HTTPError: there is no answer.
            SendTimeoutError: the endpoint has not read the request in time.
            LateAnswerError: the request took longer than `request_timeout`, or `end_requests` was called.
            TooLargeAnswerError: the answer is too large.
            UnreadableAnswerError: the answer breaks off or is damaged, or has a status below 200.
            OptionError: a file of certificates cannot be used.
        """
        with Exchange(self.request_timeout, send_timeout=self.read_timeout) as exchange:
            _running[exchange] = self
            try:
                answer = self._received(body, headers, exchange)
            except Exception as error:
                if not exchange.was_ended:
                    raise
                raise LateAnswerError(
                    f"the request and its answer took longer than {self.request_timeout:g} s "
                    "(requestTimeout), or the task has ended"
                ) from error
            finally:
                del _running[exchange]
        return answer

    def end_requests(self) -> None:
        """Ends the requests that are running: their threads and connections are free at once."""
        for exchange, transport in list(_running.items()):
            if transport is self:
                exchange.end()

    def _received(self, body: bytes, headers: Mapping[str, str], exchange: Exchange) -> Answer:
        response = self._answer_to(body, headers)
        complete = False
        try:
            if response.status < HTTPStatus.OK:
                # The answer itself may follow: http.client reads on after 100 alone.
                raise UnreadableAnswerError(f"status {response.status} is no answer")
            content = response.read(self.max_answer + 1, decode_content=True)
            exchange.complete()
            if exchange.was_ended:  # a body without a length ends with its connection
                raise LateAnswerError
            complete = len(content) <= self.max_answer
        except http.HTTPError as error:
            # It has begun: what urllib3 raises does not tell it from a connection without any answer.
            raise UnreadableAnswerError(error) from error
        finally:
            if complete and response.closed:  # it was read to its end
                response.release_conn()
            else:
                response.close()  # what follows on this connection is unknown
        if not complete:
            raise TooLargeAnswerError(f"the answer has more than {self.max_answer} bytes")
        return Answer(
            response.status, response.reason or "", response.headers, content, has_end=_has_end(response)
        )

    def _answer_to(self, body: bytes, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        try:
            return _pools.get(self).urlopen(
                self.method,
                self.url,
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(connect=self.connect_timeout, read=self.read_timeout),
                retries=False,
                redirect=False,
                preload_content=False,
            )
        except http.InvalidHeader as error:  # of the answer: those of the request are checked as options
            raise UnreadableAnswerError(error) from error
        except http.ProtocolError as error:
            # Timeouts of connecting and of reading have classes of their own.
            if isinstance(error.args[-1], TimeoutError):
                raise SendTimeoutError(
                    f"the endpoint has not read the request within {self.read_timeout:g} s (readTimeout)"
                ) from error
            raise


def _has_end(response: urllib3.BaseHTTPResponse) -> bool:
    """See https://www.rfc-editor.org/rfc/rfc9112#section-6.3."""
    return response.status == HTTPStatus.NO_CONTENT or any(
        each in response.headers for each in ("content-length", "transfer-encoding")
    )


def proxy_for(url: str, proxies: Mapping[str, str], bypass: Callable[[str], object]) -> str | None:
    """The URL of the proxy for `url`; None if there is none.

    Args:
        url: to be reached.
        proxies: by scheme, as the environment has them.
        bypass: whether a host is reached directly.
    """
    parts = urlsplit(url)
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or bypass(parts.netloc.rpartition("@")[2]):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def is_lasting(error: Exception) -> bool:
    """Whether another attempt would fail in the same way, until somebody changes something."""
    if isinstance(
        error,
        http.LocationValueError
        | http.ProxySchemeUnknown
        # The endpoint may have accepted the rows: each attempt would write them once more.
        | TooLargeAnswerError,
    ):
        return True
    text = f"{error} {getattr(error, 'original_error', '')}"
    if isinstance(error, http.ProxyError):
        return "407" in text or is_lasting_tls(text)
    return isinstance(error, http.SSLError) and is_lasting_tls(text)


def is_unanswered(error: Exception) -> bool:
    """Whether it is open, after `error`, that anything answers at the endpoint."""
    return not isinstance(
        error,
        http.ReadTimeoutError
        | SendTimeoutError
        | LateAnswerError
        | TooLargeAnswerError
        | UnreadableAnswerError,
    )


class _Pools:
    """The connections of this process, by what they need: destinations are made anew for every epoch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_key: OrderedDict[object, urllib3.PoolManager] = OrderedDict()

    def get(self, transport: HttpTransport) -> urllib3.PoolManager:
        files = (transport.ca_bundle, transport.client_certificate)
        proxy = proxy_for(transport.url, getproxies(), proxy_bypass)
        # A file of certificates that was written anew is read again.
        key = (proxy, transport.connections, transport.verify, *((each, _changed_at(each)) for each in files))
        with self._lock:
            pool = self._by_key.get(key)
            if pool is None:
                pool = self._by_key[key] = _new_pool(transport, proxy)
                if len(self._by_key) > _MAX_POOLS:
                    self._by_key.popitem(last=False)[1].clear()
            self._by_key.move_to_end(key)
            return pool


_pools: Final = _Pools()
# What `HttpTransport.send` is doing, in all threads.
_running: Final[dict[Exchange, HttpTransport]] = {}


def _changed_at(path: str | None) -> int | None:
    try:
        return None if path is None else Path(path).stat().st_mtime_ns
    except OSError:
        return None


def _new_pool(transport: HttpTransport, proxy: str | None) -> urllib3.PoolManager:
    context = _tls_context(transport)
    if proxy is None:
        manager = urllib3.PoolManager(maxsize=transport.connections, ssl_context=context)
    else:
        manager = _proxy_manager(transport, proxy, context)
    manager.pool_classes_by_scheme = POOLS
    return manager


def _proxy_manager(transport: HttpTransport, proxy: str, context: ssl.SSLContext) -> urllib3.ProxyManager:
    try:
        return proxy_manager(proxy, maxsize=transport.connections, ssl_context=context)
    except ValueError as error:
        raise OptionError(f"option 'url' is reached through a proxy: {error}") from None


def _tls_context(transport: HttpTransport) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=transport.ca_bundle)
    except (OSError, ValueError) as error:
        raise OptionError(f"option 'caBundle' is {transport.ca_bundle!r}: {error}") from None
    if not transport.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if transport.client_certificate is not None:
        try:
            # Without a password: OpenSSL would ask for one on the terminal.
            context.load_cert_chain(transport.client_certificate, password="")
        except (OSError, ValueError) as error:
            raise OptionError(
                f"option 'clientCertificate' is {transport.client_certificate!r}: {error}"
            ) from None
    return context
