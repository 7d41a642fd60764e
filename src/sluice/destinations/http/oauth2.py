"""Tokens of OAuth 2.0's grant of client credentials, shared by the requests of a process.

https://www.rfc-editor.org/rfc/rfc6749#section-4.4
"""

from __future__ import annotations

import base64
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import quote_plus, urlencode

import msgspec

from sluice.destinations.http.auth import Auth, Authorized, is_token
from sluice.destinations.http.call import HttpCall
from sluice.destinations.http.statuses import Rule, StatusRules, statuses
from sluice.destinations.http.transport import HttpTransport
from sluice.errors import ServiceError, SluiceError

__all__ = ["ClientCredentials", "Grant", "client_credentials"]

_log = logging.getLogger(__name__)

_EARLY: Final = 0.1
"""The part of a token's lifetime that is left when it is renewed."""
_EARLIEST: Final = 300.0
"""Seconds that are left then, at most."""
_AGAIN: Final = 5.0
"""Seconds until a renewal is tried again while the old token is valid."""
# What the statuses of a token endpoint mean. All others are final.
_RULES: Final = StatusRules([Rule("retried", statuses("408, 425, 429, 5xx"), given=False)])


class _Answer(msgspec.Struct):
    access_token: str
    expires_in: float | str | None = None
    token_type: str | None = None


class _Token(NamedTuple):
    """Instants are monotonic seconds."""

    text: str
    fresh_until: float
    valid_until: float


_NONE: Final = _Token("", -math.inf, -math.inf)


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What a token is asked for with.

    Attributes:
        transport: to the token endpoint.
        client_id, client_secret: of the application.
        scope: what the token may do; None: what the endpoint gives by default.
        in_body: whether id and secret are fields of the request, and not in its header `Authorization`.
    """

    transport: HttpTransport
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    in_body: bool = False


@lru_cache(maxsize=16)
def client_credentials(grant: Grant) -> ClientCredentials:
    """The tokens of this process: destinations are made anew for every epoch."""
    return ClientCredentials(grant)


class ClientCredentials(Auth):
    """Asks for a token when there is none, when it expires soon, and when it was refused.

    One request asks, and others wait for its outcome, or use the old token while that is valid.

    Args:
        grant: what to ask for.
        clock: monotonic seconds.
    """

    renews = True
    OPTIONS = "options 'oauth2Scope' and 'oauth2ClientId', and what this client may do"

    def __init__(self, grant: Grant, clock: Callable[[], float] = time.monotonic) -> None:
        fields = {"grant_type": "client_credentials"}
        headers = {
            "content-type": "application/x-www-form-urlencoded",
            "accept": "application/json",
        }
        if grant.scope is not None:
            fields["scope"] = grant.scope
        secrets = {grant.client_secret}
        if grant.in_body:
            fields |= {"client_id": grant.client_id, "client_secret": grant.client_secret}
        else:
            # Both are encoded as in a form: https://www.rfc-editor.org/rfc/rfc6749#section-2.3.1
            pair = f"{quote_plus(grant.client_id)}:{quote_plus(grant.client_secret)}"
            encoded = base64.b64encode(pair.encode()).decode()
            headers["authorization"] = f"Basic {encoded}"
            secrets.add(encoded)
        self._body = urlencode(fields).encode()
        self._call = HttpCall(
            grant.transport,
            headers,
            auth=_Client(),
            secrets=frozenset(secrets),
            clock=clock,
        )
        self._clock = clock
        self._lock = threading.Lock()
        self._token = _NONE
        self._attempts = 0
        self._failure: SluiceError | None = None  # of the last attempt

    def authorize(self, body: bytes, headers: Mapping[str, str]) -> Authorized:
        del body
        token = self._current()
        return Authorized({**headers, "authorization": f"Bearer {token}"}, token, token)

    def renew(self, refused: Authorized) -> bool:
        with self._lock:
            if self._token.text == refused.used:
                self._token = _NONE
        return True

    def close(self) -> None:
        self._call.transport.end_requests()

    def _current(self) -> str:
        attempts, token, now = self._attempts, self._token, self._clock()
        if now < token.fresh_until:
            return token.text
        if not self._lock.acquire(blocking=now >= token.valid_until):
            return token.text
        try:
            if now >= self._token.fresh_until:  # nobody has renewed it meanwhile
                if self._failure is not None and self._attempts != attempts:
                    raise self._failure
                self._renew()
            return self._token.text
        finally:
            self._lock.release()

    def _renew(self) -> None:
        self._failure = None
        try:
            self._token = self._ask()
        except SluiceError as error:
            left = self._token.valid_until - self._clock()
            if left <= 0:
                self._failure = error
                raise
            _log.warning("the token is valid for another %.0f s, and was not renewed: %s", left, error)
            self._token = self._token._replace(fresh_until=self._clock() + _AGAIN)
        finally:
            self._attempts += 1

    def _ask(self) -> _Token:
        try:
            answer = self._call(self._body)
            if answer.status != HTTPStatus.OK:
                raise self._call.error_of(answer, _RULES.verdict(answer.status))
            found = msgspec.json.decode(answer.body, type=_Answer)
            lifetime = _lifetime(found.expires_in)
        except ServiceError as error:
            # A status of the token endpoint says nothing of the load at the endpoint of the rows.
            error.code = f"Token{error.code}"
            raise
        except (msgspec.DecodeError, ValueError):
            raise self._call.damaged_answer("the answer holds no token") from None
        if (found.token_type or "bearer").lower() != "bearer" or not is_token(found.access_token):
            raise ServiceError(
                f"{self._call.what}: it gave a token that is none for a header 'Authorization: Bearer'",
                operation=self._call.what,
                code="TokenType",
            )
        now = self._clock()
        fresh = lifetime - min(_EARLIEST, lifetime * _EARLY) if lifetime < math.inf else lifetime
        return _Token(found.access_token, now + fresh, now + lifetime)


class _Client(Auth):
    REFUSALS = frozenset({400, 401, 403})
    URL_OPTION = "oauth2TokenUrl"
    OPTIONS = "options 'oauth2ClientId', 'oauth2ClientSecret' and 'oauth2ClientAuthentication'"


def _lifetime(given: float | str | None) -> float:
    """Seconds for which a token is valid; infinite if the answer does not say: then until it is refused.

    Raises:
        ValueError: it is not a number.
    """
    seconds = math.inf if given is None else float(given)
    return seconds if seconds > 0 else math.inf
