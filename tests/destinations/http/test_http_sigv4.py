"""Signatures that a service verifies by the documents, and credentials that expire."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_endpoint import HTTP, destination
from hypothesis import given, settings
from hypothesis import strategies as st
from integration.support.http_server import Sent, http_server
from integration.support.sigv4 import Key, Verifier, canonical_request, signature

from sluice.aws.calling import clients
from sluice.aws.calling.connection import ConnectionConfig
from sluice.destinations import read_sink
from sluice.destinations.common import first_contact
from sluice.destinations.http.sigv4 import SigV4, canonical_url
from sluice.errors import OptionError, ServiceError

# Of AWS' own test suite, with the signatures that it lists.
SUITE_SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"  # noqa: S105 - of the suite
SUITE = {
    ("GET", "/", ""): "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
    ("POST", "/", ""): "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
    ("GET", "//example//", ""): "9a624bd73a37c9a373b5312afbebe7a714a789de108f0bdfe846570885f57e84",
    ("GET", "/example/..", ""): "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
    ("GET", "/./example", ""): "ef75d96142cf21edca26f06005da7988e4f8dc83a165a80865db7089db637ec5",
    ("GET", "/example space/", ""): "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741",
    ("GET", "/\u1234", ""): "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85",
    ("GET", "/", "Param1=value1"): "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb",
    (
        "GET",
        "/",
        "Param2=value2&Param1=value1",
    ): "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
    ("GET", "/", "\u1234=bar"): "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04",
}
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize("case", SUITE, ids=str)
def test_the_verifier_makes_the_signatures_of_the_test_suite(case: tuple[str, str, str]) -> None:
    """Or it would prove nothing."""
    method, path, query = case
    headers = [("host", "example.amazonaws.com"), ("x-amz-date", "20150830T123600Z")]
    target = path + (f"?{query}" if query else "")
    request = canonical_request(method, target, headers, ["host", "x-amz-date"], EMPTY)

    assert signature(SUITE_SECRET, "20150830T123600Z", "us-east-1", "service", request) == SUITE[case]


# --- a service that verifies -------------------------------------------------------------------------------

ACCESS, SECRET = "AKIDEXAMPLE", SUITE_SECRET
SERVICES = ["es", "aoss", "execute-api", "vpc-lattice-svcs"]
WRITTEN = st.text(st.sampled_from("ab0-_.~/:@!$&'()*+,;=%?[]\"<>^`{|}\\"), max_size=12)
PATHS = WRITTEN.map(lambda text: text.replace("?", "").replace("%", "%2F"))
NAMES = st.sampled_from(["x-tenant", "x-amz-meta-a", "content-type", "accept", "host", "date"])


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setattr(first_contact, "_answered", set())
    yield
    clients._sessions.clear()


class Service:
    """Verifies each request.

    Attributes:
        accepted, refused: bodies, and why.
    """

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier
        self.accepted: list[Sent] = []
        self.refused: list[str] = []
        self.before: Callable[[], None] = lambda: None

    def __call__(self, sent: Sent) -> tuple[int, bytes]:
        self.before()
        problem = self.verifier.problem(sent.method, sent.target, sent.headers, sent.body)
        if problem is None:
            self.accepted.append(sent)
            return 200, b""
        self.refused.append(problem)
        return 403, json.dumps({"message": problem}).encode()


STATIC = {"awsAccessKeyId": ACCESS, "awsSecretAccessKey": SECRET, "region": "eu-west-1"}


def signed(url: str, service: str = "es", **options: str) -> Any:
    return destination(url=url, auth="sigv4", sigv4Service=service, **options)


@settings(max_examples=300, deadline=None)
@given(
    service=st.sampled_from(SERVICES),
    url=st.tuples(PATHS, PATHS),
    headers=st.dictionaries(NAMES, st.text(st.sampled_from("ab  c,;=é"[:8]), min_size=1, max_size=8)),
    body=st.binary(max_size=20),
    token=st.none() | st.just("session/token=="),
)
def test_every_signature_is_verified(
    service: str, url: tuple[str, str], headers: dict[str, str], body: bytes, token: str | None
) -> None:
    """For any URL, as it is sent."""
    path, query = url
    final = canonical_url(f"https://Search.example:443/{path}" + (f"?{query}" if query else ""))
    connection = ConnectionConfig("eu-west-1", None, None, ACCESS, SECRET, token)
    given_headers = {"user-agent": "x", "accept": "y"} | headers
    made = SigV4("POST", final, service, connection).authorize(body, given_headers).headers
    sent = [("host", "search.example"), *made.items()] if "host" not in made else [*made.items()]
    verifier = Verifier(service, "eu-west-1", {ACCESS: Key(SECRET, token)})

    target = final.partition("search.example:443")[2]
    assert verifier.problem("POST", target, sent, body) is None
    assert canonical_url(final) == final


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "/orders/_bulk?refresh=wait_for&pretty", "/a b".replace(" ", "%20"), "/x/../y/./z//w/"),
        *("/a,b:c*d/_bulk?q=a+b&t=2026-01-01T00:00:00Z&e", "/%E2%82%AC/%2F%2f?x=%c3%a9/%7E&x=1&=&&b=="),
    ],
)
def test_a_service_accepts_what_is_sent(service: str, path: str) -> None:
    """Through a real connection, with the host and the escapes that the client sends."""
    verify = Service(Verifier(service, "eu-west-1", {ACCESS: Key(SECRET)}))
    with http_server(verify) as url:
        made = signed(url + path, service, **STATIC, compression="gzip", **{"header.X-Amz-Meta-A": "b  c"})
        made.submit([b"1", b"2"])

    assert verify.refused == []


def test_a_url_keeps_its_meaning() -> None:
    """Only its escapes change."""
    url = "https://h.test/a%2Fb,c//d?q=a+b%2B%3d&q&x=y=z"

    assert canonical_url(url) == "https://h.test/a%2Fb%2Cc//d?q=a%20b%2B%3D&q&x=y%3Dz"
    assert canonical_url("https://h.test") == "https://h.test/"


def test_a_session_token_that_is_repeated_is_not_shown() -> None:
    """As services do in their answer to a wrong signature."""
    token = "hunter2/session+token=="  # noqa: S105 - of the test

    def repeat(sent: Sent) -> tuple[int, bytes]:
        return (
            403,
            f"the canonical request is x-amz-security-token:{sent.header('x-amz-security-token')}".encode(),
        )

    with http_server(repeat) as url, pytest.raises(ServiceError, match="HTTP status 403") as caught:
        signed(url, **STATIC, awsSessionToken=token).submit([b"1"])

    assert "hunter2" not in str(caught.value)
    assert "because a secret is in it" in str(caught.value)


def test_a_user_may_leave_the_body_unsigned() -> None:
    """By the header that says so, for services that want it."""
    verify = Service(Verifier("es", "eu-west-1", {ACCESS: Key(SECRET)}))
    with http_server(verify) as url, pytest.raises(ServiceError, match="the body is another one"):
        signed(url, **STATIC, **{"header.x-amz-content-sha256": "UNSIGNED-PAYLOAD"}).submit([b"1"])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"awsSecretAccessKey": "hunter2hunter2"}, "does not match"),
        ({"region": "eu-west-2"}, "Credential should be scoped"),
        ({"sigv4Service": "aoss"}, "Credential should be scoped"),
    ],
)
def test_a_wrong_signature_is_fatal(options: dict[str, str], problem: str) -> None:
    """After one request: keys of options stay as they are."""
    verify = Service(Verifier("es", "eu-west-1", {ACCESS: Key(SECRET)}))
    with http_server(verify) as url, pytest.raises(ServiceError) as caught:
        destination(url=url, **({"auth": "sigv4", "sigv4Service": "es", **STATIC} | options)).submit([b"1"])

    assert problem in str(caught.value)
    assert "check option 'sigv4Service', option 'region', and what the credentials may do" in str(
        caught.value
    )
    assert "hunter2" not in str(caught.value)
    assert not caught.value.retryable
    assert len(verify.refused) == 1


def write_keys(file: Path, number: int) -> str:
    """A credentials file with new keys, as a program puts them there. Returns the access key."""
    part = file.with_suffix(".part")
    part.write_text(
        f"[default]\naws_access_key_id = AKID{number}\naws_secret_access_key = secret{number}\n"
        f"aws_session_token = hunter2token{number}\n"
    )
    part.rename(file)
    return f"AKID{number}"


def test_keys_that_expired_are_loaded_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request is sent twice, and none is lost. New keys are waited for half a minute."""
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    write_keys(file, 1)
    keys = {f"AKID{n}": Key(f"secret{n}", f"hunter2token{n}") for n in (1, 2)}
    verify = Service(Verifier("es", "eu-west-1", keys))
    with http_server(verify) as url:
        made = signed(url, region="eu-west-1")
        made.submit([b"1"])
        write_keys(file, 2)
        made.submit([b"2"])
        verify.verifier.expired.add("hunter2token1")
        made.submit([b"3"])
        assert len(verify.refused) == 1
        assert [each.body for each in verify.accepted] == [b"[1]", b"[2]", b"[3]"]
        verify.verifier.expired.add("hunter2token2")
        with pytest.raises(ServiceError, match="token included in the request is expired") as late:
            made.submit([b"4"])
        made._call.clock = lambda: time.monotonic() + 31
        with pytest.raises(ServiceError, match="token included in the request is expired") as caught:
            made.submit([b"4"])

    assert not made.is_fatal(late.value)
    assert made.is_fatal(caught.value)
    assert "hunter2" not in str(caught.value)
    assert len(verify.refused) == 3


STS_ANSWER = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>
<AssumedRoleUser><AssumedRoleId>A:s</AssumedRoleId><Arn>arn:aws:sts::123456789012:assumed-role/r/s</Arn>
</AssumedRoleUser><Credentials><AccessKeyId>AKID{0}</AccessKeyId><SecretAccessKey>secret{0}</SecretAccessKey>
<SessionToken>hunter2token{0}</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>
</AssumeRoleResult></AssumeRoleResponse>"""


def test_a_role_is_assumed_again_when_its_keys_are_refused() -> None:
    """An outage of STS is retried, and a refusal of the role is fatal."""
    keys: dict[str, Key] = {}
    verify = Service(Verifier("execute-api", "eu-west-1", keys))
    answers = iter([200, 200, 503, 200, 403])

    def assume(_: Sent) -> tuple[int, bytes]:
        status = next(answers)
        if status != 200:
            return status, b"<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>"
        number = len(keys) + 1
        keys[f"AKID{number}"] = Key(f"secret{number}", f"hunter2token{number}")
        return 200, STS_ANSWER.format(number).encode()

    with http_server(verify) as url, http_server(assume) as sts:
        role = {"roleArn": "arn:aws:iam::123456789012:role/r", "stsEndpointUrl": sts}
        made = signed(url, "execute-api", **STATIC, **role)
        made.submit([b"1"])
        verify.verifier.expired.add("hunter2token1")
        made.submit([b"2"])
        verify.verifier.expired.add("hunter2token2")
        with pytest.raises(ServiceError) as outage:
            made.submit([b"3"])
        made.submit([b"3"])
        verify.verifier.expired.add("hunter2token3")
        with pytest.raises(ServiceError) as denied:
            made.submit([b"4"])

    assert not made.is_fatal(outage.value)
    assert made.is_fatal(denied.value)
    assert [each.body for each in verify.accepted] == [b"[1]", b"[2]", b"[3]"]
    for error in (outage.value, denied.value):
        assert str(error).startswith("Loading credentials failed: ")
        assert "AssumeRole (options 'roleArn', 'stsEndpointUrl')" in str(error)


def test_a_permission_that_is_missing_is_no_reason_to_renew_for_each_row() -> None:
    """A role is assumed once more, and then not for some seconds."""
    assumed = 0

    def assume(_: Sent) -> tuple[int, bytes]:
        nonlocal assumed
        assumed += 1
        return 200, STS_ANSWER.format(assumed).encode()

    with http_server(lambda _: (403, b"{}")) as url, http_server(assume) as sts:
        role = {"roleArn": "arn:aws:iam::123456789012:role/r", "stsEndpointUrl": sts}
        made = signed(url, **STATIC, **role, rejectedStatuses="403")
        result = made.submit([b"1", b"2", b"3", b"4"])

    assert len(result.rejected) == 4
    assert assumed == 2


def refused(**options: str) -> str:
    with pytest.raises(OptionError) as caught:
        read_sink(HTTP | options)
    return str(caught.value)


SIGV4 = {"auth": "sigv4", "sigv4Service": "es"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"auth": "sigv4"}, "option 'sigv4Service' is required with 'auth' sigv4: the name that AWS signs"),
        ({"auth": "aws"}, "option 'auth' is 'aws': allowed is"),
        ({"sigv4Service": "es"}, "option 'sigv4Service' needs 'auth' sigv4"),
        (SIGV4 | {"bearerToken": "hunter2"}, "option 'bearerToken' and 'auth' sigv4 exclude one another"),
        (
            SIGV4 | {"secretHeader.Authorization": "hunter2"},
            "option 'secretHeader.authorization' and 'auth' sigv4 exclude one another",
        ),
        (SIGV4 | {"header.X-Amz-Date": "x"}, "option 'header.x-amz-date' is set by 'auth' sigv4"),
        (SIGV4 | {"endpointUrl": "http://h"}, "option 'endpointUrl' does nothing here: requests go to 'url'"),
        ({"region": "eu-west-1"}, "option 'region' is for AWS"),
        ({"oauth2Scope": "a"}, "option 'oauth2Scope' needs 'auth' oauth2ClientCredentials"),
        (
            {"auth": "oauth2ClientCredentials", "oauth2ClientId": "a", "oauth2ClientSecret": "hunter2"},
            "option 'oauth2TokenUrl' is required with 'auth' oauth2ClientCredentials: a URL such as",
        ),
        (
            {"bearerTokenFile": "/t", "bearerToken": "hunter2"},
            "option 'bearerToken' and 'bearerTokenFile' exclude one another",
        ),
    ],
)
def test_options_that_do_not_fit_together(options: dict[str, str], message: str) -> None:
    """Each by name, and no secret."""
    shown = refused(**options)

    assert message in shown
    assert "hunter2" not in shown


def test_without_region_or_keys_there_is_no_signature() -> None:
    """The error names the missing option before anything is sent."""
    keys = {key: value for key, value in STATIC.items() if key != "region"}
    with pytest.raises(OptionError, match="option 'region' is required with 'auth' sigv4"):
        signed("https://h.test", **keys).submit([b"1"])
    with pytest.raises(OptionError, match="no credentials: set AWS_ACCESS_KEY_ID"):
        signed("https://h.test", region="eu-west-1").submit([b"1"])
