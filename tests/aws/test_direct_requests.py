"""Requests that the library sends: signed, accepted, refused and lost as those of the SDK."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import botocore.auth
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSPreparedRequest
from botocore.exceptions import ClientError, EndpointConnectionError
from kinesis_transport import Transport, answer, forget_process_state, header, refusal

from sluice.aws.calling.clients import client_for
from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.wire.direct_requests import DirectRequests
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
def test_the_request_is_that_of_the_sdk(
    endpoint: str | None, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signed by the same class, for the same place; what it says of attempts is left out."""
    config = replace(CONFIG, endpoint_url=endpoint, session_token=token)
    request = sent(config)
    forget_process_state()
    monkeypatch.setattr(DirectRequests, "send", lambda *_, **__: None)
    expected = sent(config)

    assert (request.method, request.url, request.body) == (expected.method, expected.url, expected.body)
    assert _headers(request) == {
        name: value for name, value in _headers(expected).items() if not name.startswith("amz-sdk-")
    }


def _headers(request: AWSPreparedRequest) -> dict[str, str]:
    """By their names in small letters, without what the time decides."""
    headers = {name.lower(): header(request, name) for name in request.headers}
    signed = headers.pop("authorization").partition("Signature=")[0].replace("amz-sdk-invocation-id;", "")
    return headers | {"authorization": signed.replace("amz-sdk-request;", ""), "x-amz-date": ""}


def test_new_credentials_and_regions_sign_at_once() -> None:
    """Nothing of an earlier client is used for another one."""
    seen = set()
    for key, region in (("A", "eu-west-1"), ("B", "eu-west-1"), ("B", "us-east-1")):
        request = sent(replace(CONFIG, access_key_id=key, region=region))
        scope = header(request, "Authorization").split()[1]
        assert scope.startswith(f"Credential={key}/")
        assert f"/{region}/kinesis/" in scope
        seen.add(header(request, "Authorization"))
    assert len(seen) == 3


def test_a_hook_of_somebody_else_comes_first() -> None:
    """One that answers in the place of the service, as tests have it."""
    client = client_for(CONFIG, "kinesis")
    Transport(lambda _, __: answer({})).install(client)
    own = (answer({}), {"FailedRecordCount": 7, "Records": []})
    client.meta.events.register("before-call", lambda **_: own)

    assert client.put_records(StreamName="orders", Records=RECORDS)["FailedRecordCount"] == 7


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
