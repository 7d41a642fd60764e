"""Destination firehose: rows, requests, refusals, and delivery through a writer despite failures."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from botocore import exceptions as sdk
from fake_service import CONNECTION, OPTIONS, FakeService, answer, read_async_sink, refusal, write_all
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from sluice.destinations import read_sink
from sluice.destinations.firehose import FirehoseDestination, FirehoseRowConverter
from sluice.errors import InvalidRecordError, OptionError, ServiceError
from sluice.sink import Rejection, SubmitResult

FIREHOSE = {"destination": "firehose", "deliveryStream": "orders"}
FINE = {"RecordId": "1"}


def destination(respond: Callable[[str, dict[str, Any]], Any]) -> tuple[FirehoseDestination, FakeService]:
    return FirehoseDestination(CONNECTION, "orders"), FakeService("firehose", respond)


def outcomes(*records: dict[str, str]) -> Any:
    return answer({"FailedPutCount": 0, "RequestResponses": list(records)})


def rows(data: Any, kind: Any = None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(data, kind)], names=["data"])


def convert(data: Any, kind: Any = None) -> list[bytes]:
    return list(FirehoseRowConverter().convert(rows(data, kind)))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_binary_data_is_sent_as_it_is(kind: Any) -> None:
    """Empty data, too. Nothing is added between records."""
    assert convert([b"\x00\xff", b""], kind) == [b"\x00\xff", b""]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_text_is_sent_as_utf_8(kind: Any) -> None:
    """In order, also in a batch that is converted in several steps."""
    values = [f"grün {n}" for n in range(3000)]

    assert convert(values, kind) == [value.encode() for value in values]


def test_null_data_is_refused_with_its_row() -> None:
    """The error has the number of the row and none of its data."""
    with pytest.raises(InvalidRecordError, match=r"row 1030 of a batch .*column 'data' is null"):
        convert(["a"] * 1030 + [None])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": StringType()}, "column 'data' (binary or string) is required"),
        ({"data": IntegerType()}, "column 'data' is int: allowed is binary or string"),
        ({"data": BinaryType(), "DATA": BinaryType()}, "column 'data' exists twice"),
    ],
)
def test_schemas_that_cannot_work_are_refused(columns: dict[str, Any], message: str) -> None:
    """When the query starts, before its first row."""
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(OptionError) as caught:
        FirehoseRowConverter().open(schema)

    assert message in str(caught.value)


def test_a_request_holds_all_entries() -> None:
    """In their order, with the name of the delivery stream."""
    made, service = destination(lambda _, __: outcomes(FINE, FINE))

    assert made.submit([b"a", b"b"]) == SubmitResult([], {}, [])
    ((operation, sent),) = service.calls
    assert operation == "PutRecordBatch"
    assert sent == {
        "DeliveryStreamName": "orders",
        "Records": [{"Data": base64.b64encode(data).decode()} for data in (b"a", b"b")],
    }


def test_results_belong_to_entries_by_position() -> None:
    """The answer's count of failures is not used."""
    busy = {"ErrorCode": "ServiceUnavailableException", "ErrorMessage": "Slow down."}
    made, _ = destination(lambda _, __: outcomes(busy, FINE, {"ErrorCode": "InternalFailure"}))
    result = made.submit([b"a", b"b", b"a"])

    assert result.failed == [b"a", b"a"]
    assert result.codes == {"ServiceUnavailableException": 1, "InternalFailure": 1}


def test_an_invalid_record_is_rejected() -> None:
    """It becomes a dead letter or fails the task. The other records of the request are accepted."""
    made, _ = destination(lambda _, __: outcomes(FINE, {"ErrorCode": "InvalidRecord", "ErrorMessage": "odd"}))
    result = made.submit([b"a", b"b"])

    assert (result.failed, result.rejected) == ([], [Rejection(b"b", "InvalidRecord: odd")])


def test_an_answer_with_too_few_results_is_damaged() -> None:
    """The batch is sent again."""
    made, _ = destination(lambda _, __: outcomes(FINE))
    with pytest.raises(ServiceError, match="1 results for 2 records") as caught:
        made.submit([b"a", b"b"])

    assert not made.is_fatal(caught.value)


def test_the_limits_and_the_name() -> None:
    """A request: 500 records, 4 MiB. A record: 1000 KiB of data."""
    setup = read_async_sink(OPTIONS | FIREHOSE)
    config = setup.config

    assert isinstance(setup.destination, FirehoseDestination)
    assert setup.destination.name == "firehose delivery stream 'orders'"
    assert (config.max_batch_size, config.max_batch_size_in_bytes) == (500, 4 * 2**20)
    assert (config.max_record_size_in_bytes, config.max_in_flight_requests) == (1000 * 2**10, 50)
    assert config.max_buffered_requests == 10_000
    assert setup.destination.size_in_bytes(b"1234") == 4


@pytest.mark.parametrize(
    ("given_options", "message"),
    [
        ({}, "option 'deliveryStream' is required"),
        ({"deliveryStream": "a b"}, "option 'deliveryStream' is 'a b': allowed is one name of 1 to 64"),
        ({"deliveryStream": "a" * 65}, "allowed is one name of 1 to 64"),
        ({"deliveryStreem": "a"}, "did you mean 'deliveryStream'?"),
        ({"deliveryStream": "a", "maxBatchSize": "501"}, "the destination takes at most 500"),
    ],
)
def test_options_that_cannot_work_are_refused(given_options: dict[str, str], message: str) -> None:
    """With their names, before the query starts."""
    with pytest.raises(OptionError) as caught:
        read_sink({"destination": "firehose"} | given_options)

    assert message in str(caught.value)


def test_a_record_that_is_too_large_is_refused() -> None:
    """Before it is sent. 1000 KiB are allowed."""
    FakeService("firehose", lambda _, params: outcomes(*[FINE] * len(params["Records"])))

    assert write_all(FIREHOSE, rows([b"x" * 1024_000])).records == 1
    with pytest.raises(InvalidRecordError, match="a record of 1024001 bytes"):
        write_all(FIREHOSE, rows([b"x" * 1024_001]))


@settings(max_examples=40)
@given(st.lists(st.one_of(st.integers(0, 2**20), st.sampled_from(["throttle", "cut", "short"])), max_size=12))
def test_every_record_is_delivered_despite_failures(faults: list[int | str]) -> None:
    """Exactly once: in this test the service stores nothing of a request that gets no full answer."""
    stored: list[str] = []
    planned = iter(faults)

    def respond(_: str, params: dict[str, Any]) -> Any:
        fault = next(planned, 0)
        if fault == "throttle":
            return refusal("ServiceUnavailableException", status=503)
        if fault == "cut":
            return sdk.ConnectionClosedError(endpoint_url="http://service.test")
        if fault == "short":
            return outcomes(*[FINE] * (len(params["Records"]) - 1))
        results = []
        for n, record in enumerate(params["Records"]):
            if int(fault) >> n & 1:
                results.append({"ErrorCode": "ServiceUnavailableException"})
            else:
                results.append(FINE)
                stored.append(base64.b64decode(record["Data"]).decode())
        return outcomes(*results)

    FakeService("firehose", respond)
    figures = write_all(FIREHOSE, rows([str(n) for n in range(100)]), max_batch_size=20)

    assert sorted(stored, key=int) == [str(n) for n in range(100)]
    assert figures.records == 100
