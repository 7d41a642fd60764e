"""Sends one request to an HTTP endpoint, and judges its errors and its answers.

What a status means: https://www.rfc-editor.org/rfc/rfc9110#name-status-codes; 429: RFC 6585. ``Retry-After``:
https://www.rfc-editor.org/rfc/rfc9110#field.retry-after
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

import urllib3.exceptions as http

from sluice.aws.errors import redact
from sluice.destinations.common.counters import Counters
from sluice.destinations.common.first_contact import FirstContact
from sluice.destinations.http.secret_filter import SecretFilter
from sluice.destinations.http.statuses import Verdict
from sluice.destinations.http.transport import (
    Answer,
    HttpTransport,
    NoUsableAnswerError,
    UnreadableAnswerError,
    is_lasting,
    is_unanswered,
)
from sluice.errors import ServiceError
from sluice.options import redact_url

__all__ = ["HttpCall"]

_CREDENTIALS: Final = "check options 'bearerToken', 'basicUser', 'basicPassword' and 'secretHeader.*'"
_HINTS: Final[Mapping[int, str]] = {
    401: _CREDENTIALS,
    403: _CREDENTIALS,
    404: "check option 'url'",
    405: "check option 'method'",
    413: "the request is too large: lower option 'maxBatchSizeInBytes' or 'maxBatchSize'",
    415: "check options 'bodyFormat', 'compression' and 'header.content-type'",
}


class _UnansweredError(ServiceError):
    """No answer came: it is open whether anything answers there."""


class HttpCall:
    """Requests to one endpoint, without retries: the writer retries.

    Args:
        transport: sends requests.
        headers: of every request, by their names in lower case.
        secrets: values that no message may show, whoever repeats them.
        clock: monotonic seconds.

    Attributes:
        transport, clock: as given.
        counters: answers by the class of their status, and requests without a whole answer.
    """

    def __init__(
        self,
        transport: HttpTransport,
        headers: Mapping[str, str],
        *,
        secrets: frozenset[str] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        parts = urlsplit(transport.url)
        self._contact = FirstContact(f"{parts.scheme}://{parts.netloc}", clock)
        self._what = f"{transport.method} {redact_url(transport.url)}"
        self._headers = dict(headers)
        self._secrets = SecretFilter(secrets)
        self.transport = transport
        self.clock = clock
        self.counters = Counters()

    def __call__(self, body: bytes) -> Answer:
        """Sends one request.

        Raises:
            ServiceError: there was no answer.
            OptionError: no connection can be made from the options.
        """
        self._contact.started()
        try:
            answer = self.transport.send(body, self._headers)
        except (http.HTTPError, OSError, NoUsableAnswerError) as error:
            self.counters.add(unanswered=1)
            if isinstance(error, UnreadableAnswerError):
                self._contact.answered()
            raise self._translated(error) from None
        self.counters.add(**{f"answers_{answer.status // 100}xx": 1})
        self._contact.answered()
        return answer

    def error_of(self, answer: Answer, verdict: Verdict | None) -> ServiceError:
        """The error for an answer that accepts nothing."""
        code = str(answer.status)
        reason = "" if self._secrets.has_short else self.redacted(answer.reason)
        cause = f"HTTP status {code} {reason}".rstrip()
        hint = _HINTS.get(answer.status, "")
        if 300 <= answer.status < 400:
            location = self.redacted(redact_url(answer.headers.get("location", "")))
            where = f"it leads to '{location}'" if location else "it does not say where it leads"
            hint = f"redirects are not followed; {where}: check option 'url'"
        retryable = verdict in ("throttled", "retried")
        pause = answer.retry_after if retryable else None
        if pause is not None:
            hint = f"it asks to wait for {pause:g} s"
        text = self.redacted(answer.body)
        return ServiceError(
            f"{self._what} failed: {cause}" + (f": {text}" if text else "") + (f" ({hint})" if hint else ""),
            operation=self._what,
            code=code,
            retryable=retryable,
            throttling=verdict == "throttled",
            retry_after=pause,
        )

    def damaged_answer(self, problem: str) -> ServiceError:
        """A retryable error for an answer that does not match the request."""
        return ServiceError(
            f"{self._what}: {problem}", operation=self._what, code="DamagedAnswer", retryable=True
        )

    def is_fatal(self, error: Exception) -> bool:
        """Whether to give up after `error`, because another attempt would fail, too.

        If the endpoint has never answered, connections that are refused, lost or not made in time are fatal
        5 s after the first call, because then its address is probably wrong.
        """
        if not isinstance(error, ServiceError) or not error.retryable:
            return True
        return isinstance(error, _UnansweredError) and self._contact.is_given_up

    def redacted(self, text: bytes | str) -> str:
        """Words of the endpoint without its secrets, which it may repeat, and in one line."""
        return redact(self._secrets.hide_in_answer(text))

    def _translated(self, error: Exception) -> ServiceError:
        code = error.code if isinstance(error, UnreadableAnswerError) else type(error).__name__
        kind = _UnansweredError if is_unanswered(error) else ServiceError
        hint = ""
        if is_lasting(error) and isinstance(error, http.SSLError):
            hint = " (check options 'url', 'caBundle' and 'clientCertificate')"
        return kind(
            f"{self._what} failed: {code}: {redact(self._secrets.hide(str(error)))}{hint}",
            operation=self._what,
            code=code,
            retryable=not is_lasting(error),
        )
