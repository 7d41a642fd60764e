"""How to reach the service: the connection options, and SDK clients made from them.

`ConnectionConfig` is plain data that Spark may pickle; clients are made from it where they are used,
once per process. Credentials come from static keys, a profile or the SDK's own chain, and may be
traded for those of a role, which the SDK then refreshes before they expire.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Final
from urllib.parse import urlsplit

from botocore import exceptions as sdk
from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    CredentialProvider,
    CredentialResolver,
    DeferredRefreshableCredentials,
)
from botocore.session import Session

from sluice.errors import OptionError
from sluice.kinesis import wire
from sluice.kinesis.errors import redact
from sluice.options import TEXT, Kind, Option, OptionValues, duration

__all__ = ["CONNECTION_OPTIONS", "ConnectionConfig", "client_for", "connection_from_options", "endpoint_for"]

# A task reads its shards side by side through one client, and an agent holds a subscription for each. No
# call ever waits for a connection: the SDK opens more than these, but warns of each that it can't keep.
_POOL_CONNECTIONS: Final = 1024
_DEFAULT_SESSION_NAME: Final = "pyspark-sluice"
_AWS_HOST = re.compile(r"(^|\.)(amazonaws\.com(\.cn)?|api\.aws)\Z")


def _matching(name: str, allowed: str, pattern: str) -> Kind[str]:
    compiled = re.compile(pattern)

    def parse(text: str) -> str:
        if compiled.fullmatch(text.strip()) is None:
            raise ValueError(text)
        return text.strip()

    return Kind(name, allowed, parse)


def _parse_url(text: str) -> str:
    url = text.strip()
    parts = urlsplit(url)
    port = parts.port  # raises ValueError when it is no port
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(text)
    if "@" in parts.netloc or parts.query or parts.fragment or re.search(r"\s", url):
        raise ValueError(text)
    return url


_URL: Kind[str] = Kind("url", "a URL such as https://host or http://127.0.0.1:4566", _parse_url)
# What goes into HTTP headers. A line break in it would end up, quoted, in the transport's own error.
_CREDENTIAL = _matching("secret", "printable characters without spaces", r"[!-~]+")
_ROLE = _matching(
    "arn", "arn:aws:iam::<account>:role/<name>", r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+"
)
_SESSION_NAME = _matching("string", "2 to 64 letters, digits or any of _+=,.@-", r"[\w+=,.@-]{2,64}")
_EXTERNAL_ID = _matching("secret", "2 to 1224 letters, digits or any of _+=,.@:/-", r"[\w+=,.@:/-]{2,1224}")
_REGION = _matching("string", "an AWS region such as eu-west-1", r"[a-z][a-z0-9-]*[a-z0-9]")

_SDK_CHAIN: Final = "the SDK's own chain"

REGION = Option("region", _REGION, None, "AWS region.", shown_default=_SDK_CHAIN)
ENDPOINT_URL = Option("endpointUrl", _URL, None, "Endpoint of every call the source or the sink makes.")
PROFILE = Option(
    "profile",
    TEXT,
    None,
    "Profile of the SDK's configuration files that holds the credentials.",
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
ROLE_ARN = Option(
    "roleArn", _ROLE, None, "Role to assume, on driver and executors; refreshed before it expires."
)
ROLE_SESSION_NAME = Option(
    "roleSessionName",
    _SESSION_NAME,
    None,
    "Session name of the assumed role.",
    shown_default=f"`{_DEFAULT_SESSION_NAME}` with `roleArn`",
)
ROLE_EXTERNAL_ID = Option(
    "roleExternalId", _EXTERNAL_ID, None, "External id that the role's trust policy asks for.", secret=True
)
STS_ENDPOINT_URL = Option(
    "stsEndpointUrl",
    _URL,
    None,
    "Endpoint that `roleArn` is assumed at.",
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
    ROLE_ARN,
    ROLE_SESSION_NAME,
    ROLE_EXTERNAL_ID,
    STS_ENDPOINT_URL,
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
)


@dataclass(frozen=True)
class ConnectionConfig:
    """The connection options as plain data: hashable, and free of secrets when printed.

    Timeouts are seconds. None stands for whatever the SDK's own chain finds.
    """

    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    role_arn: str | None = None
    role_session_name: str | None = None
    role_external_id: str | None = field(default=None, repr=False)
    sts_endpoint_url: str | None = None
    connect_timeout: float = 5.0
    read_timeout: float = 60.0


def connection_from_options(values: OptionValues) -> ConnectionConfig:
    """Reads the connection options. What does not fit together is noted for `values.check()`."""
    _check_together(values)
    return ConnectionConfig(
        region=values.get(REGION),
        endpoint_url=values.get(ENDPOINT_URL),
        profile=values.get(PROFILE),
        access_key_id=values.get(ACCESS_KEY),
        secret_access_key=values.get(SECRET_KEY),
        session_token=values.get(SESSION_TOKEN),
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
    if not values.given(ROLE_ARN):
        for option in (ROLE_SESSION_NAME, ROLE_EXTERNAL_ID, STS_ENDPOINT_URL):
            if values.given(option):
                values.reject(option.key, f"needs '{ROLE_ARN.key}'")


# --- clients ------------------------------------------------------------------------------------------

_lock = threading.Lock()
_sessions: dict[tuple[int, ConnectionConfig], Session] = {}
_clients: dict[tuple[int, ConnectionConfig, str], Any] = {}


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603 - a fork may happen while another thread of the parent holds it
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def client_for(config: ConnectionConfig, service: str) -> Any:
    """The SDK's client of `service` (``kinesis``, ``sts``, ...), made once per process.

    Safe to call from several threads, and after a fork: a child makes its own. The client never
    retries by itself (`sluice.retry` does), so every failure reaches the caller at once.

    Raises:
        OptionError: there is no region, no credentials, no such profile, or the SDK's own
            configuration cannot be read. Names the option; never holds a secret.
    """
    # Clients of a parent process stay in the map under its id: a child that dropped them would close
    # connections that are not its own.
    process = os.getpid()
    with _lock:
        client = _clients.get((process, config, service))
        if client is None:
            try:
                session = _sessions.get((process, config))
                if session is None:
                    session = _sessions[process, config] = _new_session(config)
                client = _new_client(session, config, service)
            except (sdk.BotoCoreError, ValueError) as error:
                raise _as_option_error(config, error) from None
            _clients[process, config, service] = client
        return client


def endpoint_for(config: ConnectionConfig, service: str) -> str | None:
    """The URL that calls to `service` go to; None for the SDK's own.

    `endpointUrl` is used for every service, as an emulator or a gateway needs it. Only where it is a
    host of AWS itself, which serves one service each, the other services stay at their own.
    """
    if service == "sts" and config.sts_endpoint_url:
        return config.sts_endpoint_url
    if config.endpoint_url is None:
        return None
    host = urlsplit(config.endpoint_url).hostname or ""
    if _AWS_HOST.search(host) and service not in re.split(r"[.-]", host):
        return None
    return config.endpoint_url


def _new_client(session: Session, config: ConnectionConfig, service: str, **credentials: Any) -> Any:
    client = session.create_client(
        service,
        region_name=config.region,
        endpoint_url=endpoint_for(config, service),
        config=Config(
            connect_timeout=config.connect_timeout,
            read_timeout=config.read_timeout,
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=_POOL_CONNECTIONS,
            tcp_keepalive=True,
            user_agent=_user_agent(session),
            user_agent_extra=f"sluice/{_version()}",
        ),
        **credentials,
    )
    wire.install(client)
    return client


def _user_agent(session: Session) -> str:
    # Left to itself the SDK puts this together anew for every request, for a tenth of the CPU of a call.
    application = session.get_config_variable("user_agent_appid")
    return f"{session.user_agent()} app/{application}" if application else str(session.user_agent())


def _new_session(config: ConnectionConfig) -> Session:
    session = Session(profile=config.profile)
    session.register_component("response_parser_factory", wire.ParserFactory())
    if config.access_key_id and config.secret_access_key:
        session.set_credentials(config.access_key_id, config.secret_access_key, config.session_token)
    if session.get_credentials() is None:
        raise sdk.NoCredentialsError
    if config.role_arn is None:
        return session
    assumed = Session(profile=config.profile)
    assumed.register_component("response_parser_factory", wire.ParserFactory())
    assumed.register_component("credential_provider", CredentialResolver([_RoleProvider(session, config)]))
    return assumed


class _RoleProvider(CredentialProvider):
    """Gives the SDK credentials of the role: fetched at first use, and again before they expire."""

    METHOD = "assume-role"
    CANONICAL_NAME = None

    def __init__(self, source: Session, config: ConnectionConfig) -> None:
        super().__init__(source)
        self._source = source
        self._config = config

    def load(self) -> Any:
        config = self._config
        extra = {"RoleSessionName": config.role_session_name or _DEFAULT_SESSION_NAME}
        if config.role_external_id:
            extra["ExternalId"] = config.role_external_id
        fetcher = AssumeRoleCredentialFetcher(
            client_creator=self._sts,
            source_credentials=self._source.get_credentials(),
            role_arn=config.role_arn or "",
            extra_args=extra,
        )
        return DeferredRefreshableCredentials(refresh_using=fetcher.fetch_credentials, method=self.METHOD)

    def _sts(self, service: str, **credentials: Any) -> Any:
        return _new_client(self._source, self._config, service, **credentials)


def _version() -> str:
    try:
        return metadata.version("pyspark-sluice")
    except metadata.PackageNotFoundError:
        return "0"


def _as_option_error(config: ConnectionConfig, error: Exception) -> OptionError:
    if isinstance(error, sdk.NoRegionError):
        return OptionError("option 'region' is required: the SDK's own chain names no region either")
    if isinstance(error, sdk.ProfileNotFound):
        return OptionError(f"option 'profile' is {config.profile!r}: the SDK's files hold no such profile")
    if isinstance(error, sdk.InvalidRegionError):
        return OptionError(f"option 'region' is {config.region!r}: not the name of a region")
    if isinstance(error, sdk.NoCredentialsError):
        return OptionError(
            "no credentials: give options 'awsAccessKeyId' and 'awsSecretAccessKey', or 'profile', or set up "
            "one of the sources of the SDK's own chain"
        )
    return OptionError(f"no client can be made from the connection options: {redact(str(error))}")
