"""Sends one request to an HTTP endpoint, and judges its errors and its answers.

What a status means: https://www.rfc-editor.org/rfc/rfc9110#name-status-codes; 429: RFC 6585. ``Retry-After``:
https://www.rfc-editor.org/rfc/rfc9110#field.retry-after
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import urllib3.exceptions as http

from sluice.aws.errors import redact
from sluice.destinations.common.counters import Counters
from sluice.destinations.common.first_contact import FirstContact
from sluice.destinations.http.auth import Auth, Authorized
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

_PAUSE_OF_RENEWALS: Final = 5.0
"""Seconds without another renewal after a renewal that did not help: the status may have another reason."""
_LATE: Final = 30.0
"""Seconds for which a refusal of credentials is retried if the endpoint accepted them before. They may have
expired, and their renewal may be late."""
_RECENT: Final = 16
"""Secrets of the last requests that are hidden in messages."""
_HINTS: Final[Mapping[int, str]] = {
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
        auth: adds credentials to the headers; None: they have them already.
        secrets: values that no message may show, even if an answer repeats them.
        clock: monotonic seconds.

    Attributes:
        transport, auth, clock: as given.
        what: what is called, for messages.
        counters: answers by the class of their status, and requests without a whole answer.
    """

    def __init__(
        self,
        transport: HttpTransport,
        headers: Mapping[str, str],
        *,
        auth: Auth | None = None,
        secrets: frozenset[str] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        parts = urlsplit(transport.url)
        self._contact = FirstContact(f"{parts.scheme}://{parts.netloc}", clock)
        self.what = f"{transport.method} {redact_url(transport.url)}"
        self._headers = dict(headers)
        self._fixed_secrets = secrets
        self._recent_secrets: deque[str] = deque(maxlen=_RECENT)
        self._no_renewal_until = -math.inf
        self._was_accepted = False
        self._refused_since: float | None = None
        self.transport = transport
        self.auth = auth or Auth()
        self._check_url = f"check option '{self.auth.URL_OPTION}'"
        self.clock = clock
        self.counters = Counters()

    def __call__(self, body: bytes) -> Answer:
        """Sends one request. If its credentials are refused and can be renewed, it is sent once more.

        Raises:
            ServiceError: there was no answer, or there are no credentials.
            OptionError: no connection can be made from the options.
        """
        began, authorized = self.clock(), self._authorized(body)
        answer = self._send(body, authorized.headers)
        now = self.clock()
        # The writer counts both requests as one, and fails if it takes twice as long as it may.
        has_time = now - began < self.transport.request_timeout / 2
        may_renew = has_time and now >= self._no_renewal_until
        if self._is_refusal(answer) and may_renew and self.auth.renew(authorized):
            answer = self._send(body, self._authorized(body).headers)
            if self._is_refusal(answer):
                self._no_renewal_until = self.clock() + _PAUSE_OF_RENEWALS
        if not self._is_refusal(answer):
            self._was_accepted, self._refused_since = True, None
        elif self._refused_since is None:
            self._refused_since = self.clock()
        return answer

    def awaits_credentials(self, answer: Answer) -> bool:
        """Whether refused credentials have been accepted before, and may be renewed soon."""
        since = self._refused_since
        # Another thread forgets it when its request is accepted.
        is_new = since is None or self.clock() - since < _LATE
        return self._is_refusal(answer) and self.auth.renews and self._was_accepted and is_new

    def _is_refusal(self, answer: Answer) -> bool:
        return answer.status in self.auth.REFUSALS

    @property
    def _secrets(self) -> SecretFilter:
        return SecretFilter(self._fixed_secrets.union(self._recent_secrets))

    def _authorized(self, body: bytes) -> Authorized:
        authorized = self.auth.authorize(body, self._headers)
        secret = authorized.secret
        if secret is not None and secret not in self._recent_secrets:
            self._recent_secrets.append(secret)
        return authorized

    def _send(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        self._contact.started()
        try:
            answer = self.transport.send(body, headers)
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
        if self._is_refusal(answer):
            hint = f"check {self.auth.OPTIONS}"
        elif answer.status == HTTPStatus.NOT_FOUND:
            hint = self._check_url
        if 300 <= answer.status < 400:
            location = self.redacted(redact_url(answer.headers.get("location", "")))
            where = f"it leads to '{location}'" if location else "it does not say where it leads"
            hint = f"redirects are not followed; {where}: {self._check_url}"
        retryable = verdict in ("throttled", "retried")
        pause = answer.retry_after if retryable else None
        if pause is not None:
            hint = f"it asks to wait for {pause:g} s"
        text = self.redacted(answer.body)
        return ServiceError(
            f"{self.what} failed: {cause}" + (f": {text}" if text else "") + (f" ({hint})" if hint else ""),
            operation=self.what,
            code=code,
            retryable=retryable,
            throttling=verdict == "throttled",
            retry_after=pause,
        )

    def damaged_answer(self, problem: str) -> ServiceError:
        """A retryable error for an answer that does not match the request."""
        return ServiceError(
            f"{self.what}: {problem}", operation=self.what, code="DamagedAnswer", retryable=True
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
            f"{self.what} failed: {code}: {redact(self._secrets.hide(str(error)))}{hint}",
            operation=self.what,
            code=code,
            retryable=not is_lasting(error),
        )
