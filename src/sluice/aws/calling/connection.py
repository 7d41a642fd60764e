"""The connection options, and the `ConnectionConfig` that they make."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from sluice.errors import OptionError
from sluice.options import TEXT, Kind, Option, OptionValues, duration, matching, redact_url

__all__ = [
    "CONNECTION_OPTIONS",
    "DEFAULT_SESSION_NAME",
    "WIRE_FORMATS",
    "ConnectionConfig",
    "connection_from_options",
]

DEFAULT_SESSION_NAME: Final = "pyspark-sluice"

WIRE_FORMATS: Final = ("auto", "json", "cbor")
"""How records are asked for. auto: large pages in CBOR, unless the endpoint has shown that it knows JSON
only."""


def _parse_url(text: str) -> str:
    url = text.strip()
    parts = urlsplit(url)
    port = parts.port  # raises ValueError when it is not a port
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(text)
    if "@" in parts.netloc or parts.query or parts.fragment or re.search(r"\s", url):
        raise ValueError(text)
    return url


_URL: Kind[str] = Kind("url", "a URL such as https://host or http://127.0.0.1:4566", _parse_url, redact_url)
# Credentials go into HTTP headers. The HTTP library would quote one with a line break in its error.
_CREDENTIAL = matching("secret", "printable characters without spaces", r"[!-~]+")
_ROLE = matching("arn", "arn:aws:iam::<account>:role/<name>", r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+")
_SESSION_NAME = matching("string", "2 to 64 letters, digits or any of _+=,.@-", r"[\w+=,.@-]{2,64}")
_EXTERNAL_ID = matching("string", "2 to 1224 letters, digits or any of _+=,.@:/-", r"[\w+=,.@:/-]{2,1224}")
_REGION_NAME: Final = re.compile(r"[a-z][a-z0-9-]*[a-z0-9]")  # emulators take any
_ZONE: Final = re.compile(r"([a-z]{2}(?:-[a-z]+)+-\d)[a-z]")


def _parse_region(text: str) -> str:
    region = text.strip()
    if zone := _ZONE.fullmatch(region):
        raise OptionError(f"is {text!r}: that is an availability zone, and its region is {zone[1]}")
    if _REGION_NAME.fullmatch(region) is None:
        raise ValueError(text)
    return region


_REGION: Kind[str] = Kind("string", "an AWS region such as eu-west-1", _parse_region)

_SDK_CHAIN: Final = "the SDK's own chain"

REGION = Option("region", _REGION, None, "AWS region.", shown_default=_SDK_CHAIN)
ENDPOINT_URL = Option("endpointUrl", _URL, None, "Endpoint of all calls.")
PROFILE = Option(
    "profile",
    TEXT,
    None,
    "Profile in the SDK's configuration files.",
    shown_default=_SDK_CHAIN,
)
ACCESS_KEY = Option(
    "awsAccessKeyId", _CREDENTIAL, None, "Static access key id.", shown_default=_SDK_CHAIN, secret=True
)
SECRET_KEY = Option(
    "awsSecretAccessKey",
    _CREDENTIAL,
    None,
    "Static secret access key.",
    shown_default=_SDK_CHAIN,
    secret=True,
)
SESSION_TOKEN = Option(
    "awsSessionToken",
    _CREDENTIAL,
    None,
    "Session token of temporary static keys.",
    shown_default=_SDK_CHAIN,
    secret=True,
)
CREDENTIALS_PROVIDER = Option(
    "credentialsProvider",
    matching("object", "package.module:Name of a function", r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"),
    None,
    "`package.module:Name` of a function without arguments that returns a botocore or boto3 session, or "
    "credentials. Called on driver and executors, and again if the credentials are rejected.",
)
ROLE_ARN = Option(
    "roleArn", _ROLE, None, "Role to assume, on driver and executors; refreshed before it expires."
)
ROLE_SESSION_NAME = Option(
    "roleSessionName",
    _SESSION_NAME,
    None,
    "Session name of the assumed role.",
    shown_default=f"`{DEFAULT_SESSION_NAME}` with `roleArn`",
)
# Not a secret: "AWS does not treat the external ID as a secret", and neither does Spark in its plans.
# https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles_create_for-user_externalid.html
ROLE_EXTERNAL_ID = Option(
    "roleExternalId", _EXTERNAL_ID, None, "External id that the role's trust policy requires."
)
STS_ENDPOINT_URL = Option(
    "stsEndpointUrl",
    _URL,
    None,
    "Endpoint of STS, for `roleArn`.",
    shown_default="`endpointUrl`, unless that is one of AWS' own for another service",
)
CONNECT_TIMEOUT = Option(
    "connectTimeout", duration(0.001), 5.0, "How long to wait for a connection.", shown_default="5s"
)
READ_TIMEOUT = Option(
    "readTimeout", duration(0.001), 60.0, "How long to wait for data on a connection.", shown_default="60s"
)

CONNECTION_OPTIONS: tuple[Option[Any], ...] = (
    REGION,
    ENDPOINT_URL,
    PROFILE,
    ACCESS_KEY,
    SECRET_KEY,
    SESSION_TOKEN,
    CREDENTIALS_PROVIDER,
    ROLE_ARN,
    ROLE_SESSION_NAME,
    ROLE_EXTERNAL_ID,
    STS_ENDPOINT_URL,
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
)


@dataclass(frozen=True)
class ConnectionConfig:
    """The connection options as plain data, which Spark may pickle. Hashable; printed without secrets.

    Timeouts are seconds. None means: use what the SDK's own chain finds.

    Attributes:
        wire_format: how records are asked for: one of `WIRE_FORMATS`. An option of the source alone.
        keeps_pages: answers to ``GetRecords`` have their body as it came, in a field ``Body``, for a process
            that passes pages on.
        sends_checksums: whether the SDK adds checksums to requests that do not require one. An option of S3.
    """

    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    credentials_provider: str | None = None
    role_arn: str | None = None
    role_session_name: str | None = None
    role_external_id: str | None = None
    sts_endpoint_url: str | None = None
    connect_timeout: float = 5.0
    read_timeout: float = 60.0
    wire_format: str = "json"
    keeps_pages: bool = False
    sends_checksums: bool = True

    @property
    def has_fixed_credentials(self) -> bool:
        """Whether all calls use credentials from the options. Once these expire, there are no others."""
        return self.access_key_id is not None and self.role_arn is None


def connection_from_options(values: OptionValues) -> ConnectionConfig:
    """Reads the connection options. Notes what does not fit together for `OptionValues.check`."""
    _check_together(values)
    return ConnectionConfig(
        region=values.get(REGION),
        endpoint_url=values.get(ENDPOINT_URL),
        profile=values.get(PROFILE),
        access_key_id=values.get(ACCESS_KEY),
        secret_access_key=values.get(SECRET_KEY),
        session_token=values.get(SESSION_TOKEN),
        credentials_provider=values.get(CREDENTIALS_PROVIDER),
        role_arn=values.get(ROLE_ARN),
        role_session_name=values.get(ROLE_SESSION_NAME),
        role_external_id=values.get(ROLE_EXTERNAL_ID),
        sts_endpoint_url=values.get(STS_ENDPOINT_URL),
        connect_timeout=values.get(CONNECT_TIMEOUT) or 5.0,
        read_timeout=values.get(READ_TIMEOUT) or 60.0,
    )


def _check_together(values: OptionValues) -> None:
    key, secret = values.get(ACCESS_KEY), values.get(SECRET_KEY)
    if key and not secret:
        values.reject(SECRET_KEY.key, f"is required with '{ACCESS_KEY.key}'")
    if secret and not key:
        values.reject(ACCESS_KEY.key, f"is required with '{SECRET_KEY.key}'")
    if values.get(SESSION_TOKEN) and not (key and secret):
        values.reject(SESSION_TOKEN.key, f"needs '{ACCESS_KEY.key}' and '{SECRET_KEY.key}'")
    if values.get(PROFILE) and (key or secret):
        values.reject(
            PROFILE.key, f"and '{ACCESS_KEY.key}', '{SECRET_KEY.key}' exclude one another: give one of them"
        )
    _check_only_provider(values)
    if not values.given(ROLE_ARN):
        for option in (ROLE_SESSION_NAME, ROLE_EXTERNAL_ID, STS_ENDPOINT_URL):
            if values.given(option):
                values.reject(option.key, f"needs '{ROLE_ARN.key}'")


def _check_only_provider(values: OptionValues) -> None:
    if values.given(CREDENTIALS_PROVIDER):
        for option in (PROFILE, ACCESS_KEY, SECRET_KEY, SESSION_TOKEN):
            if values.given(option):
                why = f"and '{CREDENTIALS_PROVIDER.key}' exclude one another: give one of them"
                values.reject(option.key, why)
