"""What users see when something is wrong: soon, by name, with what is allowed, and never a secret."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from integration.support.kinesis import REGION, Streams
from integration.support.queries import logged_offsets, read, read_stream, start, wait_until
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


def source_stream(spark: SparkSession, **options: str) -> DataFrame:
    return spark.readStream.format("kinesis-efo").options(region=REGION, **options).load()


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
    "unknown": ({"frobnicate": "1"}, "option 'frobnicate' is not known: of the "),
    "another connector's": (
        {"minPartitions": "8"},
        "option 'minPartitions' is Kafka's: the records of a shard",
    ),
    "misspelt": ({"startingPositon": "LATEST"}, "is not known: did you mean 'startingPosition'?"),
    "misspelt secret": ({"awsSecretAccesKey": SECRET}, "is not known: did you mean 'awsSecretAccessKey'?"),
    "no stream": ({"streamName": " "}, "option 'streamName' is ' ': allowed is a stream's name"),
    "bad stream": ({"streamName": "my stream"}, "option 'streamName' is 'my stream': allowed is a stream's"),
    "half a key": ({"awsSecretAccessKey": SECRET}, "'awsAccessKeyId' is required with 'awsSecretAccessKey'"),
    "no JSON": ({"startingPosition": "{shard: 1"}, "is not JSON"),
    "bad JSON": (
        {"startingPosition": '{"shardId-0": {"BEFORE": "1"}}'},
        "has 'BEFORE' for shard 'shardId-0': expected AT_SEQUENCE_NUMBER or AFTER_SEQUENCE_NUMBER",
    ),
    "bad word": ({"startingPosition": "EARLIEST"}, "is 'EARLIEST': allowed is LATEST, TRIM_HORIZON"),
    "no time": ({"startingPosition": "AT_TIMESTAMP"}, "option 'startingTimestamp' is required with"),
    "negative limit": ({"maxRecordsPerTrigger": "-1"}, "is '-1': allowed is a whole number of at least 1"),
    "zero limit": ({"maxBytesPerTrigger": "0"}, "is '0': allowed is a size of at least 1"),
    "zero span": ({"maxTimeSpanPerTrigger": "0s"}, "is '0s': allowed is a duration of at least"),
    "large page": ({"getRecordsLimit": "10001"}, "is '10001': allowed is a whole number from 1 to 10000"),
    "no consumer": (
        {"recordPublisher": "efo"},
        "option 'consumerName' is required with 'recordPublisher' efo",
    ),
    "bad consumer": ({"consumerName": "my consumer"}, "is 'my consumer': allowed is 1 to 128 letters"),
    "a consumer, polling": (
        {"consumerName": "me", "recordPublisher": "polling"},
        "option 'consumerName' is 'me': 'recordPublisher' is polling: it is for efo only",
    ),
    "fan-out without a consumer": (
        {"subscribeToShardFallback": "fail"},
        "option 'subscribeToShardFallback' is 'fail': it is for fan-out, which needs 'consumerName' or",
    ),
    "no ARN": (
        {"consumerName": "me", "consumerRegistration": "none"},
        "option 'consumerArn' is required with 'consumerRegistration' none: arn:aws:kinesis:<region>:",
    ),
    "an ARN to register": (
        {"consumerArn": CONSUMER, "consumerRegistration": "eager"},
        f"is '{CONSUMER}': 'consumerRegistration' is eager: a consumer's ARN is for none",
    ),
    "bad ARN": ({"consumerArn": "me"}, "is 'me': allowed is arn:aws:kinesis:<region>:<account>:stream/"),
    "ARN of another stream": (
        {"consumerArn": CONSUMER.replace("orders", "clicks")},
        "that is a consumer of stream 'clicks', not of 'orders'",
    ),
    "ARN of another region": (
        {"consumerArn": CONSUMER.replace(REGION, "eu-north-1")},
        f"option 'region' is '{REGION}': the consumers of 'consumerArn' are in eu-north-1",
    ),
    "one ARN, two streams": (
        {"streamName": "orders,clicks", "consumerArn": CONSUMER},
        "it is for one stream: give 'consumerArn.<stream>' for each of orders, clicks",
    ),
    "ARN missing": (
        {"streamName": "orders,clicks", "consumerArn.orders": CONSUMER},
        "option 'consumerArn.clicks' is required with 'consumerRegistration' none",
    ),
    "ARN of a stream that is not read": (
        {"consumerArn.clicks": CONSUMER},
        f"option 'consumerArn.clicks' is '{CONSUMER}': no such stream is read: allowed are orders",
    ),
    "ARN of either stream": (
        {"streamName": "orders,Orders", "consumerArn.Orders": CONSUMER},
        "option 'consumerArn.orders' could be for 'orders' and 'Orders', as keys have no case",
    ),
    "address of no host": (
        {"consumerName": "me", "agentAddress": "127.0.0.1:80"},
        "is '127.0.0.1:80': allowed is the name or address of a host, without a port",
    ),
    "a buffer without an agent": (
        {"consumerName": "me", "agent": "none", "agentBufferSize": "1GiB"},
        "option 'agentBufferSize' is '1GiB': there is no agent, as 'agent' is none",
    ),
}


@pytest.mark.parametrize("case", SOURCE_OPTIONS)
def test_options_of_the_source_are_refused_at_load(spark: SparkSession, case: str) -> None:
    """``load()`` says what is wrong, before anything runs: key, value, what is allowed."""
    options, message = SOURCE_OPTIONS[case]
    with fails() as failure:
        source(spark, **{"streamName": "orders", **options})

    assert "kinesis-efo: option '" in failure.message
    assert message in failure.message


def test_a_source_needs_a_stream(spark: SparkSession) -> None:
    """The error names both options that would do."""
    with fails() as failure:
        source_stream(spark, startingPosition="LATEST")

    assert "option 'streamName' or 'streamArn' is required: a stream's name" in failure.message


def test_all_that_is_wrong_comes_at_once(spark: SparkSession) -> None:
    """Nobody has to mend one option after the other."""
    with fails() as failure:
        source_stream(spark, streamNam="orders", maxRecordsPerTrigger="none", shardsPerTask="0")

    for key in ("streamnam", "maxrecordspertrigger", "shardspertask"):
        assert f"option '{key}'" in failure.message.lower()


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
    "no destination": ({}, "option 'destination' is required: dynamodb, firehose, http, kinesis, s3, sqs"),
    "unknown destination": ({"destination": "kafka"}, "is 'kafka': allowed are dynamodb, firehose, http"),
    "no stream": ({"destination": "kinesis"}, "option 'streamName' or 'streamArn' is required"),
    "unknown": ({**KINESIS, "frobnicate": "1"}, "option 'frobnicate' is not known: of the "),
    "misspelt": ({**KINESIS, "maxBatchSizes": "1"}, "is not known: did you mean 'maxBatchSize'?"),
    "misspelt secret": (
        {**KINESIS, "awsSecretAccesKey": SECRET},
        "is not known: did you mean 'awsSecretAccessKey'?",
    ),
    "negative": ({**KINESIS, "maxBatchSize": "-5"}, "is '-5': allowed is a whole number of at least 1"),
    "too many": ({**KINESIS, "maxBatchSize": "501"}, "is '501': the destination takes at most 500"),
}


@pytest.mark.parametrize("case", SINK_OPTIONS)
def test_options_of_the_sink_are_refused_before_anything_is_written(spark: SparkSession, case: str) -> None:
    """``save()`` says what is wrong: key, value, what is allowed."""
    options, message = SINK_OPTIONS[case]
    with fails() as failure:
        write(rows(spark), **options)

    assert "async-sink: option '" in failure.message
    assert message in failure.message


COLUMNS: dict[str, tuple[tuple[str, ...], str]] = {
    "no data": (("'x' AS value",), "column 'data' (binary or string) is required"),
    "misspelt": (("'x' AS data", "'k' AS partition_key"), "did you mean 'partitionKey'?"),
    "wrong type": (("1 AS data",), "column 'data' is int: allowed is binary or string"),
    "wrong key": (("'x' AS data", "1 AS partitionKey"), "column 'partitionKey' is int: allowed is string"),
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
    "empty key": (
        ("'x' AS data", "'' AS partitionKey"),
        {},
        "column 'partitionKey' has 0 characters: allowed are 1 to 256",
    ),
    "long key": (
        ("'x' AS data", "repeat('k', 257) AS partitionKey"),
        {},
        "column 'partitionKey' has 257 characters: allowed are 1 to 256",
    ),
    "oversize": (
        ("repeat('x', 90) AS data", "'0123456789' AS partitionKey"),
        {"maxRecordSizeInBytes": "99"},
        "100 bytes",
    ),
}


@pytest.mark.parametrize("case", RECORDS)
def test_records_that_can_never_be_written(spark: SparkSession, streams: Streams, case: str) -> None:
    """The task fails and says why; what is wrong with a record is not retried, and nothing of it is sent."""
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


def test_records_of_a_stream_that_can_never_be_written(
    spark: SparkSession, streams: Streams, checkpoint: str
) -> None:
    """A streaming query fails likewise, with the batch left open."""
    stream = streams.create(1)
    streams.put(stream, [("key", b"good"), ("key", b"bad")])
    frame = read_stream(spark, streams.endpoint, stream)
    bad = frame.select(f.when(frame.data != b"bad", frame.data).alias("data"))
    with fails() as failure:
        write_stream(bad, checkpoint, destination="kinesis", streamName=stream, endpointUrl=streams.endpoint)

    assert "row 1 of a batch of rows (counted from 0): column 'data' is null" in failure.message


# --- what the service says no to ----------------------------------------------------------------------

Ends = dict[str, Callable[[SparkSession, str, str, dict[str, str]], None]]


def _batch_source(spark: SparkSession, endpoint: str, checkpoint: str, options: dict[str, str]) -> None:
    del checkpoint
    read(spark, endpoint, **options).collect()


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
    "batch source": _batch_source,
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
@pytest.mark.parametrize("end", ["batch source", "streaming source", "batch sink"])
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


@pytest.mark.parametrize("streaming", [True, False])
def test_a_position_for_a_shard_that_does_not_exist(
    spark: SparkSession, streams: Streams, checkpoint: str, *, streaming: bool
) -> None:
    """The error names the shard, and those there are."""
    stream = streams.create(2)
    position = json.dumps({"shardId-000000000099": {"AT_SEQUENCE_NUMBER": "1"}})
    end = ENDS["streaming source" if streaming else "batch source"]
    with fails() as failure:
        end(spark, streams.endpoint, checkpoint, {"stream": stream, "startingPosition": position})

    assert (
        f"option 'startingPosition' names shard 'shardId-000000000099', which stream '{stream}' does not "
        f"have: its shards are {', '.join(streams.open_shards(stream))}"
    ) in failure.message


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
