"""What destinations share, looked at through one of them: what is fatal, what is tried again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore import exceptions as sdk
from kinesis_wire import answer, refusal
from service_wire import CONNECTION, LASTING, PASSING, ServiceWire

from sluice.destinations.common import batch_call
from sluice.destinations.common.batch_call import BatchCall, Refusal
from sluice.errors import OptionError, ServiceError
from sluice.sink import Rejection

URL = "http://service.test"


@pytest.fixture(autouse=True)
def _strangers() -> Iterator[None]:
    batch_call._known.clear()
    yield
    batch_call._known.clear()


def made(respond: Callable[[str, dict[str, Any]], Any], **more: Any) -> BatchCall:
    ServiceWire("firehose", respond)
    return BatchCall(CONNECTION, "firehose", "PutRecordBatch", "orders", **more)


def put(batch_call: BatchCall) -> dict[str, Any]:
    return batch_call(DeliveryStreamName="orders", Records=[{"Data": b"a"}])


def raised(respond: Callable[[str, dict[str, Any]], Any], **more: Any) -> tuple[ServiceError, bool]:
    batch_call = made(respond, **more)
    with pytest.raises(ServiceError) as caught:
        put(batch_call)
    return caught.value, batch_call.is_fatal(caught.value)


@pytest.mark.parametrize("code", LASTING)
def test_what_another_attempt_will_not_change_is_fatal(code: str) -> None:
    """Nothing to write to, no access, a bad request, credentials that are not good (any more)."""
    error, fatal = raised(lambda _, __: refusal(code))

    assert fatal
    assert error.code == code
    assert "PutRecordBatch of orders" in str(error)
    assert "very-secret" not in f"{error!r} {error}"


@pytest.mark.parametrize(("code", "status"), PASSING)
def test_what_will_pass_is_retried(code: str, status: int) -> None:
    """Throttling, and whatever is the service's own fault."""
    assert not raised(lambda _, __: refusal(code, status=status))[1]


def test_a_destination_may_know_more_codes_that_pass() -> None:
    """A service's own names for being busy."""
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
    """Timeouts and dropped connections say nothing about the next attempt."""
    assert not raised(lambda _, __: error)[1]


def test_an_endpoint_that_never_answers_is_fatal_within_seconds() -> None:
    """A wrong endpoint is named at once, not after the fifteen minutes a busy one is given."""
    now = [100.0]
    batch_call = made(lambda _, __: sdk.EndpointConnectionError(endpoint_url=URL), clock=lambda: now[0])
    with pytest.raises(ServiceError, match=r"service\.test") as caught:
        put(batch_call)
    assert not batch_call.is_fatal(caught.value)
    now[0] += 5.0

    assert batch_call.is_fatal(caught.value)


@pytest.mark.parametrize("reply", [answer({"RequestResponses": []}), refusal("ThrottlingException")])
def test_an_endpoint_that_has_answered_is_waited_for(reply: Any) -> None:
    """An outage is not a wrong endpoint, whatever the answer was; nor is it for the next epoch."""
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


def test_errors_of_the_sdk_itself_are_judged_too() -> None:
    """is_fatal takes whatever a request may have raised, translated or not."""
    batch_call = made(lambda _, __: None)

    assert batch_call.is_fatal(sdk.ClientError({"Error": {"Code": "ResourceNotFoundException"}}, "X"))
    assert not batch_call.is_fatal(sdk.ClientError({"Error": {"Code": "ThrottlingException"}}, "X"))
    assert batch_call.is_fatal(OptionError("no region"))


@pytest.mark.parametrize(
    ("verdict", "codes"),
    [
        ("again", ["ServiceUnavailableException", "InternalFailure", "ThrottlingException", "Unheard"]),
        ("again", ["KmsThrottled", "KMSThrottlingException"]),
        ("never", ["InvalidParameterValue", "com.amazonaws.x#ValidationException"]),
        ("stop", ["AccessDeniedException", "InvalidKMSResourceException", "KmsDisabled"]),
        ("stop", ["AWS.SimpleQueueService.NonExistentQueue", "ResourceNotFoundException"]),
    ],
)
def test_codes_of_single_entries(verdict: str, codes: list[str]) -> None:
    """What could not be done just now is tried again, what the entry cannot be is not; the rest is fatal."""
    batch_call = made(lambda _, __: None)

    assert {batch_call.verdict(code) for code in codes} == {verdict}


def test_a_destination_may_know_more_codes_of_entries_that_pass() -> None:
    """The same set as for whole requests."""
    assert made(lambda _, __: None, transient=frozenset({"InvalidMood"})).verdict("x.InvalidMood") == "again"


def test_no_secret_gets_into_a_reason() -> None:
    """Dead letters are kept, and services echo what they were sent."""
    refused = Refusal("InvalidX", "for AKIAIOSFODNN7EXAMPLE", "never")
    result = made(lambda _, __: None).outcome(["a"], {0: refused})

    assert result.rejected == [Rejection("a", "InvalidX: for ***")]
