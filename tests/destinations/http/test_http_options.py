"""Options of the destination, and what of them is never shown."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from fake_endpoint import HTTP, Endpoint, Respond, answer, destination, in_place_of_the_network, setup_of

from sluice.destinations import read_sink
from sluice.errors import OptionError

SECRETS = {
    "bearerToken": "hunter2-token",
    "basicPassword": "hunter2 word",
    "secretHeader.X-Api-Key": "hunter2-key",
}


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Callable[[Respond], Endpoint]:
    return in_place_of_the_network(monkeypatch)


def refused(**options: str) -> str:
    with pytest.raises(OptionError) as caught:
        read_sink(HTTP | options)
    return str(caught.value)


def headers_of(endpoint: Any, **options: str) -> dict[str, str]:
    made = endpoint(lambda _: answer())
    destination(**options).submit([b"1"])
    return dict(made.headers)


@pytest.mark.parametrize(
    "url",
    [
        *("orders.test/v1", "ftp://host", "https://", "https://host:0", "https://host:x", "https://ho st"),
        *("https://user:hunter2@host", "https://host#hunter2", "https://host/\nx: 1", "https://h/ü"),
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str) -> None:
    """User and password have separate options."""
    message = refused(url=url)

    assert "option 'url' is '" in message
    assert "allowed is a URL such as https://host/path" in message
    assert "hunter2" not in message


def test_the_query_of_a_url_is_sent_and_not_shown() -> None:
    """It may be a key."""
    made = destination(url="https://host:8443/rows?key=hunter2")

    assert made.name == "http endpoint 'https://host:8443/rows?***'"
    assert "hunter2" not in repr(setup_of(url="https://host/?key=hunter2").config)


def test_limits_are_defaults_that_users_may_raise() -> None:
    """Nobody knows what an endpoint takes. The other destinations have maxima."""
    config = setup_of(
        maxBatchSize="5000", maxBatchSizeInBytes="10MB", maxRecordSizeInBytes="5MB", maxInFlightRequests="2"
    ).config

    assert (config.max_batch_size, config.max_buffered_requests) == (5000, 5000)
    assert (config.max_batch_size_in_bytes, config.max_record_size_in_bytes) == (10_000_000, 5_000_000)
    default = setup_of().config
    assert (default.max_batch_size, default.max_batch_size_in_bytes) == (100, 1_000_000)
    assert (default.max_in_flight_requests, default.max_buffered_requests) == (8, 1000)


def test_headers(endpoint: Any) -> None:
    """Names in any case; those of the sink can be replaced."""
    headers = headers_of(
        endpoint,
        **{"header.X-Tenant": " t1 ", "HEADER.content-type": "application/cbor", "secretHeader.key": "k k"},
    )

    assert headers["x-tenant"] == "t1"
    assert headers["key"] == "k k"
    assert headers["content-type"] == "application/cbor"
    assert headers["user-agent"].startswith("pyspark-sluice")
    assert "authorization" not in headers


def test_credentials(endpoint: Any) -> None:
    """As RFC 6750 and RFC 7617 have them; text that is not ASCII as UTF-8."""
    basic = base64.b64encode("me:pässwörd:1".encode()).decode()

    assert headers_of(endpoint, bearerToken="abc.def==")["authorization"] == "Bearer abc.def=="
    assert (
        headers_of(endpoint, basicUser="me", basicPassword="pässwörd:1")["authorization"] == f"Basic {basic}"
    )
    assert headers_of(endpoint, **{"secretHeader.Authorization": "ApiKey x"})["authorization"] == "ApiKey x"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"basicUser": "me"}, "option 'basicPassword' is required with 'basicUser'"),
        ({"basicPassword": "x"}, "option 'basicUser' is required with 'basicPassword'"),
        (
            {"bearerToken": "x", "basicUser": "me", "basicPassword": "x"},
            "option 'basicUser' and 'bearerToken' exclude one another",
        ),
        (
            {"bearerToken": "x", "secretHeader.authorization": "y"},
            "option 'secretHeader.authorization' excludes bearerToken and basicUser",
        ),
        (
            {"header.Authorization": "x"},
            "would show a secret in Spark's plans: use 'secretHeader.authorization'",
        ),
        ({"header.Cookie": "x"}, "use 'secretHeader.cookie'"),
        ({"header.a": "x", "secretHeader.A": "y"}, "option 'secretHeader.A' is given twice"),
        ({"header.Content-Length": "5"}, "is set by the sink"),
        ({"header.": "x"}, "is not the name of a header"),
        ({"header.a b": "x"}, "is not the name of a header"),
        ({"header.a": "x\r\nevil: 1"}, "allowed is printable characters of ASCII"),
        ({"method": "P OST"}, "allowed is an HTTP method such as POST"),
        ({"method": "head"}, "allowed is an HTTP method such as POST"),
        ({"bodyFormat": "xml"}, "allowed is one of jsonArray, jsonLines"),
        (
            {"bodyFormat": "jsonLines", "arrayField": "rows"},
            "option 'arrayField' needs 'bodyFormat' jsonArray",
        ),
        ({"resultStatusPath": "$.status"}, "option 'resultStatusPath' needs 'resultsPath'"),
        ({"resultsPath": "items"}, "allowed is a path into JSON such as $.items[*].status"),
        (
            {"resultsPath": "$", "acceptedErrors": "a"},
            "option 'acceptedErrors' needs 'resultErrorPath'",
        ),
        (
            {
                "resultsPath": "$",
                "resultErrorPath": "$.error",
                "acceptedErrors": "a, B",
                "fatalErrors": "b",
            },
            "option 'fatalErrors' and 'acceptedErrors' both have b",
        ),
        ({"fatalErrors": "a,,b"}, "allowed is errors of rows such as conflict, forbidden"),
        ({"region": "eu-west-1"}, "option 'region' is for AWS"),
        ({"endpointUrl": "https://x"}, "option 'endpointUrl' is for AWS"),
        ({"bearrerToken": "x"}, "did you mean 'bearerToken'?"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, str], message: str) -> None:
    """When the query starts."""
    assert message in refused(**options)


def test_the_url_is_required() -> None:
    """There is no default."""
    with pytest.raises(OptionError, match="option 'url' is required: a URL such as"):
        read_sink({"destination": "http"})


def test_options_of_aws_are_for_dead_letters() -> None:
    """Timeouts are for both."""
    aws = {"region": "eu-west-1", "awsAccessKeyId": "id", "awsSecretAccessKey": "key"}

    assert setup_of(deadLetterPath="s3://letters/x", connectTimeout="1s", readTimeout="2s", **aws)
    assert "option 'region' is for AWS" in refused(deadLetterPath="/letters", **aws)


@pytest.mark.parametrize("key", SECRETS)
def test_no_error_of_an_option_shows_a_secret(key: str) -> None:
    """Nor a secret whose key is misspelt."""
    assert "hunter2" not in refused(**{key: f"{SECRETS[key]}\r\n\x00"})
    assert "hunter2" not in refused(**{f"x{key}": SECRETS[key]})


@pytest.mark.parametrize(
    "options",
    [
        {"bearerToken": "hunter2-token"},
        {"basicUser": "me", "basicPassword": "hunter2 word"},
        {"secretHeader.X-Api-Key": "hunter2-key"},
        {"secretHeader.Authorization": "ApiKey hunter2-key"},
        {"url": "https://orders.test/?key=hunter2"},
    ],
)
def test_no_error_of_a_request_shows_a_secret(endpoint: Any, options: dict[str, str]) -> None:
    """Also where the endpoint repeats what it was sent, whole or in part."""
    sent: list[str] = []

    def echo(_: bytes) -> Any:
        return answer(401, f"no: {' '.join(sent)} {options.get('url', '')}".encode())

    made = endpoint(echo)
    written = destination(**options)
    for _ in range(2):  # the second answer repeats the headers of the first request
        with pytest.raises(Exception, match="HTTP status 401") as caught:
            written.submit([b"1"])
        sent[:] = [*made.headers.values(), *(part for each in made.headers.values() for part in each.split())]
    message = str(caught.value)

    assert "check options 'bearerToken'" in message
    assert "hunter2" not in message
    assert base64.b64encode(b"me:hunter2 word").decode() not in message
