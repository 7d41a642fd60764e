"""One batch operation of a service: which errors are fatal, and which entries are sent again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from botocore import exceptions as sdk
from fake_service import CONNECTION, FATAL_CODES, TRANSIENT_CODES, FakeService, answer, refusal

from sluice.aws.calling.connection import ConnectionConfig
from sluice.destinations.common import first_contact
from sluice.destinations.common.batch_call import BatchCall, Refusal
from sluice.errors import OptionError, ServiceError
from sluice.sink import Rejection

URL = "http://service.test"


@pytest.fixture(autouse=True)
def _no_endpoint_has_answered() -> Iterator[None]:
    first_contact._answered.clear()
    yield
    first_contact._answered.clear()


def made(respond: Callable[[str, dict[str, Any]], Any], **more: Any) -> BatchCall:
    FakeService("firehose", respond)
    return BatchCall(CONNECTION, "firehose", "PutRecordBatch", "orders", **more)


def put(batch_call: BatchCall) -> dict[str, Any]:
    return batch_call(DeliveryStreamName="orders", Records=[{"Data": b"a"}])


def raised(respond: Callable[[str, dict[str, Any]], Any], **more: Any) -> tuple[ServiceError, bool]:
    batch_call = made(respond, **more)
    with pytest.raises(ServiceError) as caught:
        put(batch_call)
    return caught.value, batch_call.is_fatal(caught.value)


@pytest.mark.parametrize("code", FATAL_CODES)
def test_lasting_errors_are_fatal(code: str) -> None:
    """A missing target, no access, a malformed request, wrong or expired credentials."""
    error, fatal = raised(lambda _, __: refusal(code))

    assert fatal
    assert error.code == code
    assert "PutRecordBatch of orders" in str(error)
    assert "very-secret" not in f"{error!r} {error}"


@pytest.mark.parametrize(("code", "status"), TRANSIENT_CODES)
def test_transient_errors_are_retried(code: str, status: int) -> None:
    """Throttling, and failures of the service itself."""
    assert not raised(lambda _, __: refusal(code, status=status))[1]


def test_a_destination_may_name_more_transient_codes() -> None:
    """For codes that only its service has."""
    busy = refusal("BusyWithKeys")

    assert raised(lambda _, __: busy)[1]
    assert not raised(lambda _, __: busy, transient=frozenset({"BusyWithKeys"}))[1]


@pytest.mark.parametrize(
    "error",
    [
        sdk.ReadTimeoutError(endpoint_url=URL),
        sdk.ConnectTimeoutError(endpoint_url=URL),
        sdk.ConnectionClosedError(endpoint_url=URL),
        ConnectionResetError("reset"),
    ],
)
def test_a_lost_connection_is_retried(error: Exception) -> None:
    """The next attempt may succeed after a timeout or a dropped connection."""
    assert not raised(lambda _, __: error)[1]


def test_an_endpoint_that_never_answers_is_fatal_within_seconds() -> None:
    """Its address is probably wrong. It is not tried for `maxRetryDuration`, 15 minutes."""
    now = [100.0]
    batch_call = made(lambda _, __: sdk.EndpointConnectionError(endpoint_url=URL), clock=lambda: now[0])
    with pytest.raises(ServiceError, match=r"service\.test") as caught:
        put(batch_call)
    assert not batch_call.is_fatal(caught.value)
    now[0] += 5.0

    assert batch_call.is_fatal(caught.value)


@pytest.mark.parametrize("reply", [answer({"RequestResponses": []}), refusal("ThrottlingException")])
def test_an_endpoint_that_has_answered_before_is_retried(reply: Any) -> None:
    """Its address is right, even if the answer was an error. That also applies to later epochs in the
    process.
    """
    now = [100.0]
    batch_call = made(lambda _, __: reply)
    try:
        put(batch_call)
    except ServiceError as error:
        assert not batch_call.is_fatal(error)  # noqa: PT017 - only one of the two answers raises
    batch_call = made(lambda _, __: sdk.EndpointConnectionError(endpoint_url=URL), clock=lambda: now[0])
    with pytest.raises(ServiceError) as caught:
        put(batch_call)
    now[0] += 600.0

    assert not batch_call.is_fatal(caught.value)


def test_what_is_remembered_of_an_endpoint_does_not_grow_with_credentials() -> None:
    """They may be new in every epoch."""
    put(made(lambda _, __: answer({"RequestResponses": []})))
    assert first_contact._answered == {(CONNECTION.endpoint_url, CONNECTION.region, "firehose")}


EXPIRED = sdk.ClientError({"Error": {"Code": "ExpiredTokenException", "Message": "it is expired"}}, "X")


def test_expired_credentials_are_retried_for_a_while_where_they_may_be_renewed() -> None:
    """Those of a file, of the environment or of a role are loaded anew for the next request."""
    now = [100.0]
    chain = ConnectionConfig(region="eu-west-1", endpoint_url=URL)
    batch_call = BatchCall(chain, "firehose", "PutRecordBatch", "orders", clock=lambda: now[0])
    assert not batch_call.is_fatal(EXPIRED)
    now[0] += 29.0
    assert not batch_call.is_fatal(EXPIRED)
    now[0] += 2.0
    assert batch_call.is_fatal(EXPIRED)


def test_a_request_that_is_accepted_ends_the_time_of_expired_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that expire next get their while again."""
    now = [100.0]
    monkeypatch.setattr(ConnectionConfig, "has_fixed_credentials", False)
    batch_call = made(lambda _, __: answer({"RequestResponses": []}), clock=lambda: now[0])
    assert not batch_call.is_fatal(EXPIRED)
    put(batch_call)
    now[0] += 3600.0
    assert not batch_call.is_fatal(EXPIRED)


UNKNOWN = sdk.ClientError({"Error": {"Code": "UnrecognizedClientException", "Message": "?"}}, "X")


@pytest.mark.parametrize("is_fixed", [True, False])
def test_keys_that_are_replaced_are_loaded_anew(monkeypatch: pytest.MonkeyPatch, *, is_fixed: bool) -> None:
    """Somebody deletes keys when there are new ones. Those that the service has never known are wrong."""
    now = [100.0]
    monkeypatch.setattr(ConnectionConfig, "has_fixed_credentials", is_fixed)
    batch_call = made(lambda _, __: answer({"RequestResponses": []}), clock=lambda: now[0])
    assert batch_call.is_fatal(UNKNOWN)

    put(batch_call)
    assert batch_call.is_fatal(UNKNOWN) == is_fixed
    now[0] += 31.0
    assert batch_call.is_fatal(UNKNOWN)


def test_is_fatal_takes_errors_of_the_sdk() -> None:
    """As well as the errors that they are translated to."""
    batch_call = made(lambda _, __: None)

    assert batch_call.is_fatal(sdk.ClientError({"Error": {"Code": "ResourceNotFoundException"}}, "X"))
    assert not batch_call.is_fatal(sdk.ClientError({"Error": {"Code": "ThrottlingException"}}, "X"))
    assert batch_call.is_fatal(OptionError("no region"))


@pytest.mark.parametrize(
    ("verdict", "codes"),
    [
        ("retry", ["ServiceUnavailableException", "InternalFailure", "ThrottlingException", "Unheard"]),
        ("retry", ["KmsThrottled", "KMSThrottlingException", "KMS.ThrottlingException"]),
        ("reject", ["InvalidParameterValue", "com.amazonaws.x#ValidationException"]),
        ("fatal", ["AccessDeniedException", "InvalidKMSResourceException", "KmsDisabled"]),
        ("fatal", ["KMS.DisabledException", "KMS.InvalidStateException", "KMS.OptInRequired"]),
        ("fatal", ["AWS.SimpleQueueService.NonExistentQueue", "ResourceNotFoundException"]),
    ],
)
def test_error_codes_of_single_entries(verdict: str, codes: list[str]) -> None:
    """An invalid entry is rejected. A code that concerns the target is fatal. Others are retried."""
    batch_call = made(lambda _, __: None)

    assert {batch_call.verdict(code) for code in codes} == {verdict}


def test_transient_codes_apply_to_entries_too() -> None:
    """The destination names them once, for requests and for entries."""
    assert made(lambda _, __: None, transient=frozenset({"InvalidMood"})).verdict("x.InvalidMood") == "retry"


def test_no_secret_is_in_the_reason_of_a_rejection() -> None:
    """The service may repeat credentials in its message, and dead letters are stored."""
    refused = Refusal("InvalidX", "for AKIAIOSFODNN7EXAMPLE", "reject")
    result = made(lambda _, __: None).result(["a"], [refused])

    assert result.rejected == [Rejection("a", "InvalidX: for ***")]


def test_a_missing_target_says_in_which_region_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the SDK's own chain names the region."""

    class Client:
        meta = SimpleNamespace(endpoint_url="https://firehose.us-east-1.amazonaws.com")

        def put_record_batch(self, **_request: Any) -> None:
            error: Any = {"Error": {"Code": "ResourceNotFoundException", "Message": "no"}}
            raise sdk.ClientError(error, "PutRecordBatch")

    monkeypatch.setattr(
        "sluice.destinations.common.batch_call.client_for", lambda _config, _service: Client()
    )
    call = BatchCall(ConnectionConfig(), "firehose", "PutRecordBatch", "orders")
    with pytest.raises(ServiceError) as caught:
        put(call)
    assert str(caught.value) == (
        "PutRecordBatch of orders at https://firehose.us-east-1.amazonaws.com failed: "
        "ResourceNotFoundException: no (this is region us-east-1: option 'region' names another one)"
    )


@pytest.mark.parametrize(
    ("code", "is_load"),
    [
        ("ProvisionedThroughputExceededException", True),
        ("ThrottlingException", True),
        ("AWS.SimpleQueueService.RequestThrottled", True),
        ("KmsThrottled", True),
        ("InternalFailure", False),
        ("InternalServerError", False),
        ("ReadTimeoutError", False),
        ("EndpointConnectionError", False),
        ("DamagedAnswer", False),
        ("WrongShard", False),
        ("InternalError", False),
    ],
)
def test_load_differs_from_failure(code: str, is_load: bool) -> None:
    """By the code; and asking is no sign that the endpoint has answered."""
    assert made(lambda *_: {}).is_throttling(code) is is_load
    assert not first_contact._answered
