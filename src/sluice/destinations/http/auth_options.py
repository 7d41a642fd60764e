"""The options that say how requests get credentials that are renewed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from sluice.aws.calling.connection import CONNECT_TIMEOUT, READ_TIMEOUT, ConnectionConfig
from sluice.destinations.http.auth import Auth, TokenFile
from sluice.destinations.http.oauth2 import Grant, client_credentials
from sluice.destinations.http.options import (
    BASIC_PASSWORD,
    BASIC_USER,
    BEARER_TOKEN,
    SECRET_HEADER,
    URL_KIND,
)
from sluice.destinations.http.sigv4 import SigV4, canonical_url
from sluice.destinations.http.transport import HttpTransport
from sluice.options import TEXT, Option, OptionValues, choice, matching

__all__ = ["AUTH_OPTIONS", "authorized_transport", "check_auth", "is_signed"]

AUTH = Option(
    "auth",
    choice("none", "sigv4", "oauth2ClientCredentials"),
    "none",
    "Authorization: `sigv4` (AWS signatures for `sigv4Service`, with the credentials of the connection "
    "options), `oauth2ClientCredentials` (a token from `oauth2TokenUrl`), or `none` (only the headers "
    "above and `bearerTokenFile`).",
)
BEARER_TOKEN_FILE = Option(
    "bearerTokenFile",
    TEXT,
    None,
    "File, on every host, with the token of the header `Authorization: Bearer`. It may change at any time.",
)
SIGV4_SERVICE = Option(
    "sigv4Service",
    matching("service", "the name that AWS signs a service with, such as es", r"[a-z0-9][a-z0-9-]*"),
    None,
    "With `sigv4`: `es` (OpenSearch Service), `aoss` (OpenSearch Serverless), `execute-api` (API Gateway), "
    "`vpc-lattice-svcs` (VPC Lattice), or another one.",
)
TOKEN_URL = Option(
    "oauth2TokenUrl", URL_KIND, None, "With `oauth2ClientCredentials`: URL of the token endpoint."
)
CLIENT_ID = Option("oauth2ClientId", TEXT, None, "With `oauth2ClientCredentials`: the client's id.")
CLIENT_SECRET = Option(
    "oauth2ClientSecret", TEXT, None, "With `oauth2ClientCredentials`: the client's secret.", secret=True
)
SCOPE = Option("oauth2Scope", TEXT, None, "With `oauth2ClientCredentials`: scopes, separated by blanks.")
CLIENT_AUTHENTICATION = Option(
    "oauth2ClientAuthentication",
    choice("basic", "post"),
    "basic",
    "With `oauth2ClientCredentials`: send id and secret as a header (`basic`) or as fields (`post`).",
)

AUTH_OPTIONS: Final[tuple[Option[Any], ...]] = (
    *(AUTH, BEARER_TOKEN_FILE, SIGV4_SERVICE),
    *(TOKEN_URL, CLIENT_ID, CLIENT_SECRET, SCOPE, CLIENT_AUTHENTICATION),
)
_REQUIRED: Final = {
    "none": (),
    "sigv4": (SIGV4_SERVICE,),
    "oauth2ClientCredentials": (TOKEN_URL, CLIENT_ID, CLIENT_SECRET),
}
_OPTIONAL: Final = {"oauth2ClientCredentials": (SCOPE, CLIENT_AUTHENTICATION)}
_SIGNATURE_HEADERS: Final = frozenset({"x-amz-date", "x-amz-security-token"})


def is_signed(values: OptionValues) -> bool:
    """Whether requests are signed with credentials of AWS."""
    return values.get(AUTH) == "sigv4"


def check_auth(values: OptionValues, headers: dict[str, str]) -> None:
    """Notes problems for `values.check()`.

    Args:
        headers: that the user gives.
    """
    auth = values.require(AUTH)
    _check_options_of_auth(values, auth)
    has_file = values.given(BEARER_TOKEN_FILE)
    if auth == "none" and not has_file:
        return
    chosen = f"'{BEARER_TOKEN_FILE.key}'" if auth == "none" else f"'{AUTH.key}' {auth}"
    others = [each.key for each in (BEARER_TOKEN, BASIC_USER, BASIC_PASSWORD) if values.mentions(each)]
    if auth != "none" and has_file:
        others.append(BEARER_TOKEN_FILE.key)
    if not others and "authorization" in headers:
        others.append(f"{SECRET_HEADER.key[:-1]}authorization")
    for key in others:
        values.reject(key, f"and {chosen} exclude one another: give one of them")
    for name in _SIGNATURE_HEADERS.intersection(headers) if is_signed(values) else ():
        values.reject(f"header.{name}", f"is set by {chosen}")


def _check_options_of_auth(values: OptionValues, auth: str) -> None:
    for each, required in _REQUIRED.items():
        for option in required if each == auth else ():
            if not values.mentions(option):
                values.reject(option.key, f"is required with '{AUTH.key}' {auth}: {option.kind.allowed}")
        for option in (*required, *_OPTIONAL.get(each, ())) if each != auth else ():
            if values.mentions(option):
                values.reject(option.key, f"needs '{AUTH.key}' {each}")


def authorized_transport(
    values: OptionValues, transport: HttpTransport, connection: ConnectionConfig
) -> tuple[HttpTransport, Auth]:
    """What authorizes requests, and the transport that takes them. `check_auth` has found no problem."""
    service, path = values.get(SIGV4_SERVICE), values.get(BEARER_TOKEN_FILE)
    url, client_id, secret = (values.get(each) for each in (TOKEN_URL, CLIENT_ID, CLIENT_SECRET))
    if is_signed(values) and service:
        transport = replace(transport, url=canonical_url(transport.url))
        return transport, SigV4(transport.method, transport.url, service, connection)
    if url and client_id and secret:
        timeout = (values.get(CONNECT_TIMEOUT) or 0.0) + (values.get(READ_TIMEOUT) or 0.0)
        to_tokens = replace(
            transport,
            url=url,
            method="POST",
            request_timeout=min(transport.request_timeout / 2, timeout),
        )
        return transport, client_credentials(
            Grant(
                transport=to_tokens,
                client_id=client_id,
                client_secret=secret,
                scope=values.get(SCOPE),
                in_body=values.require(CLIENT_AUTHENTICATION) == "post",
            )
        )
    return transport, Auth() if path is None else TokenFile(path)
