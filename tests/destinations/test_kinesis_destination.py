"""The destination kinesis at the level of HTTP: what is sent, what an answer means, what is fatal."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from botocore import exceptions as sdk
from kinesis_wire import Wire, answer, refusal

from sluice.aws.clients import client_for
from sluice.aws.connection import ConnectionConfig
from sluice.destinations.common import batch_call
from sluice.destinations.kinesis import KinesisEntry, KinesisStreamsDestination
from sluice.errors import OptionError, ServiceError
from sluice.options import read_options
from sluice.sink import AsyncSinkConfig, AsyncSinkWriter, NoRateLimitingStrategy, SubmitResult

CONNECTION = ConnectionConfig(
    region="eu-west-1",
    endpoint_url="http://kinesis.test",
    access_key_id="id",
    secret_access_key="very-secret",
)
ENTRIES = [KinesisEntry(b"a", "k"), KinesisEntry(b"b", "k", "7"), KinesisEntry(b"c", "l")]
FINE = {"SequenceNumber": "1", "ShardId": "s"}


@pytest.fixture(autouse=True)
def _strangers() -> Iterator[None]:
    batch_call._known.clear()
    yield
    batch_call._known.clear()


def accepted(count: int) -> Any:
    return answer({"FailedRecordCount": 0, "Records": [FINE] * count})


def destination(
    respond: Callable[[str, dict[str, Any]], Any], connection: ConnectionConfig = CONNECTION, **more: Any
) -> tuple[KinesisStreamsDestination, Wire]:
    wire = Wire(respond)
    wire.install(client_for(connection, "kinesis"))
    return KinesisStreamsDestination(connection, **({"stream_name": "orders"} | more)), wire


def raised(respond: Callable[[str, dict[str, Any]], Any]) -> tuple[ServiceError, bool]:
    made, _ = destination(respond)
    with pytest.raises(ServiceError) as caught:
        made.submit(ENTRIES)
    return caught.value, made.is_fatal(caught.value)


def test_a_request_holds_all_entries() -> None:
    """Data, partition key and explicit hash key of every entry, in order, to the stream by name."""
    made, wire = destination(lambda _, __: accepted(3))

    assert made.submit(ENTRIES) == SubmitResult(failed=[], rejected=[])
    (operation, sent) = wire.calls[0]
    assert operation == "PutRecords"
    assert sent["StreamName"] == "orders"
    assert [base64.b64decode(record["Data"]) for record in sent["Records"]] == [b"a", b"b", b"c"]
    assert [record["PartitionKey"] for record in sent["Records"]] == ["k", "k", "l"]
    assert [record.get("ExplicitHashKey") for record in sent["Records"]] == [None, "7", None]


def test_a_stream_can_be_named_by_its_arn() -> None:
    """The ARN is sent; its region holds where none is given."""
    arn = "arn:aws:kinesis:ap-south-1:123456789012:stream/orders"
    anywhere = replace(CONNECTION, region=None)
    wire = Wire(lambda _, __: accepted(3))
    seen = []

    def client(connection: ConnectionConfig, service: str) -> Any:
        seen.append(connection.region)
        made = client_for(connection, service)
        wire.install(made)
        return made

    made = KinesisStreamsDestination(anywhere, stream_arn=arn, client=client)
    made.submit(ENTRIES)

    assert seen == ["ap-south-1"]
    assert wire.calls[0][1]["StreamARN"] == arn
    assert "StreamName" not in wire.calls[0][1]
    assert made.name == "kinesis stream 'orders'"


def test_refused_entries_are_found_by_their_place() -> None:
    """Each result belongs to the entry at its index; the count in the answer is not relied upon."""
    throttled = {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "slow"}
    made, _ = destination(
        lambda _, __: answer(
            {"FailedRecordCount": 0, "Records": [throttled, FINE, {"ErrorCode": "InternalFailure"}]}
        )
    )
    result = made.submit(ENTRIES)

    assert result.failed == [ENTRIES[0], ENTRIES[2]]
    assert all(one is other for one, other in zip(result.failed, [ENTRIES[0], ENTRIES[2]], strict=True))
    assert dict(result.codes) == {"ProvisionedThroughputExceededException": 1, "InternalFailure": 1}


def test_too_few_results_are_no_success() -> None:
    """An answer that does not speak for every entry is a damaged one: the batch goes again."""
    error, fatal = raised(lambda _, __: accepted(2))

    assert "2 results for 3 records" in str(error)
    assert not fatal


@pytest.mark.parametrize(
    "code",
    [
        "ResourceNotFoundException",
        "AccessDeniedException",
        "InvalidArgumentException",
        "ValidationException",
        "ExpiredTokenException",
        "UnrecognizedClientException",
        "KMSAccessDeniedException",
    ],
)
def test_what_another_attempt_will_not_change_is_fatal(code: str) -> None:
    """No such stream, no access, a bad request, credentials that are not good (any more)."""
    error, fatal = raised(lambda _, __: refusal(code))

    assert fatal
    assert error.code == code
    assert "orders" in str(error)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("ProvisionedThroughputExceededException", 400),
        ("ThrottlingException", 400),
        ("KMSThrottlingException", 400),
        ("InternalFailure", 500),
        ("ServiceUnavailable", 503),
        ("Unheard", 502),
    ],
)
def test_what_will_pass_is_retried(code: str, status: int) -> None:
    """Throttling, and whatever is the service's own fault."""
    _, fatal = raised(lambda _, __: refusal(code, status=status))

    assert not fatal


@pytest.mark.parametrize(
    "error",
    [
        sdk.ReadTimeoutError(endpoint_url="http://kinesis.test"),
        sdk.ConnectTimeoutError(endpoint_url="http://kinesis.test"),
        sdk.ConnectionClosedError(endpoint_url="http://kinesis.test"),
        ConnectionResetError("reset"),
    ],
)
def test_a_lost_connection_is_retried(error: Exception) -> None:
    """Timeouts and dropped connections say nothing about the next attempt."""
    _, fatal = raised(lambda _, __: error)

    assert not fatal


def test_an_endpoint_that_never_answers_is_fatal_within_seconds() -> None:
    """A wrong endpoint is named at once, not after the fifteen minutes a busy one is given."""
    now = [100.0]
    unreachable = sdk.EndpointConnectionError(endpoint_url="http://kinesis.test")
    made, _ = destination(lambda _, __: unreachable, clock=lambda: now[0])
    with pytest.raises(ServiceError, match=r"kinesis\.test") as caught:
        made.submit(ENTRIES)
    assert not made.is_fatal(caught.value)
    now[0] += 5.0

    assert made.is_fatal(caught.value)


def test_an_endpoint_that_has_answered_is_waited_for() -> None:
    """An outage is not a wrong endpoint; nor is it for the next epoch's destination in this process."""
    now = [100.0]
    replies: list[Any] = [accepted(3), sdk.EndpointConnectionError(endpoint_url="http://kinesis.test")]
    made, _ = destination(lambda _, __: replies[0], clock=lambda: now[0])
    made.submit(ENTRIES)
    made, _ = destination(lambda _, __: replies[1], clock=lambda: now[0])
    with pytest.raises(ServiceError) as caught:
        made.submit(ENTRIES)
    now[0] += 600.0

    assert not made.is_fatal(caught.value)


def test_errors_of_the_sdk_itself_are_judged_too() -> None:
    """is_fatal takes whatever a request may have raised, translated or not."""
    made, _ = destination(lambda _, __: accepted(3))
    missing = sdk.ClientError({"Error": {"Code": "ResourceNotFoundException"}}, "PutRecords")
    busy = sdk.ClientError({"Error": {"Code": "ProvisionedThroughputExceededException"}}, "PutRecords")

    assert made.is_fatal(missing)
    assert not made.is_fatal(busy)
    assert made.is_fatal(OptionError("no region"))


def test_no_secret_is_in_an_error() -> None:
    """Messages reach logs that many people read."""
    error, _ = raised(lambda _, __: refusal("AccessDeniedException", "no"))

    assert "very-secret" not in f"{error!r} {error}"


def test_sizes_count_the_partition_key_in_bytes() -> None:
    """As Kinesis counts them: data plus the UTF-8 of the key."""
    made, _ = destination(lambda _, __: accepted(1))

    assert made.size_in_bytes(KinesisEntry(b"1234", "ab")) == 6
    assert made.size_in_bytes(KinesisEntry(b"1234", "ü€")) == 9
    assert made.size_in_bytes(KinesisEntry(b"", "k", "12345")) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "option 'streamName' or 'streamArn' is required"),
        (
            {"streamName": "a", "streamArn": "arn:aws:kinesis:eu-west-1:123456789012:stream/a"},
            "exclude one another",
        ),
        ({"streamName": "a,b"}, "option 'streamName' is 'a,b': allowed is one name"),
        ({"streamArn": "arn:aws:s3:::a"}, "option 'streamArn' is 'arn:aws:s3:::a': allowed is one arn"),
        ({"streamName": "a", "aggregate": "yes"}, "option 'aggregate' is 'yes': allowed is"),
        ({"aggregate": "true"}, "option 'streamName' or 'streamArn' is required"),
    ],
)
def test_options_that_cannot_work_are_refused(given: dict[str, str], message: str) -> None:
    """By name, before anything runs."""
    values = read_options("test", KinesisStreamsDestination.OPTIONS, given)
    KinesisStreamsDestination.from_options(values, CONNECTION)
    with pytest.raises(OptionError) as caught:
        values.check()

    assert message in str(caught.value)


def test_limits_are_those_of_the_interface() -> None:
    """500 records, 10 MiB a request and a record; 50 requests in flight, 10,000 records buffered; 0.99."""
    limits = KinesisStreamsDestination.LIMITS

    assert (limits.max_batch_size, limits.max_in_flight_requests, limits.max_buffered_requests) == (
        500,
        50,
        10_000,
    )
    assert limits.max_batch_size_in_bytes == limits.max_record_size_in_bytes == 10 * 2**20
    assert limits.aimd_decrease_factor == 0.99


def test_a_writer_delivers_everything_in_spite_of_throttling() -> None:
    """The writer, this destination and the SDK together: every record is accepted exactly once."""
    stored: list[bytes] = []

    def respond(_: str, params: dict[str, Any]) -> Any:
        results: list[dict[str, str]] = []
        for n, record in enumerate(params["Records"]):
            if (len(stored) + n) % 7 == 0 and len(results) % 2 == 1:
                results.append({"ErrorCode": "ProvisionedThroughputExceededException"})
            else:
                results.append(FINE)
                stored.append(base64.b64decode(record["Data"]))
        return answer({"FailedRecordCount": 0, "Records": results})

    made, _ = destination(respond)
    config = AsyncSinkConfig(
        max_batch_size=40,
        max_batch_size_in_bytes=10_000,
        max_record_size_in_bytes=10_000,
        max_in_flight_requests=3,
        max_buffered_requests=100,
        max_time_in_buffer=5.0,
        request_timeout=60.0,
        max_retry_duration=60.0,
    )
    writer = AsyncSinkWriter(made, config, NoRateLimitingStrategy())
    batch = pa.record_batch([pa.array([str(n) for n in range(300)])], names=["data"])
    writer.write(batch)
    writer.flush()
    writer.close()

    assert sorted(stored, key=int) == [str(n).encode() for n in range(300)]
