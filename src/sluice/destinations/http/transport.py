"""Sends HTTP requests over kept connections, by urllib3."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias
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
    "NoUsableAnswerError",
    "TooLargeAnswerError",
    "UnreadableAnswerError",
    "is_lasting",
    "is_unanswered",
    "proxy_for",
]

# An answer holds the results of one request. More than this is not an answer to it.
_MAX_ANSWER: Final = 16 * 1024 * 1024  # bytes

_SECONDS: Final = re.compile(r"\d{1,9}(\.\d{1,9})?")


class Answer(NamedTuple):
    """An answer, with any status. `headers` ignores case.

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


class NoUsableAnswerError(Exception):
    """The endpoint answers, but the answer cannot be used."""


class TooLargeAnswerError(NoUsableAnswerError):
    """An answer exceeds the size limit."""


class SendTimeoutError(NoUsableAnswerError):
    """Something takes connections, but does not read the request in time."""


class LateAnswerError(NoUsableAnswerError):
    """Something takes requests, but a request and its answer together take too long."""


class UnreadableAnswerError(NoUsableAnswerError):
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

    def connect(self) -> str:
        """Connects to the endpoint, or to the proxy for it, and sends no request.

        Returns:
            Host and port of what has accepted the connection.

        Raises:
            OSError: it does not accept the connection, or its certificate is not trusted.
            OptionError: a file of certificates cannot be used.
        """
        proxy = proxy_for(self.url, getproxies(), proxy_bypass)
        parts = urlsplit(proxy or self.url)
        is_encrypted, host = parts.scheme == "https", parts.hostname or ""
        port = parts.port or (443 if is_encrypted else 80)
        context = _tls_context(self.verify, self.ca_bundle, self.client_certificate)
        with socket.create_connection((host, port), timeout=self.connect_timeout) as connection:
            if is_encrypted:
                context.wrap_socket(connection, server_hostname=host).close()
        return f"{'' if proxy is None else 'the proxy '}{host}:{port}"

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
                # The final answer may follow: http.client skips only status 100.
                raise UnreadableAnswerError(f"status {response.status} is not a final answer")
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
            return _pool_for(self).urlopen(
                self.method,
                self.url,
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(connect=self.connect_timeout, read=self.read_timeout),
                retries=False,
                redirect=False,
                preload_content=False,
            )
        except http.InvalidHeader as error:  # of the answer: headers of the request are checked as options
            raise UnreadableAnswerError(error) from error
        except http.ProtocolError as error:
            # Timeouts of connecting and of reading have separate classes.
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
    # If an answer is too large, the endpoint may have accepted the rows: each attempt would write them again.
    if isinstance(error, http.LocationValueError | http.ProxySchemeUnknown | TooLargeAnswerError):
        return True
    text = f"{error} {getattr(error, 'original_error', '')}"
    if isinstance(error, http.ProxyError):
        return "407" in text or is_lasting_tls(text)
    return isinstance(error, http.SSLError) and is_lasting_tls(text)


def is_unanswered(error: Exception) -> bool:
    """Whether it is open, after `error`, that anything answers at the endpoint."""
    return not isinstance(error, http.ReadTimeoutError | NoUsableAnswerError)


# What `HttpTransport.send` is doing, in all threads.
_running: Final[dict[Exchange, HttpTransport]] = {}


_File: TypeAlias = tuple[str | None, int | None]
"""A path, and when the file was last written: a rewritten file is read again."""
_pools_lock: Final = threading.Lock()


def _pool_for(transport: HttpTransport) -> urllib3.PoolManager:
    """The connections of this process, by what they need: destinations are made anew for every epoch."""
    proxy = proxy_for(transport.url, getproxies(), proxy_bypass)
    files = (_file(transport.ca_bundle), _file(transport.client_certificate))
    with _pools_lock:
        return _pool(proxy, transport.connections, transport.verify, *files)


def _file(path: str | None) -> _File:
    try:
        return path, None if path is None else Path(path).stat().st_mtime_ns
    except OSError:
        return path, None


@lru_cache(maxsize=8)
def _pool(
    proxy: str | None, connections: int, verify: bool, ca_bundle: _File, client_certificate: _File
) -> urllib3.PoolManager:
    context = _tls_context(verify, ca_bundle[0], client_certificate[0])
    try:
        manager = (
            urllib3.PoolManager(maxsize=connections, ssl_context=context)
            if proxy is None
            else proxy_manager(proxy, maxsize=connections, ssl_context=context)
        )
    except ValueError as error:
        raise OptionError(f"option 'url' is reached through a proxy: {error}") from None
    manager.pool_classes_by_scheme = POOLS
    return manager


def _tls_context(verify: bool, ca_bundle: str | None, client_certificate: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_bundle)
    except (OSError, ValueError) as error:
        raise OptionError(f"option 'caBundle' is {ca_bundle!r}: {error}") from None
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if client_certificate is not None:
        try:
            # Without a password: OpenSSL would ask for one on the terminal.
            context.load_cert_chain(client_certificate, password="")
        except (OSError, ValueError) as error:
            raise OptionError(f"option 'clientCertificate' is {client_certificate!r}: {error}") from None
    return context
