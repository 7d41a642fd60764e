"""Options under the names that users bring from Kafka's source, Databricks and awslabs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from sluice import option_names
from sluice.aws.calling.connection import CONNECTION_OPTIONS
from sluice.aws.names.foreign_names import AWSLABS
from sluice.destinations.kinesis import KinesisStreamsDestination
from sluice.destinations.registry import read_sink
from sluice.errors import OptionError
from sluice.kinesis.options.config import SOURCE_OPTIONS, SourceConfig, source_config_from_options
from sluice.kinesis.options.foreign_names import SOURCE_NAMES
from sluice.option_names import Explained, Taken
from sluice.options import Option
from sluice.sink.options import SINK_OPTIONS

SECRET = "wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY"  # noqa: S105 - nobody's
STREAM = {"streamName": "orders"}
SOURCE = {option.key: option for option in (*SOURCE_OPTIONS, *CONNECTION_OPTIONS)}
SINK = {option.key: option for option in (*SINK_OPTIONS, *CONNECTION_OPTIONS)} | {
    option.key: option for option in KinesisStreamsDestination.OPTIONS
}


@pytest.fixture(autouse=True)
def _each_test_logs_anew() -> Iterator[None]:
    option_names._log_once.cache_clear()
    yield
    option_names._log_once.cache_clear()


def config(**given: str) -> SourceConfig:
    return source_config_from_options({**STREAM, **given})


def refusal(given: dict[str, str], **fixed: str) -> str:
    with pytest.raises(OptionError) as refused:
        source_config_from_options({**STREAM, **given, **fixed})
    return str(refused.value)


TAKEN: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "Kafka": (
        {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "500"},
        {"startingPosition": "TRIM_HORIZON", "maxRecordsPerTrigger": "500"},
    ),
    "Kafka, in a batch": (
        {"startingOffsets": "EARLIEST", "endingOffsets": "latest"},
        {"startingPosition": "TRIM_HORIZON", "endingPosition": "LATEST"},
    ),
    "Databricks": (
        {
            "initialPosition": "earliest",
            "consumerMode": "polling",
            "maxRecordsPerFetch": "100",
            "shardFetchInterval": "2m",
            "awsAccessKey": "AKIAIOSFODNN7EXAMPLE",
            "awsSecretKey": SECRET,
            "endpoint": "http://127.0.0.1:4566",
        },
        {
            "startingPosition": "TRIM_HORIZON",
            "recordPublisher": "polling",
            "getRecordsLimit": "100",
            "shardDiscoveryInterval": "2m",
            "awsAccessKeyId": "AKIAIOSFODNN7EXAMPLE",
            "awsSecretAccessKey": SECRET,
            "endpointUrl": "http://127.0.0.1:4566",
        },
    ),
    "Databricks, fan-out": (
        {"consumerMode": "EFO", "consumerName": "me", "requireConsumerDeregistration": "false"},
        {"recordPublisher": "efo", "consumerName": "me", "consumerDeregistration": "never"},
    ),
    "Databricks, a role": (
        {"roleArn": "arn:aws:iam::123456789012:role/r", "stsEndpoint": "https://sts.eu-west-1.amazonaws.com"},
        {
            "roleArn": "arn:aws:iam::123456789012:role/r",
            "stsEndpointUrl": "https://sts.eu-west-1.amazonaws.com",
        },
    ),
    "awslabs": (
        {
            "kinesis.endpointurl": "https://kinesis.us-east-2.amazonaws.com",
            "kinesis.region": "us-east-2",
            "kinesis.consumertype": "GetRecords",
            "kinesis.startingposition": "AT_TIMESTAMP 2023-08-30T19:00:05-08:00",
            "kinesis.failondataloss": "false",
            "kinesis.describeShardInterval": "50s",
            "kinesis.getRecords.numberOfRecordsPerFetch": "20",
            "kinesis.getRecords.fetchIntervalMs": "300",
        },
        {
            "endpointUrl": "https://kinesis.us-east-2.amazonaws.com",
            "region": "us-east-2",
            "recordPublisher": "polling",
            "startingPosition": "AT_TIMESTAMP",
            "startingTimestamp": "2023-08-30T19:00:05-08:00",
            "failOnDataLoss": "false",
            "shardDiscoveryInterval": "50s",
            "getRecordsLimit": "20",
            "getRecordsInterval": "300ms",
        },
    ),
    "awslabs, fan-out": (
        {"kinesis.consumerType": "SubscribeToShard", "kinesis.consumerName": "me"},
        {"recordPublisher": "efo", "consumerName": "me"},
    ),
}


@pytest.mark.parametrize("case", TAKEN)
def test_names_that_mean_the_same_are_taken(case: str) -> None:
    """The parsed options are the same as under the names here, with any case of the key."""
    theirs, ours = TAKEN[case]
    assert config(**theirs) == config(**ours)
    assert config(**{key.lower(): text for key, text in theirs.items()}) == config(**ours)


def test_one_line_of_the_log_says_what_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    """Once in a process, however often Spark has the options read; names alone, no values."""
    with caplog.at_level(logging.INFO, "sluice"):
        for _ in range(3):
            config(initialPosition="latest", awsAccessKey="AKIAIOSFODNN7EXAMPLE", awsSecretKey=SECRET)
    line = (
        "kinesis-efo: options of other connectors are taken: 'awsAccessKey' as 'awsAccessKeyId', "
        "'awsSecretKey' as 'awsSecretAccessKey', 'initialPosition' as 'startingPosition'"
    )
    assert [record.getMessage() for record in caplog.records] == [line]


def test_nothing_is_logged_for_our_own_names(caplog: pytest.LogCaptureFixture) -> None:
    """A line would be noise where nothing was translated."""
    with caplog.at_level(logging.DEBUG, "sluice"):
        config(startingPosition="LATEST")
    assert caplog.records == []


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "tasks": (
        {"minPartitions": "10"},
        "option 'minPartitions' is Kafka's: the records of a shard are read in",
    ),
    "topic": ({"subscribe": "a"}, "option 'subscribe' is Kafka's: the streams of Kinesis are named in"),
    "group": ({"kafka.group.id": "me"}, "there are no groups"),
    "any of Kafka's": ({"kafka.sasl.jaas.config": SECRET}, "'kafka.sasl.jaas.config' is Kafka's, and has no"),
    "offsets": ({"startingOffsets": '{"t": {"0": 1}}'}, "option 'startingOffsets' has something else than"),
    "a time": (
        {"initialPosition": '{"at_timestamp": "06/25/2020 10:23:45 PDT", "format": "MM/dd/yyyy"}'},
        "'startingPosition' AT_TIMESTAMP and 'startingTimestamp'",
    ),
    "no time": ({"initialPosition": "at_timestamp"}, "option 'startingTimestamp' is required with"),
    "per shard": ({"kinesis.maxFetchRecordsPerShard": "7"}, "limits each shard; here 'maxRecordsPerTrigger'"),
    "metadata": ({"kinesis.dynamodb.tableName": "t"}, "positions are in Spark's own checkpoint"),
    "Java": ({"kinesis.credentialProviderClass": "c"}, "names a class in Java: give 'profile'"),
    "a bad value": (
        {"initialPosition": "newest"},
        "option 'initialPosition' ('startingPosition' here) is 'newest': allowed is LATEST",
    ),
    "a bad secret": (
        {"awsAccessKey": "AKIAIOSFODNN7EXAMPLE", "awsSecretKey": f"{SECRET} {SECRET}"},
        "option 'awsSecretKey' ('awsSecretAccessKey' here) is ***: allowed is printable characters",
    ),
    "both": (
        {"initialPosition": "latest", "startingPosition": "TRIM_HORIZON"},
        "option 'initialPosition' is 'startingPosition' here, which is given as well: give one of them",
    ),
    "two for one": (
        {"initialPosition": "latest", "kinesis.startingPosition": "LATEST"},
        "is 'startingPosition' here, which is given as well",
    ),
    "half a key": ({"awsSecretKey": SECRET}, "option 'awsAccessKeyId' is required with 'awsSecretAccessKey'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_name_with_another_meaning_gets_its_own_sentence(case: str) -> None:
    """The error has the name that the user wrote, and no secret."""
    given, message = REFUSED[case]
    refused = refusal(given)
    assert message in refused
    assert "did you mean" not in refused
    assert SECRET not in refused


def test_no_name_turns_on_what_costs() -> None:
    """awslabs' consumer name does nothing unless fan-out is chosen; here a consumer turns it on."""
    message = refusal({"kinesis.consumerName": "me"})
    assert "option 'kinesis.consumerName' ('consumerName' here) would turn fan-out on here" in message
    assert config(**{"kinesis.consumerName": "me", "recordPublisher": "efo"}).fan_out is not None
    for mode in ("consumerMode", "kinesis.consumerType"):
        assert "'consumerName' is required" in refusal({mode: "efo"})


@pytest.mark.parametrize(
    ("given", "proposed"),
    [
        ("startingPositon", "did you mean 'startingPosition'?"),
        ("initialPositon", "did you mean 'startingPosition'?"),
        ("kinesis.shardsPerTask", "did you mean 'shardsPerTask'?"),
        ("consumer_name", "did you mean 'consumerName'?"),
    ],
)
def test_a_misspelt_name_is_proposed(given: str, proposed: str) -> None:
    """One name, where it is clear; also where another connector's name was misspelt."""
    assert f"option '{given}' is not known: {proposed}" in refusal({given: "x"})


@pytest.mark.parametrize("given", ["consumerMod", "consumer", "consumerGroup", "newConsumerTo"])
def test_what_costs_is_proposed_to_nobody_who_may_mean_something_else(given: str) -> None:
    """A consumer is billed by the hour, so ``consumerName`` is no guess."""
    assert "'consumerName'" not in refusal({given: "polling"})


def test_the_three_nearest_of_many_are_named() -> None:
    """Not all of 70."""
    refused = refusal({"getRecords": "1"})
    assert refused.count("'") == 2 + 2 * 3
    refused = refusal({"frobnicate": "1"})
    assert "is not known: those spelled most like it are " in refused
    assert refused.count("'") == 2 + 2 * 3


def test_the_names_of_sinks_are_taken() -> None:
    """By destination ``kinesis``."""
    setup: Any = read_sink(
        {
            "destination": "kinesis",
            "kinesis.streamName": "s",
            "kinesis.region": "eu-west-1",
            "kinesis.sink.recordMaxBufferedTimeMs": "1000",
            "kinesis.sink.aggregationEnabled": "false",
        }
    )
    assert setup.config.max_time_in_buffer == 1.0
    with pytest.raises(
        OptionError, match=r"'kinesis.sink.recordTtl' drops records that are late, which nothin"
    ):
        read_sink({"destination": "kinesis", "streamName": "s", "kinesis.sink.recordTtl": "30000"})


@pytest.mark.parametrize(
    ("names", "declared"), [(SOURCE_NAMES, SOURCE), (KinesisStreamsDestination.FOREIGN_NAMES, SINK)]
)
def test_the_tables_fit_the_options(
    names: tuple[option_names.ForeignName, ...], declared: dict[str, Option[Any]]
) -> None:
    """Each name occurs once and is none of ours; the accepted or advised option exists."""
    assert len({entry.name.lower() for entry in names}) == len(names)
    for entry in names:
        assert entry.name.lower() not in {key.lower() for key in declared}
        if isinstance(entry, Taken):
            assert entry.key in declared
        else:
            quoted = {part for part in entry.why.split("'")[1::2] if part.isidentifier()}
            assert quoted <= set(declared), entry.name
            assert "consumerName" not in quoted or entry.name == "consumerNamePrefix"


def test_every_option_of_awslabs_connector_is_known() -> None:
    """The source's options as its README lists them."""
    known = {entry.name for entry in SOURCE_NAMES if entry.origin == AWSLABS}
    listed = """endpointUrl region streamName consumerType failOnDataLoss maxFetchRecordsPerShard
        maxFetchTimePerShardSec startingPosition describeShardInterval minBatchesToRetain
        checkNewRecordThreads metadataCommitterType metadataPath metadataNumRetries metadataRetryIntervalsMs
        metadataMaxRetryIntervalMs clientNumRetries clientRetryIntervalsMs clientMaxRetryIntervalMs
        consumerName stsRoleArn stsSessionName stsEndpointUrl awsAccessKeyId awsSecretKey kinesisRegion
        credentialProviderClass credentialProviderParam dynamodb.* subscribeToShard.timeoutSec
        subscribeToShard.maxRetries getRecords.numberOfRecordsPerFetch getRecords.fetchIntervalMs"""
    assert known == {f"kinesis.{name}" for name in listed.split()}
    assert all(isinstance(entry, Explained | Taken) for entry in SOURCE_NAMES)
