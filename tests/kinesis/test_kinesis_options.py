"""The options of the source: defaults, cross checks, and what is not built yet."""

from __future__ import annotations

import pickle

import pytest

from sluice.errors import OptionError
from sluice.kinesis.connection import CONNECTION_OPTIONS, ConnectionConfig
from sluice.kinesis.options import (
    SOURCE_OPTIONS,
    Polling,
    SourceConfig,
    source_config_from_options,
)
from sluice.kinesis.starting import LATEST
from sluice.kinesis.streams import StreamRef
from sluice.retry import Backoff
from sluice.source.slices import Limits

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/"


def read(**given: str) -> SourceConfig:
    return source_config_from_options({"streamName": "orders", **given})


def refusal(**given: str) -> str:
    with pytest.raises(OptionError) as refused:
        source_config_from_options(given)
    return str(refused.value)


def test_the_defaults_are_those_of_the_interface() -> None:
    """A stream's name is all that has to be given."""
    config = read()
    assert config == SourceConfig(
        connection=ConnectionConfig(),
        streams=(StreamRef("orders"),),
        start=LATEST,
        end=LATEST,
        limits=Limits(None, None, None),
        polling=Polling(10_000, 0.2),
        shard_discovery_interval=10.0,
        shards_per_task=16,
        deaggregate=True,
        fail_on_data_loss=True,
        backoffs={
            "SubscribeToShard": Backoff(10, 1.0, 2.0, 1.5),
            "RegisterStreamConsumer": Backoff(10, 0.5, 2.0, 1.5),
            "DeregisterStreamConsumer": Backoff(10, 0.5, 2.0, 1.5),
            "ListStreamConsumers": Backoff(10, 0.2, 1.0, 1.5),
            "DescribeStreamConsumer": Backoff(50, 2.0, 5.0, 1.5),
            "GetRecords": Backoff(3, 0.3, 1.0, 1.5),
            "GetShardIterator": Backoff(3, 0.3, 1.0, 1.5),
            "ListShards": Backoff(10, 1.0, 5.0, 1.5),
        },
    )
    assert pickle.loads(pickle.dumps(config)) == config


def test_every_option_reaches_the_config() -> None:
    """Nothing that is given is dropped on the way, whatever the case of its key."""
    config = read(
        region="eu-west-1",
        recordPublisher="POLLING",
        maxrecordspertrigger="5000",
        MAXBYTESPERTRIGGER="5MiB",
        maxTimeSpanPerTrigger="2m",
        shardDiscoveryInterval="500ms",
        shardsPerTask="4",
        deaggregate="false",
        failOnDataLoss="FALSE",
        getRecordsLimit="100",
        getRecordsInterval="0",
        getRecordsMaxRetries="0",
        getRecordsBackoffBase="1s",
        getRecordsBackoffMax="2s",
        getRecordsBackoffExponent="2",
        listShardsMaxRetries="7",
    )
    assert config.connection.region == "eu-west-1"
    assert config.limits == Limits(5000, 5 * 1024 * 1024, 120_000_000)
    assert config.polling == Polling(100, 0.0)
    assert (config.shard_discovery_interval, config.shards_per_task) == (0.5, 4)
    assert (config.deaggregate, config.fail_on_data_loss) == (False, False)
    assert config.backoffs["GetRecords"] == Backoff(0, 1.0, 2.0, 2.0)
    assert config.backoffs["ListShards"].max_retries == 7


def test_streams_by_name_or_by_arn() -> None:
    """Several are separated by commas; an ARN also gives the region."""
    several = source_config_from_options({"streamName": "b, a"})
    assert several.streams == (StreamRef("b"), StreamRef("a"))
    by_arn = source_config_from_options({"streamArn": f"{ARN}a,{ARN}b"})
    assert by_arn.streams == (StreamRef("a", ARN + "a"), StreamRef("b", ARN + "b"))
    assert by_arn.connection.region == "eu-west-1"
    china = source_config_from_options(
        {"streamArn": ARN.replace("aws", "aws-cn") + "a", "region": "eu-west-1"}
    )
    assert china.streams[0].region == "eu-west-1"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "option 'streamName' or 'streamArn' is required"),
        ({"streamName": "a", "streamArn": ARN + "a"}, "'streamName' and 'streamArn' exclude one another"),
        ({"streamName": "a,a"}, "stream 'a' is there more than once"),
        ({"streamArn": f"{ARN}a,{ARN.replace('9012', '9013')}a"}, "stream 'a' is there more than once"),
        ({"streamArn": f"{ARN}a,{ARN.replace('west', 'east')}b"}, "in the same region"),
        (
            {"streamArn": ARN + "a", "region": "us-east-1"},
            "'region' is 'us-east-1': the streams .* in eu-west-1",
        ),
        ({"streamArn": "a"}, "option 'streamArn' is 'a': allowed is arn:aws:kinesis"),
        ({"streamArn": ARN + "a/consumer/c:1"}, "option 'streamArn' is"),
        ({"streamName": ARN + "a"}, "an ARN, which belongs into 'streamArn'"),
        ({"streamName": "a,,b"}, "option 'streamName' is 'a,,b'"),
        ({"streamName": "a b"}, "option 'streamName' is 'a b'"),
        ({"streamName": ""}, "option 'streamName' is ''"),
        ({"maxRecordsPerTrigger": "0"}, "option 'maxRecordsPerTrigger' is '0'"),
        ({"maxRecordsPerTrigger": "-1"}, "option 'maxRecordsPerTrigger' is '-1'"),
        ({"maxBytesPerTrigger": "-1MB"}, "option 'maxBytesPerTrigger' is '-1MB'"),
        ({"maxTimeSpanPerTrigger": "0"}, "option 'maxTimeSpanPerTrigger' is '0'"),
        ({"getRecordsLimit": "10001"}, "from 1 to 10000"),
        ({"getRecordsInterval": "soon"}, "option 'getRecordsInterval' is 'soon'"),
        ({"shardsPerTask": "0"}, "option 'shardsPerTask' is '0'"),
        ({"listShardsBackoffExponent": "0.5"}, "option 'listShardsBackoffExponent' is '0.5'"),
        ({"getRecordsMaxRetries": "-1"}, "option 'getRecordsMaxRetries' is '-1'"),
        ({"recordPublisher": "push"}, "one of efo, polling"),
        (
            {"startingPostion": "LATEST"},
            "option 'startingPostion' is not known: did you mean 'startingPosition'",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(given: dict[str, str], message: str) -> None:
    """Each bad value, missing or contradictory option is named together with what is allowed."""
    named = any(key in given for key in ("streamName", "streamArn")) or not given
    with pytest.raises(OptionError, match=message):
        source_config_from_options(given if named else {"streamName": "orders", **given})


def test_all_problems_come_in_one_error() -> None:
    """Who gets three things wrong learns of three things, and of none twice."""
    message = refusal(
        streamname="a b", shardsPerTask="none", awsSessionToken="t", startingPosition="AT_TIMESTAMP"
    )
    for part in (
        "'streamName' is",
        "'shardsPerTask' is",
        "'awsSessionToken' needs",
        "'startingTimestamp' is required",
    ):
        assert message.count(part) == 1
    assert "is required: a stream's name" not in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("consumerName", "me"),
        ("consumerRegistration", "eager"),
        ("consumerDeregistration", "never"),
        ("consumerArn", ARN + "a/consumer/c:1"),
        ("consumerArn.orders", ARN + "a/consumer/c:1"),
        ("recordPublisher", "efo"),
        ("subscribeToShardMaxRetries", "1"),
        ("registerStreamConsumerBackoffBase", "1s"),
        ("deregisterStreamConsumerBackoffMax", "1s"),
        ("listStreamConsumersBackoffExponent", "2"),
        ("describeStreamConsumerMaxRetries", "1"),
    ],
)
def test_what_is_not_built_yet_is_refused_by_name(key: str, value: str) -> None:
    """Fan-out options are known, but refused until there is fan-out: never ignored."""
    message = refusal(streamName="orders", **{key: value})
    assert f"'{key.partition('.')[0]}" in message
    assert "not supported yet" in message


def test_every_option_of_the_interface_is_declared_once() -> None:
    """32 backoff options, the rest of the source's and the connection's; each with a description."""
    keys = [option.key for option in (*SOURCE_OPTIONS, *CONNECTION_OPTIONS)]
    assert len(keys) == len({key.lower() for key in keys}) == 21 + 32 + 12
    assert all(option.description.endswith(".") for option in (*SOURCE_OPTIONS, *CONNECTION_OPTIONS))
    for operation in ("subscribeToShard", "getRecords", "describeStreamConsumer", "listShards"):
        for suffix in ("MaxRetries", "BackoffBase", "BackoffMax", "BackoffExponent"):
            assert operation + suffix in keys


def test_declared_defaults_are_shown_as_they_are() -> None:
    """The default a README shows is one that reads back as the default there is."""
    for option in (*SOURCE_OPTIONS, *CONNECTION_OPTIONS):
        if option.default is not None:
            shown = option.shown_default if option.shown_default is not None else str(option.default)
            assert option.kind.parse(shown) == option.default
