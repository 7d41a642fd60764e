"""Requests that the library signs and sends: accepted, refused and lost as those of the SDK."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import botocore.auth
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSPreparedRequest, AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError, EndpointConnectionError
from kinesis_transport import Transport, answer, forget_process_state, header, refusal

from sluice.aws.calling.clients import client_for
from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.wire.request_bodies import PreparedParameter
from sluice.destinations.kinesis import KinesisEntry

CONFIG = ConnectionConfig(region="eu-west-1", access_key_id="AKIDEXAMPLE", secret_access_key="hush")
RECORDS = PreparedParameter([KinesisEntry(b"data", "key")], ({"Data": b"", "PartitionKey": "-"},))


@pytest.fixture(autouse=True)
def _fresh_clients() -> Iterator[None]:
    forget_process_state()
    yield
    forget_process_state()


def sent(config: ConnectionConfig = CONFIG) -> AWSPreparedRequest:
    """The request of one `PutRecords`."""
    client = client_for(config, "kinesis")
    transport = Transport(lambda _, __: answer({}))
    transport.install(client)
    client.put_records(StreamName="orders", Records=RECORDS)
    return transport.requests[0]


def signature_of_the_sdk(request: AWSPreparedRequest, credentials: Credentials, region: str) -> str:
    signed = header(request, "Authorization").partition("SignedHeaders=")[2].partition(",")[0].split(";")
    headers = {name: header(request, name) for name in signed}
    unsigned: Any = AWSRequest(request.method, request.url, headers, request.body)
    unsigned.context["timestamp"] = header(request, "X-Amz-Date")
    auth: Any = SigV4Auth(credentials, "kinesis", region)
    text: str = auth.signature(auth.string_to_sign(unsigned, auth.canonical_request(unsigned)), unsigned)
    return text


@pytest.mark.parametrize(
    "endpoint",
    [
        None,
        "http://127.0.0.1:4566",
        "https://kinesis.eu-west-1.amazonaws.com:443",
        "http://[::1]:4566",
        "https://proxy.test/aws//kinesis/./a b~c%20d/../e",
    ],
)
@pytest.mark.parametrize("token", [None, "temporary/token=="])
def test_the_signature_is_that_of_the_sdk(endpoint: str | None, token: str | None) -> None:
    """Of any endpoint, with and without a session token, which is signed, too."""
    request = sent(replace(CONFIG, endpoint_url=endpoint, session_token=token))

    authorization = header(request, "Authorization")
    assert authorization.endswith(
        f"Signature={signature_of_the_sdk(request, Credentials('AKIDEXAMPLE', 'hush', token), 'eu-west-1')}"
    )
    assert header(request, "Host") == urlsplit(request.url).netloc
    assert header(request, "X-Amz-Security-Token") == (token or "")
    assert ("x-amz-security-token" in authorization) == (token is not None)


def test_new_credentials_and_regions_sign_at_once() -> None:
    """Nothing of an earlier signature is used for another one."""
    for secret, region in (("hush", "eu-west-1"), ("other", "eu-west-1"), ("other", "us-east-1")):
        request = sent(replace(CONFIG, secret_access_key=secret, region=region))
        expected = signature_of_the_sdk(request, Credentials("AKIDEXAMPLE", secret), region)
        assert header(request, "Authorization").endswith(f"Signature={expected}")


def test_a_refusal_is_the_error_of_the_sdk() -> None:
    """With code, message, status and the id of the request."""
    client = client_for(CONFIG, "kinesis")
    refused = refusal("ResourceNotFoundException", "no such stream")
    refused.headers["x-amzn-requestid"] = "id-7"
    Transport(lambda _, __: refused).install(client)

    with pytest.raises(client.exceptions.ResourceNotFoundException) as caught:
        client.put_records(StreamName="orders", Records=RECORDS)

    assert isinstance(caught.value, ClientError)
    assert caught.value.operation_name == "PutRecords"
    assert caught.value.response["Error"]["Message"] == "no such stream"
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert caught.value.response["ResponseMetadata"]["RequestId"] == "id-7"


def test_a_lost_request_is_the_error_of_the_sdk() -> None:
    """It was sent by the SDK's session, which knows proxies and certificates."""
    client = client_for(replace(CONFIG, endpoint_url="http://127.0.0.1:1"), "kinesis")
    with pytest.raises(EndpointConnectionError):
        client.put_records(StreamName="orders", Records=RECORDS)


def test_another_way_to_sign_is_left_to_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later SDK, or the user's configuration, may ask for one."""

    class OtherAuth(SigV4Auth):
        def add_auth(self, request: Any) -> None:
            request.headers["Authorization"] = "in another way"

    monkeypatch.setitem(botocore.auth.AUTH_TYPE_MAPS, "other", OtherAuth)
    client = client_for(CONFIG, "kinesis")
    transport = Transport(lambda _, __: answer({}))
    transport.install(client)
    client.meta.events.register(
        "before-parameter-build.kinesis", lambda context, **_: context.update(auth_type="other")
    )

    client.put_records(StreamName="orders", Records=RECORDS)

    assert header(transport.requests[0], "Authorization") == "in another way"
    assert b"data" not in (transport.requests[0].body or b"")
    assert transport.calls[0][1]["Records"] == [{"Data": "ZGF0YQ==", "PartitionKey": "key"}]
