"""Destination kinesis over HTTP: requests, answers, and which errors are fatal."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from fake_service import CONNECTION, FakeService, answer, refusal
from hypothesis import given
from hypothesis import strategies as st

from sluice.aws.calling.connection import ConnectionConfig
from sluice.destinations.common import first_contact
from sluice.destinations.kinesis import KinesisEntry, KinesisStreamsDestination
from sluice.errors import OptionError, ServiceError
from sluice.options import read_options
from sluice.sink import AsyncSinkConfig, AsyncSinkWriter, NoRateLimitingStrategy, SubmitResult

ENTRIES = [KinesisEntry(b"a", "k"), KinesisEntry(b"b", "k", "7"), KinesisEntry(b"c", "l")]
FINE = {"SequenceNumber": "1", "ShardId": "s"}


@pytest.fixture(autouse=True)
def _no_endpoint_has_answered() -> Iterator[None]:
    first_contact._answered.clear()
    yield
    first_contact._answered.clear()


def accepted(count: int) -> Any:
    return answer({"FailedRecordCount": 0, "Records": [FINE] * count})


def destination(
    respond: Callable[[str, dict[str, Any]], Any], **more: Any
) -> tuple[KinesisStreamsDestination, FakeService]:
    service = FakeService("kinesis", respond)
    return KinesisStreamsDestination(CONNECTION, **({"stream_name": "orders"} | more)), service


def raised(respond: Callable[[str, dict[str, Any]], Any]) -> tuple[ServiceError, bool]:
    made, _ = destination(respond)
    with pytest.raises(ServiceError) as caught:
        made.submit(ENTRIES)
    return caught.value, made.is_fatal(caught.value)


def test_a_request_holds_all_entries() -> None:
    """In their order, each with data, partition key and explicit hash key; the stream by name."""
    made, service = destination(lambda _, __: accepted(3))

    assert made.submit(ENTRIES) == SubmitResult(failed=[], rejected=[])
    (operation, sent) = service.calls[0]
    assert operation == "PutRecords"
    assert sent["StreamName"] == "orders"
    assert [base64.b64decode(record["Data"]) for record in sent["Records"]] == [b"a", b"b", b"c"]
    assert [record["PartitionKey"] for record in sent["Records"]] == ["k", "k", "l"]
    assert [record.get("ExplicitHashKey") for record in sent["Records"]] == [None, "7", None]


def test_a_stream_can_be_named_by_its_arn(connections: list[ConnectionConfig]) -> None:
    """The ARN is sent. Its region is used unless the connection has one."""
    arn = "arn:aws:kinesis:ap-south-1:123456789012:stream/orders"
    anywhere = replace(CONNECTION, region=None)
    service = FakeService("kinesis", lambda _, __: accepted(3))
    made = KinesisStreamsDestination(anywhere, stream_arn=arn)
    made.submit(ENTRIES)

    assert [each.region for each in connections] == ["ap-south-1"]
    assert service.calls[0][1]["StreamARN"] == arn
    assert "StreamName" not in service.calls[0][1]
    assert made.name == "kinesis stream 'orders'"


def test_results_belong_to_entries_by_position() -> None:
    """The answer's count of failures is not used."""
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


def test_an_answer_with_too_few_results_is_damaged() -> None:
    """The batch is sent again."""
    error, fatal = raised(lambda _, __: accepted(2))

    assert "2 results for 3 records" in str(error)
    assert not fatal


def test_sizes_count_the_partition_key_in_bytes() -> None:
    """The size of data and key in UTF-8, as Kinesis counts them."""
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
    """With their names, before the query starts."""
    values = read_options("test", KinesisStreamsDestination.OPTIONS, given)
    KinesisStreamsDestination.from_options(values, CONNECTION)
    with pytest.raises(OptionError) as caught:
        values.check()

    assert message in str(caught.value)


@pytest.mark.parametrize("given", [{"streamName": "a,b"}, {"streamArn": "a"}])
def test_a_stream_that_is_wrong_is_not_missing_as_well(given: dict[str, str]) -> None:
    """One mistake is one problem."""
    values = read_options("test", KinesisStreamsDestination.OPTIONS, given)
    assert KinesisStreamsDestination.from_options(values, CONNECTION) is None
    with pytest.raises(OptionError) as caught:
        values.check()
    assert "required" not in str(caught.value)


def test_limits_are_those_of_the_interface() -> None:
    """A request: 500 records, 10 MiB. A record: 10 MiB. 50 requests in flight, 10,000 records buffered."""
    limits = KinesisStreamsDestination.LIMITS

    assert (limits.max_batch_size, limits.max_in_flight_requests, limits.max_buffered_requests) == (
        500,
        50,
        10_000,
    )
    assert limits.max_batch_size_in_bytes == limits.max_record_size_in_bytes == 10 * 2**20
    assert limits.aimd_decrease_factor == 0.99


# --- what 256 characters of a partition key are ------------------------------------------------------------

FACES = "\U0001f600"  # one code point each, and two UTF-16 units
KEYS = st.sampled_from(["k", "ü" * 256, FACES * 128, FACES * 129, FACES * 256, "k" + FACES * 128])


def units_of(key: str) -> int:
    return len(key.encode("utf-16-le")) // 2


class KeyCounter:
    """Refuses a request as a whole for one key that is too long, as the service does.

    Attributes:
        stored: data of the accepted records.
    """

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count
        self.stored: list[bytes] = []

    def __call__(self, _: str, params: dict[str, Any]) -> Any:
        records = params["Records"]
        for place, record in enumerate(records, 1):
            if self._count(record["PartitionKey"]) > 256:
                where = f"Value at 'records.{place}.member.partitionKey' failed to satisfy constraint"
                return refusal("ValidationException", f"1 validation error detected: {where}")
        self.stored += [base64.b64decode(record["Data"]) for record in records]
        return accepted(len(records))


@given(keys=st.lists(KEYS, min_size=1, max_size=30), count=st.sampled_from([len, units_of]))
def test_records_that_the_service_takes_are_written_whatever_it_counts(
    keys: list[str], count: Callable[[str], int]
) -> None:
    """Code points or UTF-16 units: the documents leave it open. Only what the service refuses is refused."""
    service = KeyCounter(count)
    made, _ = destination(service)
    entries = [KinesisEntry(b"%d" % number, key) for number, key in enumerate(keys)]

    result = made.submit(entries)

    fits = [entry for entry in entries if count(entry.partition_key) <= 256]
    assert sorted(service.stored) == sorted(entry.data for entry in fits)
    assert result.failed == []
    assert [each.entry for each in result.rejected] == [entry for entry in entries if entry not in fits]
    assert all("ValidationException: 1 validation error" in each.reason for each in result.rejected)


def test_a_request_is_sent_once_where_the_service_counts_code_points() -> None:
    """No key is doubted before a request is refused."""
    made, service = destination(KeyCounter(len))
    made.submit([KinesisEntry(b"x", FACES * 256), *ENTRIES])

    assert len(service.calls) == 1


def test_a_record_that_only_some_streams_take_does_not_hold_up_the_others() -> None:
    """By default a stream takes 1 MiB, and refuses the whole request for one record that is larger."""
    stored: list[int] = []

    def respond(_: str, params: dict[str, Any]) -> Any:
        sizes = [len(base64.b64decode(record["Data"])) for record in params["Records"]]
        if max(sizes) > 2**20:
            return refusal("InvalidArgumentException", "Record size exceeds the limit of the stream")
        stored.extend(sizes)
        return accepted(len(sizes))

    made, _ = destination(respond)
    large = KinesisEntry(b"x" * (2**20 + 1), "k")
    result = made.submit([*ENTRIES, large])
    assert stored == [1, 1, 1]
    assert [each.entry for each in result.rejected] == [large]
    assert "Record size exceeds" in result.rejected[0].reason
    assert [each.entry for each in made.submit([large]).rejected] == [large]


def test_throttled_records_are_delivered() -> None:
    """Through the writer, the destination and the SDK: each record is accepted exactly once."""
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
