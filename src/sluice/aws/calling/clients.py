"""SDK clients, made from a `ConnectionConfig` and shared by all callers in a process.

Credentials come from static keys, a profile or the SDK's own chain. With ``roleArn`` they are used to assume
that role, and the SDK refreshes the role's credentials before they expire. Credentials that the service
calls expired or does not know are loaded anew, unless they are options.
"""

from __future__ import annotations

import gzip
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import msgspec
from botocore import exceptions as sdk
from botocore.config import Config
from botocore.configprovider import ConfiguredEndpointProvider
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    CredentialProvider,
    CredentialResolver,
    DeferredRefreshableCredentials,
)
from botocore.loaders import JSONFileLoader, Loader, create_loader
from botocore.parsers import ResponseParserError
from botocore.session import Session

from sluice import __version__
from sluice.aws.calling.connection import DEFAULT_SESSION_NAME, ConnectionConfig
from sluice.aws.calling.provided_credentials import use_provided
from sluice.aws.errors import (
    EXPIRED_CREDENTIALS,
    UNKNOWN_CREDENTIALS,
    redact,
    set_failed_operation,
    translate,
)
from sluice.aws.regions import service_of
from sluice.aws.wire import hooks
from sluice.errors import OptionError
from sluice.garbage_collection import without_garbage_collection

__all__ = [
    "Credentials",
    "client_for",
    "configured_endpoint",
    "credentials_for",
    "endpoint_for",
    "forget_credentials",
    "signing_credentials",
]

# A task reads several shards at a time through one client, and an agent holds one subscription per shard. The
# SDK opens as many connections as there are calls, but logs a warning for each beyond the size of the pool.
_POOL_CONNECTIONS: Final = 1024

_KEPT: Final = 16
"""The most clients that a process keeps, and the most sessions. A query needs few, but options may bring new
credentials with every batch. A client takes half a MiB, and 10 ms to make again."""

_SERVICES: Final = ("dynamodb", "dynamodbstreams", "firehose", "iam", "kinesis", "s3", "sqs", "sts")
"""All that are called."""
_STS_ENDPOINTS: Final = "sts_regional_endpoints"
_METADATA_VARIABLE: Final = "metadata_service_num_attempts"
_METADATA_ATTEMPTS: Final = 3
"""The SDK asks a host for its role once, for a second. When many workers start at the same time some get no
answer, and seem to have no credentials."""

T = TypeVar("T")

_lock = threading.Lock()
# The keys are process id and config, and for clients the service, too. The last used are at the end.
_sessions: OrderedDict[tuple[Any, ...], Session] = OrderedDict()
_clients: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
# Clients whose credentials were refused, until others could be loaded.
_refused: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
# The SDK's descriptions of services and endpoints (9 MiB), by the folders in which users have put others.
_loaders: dict[str | None, Loader] = {}


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603 - a fork may happen while another thread of the parent holds it
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows never forks
    os.register_at_fork(after_in_child=_renew_lock)


def client_for(config: ConnectionConfig, service: str) -> Any:
    """The SDK's client of `service` (``kinesis``, ``sts``, ...). Equal configs share it while it is in use.

    May be called from several threads, and after a fork: a child makes its own clients. The client does not
    retry (`sluice.retry` does), so every failure reaches the caller at once. A process keeps the clients that
    were asked for last. Other clients end when nothing refers to them any more; their calls and subscriptions
    continue.

    Raises:
        OptionError: there is no region, no credentials, no such profile, or the SDK's own configuration
            cannot be read. The message names the option, and holds no secret.
    """
    process = os.getpid()
    key = (process, config, service)
    try:
        client = _kept(_clients, key, lambda: _client_of(process, config, service))
    except (sdk.BotoCoreError, ValueError) as error:
        # The file that is to hold new credentials may be empty or half written at this moment. The old
        # ones are refused again, and the caller waits for new ones as long as it does in that case.
        with _lock:
            if key in _refused:
                return _refused[key]
        raise _as_option_error(config, error) from None
    with _lock:
        _refused.pop(key, None)
    return client


@dataclass(frozen=True)
class Credentials:
    """The credentials that sign requests now, for code that makes its own requests."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(repr=False)
    region: str | None


def credentials_for(config: ConnectionConfig) -> Credentials:
    """The credentials and the region that the clients of `config` use now. A role's may expire in an hour.

    Raises:
        OptionError: as `client_for`, also if the role cannot be assumed.
    """
    try:
        return _credentials(config)
    except (sdk.BotoCoreError, sdk.ClientError, ValueError) as error:
        raise _as_option_error(config, error) from None


def signing_credentials(config: ConnectionConfig) -> Credentials:
    """As `credentials_for`, while a query runs: a service that gives credentials may be down for a while.

    Raises:
        OptionError: as `client_for`.
        ServiceError: the service did not answer, or refused.
    """
    try:
        return _credentials(config)
    except (sdk.BotoCoreError, sdk.ClientError, ValueError) as error:
        failed = translate(error, operation="Loading credentials", target="", endpoint=None)
        if failed.retryable or isinstance(error, sdk.ClientError):
            raise failed from None
        raise _as_option_error(config, error) from None


def _credentials(config: ConnectionConfig) -> Credentials:
    session = _kept(_sessions, (os.getpid(), config), lambda: _new_session(config))
    found = session.get_credentials()
    if found is None:
        raise sdk.NoCredentialsError
    frozen = found.get_frozen_credentials()
    region = config.region or session.get_config_variable("region")
    return Credentials(frozen.access_key or "", frozen.secret_key or "", frozen.token, region)


def forget_credentials(config: ConnectionConfig) -> None:
    """The next client of `config` loads its credentials anew."""
    key = (os.getpid(), config)
    with _lock:
        _refused.update((each, client) for each, client in _clients.items() if each[:2] == key)
        for each in [each for each in _refused if each[0] == key[0]][:-_KEPT]:
            del _refused[each]
        for kept in (_clients, _sessions):
            for each in [each for each in kept if each[:2] == key]:
                del kept[each]


def _client_of(process: int, config: ConnectionConfig, service: str) -> Any:
    return _new_client(_kept(_sessions, (process, config), lambda: _new_session(config)), config, service)


def _kept(kept: OrderedDict[tuple[Any, ...], T], key: tuple[Any, ...], make: Callable[[], T]) -> T:
    """Returns the value of `key`, and makes it first if it does not exist. The least recently used one may be
    dropped for it.

    No lock is held while it is made: that may call a service, whose refusal ends in `forget_credentials`. Of
    two threads that make one at the same time, the second takes that of the first.
    """
    with _lock:
        if key in kept:
            kept.move_to_end(key)
            return kept[key]
    with without_garbage_collection():
        made = make()
    with _lock:
        value = kept.setdefault(key, made)
        kept.move_to_end(key)
        # What the parent process has made stays: dropping it would close connections that the parent uses.
        own = [each for each in kept if each[0] == key[0]]
        if len(own) > _KEPT:
            del kept[own[0]]
    return value


def endpoint_for(config: ConnectionConfig, service: str) -> str | None:
    """The URL that calls of `service` go to; None for the SDK's default.

    ``endpointUrl`` is used for every service, as emulators and gateways need it. A host at which AWS itself
    serves one service is not used for another one, which keeps the SDK's default.
    """
    if service == "sts" and config.sts_endpoint_url:
        return config.sts_endpoint_url
    if config.endpoint_url is None:
        return None
    named = service_of(urlsplit(config.endpoint_url).hostname or "")
    return config.endpoint_url if named in (None, service) else None


def configured_endpoint(config: ConnectionConfig, service: str) -> str | None:
    """The URL of `service` in the SDK's environment variables and files (``AWS_ENDPOINT_URL``), which clients
    go to by themselves where `endpoint_for` has none. For libraries that make their own clients.

    Raises:
        OptionError: as `client_for`.
    """
    try:
        session = _kept(_sessions, (os.getpid(), config), lambda: _new_session(config))
        if session.get_config_variable("ignore_configured_endpoint_urls"):
            return None
        files, profile = session.full_config, session.get_scoped_config()
    except (sdk.BotoCoreError, ValueError) as error:
        raise _as_option_error(config, error) from None
    found: str | None = ConfiguredEndpointProvider(
        full_config=files, scoped_config=profile, client_name=service
    ).provide()
    return found


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
            user_agent_extra=f"sluice/{__version__}",
            **({} if config.sends_checksums else _without_checksums()),
        ),
        **credentials,
    )
    hooks.install(client, config.wire_format)

    def forget_refused(*, parsed: dict[str, Any], **_: Any) -> None:
        # The SDK loads the credentials of a file or of the environment once. A file may hold new ones by now.
        if parsed.get("Error", {}).get("Code") in EXPIRED_CREDENTIALS | UNKNOWN_CREDENTIALS:
            forget_credentials(config)

    client.meta.events.register("after-call", forget_refused)
    return client


def _without_checksums() -> dict[str, Any]:
    """Arguments of `Config`. Before 1.36 the SDK sent no checksums by itself, and did not know these."""
    known = ("request_checksum_calculation", "response_checksum_validation")
    return {name: "when_required" for name in known if name in Config.OPTION_DEFAULTS}


def _user_agent(session: Session) -> str:
    # The SDK would build it again for every request, which takes a tenth of the CPU of a call.
    application = session.get_config_variable("user_agent_appid")
    return f"{session.user_agent()} app/{application}" if application else str(session.user_agent())


def _new_session(config: ConnectionConfig) -> Session:
    session = _bare_session(config)
    if config.credentials_provider:
        use_provided(session, config.credentials_provider)
    if config.access_key_id and config.secret_access_key:
        session.set_credentials(config.access_key_id, config.secret_access_key, config.session_token)
    if session.get_credentials() is None:
        raise sdk.NoCredentialsError
    if config.role_arn is None:
        return session
    assumed = _bare_session(config)
    assumed.register_component("credential_provider", CredentialResolver([_RoleProvider(session, config)]))
    return assumed


def _bare_session(config: ConnectionConfig) -> Session:
    session = Session(profile=config.profile)
    session.register_component("response_parser_factory", hooks.ParserFactory(keeps_pages=config.keeps_pages))
    folders = session.get_config_variable("data_path")
    loader = _loaders.setdefault(folders, _loader(folders))
    session.register_component("data_loader", loader)
    if _STS_ENDPOINTS.upper() not in map(
        str.upper, _configured(session)
    ):  # the SDK's default before 1.40 is global
        session.set_config_variable(_STS_ENDPOINTS, "regional")
    attempts = max(_METADATA_ATTEMPTS, session.get_config_variable(_METADATA_VARIABLE))
    session.set_config_variable(_METADATA_VARIABLE, attempts)
    return session


def _loader(folders: str | None) -> Loader:
    """The SDK's own loader, which would look into each of its 400 folders: 20 ms of CPU in every process."""
    loader: Any = create_loader(folders)
    loader.list_available_services = lambda _type: _SERVICES
    loader.file_loader = _FileLoader()
    return cast("Loader", loader)


class _FileLoader(JSONFileLoader):
    """The SDK's own loader with a faster decoder: endpoints take 6 ms of CPU in every process, not 19."""

    def load_file(self, file_path: str) -> Any:
        for suffix, open_file in ((".json", open), (".json.gz", gzip.open)):
            path = Path(file_path + suffix)
            if path.is_file():
                with open_file(path, "rb") as file:
                    content = file.read()
                try:
                    return msgspec.json.decode(content)
                except msgspec.DecodeError as error:
                    raise ValueError(f"{path}: {error}") from None
        return None


def _configured(session: Session) -> Iterator[str]:
    """The settings of a session that its user has made."""
    yield from (name.removeprefix("AWS_") for name in os.environ)
    yield from session.get_scoped_config()


class _RoleProvider(CredentialProvider):
    """Provides the role's credentials: fetched at first use, and again before they expire."""

    METHOD = "assume-role"
    CANONICAL_NAME = None

    def __init__(self, source: Session, config: ConnectionConfig) -> None:
        super().__init__(source)
        self._source = source
        self._config = config

    def load(self) -> Any:
        config = self._config
        extra = {"RoleSessionName": config.role_session_name or DEFAULT_SESSION_NAME}
        if config.role_external_id:
            extra["ExternalId"] = config.role_external_id
        fetcher = AssumeRoleCredentialFetcher(
            client_creator=self._sts,
            source_credentials=self._source.get_credentials(),
            role_arn=config.role_arn or "",
            extra_args=extra,
        )

        def fetch() -> Any:
            try:
                return fetcher.fetch_credentials()
            except sdk.BotoCoreError as error:  # the connection failed; a refusal names its call
                set_failed_operation(error, "AssumeRole")
                raise
            except (KeyError, TypeError, ResponseParserError) as error:  # not what STS answers
                what = f"the answer is not from STS ({redact(str(error))})"
                unread = sdk.CredentialRetrievalError(provider=self.METHOD, error_msg=what)
                set_failed_operation(unread, "AssumeRole")
                raise unread from None

        return DeferredRefreshableCredentials(refresh_using=fetch, method=self.METHOD)

    def _sts(self, service: str, **credentials: Any) -> Any:
        return _new_client(self._source, self._config, service, **credentials)


def _as_option_error(config: ConnectionConfig, error: Exception) -> OptionError:
    if isinstance(error, sdk.NoRegionError):
        return OptionError(
            "option 'region' is required: neither AWS_DEFAULT_REGION nor the SDK's configuration file names "
            "one"
        )
    if isinstance(error, sdk.ProfileNotFound):
        given = "AWS_PROFILE" if config.profile is None else "option 'profile'"
        return OptionError(f"{given} is '{error.kwargs['profile']}': the SDK's files hold no such profile")
    if isinstance(error, sdk.InvalidRegionError):
        return OptionError(f"option 'region' is {config.region!r}: not the name of a region")
    if isinstance(error, sdk.NoCredentialsError):
        return OptionError(
            "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, run 'aws configure', give "
            "option 'profile', or run where a role has them"
        )
    return OptionError(f"no client can be made from the connection options: {redact(str(error))}")
