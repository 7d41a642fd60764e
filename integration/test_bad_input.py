"""Errors of users: they come soon, with the name and the allowed values, and never with a secret."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from integration.support.kinesis import REGION, Streams
from integration.support.queries import logged_offsets, read_stream, start, wait_until
from integration.support.servers import FaultProxy, Server, fault_proxy, held_port

SOON = 180.0  # on a machine that is busy with other things; it takes seconds
SECRET = "wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY"  # noqa: S105 - nobody's
KEYS = {"awsAccessKeyId": "AKIAIOSFODNN7EXAMPLE", "awsSecretAccessKey": SECRET}


class Failure:
    """What came of a block that was to fail."""

    message = ""


@contextmanager
def fails() -> Iterator[Failure]:
    """The block raises what Spark shows its user; it does so soon, and without the secret."""
    failure = Failure()
    began = time.monotonic()
    with pytest.raises(PySparkException) as caught:
        yield failure
    failure.message = str(caught.value)
    assert time.monotonic() - began < SOON
    assert SECRET not in failure.message


def source(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("kinesis-efo").options(region=REGION, **options).load()


def rows(spark: SparkSession, *columns: str) -> DataFrame:
    """One row for a sink."""
    return spark.range(1).selectExpr(*(columns or ("'data' AS data",)))


def write(frame: DataFrame, **options: str) -> None:
    frame.write.format("async-sink").mode("append").options(region=REGION, **options).save()


def write_stream(frame: DataFrame, checkpoint: str, **options: str) -> None:
    """Starts a query, and waits until it fails."""
    writer = frame.writeStream.format("async-sink").options(region=REGION, **options)
    query = writer.option("checkpointLocation", checkpoint).start()
    wait_until(lambda: not query.isActive, "the query to fail", timeout=SOON)
    if (error := query.exception()) is not None:
        raise error


# --- options of the source ----------------------------------------------------------------------------

CONSUMER = f"arn:aws:kinesis:{REGION}:123456789012:stream/orders/consumer/me:1700000000"
SOURCE_OPTIONS: dict[str, tuple[dict[str, str], str]] = {
    "unknown": ({"frobnicate": "1"}, "option 'frobnicate' is not known: those spelled most "),
    "misspelt secret": ({"awsSecretAccesKey": SECRET}, "is not known: did you mean 'awsSecretAccessKey'?"),
    "half a key": ({"awsSecretAccessKey": SECRET}, "'awsAccessKeyId' is required with 'awsSecretAccessKey'"),
    "bad word": ({"startingPosition": "EARLIEST"}, "is 'EARLIEST': allowed is LATEST, TRIM_HORIZON"),
    "one ARN, two streams": (
        {"streamName": "orders,clicks", "consumerArn": CONSUMER},
        "it is for one stream: give 'consumerArn.<stream>' for each of orders, clicks",
    ),
}


@pytest.mark.parametrize("case", SOURCE_OPTIONS)
def test_options_of_the_source_are_refused_at_load(spark: SparkSession, case: str) -> None:
    """``load()`` raises an error before anything runs: key, value, and allowed values."""
    options, message = SOURCE_OPTIONS[case]
    with fails() as failure:
        source(spark, **{"streamName": "orders", **options})

    assert "kinesis-efo: option '" in failure.message
    assert message in failure.message


@pytest.mark.parametrize("streaming", [True, False])
def test_a_schema_of_the_users_own_is_refused(
    spark: SparkSession, streams: Streams, checkpoint: str, *, streaming: bool
) -> None:
    """``.schema(...)`` that differs from the source's would show its rows as something else."""
    options = {"streamName": streams.create(1), "endpointUrl": streams.endpoint, "region": REGION}
    reader = spark.readStream if streaming else spark.read
    with fails() as failure:
        frame = reader.format("kinesis-efo").schema("data string").options(**options).load()
        if streaming:
            start(frame, checkpoint, availableNow=True)
        else:
            frame.collect()

    assert "the schema can't be chosen; it is always: data binary, partitionKey string" in failure.message


# --- options and columns of the sink ------------------------------------------------------------------

KINESIS = {"destination": "kinesis", "streamName": "orders"}
SINK_OPTIONS: dict[str, tuple[dict[str, str], str]] = {
    "no destination": ({}, "option 'destination' is required: dynamodb, files, firehose, http, "),
    "unknown": ({**KINESIS, "frobnicate": "1"}, "option 'frobnicate' is not known: those spelled most "),
    "misspelt secret": (
        {**KINESIS, "awsSecretAccesKey": SECRET},
        "is not known: did you mean 'awsSecretAccessKey'?",
    ),
}


@pytest.mark.parametrize("case", SINK_OPTIONS)
def test_options_of_the_sink_are_refused_before_anything_is_written(spark: SparkSession, case: str) -> None:
    """``save()`` raises an error: key, value, and allowed values."""
    options, message = SINK_OPTIONS[case]
    with fails() as failure:
        write(rows(spark), **options)

    assert "async-sink: option '" in failure.message
    assert message in failure.message


COLUMNS: dict[str, tuple[tuple[str, ...], str]] = {
    "misspelt": (("'x' AS data", "'k' AS partition_key"), "did you mean 'partitionKey'?"),
    "wrong type": (("1 AS data",), "column 'data' is int: allowed is binary or string"),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_columns_that_a_sink_cannot_write(spark: SparkSession, case: str) -> None:
    """Columns are checked where the query starts."""
    columns, message = COLUMNS[case]
    with fails() as failure:
        write(rows(spark, *columns), **KINESIS)

    assert message in failure.message


def test_a_streaming_sink_checks_at_start(spark: SparkSession, streams: Streams, checkpoint: str) -> None:
    """The same for ``start()``: the query fails before its first batch, and names all that is wrong."""
    frame = read_stream(spark, streams.endpoint, streams.create(1)).selectExpr("partitionKey AS other")
    with fails() as options:
        write_stream(frame, checkpoint, **KINESIS, maxBatchSizes="1", maxInFlightRequests="0")
    with fails() as columns:
        write_stream(frame, checkpoint + "-2", **KINESIS)

    assert "did you mean 'maxBatchSize'?" in options.message
    assert "option 'maxInFlightRequests' is '0': allowed is a whole number from 1" in options.message
    assert "column 'data' (binary or string) is required" in columns.message


# --- records that can never be written ----------------------------------------------------------------

RECORDS: dict[str, tuple[tuple[str, ...], dict[str, str], str]] = {
    "null": (("cast(null AS string) AS data",), {}, "column 'data' is null"),
    "oversize": (
        ("repeat('x', 90) AS data", "'0123456789' AS partitionKey"),
        {"maxRecordSizeInBytes": "99"},
        "100 bytes",
    ),
}


@pytest.mark.parametrize("case", RECORDS)
def test_records_that_can_never_be_written(spark: SparkSession, streams: Streams, case: str) -> None:
    """The task fails and says why; a faulty record is not retried, and nothing of it is sent."""
    columns, options, message = RECORDS[case]
    stream = streams.create(1)
    with fails() as failure:
        write(
            rows(spark, *columns),
            destination="kinesis",
            streamName=stream,
            endpointUrl=streams.endpoint,
            **options,
        )

    assert message in failure.message
    assert "InvalidRecordError" in failure.message
    assert streams.read(stream) == []


# --- what the service says no to ----------------------------------------------------------------------

Ends = dict[str, Callable[[SparkSession, str, str, dict[str, str]], None]]


def _stream_source(spark: SparkSession, endpoint: str, checkpoint: str, options: dict[str, str]) -> None:
    start(read_stream(spark, endpoint, **options), checkpoint, availableNow=True)


def _batch_sink(spark: SparkSession, endpoint: str, checkpoint: str, options: dict[str, str]) -> None:
    del checkpoint
    streams = {"streamName": options["stream"], **{k: v for k, v in options.items() if k != "stream"}}
    write(rows(spark), destination="kinesis", endpointUrl=endpoint, **streams)


def _stream_sink(spark: SparkSession, endpoint: str, checkpoint: str, options: dict[str, str]) -> None:
    streams = {"streamName": options["stream"], **{k: v for k, v in options.items() if k != "stream"}}
    frame = spark.readStream.format("rate").load().selectExpr("cast(value AS string) AS data")
    write_stream(frame, checkpoint, destination="kinesis", endpointUrl=endpoint, **streams)


ENDS: Ends = {
    "streaming source": _stream_source,
    "batch sink": _batch_sink,
    "streaming sink": _stream_sink,
}


@pytest.mark.parametrize("end", ENDS)
def test_a_stream_that_does_not_exist(
    spark: SparkSession, streams: Streams, checkpoint: str, end: str
) -> None:
    """The error names the stream, the call and the service's own word for it; it is not retried."""
    with fails() as failure:
        ENDS[end](spark, streams.endpoint, checkpoint, {"stream": "no-such-stream"})

    operation = "DescribeStreamSummary" if "source" in end else "PutRecords"
    assert f"{operation} of no-such-stream" in failure.message
    assert "ResourceNotFoundException" in failure.message


@pytest.mark.parametrize("end", ENDS)
def test_an_endpoint_that_cannot_be_reached(spark: SparkSession, checkpoint: str, end: str) -> None:
    """Seconds, not minutes: nothing listens there, and the error names it."""
    with held_port() as port, fails() as failure:
        endpoint = f"http://127.0.0.1:{port}"
        ENDS[end](spark, endpoint, checkpoint, {"stream": "orders"})

    assert f"at {endpoint} failed: EndpointConnectionError" in failure.message
    assert "refused" in failure.message


@pytest.fixture(scope="module")
def gate(ministack: Server) -> Iterator[FaultProxy]:
    """A service that lets nobody in; what it says repeats what it was sent, as the real one does."""
    with fault_proxy(ministack.endpoint) as proxy:
        yield proxy


REFUSALS: dict[str, str] = {
    "UnrecognizedClientException": "The security token included in the request is invalid.",
    "InvalidSignatureException": (
        "The request signature we calculated does not match the signature you provided. Check your AWS "
        "Secret Access Key.\n\nThe Canonical String for this request should have been\n'POST\n/\n\n"
        f"x-amz-security-token:{SECRET}\n\nhost'\n\nThe String-to-Sign should have been\n'AWS4-HMAC-SHA256\n'"
    ),
}


@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.parametrize("end", ["streaming source", "batch sink"])
def test_wrong_credentials(
    spark: SparkSession, gate: FaultProxy, checkpoint: str, end: str, code: str
) -> None:
    """They fail at once, with the options to look at; of the request that was refused nothing is repeated."""
    gate.set_rules({"service": "*", "error": {"code": code, "status": 400, "message": REFUSALS[code]}})
    with fails() as failure:
        ENDS[end](spark, gate.endpoint, checkpoint, {"stream": "orders", **KEYS})

    assert f"failed: {code}: The " in failure.message
    assert "check the credentials: options 'awsAccessKeyId', 'profile', 'roleArn'" in failure.message
    assert "Canonical String" not in failure.message
    assert KEYS["awsAccessKeyId"] not in failure.message
    assert len({each["operation"] for each in gate.fired()}) == 1
    gate.clear()


# --- positions and checkpoints ------------------------------------------------------------------------


def test_a_checkpoint_of_another_stream(spark: SparkSession, streams: Streams, checkpoint: str) -> None:
    """A query that is pointed elsewhere fails, and its checkpoint stays as it was for the right one."""
    right, wrong = streams.create(1), streams.create(1)
    streams.put(right, [("key", b"1")])
    streams.put(wrong, [("key", b"2")])
    start(read_stream(spark, streams.endpoint, right), checkpoint, availableNow=True)
    before = logged_offsets(checkpoint)
    with fails() as failure:
        start(read_stream(spark, streams.endpoint, wrong), checkpoint, availableNow=True)

    assert f"the checkpoint belongs to other streams: it holds offsets of {right}" in failure.message
    assert f"and the query reads {wrong}" in failure.message
    assert logged_offsets(checkpoint) == before
