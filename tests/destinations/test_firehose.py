"""The destination firehose: rows, requests, refusals, and a whole writer in bad weather."""

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
    """Any bytes, none included, and nothing is put between records."""
    assert convert([b"\x00\xff", b""], kind) == [b"\x00\xff", b""]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_text_is_sent_as_utf_8(kind: Any) -> None:
    """A string column becomes its UTF-8 bytes, in order, beyond one slice."""
    values = [f"grün {n}" for n in range(3000)]

    assert convert(values, kind) == [value.encode() for value in values]


def test_null_data_is_refused_with_its_row() -> None:
    """There is nothing to send; the error counts rows and shows none."""
    with pytest.raises(InvalidRecordError, match=r"row 1030 of a batch .*column 'data' is null"):
        convert(["a"] * 1030 + [None])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": StringType()}, "column 'data' (binary or string) is required"),
        ({"data": IntegerType()}, "column 'data' is int: allowed is binary or string"),
        ({"data": BinaryType(), "DATA": BinaryType()}, "column 'data' is there twice"),
    ],
)
def test_schemas_that_cannot_work_are_refused(columns: dict[str, Any], message: str) -> None:
    """A query with the wrong columns fails when it starts, not at its first row."""
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(OptionError) as caught:
        FirehoseRowConverter().open(schema)

    assert message in str(caught.value)


def test_other_columns_are_left_alone() -> None:
    """As with Spark's Kafka sink; names are found whatever their case."""
    kinds = {"Data": StringType(), "other": IntegerType()}
    schema = StructType([StructField(name, kind) for name, kind in kinds.items()])
    FirehoseRowConverter().open(schema)
    batch = pa.record_batch([pa.array([1]), pa.array(["a"])], names=["other", "DATA"])

    assert list(FirehoseRowConverter().convert(batch)) == [b"a"]


def test_a_batch_without_data_is_refused_even_unopened() -> None:
    """Whoever uses the converter by hand gets an error too."""
    with pytest.raises(OptionError, match="column 'data'"):
        list(FirehoseRowConverter().convert(pa.record_batch([pa.array([1])], names=["other"])))


def test_a_request_holds_all_entries() -> None:
    """To the delivery stream by name, in order."""
    made, service = destination(lambda _, __: outcomes(FINE, FINE))

    assert made.submit([b"a", b"b"]) == SubmitResult([], {}, [])
    ((operation, sent),) = service.calls
    assert operation == "PutRecordBatch"
    assert sent == {
        "DeliveryStreamName": "orders",
        "Records": [{"Data": base64.b64encode(data).decode()} for data in (b"a", b"b")],
    }


def test_refused_entries_are_found_by_their_place() -> None:
    """Each result belongs to the entry at its index; the count in the answer is not relied upon."""
    busy = {"ErrorCode": "ServiceUnavailableException", "ErrorMessage": "Slow down."}
    made, _ = destination(lambda _, __: outcomes(busy, FINE, {"ErrorCode": "InternalFailure"}))
    result = made.submit([b"a", b"b", b"a"])

    assert result.failed == [b"a", b"a"]
    assert result.codes == {"ServiceUnavailableException": 1, "InternalFailure": 1}


def test_a_code_that_speaks_of_the_stream_is_fatal() -> None:
    """No attempts for fifteen minutes at what will not change; the service's reason is shown."""
    never = {"ErrorCode": "InvalidKMSResourceException", "ErrorMessage": "The key is disabled."}
    made, _ = destination(lambda _, __: outcomes(FINE, never))
    with pytest.raises(ServiceError, match=r"of orders .*The key is disabled") as caught:
        made.submit([b"a", b"b"])

    assert made.is_fatal(caught.value)


def test_a_record_that_will_never_be_accepted_is_refused_for_good() -> None:
    """It is a dead letter, or fails the task; the others go on."""
    made, _ = destination(lambda _, __: outcomes(FINE, {"ErrorCode": "InvalidRecord", "ErrorMessage": "odd"}))
    result = made.submit([b"a", b"b"])

    assert (result.failed, result.rejected) == ([], [Rejection(b"b", "InvalidRecord: odd")])


def test_too_few_results_are_no_success() -> None:
    """An answer that does not speak for every entry is a damaged one: the batch goes again."""
    made, _ = destination(lambda _, __: outcomes(FINE))
    with pytest.raises(ServiceError, match="1 results for 2 records") as caught:
        made.submit([b"a", b"b"])

    assert not made.is_fatal(caught.value)


def test_the_limits_and_the_name() -> None:
    """500 records, 4 MiB a request, 1000 KiB a record; data alone counts."""
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
    """By name, before anything runs."""
    with pytest.raises(OptionError) as caught:
        read_sink({"destination": "firehose"} | given_options)

    assert message in str(caught.value)


def test_a_record_that_is_too_large_is_refused() -> None:
    """Before it is sent; 1000 KiB are fine."""
    FakeService("firehose", lambda _, params: outcomes(*[FINE] * len(params["Records"])))

    assert write_all(FIREHOSE, rows([b"x" * 1024_000])).records == 1
    with pytest.raises(InvalidRecordError, match="a record of 1024001 bytes"):
        write_all(FIREHOSE, rows([b"x" * 1024_001]))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 2**20), st.sampled_from(["throttle", "cut", "short"])), max_size=12))
def test_a_writer_delivers_everything_in_spite_of_all(fates: list[int | str]) -> None:
    """Parts of batches refused, requests throttled, cut off or answered in part: each record arrives.

    Exactly once, where the service had not accepted what it then did not say.
    """
    stored: list[str] = []
    weather = iter(fates)

    def respond(_: str, params: dict[str, Any]) -> Any:
        fate = next(weather, 0)
        if fate == "throttle":
            return refusal("ServiceUnavailableException", status=503)
        if fate == "cut":
            return sdk.ConnectionClosedError(endpoint_url="http://service.test")
        if fate == "short":
            return outcomes(*[FINE] * (len(params["Records"]) - 1))
        results = []
        for n, record in enumerate(params["Records"]):
            if int(fate) >> n & 1:
                results.append({"ErrorCode": "ServiceUnavailableException"})
            else:
                results.append(FINE)
                stored.append(base64.b64decode(record["Data"]).decode())
        return outcomes(*results)

    FakeService("firehose", respond)
    figures = write_all(FIREHOSE, rows([str(n) for n in range(100)]), max_batch_size=20)

    assert sorted(stored, key=int) == [str(n) for n in range(100)]
    assert figures.records == 100
