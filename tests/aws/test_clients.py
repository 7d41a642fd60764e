"""Connection options and the clients made from them."""

from __future__ import annotations

import gc
import json
import os
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import boto3.session
import botocore.credentials
import botocore.loaders
import botocore.session
import pytest
from botocore import exceptions as sdk
from kinesis_transport import Transport, answer, forget_process_state, header, refusal

from sluice.aws.calling import clients
from sluice.aws.calling.calls import Calls
from sluice.aws.calling.clients import client_for, credentials_for, endpoint_for
from sluice.aws.calling.connection import CONNECTION_OPTIONS, ConnectionConfig, connection_from_options
from sluice.aws.errors import translate
from sluice.errors import OptionError, ServiceError
from sluice.options import read_options
from sluice.retry import Backoff, Retrier

KEYS = {"awsAccessKeyId": "AKIAEXAMPLE000000000", "awsSecretAccessKey": "hush-hush"}
ROLE = "arn:aws:iam::123456789012:role/reader"
LOCAL = ConnectionConfig(
    region="eu-west-1",
    endpoint_url="http://127.0.0.1:9",
    access_key_id="AKIDEXAMPLE",
    secret_access_key="hush",
)


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    yield
    forget_process_state()


def read(**given: str) -> ConnectionConfig:
    values = read_options("test", CONNECTION_OPTIONS, given)
    config = connection_from_options(values)
    values.check()
    return config


def test_every_option_reaches_the_config() -> None:
    """The config holds every value, durations in seconds."""
    config = read(
        region="eu-west-1",
        endpointUrl="http://127.0.0.1:4566",
        **KEYS,
        awsSessionToken="token",
        roleArn=ROLE,
        roleSessionName="me",
        roleExternalId="ext",
        stsEndpointUrl="https://sts.example",
        connectTimeout="250ms",
        readTimeout="2m",
    )
    assert config == ConnectionConfig(
        region="eu-west-1",
        endpoint_url="http://127.0.0.1:4566",
        access_key_id=KEYS["awsAccessKeyId"],
        secret_access_key="hush-hush",
        session_token="token",
        role_arn=ROLE,
        role_session_name="me",
        role_external_id="ext",
        sts_endpoint_url="https://sts.example",
        connect_timeout=0.25,
        read_timeout=120.0,
    )
    assert read(profile="p").profile == "p"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"awsAccessKeyId": "x"}, "awsSecretAccessKey"),
        ({"awsSecretAccessKey": "x"}, "awsAccessKeyId"),
        ({"awsSessionToken": "x"}, "awsSessionToken"),
        ({**KEYS, "profile": "p"}, "profile"),
        ({"roleSessionName": "me"}, "roleSessionName"),
        ({"roleExternalId": "me"}, "roleExternalId"),
        ({"stsEndpointUrl": "http://h"}, "stsEndpointUrl"),
        ({"endpointUrl": "localhost:4566"}, "endpointUrl"),
        ({"endpointUrl": "ftp://host"}, "endpointUrl"),
        ({"endpointUrl": "http://"}, "endpointUrl"),
        ({"endpointUrl": "http://host:99999"}, "endpointUrl"),
        ({"endpointUrl": "http://user:pass@host"}, "endpointUrl"),
        ({"roleArn": "reader"}, "roleArn"),
        ({"roleArn": ROLE, "roleSessionName": "a b"}, "roleSessionName"),
        ({"region": "eu west"}, "region"),
        ({"connectTimeout": "0"}, "connectTimeout"),
        ({"readTimeout": "soon"}, "readTimeout"),
        ({"awsAccessKeyId": "a\nb", "awsSecretAccessKey": "x"}, "awsAccessKeyId"),
    ],
)
def test_a_bad_option_is_refused_by_name(given: dict[str, str], named: str) -> None:
    """A bad value, or an option that lacks another one, is refused in an error that names the option."""
    with pytest.raises(OptionError, match=f"option '{named}'"):
        read(**given)


def test_secrets_are_never_shown() -> None:
    """Neither the printed config nor an error holds a secret."""
    secrets = {"awsAccessKeyId": "KEYID", "awsSecretAccessKey": "s3cr3t", "awsSessionToken": "t0k3n"}
    config = read(**secrets, roleArn=ROLE)
    for secret in secrets.values():
        assert secret not in repr(config)
    with pytest.raises(OptionError) as refused:
        read(awsSecretAccessKey="sec ret", awsSessionToken="to ken")
    assert "sec ret" not in str(refused.value)
    assert "to ken" not in str(refused.value)


def test_a_client_is_made_once_per_process_and_service() -> None:
    """Equal configs share a client in all threads; another service or config has its own."""
    found: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(client_for(pickle.loads(pickle.dumps(LOCAL)), "kinesis"))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len({id(client) for client in found}) == 1
    assert client_for(LOCAL, "sts") is not found[0]
    assert (
        client_for(ConnectionConfig(**{**LOCAL.__dict__, "region": "us-east-1"}), "kinesis") is not found[0]
    )


def test_a_forked_child_makes_its_own_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes share no connections, and a lock that was held at the fork does not block."""
    parent = client_for(LOCAL, "kinesis")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert client_for(LOCAL, "kinesis") is not parent
    with clients._lock:
        held = clients._lock
        clients._renew_lock()
    assert clients._lock is not held
    assert not clients._lock.locked()


@pytest.mark.parametrize("service", clients._SERVICES)
def test_the_sdks_descriptions_are_read_as_the_sdk_does(service: str) -> None:
    own, ours = botocore.loaders.create_loader(), clients._loader(None)
    for kind in ("service-2", "endpoint-rule-set-1"):
        assert ours.load_service_model(service, kind) == own.load_service_model(service, kind)
    assert ours.load_data("endpoints") == own.load_data("endpoints")


def test_a_broken_description_of_the_user_s_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "endpoints.json").write_text('{"partitions": ')
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    with pytest.raises(OptionError, match=r"endpoints\.json: Input data was truncated"):
        client_for(LOCAL, "kinesis")


def test_garbage_collection_resumes_once_a_client_is_made() -> None:
    client_for(LOCAL, "kinesis")

    assert gc.isenabled()


def test_the_sdk_makes_one_attempt_with_our_timeouts() -> None:
    """And with a connection for every shard that a task reads at a time."""
    config = client_for(ConnectionConfig(**{**LOCAL.__dict__, "read_timeout": 7.5}), "kinesis").meta.config
    assert config.retries["total_max_attempts"] == 1
    assert (config.connect_timeout, config.read_timeout) == (5.0, 7.5)
    assert config.max_pool_connections >= 64
    assert "sluice/" in config.user_agent_extra


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ConnectionConfig(access_key_id="a", secret_access_key="b"), "option 'region' is required"),
        (ConnectionConfig(region="eu-west-1", profile="gone"), "option 'profile' is 'gone'"),
        (ConnectionConfig(region="eu-west-1"), "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        (ConnectionConfig(region="eu-west-1", role_arn=ROLE), "set AWS_ACCESS_KEY_ID"),
    ],
)
def test_a_gap_in_the_sdks_chain_is_an_option_error(config: ConnectionConfig, message: str) -> None:
    """No region, no credentials, no such profile: the error names the options that help."""
    with pytest.raises(OptionError, match=message):
        client_for(config, "kinesis")


@pytest.mark.parametrize(
    ("endpoint", "sts_endpoint", "service", "expected"),
    [
        (None, None, "kinesis", None),
        ("http://127.0.0.1:4566", None, "kinesis", "http://127.0.0.1:4566"),
        ("http://127.0.0.1:4566", None, "sts", "http://127.0.0.1:4566"),
        ("http://127.0.0.1:4566", "http://127.0.0.1:5000", "sts", "http://127.0.0.1:5000"),
        (None, "http://127.0.0.1:5000", "kinesis", None),
        ("https://kinesis.eu-west-1.amazonaws.com", None, "sts", None),
        (
            "https://vpce-1-2.kinesis-streams.eu-west-1.vpce.amazonaws.com",
            None,
            "kinesis",
            "https://vpce-1-2.kinesis-streams.eu-west-1.vpce.amazonaws.com",
        ),
        ("https://notamazonaws.com", None, "sts", "https://notamazonaws.com"),
        (
            "https://streams.dynamodb.eu-west-1.amazonaws.com",
            None,
            "dynamodbstreams",
            "https://streams.dynamodb.eu-west-1.amazonaws.com",
        ),
        (
            "https://vpce-1-2-streams.dynamodb.eu-west-1.vpce.amazonaws.com",
            None,
            "dynamodbstreams",
            "https://vpce-1-2-streams.dynamodb.eu-west-1.vpce.amazonaws.com",
        ),
        ("https://dynamodb.eu-west-1.amazonaws.com", None, "dynamodbstreams", None),
    ],
)
def test_which_endpoint_a_service_is_called_at(
    endpoint: str | None, sts_endpoint: str | None, service: str, expected: str | None
) -> None:
    """endpointUrl is for all services, unless it is a host of AWS; STS has stsEndpointUrl first."""
    config = ConnectionConfig(endpoint_url=endpoint, sts_endpoint_url=sts_endpoint)
    assert endpoint_for(config, service) == expected


# --- clients are few ------------------------------------------------------------------------------------


def other(number: int) -> ConnectionConfig:
    """A config for the same endpoint with other credentials: they rotate in several ways."""
    changes: dict[str, Any] = {"session_token": f"token-{number}"}
    if number % 3 == 1:
        changes |= {"access_key_id": f"ASIA{number:016}", "secret_access_key": f"hush-{number}"}
    if number % 3 == 2:
        changes |= {"role_arn": ROLE, "role_session_name": f"session-{number}"}
    return ConnectionConfig(**{**LOCAL.__dict__, **changes})


def test_clients_are_few_whatever_credentials_pass() -> None:
    """Options with new credentials for every batch: old clients go, with their sessions."""
    made = [
        weakref.ref(client_for(other(number), service))
        for number in range(30)
        for service in ("kinesis", "sqs")
    ]
    gc.collect()
    assert sum(client() is not None for client in made) <= 20
    sessions = [each for each in gc.get_objects() if isinstance(each, botocore.session.Session)]
    assert len(sessions) <= 50


class Drip(BaseHTTPRequestHandler):
    """Answers with two bytes: the second one when the test says so."""

    protocol_version = "HTTP/1.1"
    go_on = threading.Event()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"a")
        self.wfile.flush()
        self.go_on.wait(10)
        self.wfile.write(b"b")

    def log_message(self, *_: Any) -> None:
        pass


def test_an_answer_that_is_being_read_outlives_its_client() -> None:
    """A subscription is such an answer: it runs for minutes after the call."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Drip)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Drip.go_on.clear()
    try:
        here = {**LOCAL.__dict__, "endpoint_url": f"http://127.0.0.1:{server.server_port}"}
        client = client_for(ConnectionConfig(**here), "s3")
        body = client.get_object(Bucket="bucket", Key="key")["Body"]
        assert body.read(1) == b"a"

        gone = weakref.ref(client)
        del client
        for number in range(40):
            client_for(other(number), "s3")
        gc.collect()
        assert gone() is None
        Drip.go_on.set()
        assert body.read(1) == b"b"
    finally:
        Drip.go_on.set()
        server.shutdown()
        server.server_close()


# --- an assumed role ----------------------------------------------------------------------------------

STS_ANSWER = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>
<Credentials><AccessKeyId>ROLEKEY{n}</AccessKeyId><SecretAccessKey>s</SecretAccessKey>
<SessionToken>t</SessionToken><Expiration>{expires}</Expiration></Credentials>
<AssumedRoleUser><Arn>arn:aws:sts::123456789012:assumed-role/reader/me</Arn></AssumedRoleUser>
</AssumeRoleResult></AssumeRoleResponse>"""


class Sts:
    """Returns credentials that expire after a given time, and counts requests."""

    def __init__(
        self, lifetime: timedelta, now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
    ) -> None:
        self.lifetime = lifetime
        self.now = now
        self.requests = 0

    def answer(self, operation: str, _params: dict[str, Any]) -> Any:
        if operation:
            return answer({"Shards": []})
        self.requests += 1
        expires = self.now() + self.lifetime
        body = STS_ANSWER.format(n=self.requests, expires=expires.strftime("%Y-%m-%dT%H:%M:%SZ"))
        return answer(body.encode())


def assumed(monkeypatch: pytest.MonkeyPatch, sts: Sts, config: ConnectionConfig) -> tuple[Any, Transport]:
    transport = Transport(sts.answer)
    plain = clients._new_client

    def wired(*args: Any, **credentials: Any) -> Any:
        client = plain(*args, **credentials)
        transport.install(client)
        return client

    monkeypatch.setattr(clients, "_new_client", wired)
    return client_for(config, "kinesis"), transport


def role(**changes: Any) -> ConnectionConfig:
    return ConnectionConfig(**{**LOCAL.__dict__, "role_arn": ROLE, **changes})


def signed_with(transport: Transport) -> list[str]:
    texts = [header(request, "Authorization") for request in transport.requests]
    return [text.partition("Credential=")[2].partition("/")[0] for text in texts]


def test_a_role_is_assumed_with_the_given_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """STS is called once with the source's keys; other calls are signed with the role's."""
    sts = Sts(timedelta(hours=1))
    client, transport = assumed(monkeypatch, sts, role(role_session_name="me", role_external_id="ext"))
    assert sts.requests == 0, "no call is made before one is needed"
    client.list_shards(StreamName="s")
    client.list_shards(StreamName="s")
    assert signed_with(transport) == ["AKIDEXAMPLE", "ROLEKEY1", "ROLEKEY1"]
    fields = dict(parse_qsl(transport.calls[0][1]["body"]))
    assert fields["RoleSessionName"] == "me"
    assert fields["ExternalId"] == "ext"
    assert transport.requests[0].url.startswith("http://127.0.0.1:9")


def test_a_silent_sts_is_not_mistaken_for_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the endpoint of STS. It has to say whose it is: the other call was never made."""

    def unreachable(operation: str, _params: dict[str, Any]) -> Any:
        assert not operation, "nothing but STS is called"
        raise sdk.EndpointConnectionError(endpoint_url="http://sts.invalid/", error="refused")

    sts = Sts(timedelta(hours=1))
    monkeypatch.setattr(sts, "answer", unreachable)
    client, _ = assumed(monkeypatch, sts, role())
    with pytest.raises(sdk.EndpointConnectionError) as caught:
        client.list_shards(StreamName="s")

    error = translate(caught.value, operation="ListShards", target="s", endpoint="http://127.0.0.1:9")
    assert str(error).startswith(
        "ListShards of s at http://sts.invalid failed: EndpointConnectionError: AssumeRole (options "
        "'roleArn', 'stsEndpointUrl'): "
    )


@pytest.mark.parametrize("body", [b"", b"<ok/>", b"{}", b"<html>busy</html>", b"not xml at all", b"\xff\xfe"])
@pytest.mark.parametrize("status", [200, 403, 502])
def test_an_answer_that_is_not_that_of_sts_names_its_options(
    monkeypatch: pytest.MonkeyPatch, body: bytes, status: int
) -> None:
    """Such as that of a proxy, or of another service at `stsEndpointUrl`."""
    sts = Sts(timedelta(hours=1))
    monkeypatch.setattr(sts, "answer", lambda operation, _params: AWSAnswer(operation, body, status))
    client, _ = assumed(monkeypatch, sts, role())
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever the SDK has for it
        client.list_shards(StreamName="s")

    error = translate(caught.value, operation="ListShards", target="s", endpoint="http://127.0.0.1:9")
    assert "AssumeRole (options 'roleArn', 'stsEndpointUrl')" in str(error)
    assert error.retryable or status == 403


def AWSAnswer(operation: str, body: bytes, status: int) -> Any:  # noqa: N802 - what the network gives
    assert not operation, "nothing but STS is called"
    made = answer(body)
    made.status_code = status
    return made


@pytest.mark.parametrize("code", ["AccessDenied", "ExpiredToken", "InvalidClientTokenId", "InvalidToken"])
def test_a_role_that_is_refused_blocks_nobody(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """The refusal is heard while the credentials are asked for, and no lock is held over that call."""
    refused = f"""<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>
<Code>{code}</Code><Message>no</Message></Error><RequestId>1</RequestId></ErrorResponse>""".encode()
    sts = Sts(timedelta(hours=1))
    monkeypatch.setattr(sts, "answer", lambda operation, _params: AWSAnswer(operation, refused, 403))
    assumed(monkeypatch, sts, role())
    ended = threading.Event()

    def ask() -> None:
        with pytest.raises(OptionError, match=code):
            credentials_for(role())
        ended.set()

    threading.Thread(target=ask, daemon=True).start()
    assert ended.wait(60)


def test_sts_is_asked_in_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every version of the SDK: before 1.40 its default was one endpoint for the world."""
    config = ConnectionConfig(region="eu-west-1", access_key_id="a", secret_access_key="b")
    assert clients._new_client(clients._new_session(config), config, "sts").meta.endpoint_url == (
        "https://sts.eu-west-1.amazonaws.com"
    )
    session = clients._bare_session(config)
    assert session.get_config_variable("sts_regional_endpoints") == "regional"

    monkeypatch.setenv("AWS_STS_REGIONAL_ENDPOINTS", "legacy")  # the user's word
    assert clients._bare_session(config).get_config_variable("sts_regional_endpoints") == "legacy"


# --- credentials of a function ------------------------------------------------------------------------


def a_botocore_session() -> Any:
    session = botocore.session.Session()
    session.set_credentials("PROVIDED", "hush", "token")
    session.set_config_variable("region", "eu-south-1")
    return session


def a_boto3_session() -> Any:
    return boto3.session.Session("PROVIDED", "hush", "token", region_name="eu-south-1")


def some_credentials() -> Any:
    return botocore.credentials.Credentials("PROVIDED", "hush", "token")


def frozen_credentials() -> Any:
    return botocore.credentials.ReadOnlyCredentials("PROVIDED", "hush", "token")


def a_text() -> str:
    return "PROVIDED:hush"


def a_failure() -> None:
    raise RuntimeError("the vault is sealed: AKIAEXAMPLE000000000")


def no_credentials() -> Any:
    return botocore.session.Session()


@pytest.mark.parametrize(
    "function", ["a_botocore_session", "a_boto3_session", "some_credentials", "frozen_credentials"]
)
def test_credentials_come_from_a_function(function: str) -> None:
    """It is called in each process, and its name alone is pickled. A session gives its region, too."""
    region = None if "session" in function else "eu-south-1"
    config = pickle.loads(pickle.dumps(read(credentialsProvider=f"{__name__}:{function}")))
    config = replace(config, region=region)
    found = credentials_for(config)

    assert (found.access_key, found.secret_key, found.token) == ("PROVIDED", "hush", "token")
    assert client_for(config, "kinesis").meta.region_name == "eu-south-1"
    assert not config.has_fixed_credentials  # so new ones are asked for when these are refused


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no.such.module:f", "which cannot be loaded"),
        (f"{__name__}:no_such_function", "which cannot be loaded"),
        (f"{__name__}:a_text", "it returned str: allowed are a botocore or boto3 session"),
        (f"{__name__}:a_failure", "it raised RuntimeError: the vault is sealed"),
        (f"{__name__}:no_credentials", "it returned NoneType"),
    ],
)
def test_a_function_without_credentials_is_named_and_no_secret_shown(
    monkeypatch: pytest.MonkeyPatch, name: str, problem: str
) -> None:
    monkeypatch.setattr(botocore.session.Session, "get_credentials", lambda _: None)
    with pytest.raises(OptionError, match=problem) as caught:
        client_for(ConnectionConfig(region="eu-west-1", credentials_provider=name), "kinesis")

    assert name in str(caught.value)
    assert "hush" not in str(caught.value)
    assert "AKIA" not in str(caught.value)


@pytest.mark.parametrize("other", [{"profile": "x"}, KEYS])
def test_a_function_and_other_credentials_exclude_one_another(other: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="and 'credentialsProvider' exclude one another"):
        read(credentialsProvider="a.b:c", **other)


def test_a_role_lasts_for_months(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ninety days, with some calls on each: none is signed with what has ended, and little is asked for."""
    now = begin = datetime(2026, 1, 1, tzinfo=timezone.utc)
    sts = Sts(timedelta(hours=1), lambda: now)
    client, transport = assumed(monkeypatch, sts, role())
    client._request_signer._credentials._time_fetcher = lambda: now
    kept = len(clients._clients), len(clients._sessions)
    begun: dict[str, datetime] = {}
    for number in range(90 * 4):
        now = begin + timedelta(days=number // 4, minutes=20 * (number % 4))
        client.list_shards(StreamName="s")
        key = signed_with(transport)[-1]
        assert key == f"ROLEKEY{sts.requests}"
        assert now - begun.setdefault(key, now) < timedelta(hours=1)
        transport.calls.clear()
        transport.requests.clear()

    assert sts.requests == 90 * 2
    assert (len(clients._clients), len(clients._sessions)) == kept


def test_static_keys_with_a_session_token_are_sent() -> None:
    """The token travels in the header AWS expects."""
    client = client_for(ConnectionConfig(**{**LOCAL.__dict__, "session_token": "tok"}), "kinesis")
    transport = Transport(lambda _operation, _params: answer(json.dumps({"Shards": []}).encode()))
    transport.install(client)
    client.list_shards(StreamName="s")
    assert header(transport.requests[0], "X-Amz-Security-Token") == "tok"


def test_keys_come_from_a_profile(tmp_path: Path) -> None:
    """A profile of the shared files gives keys and region."""
    (tmp_path / "credentials").write_text("[p]\naws_access_key_id=PROFILEKEY\naws_secret_access_key=x\n")
    (tmp_path / "config").write_text("[profile p]\nregion=eu-north-1\n")
    client = client_for(ConnectionConfig(profile="p", endpoint_url="http://127.0.0.1:9"), "kinesis")
    transport = Transport(lambda _operation, _params: answer({"Shards": []}))
    transport.install(client)
    client.list_shards(StreamName="s")
    assert signed_with(transport) == ["PROFILEKEY"]
    assert client.meta.region_name == "eu-north-1"


class Rotated:
    """A credentials file that is written anew from time to time, and a service that takes one key of it."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = file
        self.valid = ""
        self.code = "ExpiredTokenException"
        self.transport = Transport(self._answer)
        new_client = clients._new_client

        def new(*arguments: Any, **more: Any) -> Any:
            client = new_client(*arguments, **more)
            self.transport.install(client)
            return client

        monkeypatch.setattr(clients, "_new_client", new)

    def write(self, key: str) -> None:
        self.file.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=x\n")

    def _answer(self, _operation: str, _params: dict[str, Any]) -> Any:
        if signed_with(self.transport)[-1] == self.valid:
            return answer({"Shards": []})
        return refusal(self.code, "The security token included in the request is not accepted")


def calls_of(connection: ConnectionConfig, wait: Callable[[float], None]) -> Calls:
    backoffs = {"ListShards": Backoff(3, 1.0, 1.0, 1.0)}
    return Calls(connection, "kinesis", backoffs, Retrier(sleep=wait, jitter=lambda: 1.0))


def test_expired_credentials_of_a_file_are_loaded_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the file is written some time after they have expired."""
    rotated = Rotated(tmp_path / "credentials", monkeypatch)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            rotated.write("NEW")

    here = ConnectionConfig(region="eu-west-1", endpoint_url="http://127.0.0.1:9")
    calls = calls_of(here, wait)
    rotated.write("OLD")
    rotated.valid = "OLD"
    calls.call("ListShards", "s", {"StreamName": "s"}, lambda _answer: None)
    rotated.valid = "NEW"
    calls.call("ListShards", "s", {"StreamName": "s"}, lambda _answer: None)
    assert signed_with(rotated.transport) == ["OLD", "OLD", "OLD", "NEW"]


@pytest.mark.parametrize("code", ["UnrecognizedClientException", "InvalidClientTokenId"])
def test_credentials_of_a_file_that_are_not_known_any_more_are_loaded_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """A key that was replaced and deleted, or a token that expired long ago. A wrong key fails soon."""
    rotated = Rotated(tmp_path / "credentials", monkeypatch)
    rotated.code = code
    calls = calls_of(
        ConnectionConfig(region="eu-west-1", endpoint_url="http://127.0.0.1:9"), lambda _seconds: None
    )
    rotated.write("OLD")
    rotated.valid = "OLD"
    calls.call("ListShards", "s", {"StreamName": "s"}, lambda _answer: None)
    rotated.write("NEW")
    rotated.valid = "NEW"
    calls.call("ListShards", "s", {"StreamName": "s"}, lambda _answer: None)
    assert signed_with(rotated.transport) == ["OLD", "OLD", "NEW"]

    rotated.valid = "OTHER"
    with pytest.raises(ServiceError, match=rf"{code}.*check the credentials"):
        calls.call("ListShards", "s", {"StreamName": "s"}, lambda _answer: None)
    assert len(rotated.transport.requests) == 3 + 2


def test_credentials_that_stay_expired_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last retry, or at once where they are options, which cannot change."""
    rotated = Rotated(tmp_path / "credentials", monkeypatch)
    rotated.write("OLD")
    here = ConnectionConfig(region="eu-west-1", endpoint_url="http://127.0.0.1:9")
    for connection, attempts in ((here, 4), (LOCAL, 1)):
        rotated.transport.requests.clear()
        calls = calls_of(connection, lambda _seconds: None)
        with pytest.raises(ServiceError, match=r"ExpiredTokenException.*check the credentials"):
            calls.call("ListShards", "s", {"StreamName": "s"}, lambda _answer: None)
        assert len(rotated.transport.requests) == attempts


@pytest.mark.parametrize("half_written", ["", "[default]\n", "[default]\naws_access_key_id=NE", "[defau"])
def test_a_credentials_file_that_is_being_written_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half_written: str
) -> None:
    """A command whose output goes to the file leaves it empty until the new credentials have come."""
    rotated = Rotated(tmp_path / "credentials", monkeypatch)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        rotated.file.write_text(half_written)
        if len(waits) == 2:
            rotated.write("NEW")

    here = ConnectionConfig(region="eu-west-1", endpoint_url="http://127.0.0.1:9")
    calls = calls_of(here, wait)
    rotated.write("OLD")
    rotated.valid = "NEW"
    calls.call("ListShards", "s", {"StreamName": "s"}, lambda _answer: None)
    assert signed_with(rotated.transport) == ["OLD", "OLD", "NEW"]


@pytest.mark.parametrize(
    "host",
    [
        "ec2-198-51-100-7.eu-west-1.compute.amazonaws.com",
        "ec2-198-51-100-7.cn-north-1.compute.amazonaws.com.cn",
        "internal-gate-1234.eu-west-1.elb.amazonaws.com",
        "gate-0123456789.elb.us-gov-west-1.amazonaws.com",
        "a1b2c3.execute-api.eu-west-1.amazonaws.com",
        "gate.example.com",
        "localstack",
        "192.0.2.7",
    ],
)
@pytest.mark.parametrize(
    "service", ["kinesis", "dynamodb", "dynamodbstreams", "firehose", "s3", "sqs", "sts"]
)
def test_a_host_of_the_user_s_is_used_for_every_service(host: str, service: str) -> None:
    """Also below AWS' own domains, where everybody's machines and gateways are."""
    url = f"http://{host}:4566"

    assert endpoint_for(ConnectionConfig(endpoint_url=url), service) == url


@pytest.mark.parametrize(
    ("host", "service"),
    [
        ("kinesis.eu-west-1.amazonaws.com", "kinesis"),
        ("kinesis-fips.us-gov-west-1.amazonaws.com", "kinesis"),
        ("123456789012.data-kinesis.eu-west-1.amazonaws.com", "kinesis"),
        ("123456789012.control-kinesis.eu-west-1.api.aws", "kinesis"),
        ("vpce-1-2.kinesis.eu-west-1.vpce.amazonaws.com", "kinesis"),
        ("kinesis.cn-north-1.amazonaws.com.cn", "kinesis"),
        ("kinesis.eusc-de-east-1.amazonaws.eu", "kinesis"),
        ("kinesis.us-iso-east-1.c2s.ic.gov", "kinesis"),
        ("kinesis.us-isob-east-1.sc2s.sgov.gov", "kinesis"),
        ("kinesis.cn-north-1.api.amazonwebservices.com.cn", "kinesis"),
        ("dynamodb.us-isof-south-1.csp.hci.ic.gov", "dynamodb"),
        ("123456789012.ddb.eu-west-1.amazonaws.com", "dynamodb"),
        ("streams.dynamodb.eu-west-1.amazonaws.com", "dynamodbstreams"),
        ("eu-west-1.queue.amazonaws.com", "sqs"),
        ("sqs-fips.us-east-1.amazonaws.com", "sqs"),
        ("s3.dualstack.eu-west-1.amazonaws.com", "s3"),
        ("bucket.s3.eu-west-1.amazonaws.com", "s3"),
        ("sts.eu-west-1.amazonaws.com", "sts"),
    ],
)
def test_a_host_of_aws_itself_is_used_for_its_service_alone(host: str, service: str) -> None:
    """In every partition, by FIPS, dual stack, account or private link."""
    config = ConnectionConfig(endpoint_url=f"https://{host}")
    services = ("kinesis", "dynamodb", "dynamodbstreams", "firehose", "s3", "sqs", "sts")

    assert [each for each in services if endpoint_for(config, each)] == [service]
