"""The options of the source: defaults and cross checks."""

from __future__ import annotations

import pickle

import pytest

from sluice.aws.calling.connection import CONNECTION_OPTIONS, ConnectionConfig
from sluice.errors import OptionError
from sluice.kinesis.options.agent import AgentConfig
from sluice.kinesis.options.config import (
    SOURCE_OPTIONS,
    Polling,
    SourceConfig,
    source_config_from_options,
)
from sluice.kinesis.options.fan_out import FanOutConfig
from sluice.kinesis.options.starting_positions import LATEST
from sluice.kinesis.options.streams import StreamRef
from sluice.retry import Backoff
from sluice.source.settings import Limits, SourceSettings

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/"


def read(**given: str) -> SourceConfig:
    return source_config_from_options({"streamName": "orders", **given})


def refusal(**given: str) -> str:
    with pytest.raises(OptionError) as refused:
        source_config_from_options(given)
    return str(refused.value)


def test_the_defaults_are_those_of_the_interface() -> None:
    """Only the stream's name is required."""
    config = read()
    assert config == SourceConfig(
        connection=ConnectionConfig(wire_format="auto"),
        streams=(StreamRef("orders"),),
        start=LATEST,
        end=LATEST,
        polling=Polling(10_000, 0.2),
        shards_per_task=None,
        deaggregate=True,
        backoffs={
            "SubscribeToShard": Backoff(10, 1.0, 2.0, 1.5),
            "RegisterStreamConsumer": Backoff(10, 0.5, 2.0, 1.5),
            "DeregisterStreamConsumer": Backoff(10, 0.5, 2.0, 1.5),
            "ListStreamConsumers": Backoff(10, 0.2, 1.0, 1.5),
            "DescribeStreamConsumer": Backoff(50, 2.0, 5.0, 1.5),
            "GetRecords": Backoff(3, 0.3, 1.0, 1.5),
            "GetShardIterator": Backoff(3, 0.3, 1.0, 1.5),
            "ListShards": Backoff(10, 1.0, 5.0, 1.5, throttle_patience=900.0),
        },
    )
    assert pickle.loads(pickle.dumps(config)) == config


def test_every_option_reaches_the_config() -> None:
    """With its key in any case."""
    config = read(
        region="eu-west-1",
        recordPublisher="POLLING",
        maxrecordspertrigger="5000",
        MAXBYTESPERTRIGGER="5MiB",
        maxTimeSpanPerTrigger="2m",
        maxDrift="3s",
        readRetryDuration="5m",
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
    limits = Limits(5000, 5 * 1024 * 1024, 120_000_000)
    assert config.settings == SourceSettings(
        limits, 3.0, 0.5, splits_per_task=4, fail_on_data_loss=False, read_retry_duration=300.0
    )
    assert config.polling == Polling(100, 0.0)
    assert (config.shards_per_task, config.deaggregate) == (4, False)
    assert config.backoffs["GetRecords"] == Backoff(0, 1.0, 2.0, 2.0)
    assert config.backoffs["ListShards"] == Backoff(7, 1.0, 5.0, 1.5)  # also where they are throttled


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
        ({"streamName": "a,a"}, "stream 'a' is named more than once"),
        ({"streamArn": f"{ARN}a,{ARN.replace('9012', '9013')}a"}, "stream 'a' is named more than once"),
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
        (
            {"maxBytesPerTrigger": "9" * 400},
            f"option 'maxBytesPerTrigger' is '{'9' * 200}...': allowed is a size",
        ),
        ({"maxDrift": "9" * 400 + "h"}, f"option 'maxDrift' is '{'9' * 200}...': allowed is a duration"),
        ({"maxTimeSpanPerTrigger": "9" * 307}, "option 'maxTimeSpanPerTrigger' is '9+...': allowed is a dur"),
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
def test_a_bad_option_is_refused_by_name(given: dict[str, str], message: str) -> None:
    """The error names each bad value, missing or contradictory option, and what is allowed."""
    named = any(key in given for key in ("streamName", "streamArn")) or not given
    with pytest.raises(OptionError, match=message):
        source_config_from_options(given if named else {"streamName": "orders", **given})


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"streamname": "a,a"}, "streamName"),
        ({"STREAMARN": "a"}, "streamArn"),
        (
            {"streamname": "a", "startingposition": "AT_TIMESTAMP", "startingtimestamp": "1700000000000"},
            "startingTimestamp",
        ),
        ({"streamname": "a", "consumerarn.a": "me"}, "consumerArn.a"),
    ],
)
def test_an_option_is_named_as_the_documentation_has_it(given: dict[str, str], name: str) -> None:
    """Spark passes keys in lower case, which users have not written and can't search for."""
    with pytest.raises(OptionError, match=f"option '{name}' is"):
        source_config_from_options(given)


STREAMING = {
    "maxRecordsPerTrigger": "1",
    "maxBytesPerTrigger": "1MB",
    "maxTimeSpanPerTrigger": "1m",
    "maxDrift": "1m",
    "shardDiscoveryInterval": "1s",
}
AGENT_OPTIONS = {
    "agent": "driver",
    "agentAddress": "10.0.0.1",
    "agentBindAddress": "10.0.0.2",
    "agentPorts": "4000",
    "agentEncryption": "tls",
    "agentCertificate": "agent.pem",
    "agentBufferSize": "1GiB",
}
WITH_A_CONSUMER = {"consumerDeregistration": "never", **AGENT_OPTIONS}


@pytest.mark.parametrize("key", [*STREAMING, *WITH_A_CONSUMER])
def test_an_option_that_does_nothing_in_a_batch_read_is_refused_there(key: str) -> None:
    """Users who set a limit for a batch read must not believe that it has an effect."""
    options = {"streamName": "orders", key: {**STREAMING, **WITH_A_CONSUMER}[key]}
    if key in WITH_A_CONSUMER:
        options["consumerName"] = "me"
    source_config_from_options(options)
    source_config_from_options(options, streaming=True)
    with pytest.raises(OptionError, match=f"option '{key}' is for streaming reads only"):
        source_config_from_options(options, streaming=False)


def test_all_problems_come_in_one_error() -> None:
    """Each problem once."""
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
    "operation",
    [
        "subscribeToShard",
        "registerStreamConsumer",
        "deregisterStreamConsumer",
        "listStreamConsumers",
        "describeStreamConsumer",
    ],
)
def test_operations_of_fan_out_have_their_own_backoffs(operation: str) -> None:
    """The four options of each reach the config under the operation's name in the API."""
    given = {"MaxRetries": "2", "BackoffBase": "1s", "BackoffMax": "3s", "BackoffExponent": "4"}
    config = read(consumerName="me", **{operation + key: value for key, value in given.items()})
    assert config.backoffs[operation[0].upper() + operation[1:]] == Backoff(2, 1.0, 3.0, 4.0)


# --- fan-out ------------------------------------------------------------------------------------------

A, B = (f"{ARN}{name}/consumer/me:1700000000" for name in "ab")
STREAMS_AB = {"streamName": "a,b"}


@pytest.mark.parametrize(
    ("given", "fan_out"),
    [
        ({}, None),
        ({"recordPublisher": "polling"}, None),
        ({"consumerName": "me"}, FanOutConfig("me")),
        ({"consumerName": "me", "recordPublisher": "EFO"}, FanOutConfig("me")),
        ({"consumerName": " me.1_x-y "}, FanOutConfig("me.1_x-y")),
        ({"consumerName": "me", "consumerRegistration": "Eager"}, FanOutConfig("me", "eager")),
        ({"consumerName": "me", "consumerDeregistration": "never"}, FanOutConfig("me", deregister=False)),
        ({"consumerName": "me", "subscribeToShardFallback": "fail"}, FanOutConfig("me", may_poll=False)),
        ({"streamName": "a", "consumerArn": A}, FanOutConfig(None, "none", False, {"a": A})),
        ({"streamArn": ARN + "a", "consumerArn": A}, FanOutConfig(None, "none", False, {"a": A})),
        ({"streamName": "a", "consumerArn.A": A}, FanOutConfig(None, "none", False, {"a": A})),
        (
            {"streamName": "a", "consumerArn": A, "consumerName": "me", "consumerRegistration": "none"},
            FanOutConfig(None, "none", False, {"a": A}),
        ),
        (
            {**STREAMS_AB, "consumerarn.b": B, "CONSUMERARN.A": A},
            FanOutConfig(None, "none", False, {"a": A, "b": B}),
        ),
        (
            {"streamName": "Orders", "consumerarn.orders": A.replace("/a/", "/Orders/")},
            FanOutConfig(None, "none", False, {"Orders": A.replace("/a/", "/Orders/")}),
        ),
    ],
)
def test_fan_out_is_chosen_by_naming_a_consumer(given: dict[str, str], fan_out: FanOutConfig | None) -> None:
    """By name or by ARN; other options have their defaults, and the config can be pickled."""
    config = source_config_from_options(given if "streamArn" in given else {"streamName": "orders", **given})
    assert config.fan_out == fan_out
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_consumers_arn_sets_the_region() -> None:
    """As a stream's ARN does: the SDK's chain could choose another one."""
    assert read(streamName="a", consumerArn=A).connection.region == "eu-west-1"
    assert read(streamName="a", consumerArn=A, region="eu-west-1").connection.region == "eu-west-1"


ARN_SYNTAX = "arn:aws:kinesis:<region>:<account>:stream/<stream>/consumer/<consumer>:<creationTimestamp>"
FAN_OUT_ONLY = {
    "consumerName": "me",
    "consumerRegistration": "none",
    "consumerDeregistration": "auto",
    "consumerArn": ARN + "orders/consumer/me:1",
    "consumerArn.orders": ARN + "orders/consumer/me:1",
    "subscribeToShardFallback": "polling",
}


@pytest.mark.parametrize("key", FAN_OUT_ONLY)
def test_polling_refuses_options_of_fan_out(key: str) -> None:
    """Otherwise users would believe that an option works although it does nothing."""
    value = FAN_OUT_ONLY[key]
    message = refusal(streamName="orders", recordPublisher="polling", **{key: value})
    assert f"option '{key}' is {value!r}: 'recordPublisher' is polling: it is for efo only" in message
    if not key.startswith(("consumerName", "consumerArn")):
        message = refusal(streamName="orders", **{key: value})
        assert f"option '{key}' is {value!r}: it is for fan-out, which needs 'consumerName' or" in message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"recordPublisher": "efo"},
            "option 'consumerName' is required with 'recordPublisher' efo: 1 to 128 letters",
        ),
        (
            {"consumerName": "my consumer"},
            "option 'consumerName' is 'my consumer': allowed is 1 to 128 letters",
        ),
        ({"consumerName": "x" * 129}, "allowed is 1 to 128 letters"),
        ({"consumerName": ""}, "option 'consumerName' is '': allowed is 1 to 128 letters"),
        (
            {"consumerName": "me", "consumerRegistration": "never"},
            "option 'consumerRegistration' is 'never': allowed is one of lazy, eager, none",
        ),
        (
            {"consumerName": "me", "consumerDeregistration": "none"},
            "option 'consumerDeregistration' is 'none': allowed is one of auto, never",
        ),
        (
            {"consumerName": "me", "consumerRegistration": "none", "streamName": "a"},
            f"option 'consumerArn' is required with 'consumerRegistration' none: {ARN_SYNTAX}",
        ),
        (
            {"consumerArn.a": A, **STREAMS_AB},
            f"option 'consumerArn.b' is required with 'consumerRegistration' none: {ARN_SYNTAX}",
        ),
        (
            {"consumerArn": A, **STREAMS_AB},
            f"'consumerArn' is {A!r}: it is for one stream: give 'consumerArn.<stream>' for each of a, b",
        ),
        (
            {"consumerArn": A, "consumerArn.a": A, "streamName": "a"},
            "option 'consumerArn.a' and 'consumerArn' exclude one another: give one of them",
        ),
        (
            {"consumerArn": A, "consumerArn.b": B, "streamName": "a"},
            f"option 'consumerArn.b' is {B!r}: no such stream is read: allowed are a",
        ),
        (
            {"consumerarn.a": A, "streamName": "a,A,b", "consumerarn.b": B},
            "option 'consumerArn.a' could be for 'a' and 'A', as keys have no case",
        ),
        (
            {"consumerArn": ARN + "a", "streamName": "a"},
            f"option 'consumerArn' is '{ARN}a': allowed is {ARN_SYNTAX}",
        ),
        ({"consumerArn": A + "x", "streamName": "a"}, f"allowed is {ARN_SYNTAX}"),
        ({"consumerArn": A.replace("12", "1", 1), "streamName": "a"}, f"allowed is {ARN_SYNTAX}"),
        (
            {"consumerArn.a": "me", "streamName": "a"},
            f"option 'consumerArn.a' is 'me': allowed is {ARN_SYNTAX}",
        ),
        (
            {"consumerArn": B, "streamName": "a"},
            f"option 'consumerArn' is {B!r}: that is a consumer of stream 'b', not of 'a'",
        ),
        (
            {"consumerArn.a": B, "consumerArn.b": B, **STREAMS_AB},
            f"option 'consumerArn.a' is {B!r}: that is a consumer of stream 'b', not of 'a'",
        ),
        (
            {"consumerArn": A.replace("9012", "9013"), "streamArn": ARN + "a"},
            f"that is not a consumer of {ARN}a",
        ),
        (
            {"consumerArn": A.replace("west", "east"), "streamArn": ARN + "a"},
            f"that is not a consumer of {ARN}a",
        ),
        (
            {"consumerArn": A, "streamName": "a", "region": "us-east-1"},
            "option 'region' is 'us-east-1': the consumers of 'consumerArn' are in eu-west-1",
        ),
        (
            {"consumerArn.a": A, "consumerArn.b": B.replace("west", "east"), **STREAMS_AB},
            "option 'consumerArn.*' are in eu-east-1 and eu-west-1: allowed is one region",
        ),
        (
            {"consumerArn": A, "streamName": "a", "consumerRegistration": "eager"},
            f"option 'consumerArn' is {A!r}: 'consumerRegistration' is eager: a consumer's ARN is for none",
        ),
        (
            {"consumerArn.a": A, "streamName": "a", "consumerName": "me", "consumerRegistration": "lazy"},
            f"option 'consumerArn.a' is {A!r}: 'consumerRegistration' is lazy: a consumer's ARN is for none",
        ),
        (
            {"consumerArn": A, "streamName": "a", "consumerName": "you"},
            f"option 'consumerArn' is {A!r}: 'consumerName' is 'you'; leave it out, or let them agree",
        ),
        (
            {"consumerName": "me", "subscribeToShardFallback": "never"},
            "option 'subscribeToShardFallback' is 'never': allowed is one of polling, fail",
        ),
    ],
)
def test_bad_options_of_consumers_are_refused_by_name(given: dict[str, str], message: str) -> None:
    """The error names the option, its value and what is allowed, each problem once."""
    named = any(key in given for key in ("streamName", "streamArn"))
    found = refusal(**(given if named else {"streamName": "orders", **given}))
    assert message in found
    assert found.count("option '") == 1


@pytest.mark.parametrize("publisher", [{}, {"consumerName": "me"}], ids=["polling", "fan-out"])
@pytest.mark.parametrize(
    ("given", "agent"),
    [
        ({"agent": "none"}, None),
        ({"agent": "Driver"}, AgentConfig()),
        (
            {"agent": "workers", "agentAddress": "::1", "agentBufferSize": "64MiB"},
            AgentConfig(on_workers=True, address="::1", buffer_bytes=64 * 1024 * 1024),
        ),
        (
            {"agent": "driver", "agentBindAddress": "::", "agentPorts": "4000 - 4010"},
            AgentConfig(bind_address="::", ports=(4000, 4010)),
        ),
        (
            {"agent": "driver", "agentEncryption": "TLS", "agentCertificate": " /etc/agent.pem"},
            AgentConfig(encryption="tls", certificate="/etc/agent.pem"),
        ),
        ({"agent": "driver", "agentPorts": "4000"}, AgentConfig(ports=(4000, 4000))),
        *(
            ({"agent": "driver", "agentAddress": host}, AgentConfig(address=host))
            for host in ("127.0.0.1", "driver-1.svc.cluster.local", "fe80::1")
        ),
    ],
)
def test_agents_have_the_same_options_with_both_publishers(
    publisher: dict[str, str], given: dict[str, str], agent: AgentConfig | None
) -> None:
    """The config can be pickled."""
    config = read(streamName="orders", **publisher, **given)
    assert config.agent == agent
    assert (config.fan_out is None) == (not publisher)
    assert pickle.loads(pickle.dumps(config)) == config


def test_fan_out_has_an_agent_unless_the_user_wants_none() -> None:
    assert read(streamName="orders").agent is None
    assert read(streamName="orders", consumerName="me").agent == AgentConfig()


@pytest.mark.parametrize("publisher", [{}, {"consumerName": "me"}], ids=["polling", "fan-out"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"agent": "yes"}, "option 'agent' is 'yes': allowed is one of driver, workers, none"),
        *(
            (
                {"agent": "none", key: value},
                f"option '{key}' is {value!r}: it has no effect, because 'agent' is none:",
            )
            for key, value in AGENT_OPTIONS.items()
            if key != "agent"
        ),
        (
            {"agent": "driver", "agentAddress": "0.0.0.0"},  # noqa: S104 - refused
            "is '0.0.0.0': tasks connect to it, so it has to be an address of one host",
        ),
        *(
            ({"agent": "driver", key: text}, "without a port")
            for key, text in (
                ("agentAddress", "10.0.0.1:99"),
                ("agentAddress", "10.0.0.999"),
                ("agentAddress", "a b"),
                ("agentBindAddress", "a:1"),
            )
        ),
        *(
            ({"agent": "driver", "agentPorts": text}, f"option 'agentPorts' is {text!r}: allowed")
            for text in ("0", "4100-4000", "4000-", "-4000", "4000-65536", "4000,4001", "+4000")
        ),
        ({"agent": "driver", "agentCertificate": " "}, "allowed is the path of a PEM file"),
        (
            {"agent": "driver", "agentEncryption": "none", "agentCertificate": "a.pem"},
            "option 'agentCertificate' is 'a.pem': 'agentEncryption' is none: it is not used",
        ),
        ({"agent": "driver", "agentBufferSize": "1"}, "allowed is a size of at least 1048576"),
    ],
)
def test_bad_options_of_agents_are_refused_by_name(
    publisher: dict[str, str], given: dict[str, str], message: str
) -> None:
    """The error names the option, its value and what is allowed, each problem once."""
    found = refusal(streamName="orders", **publisher, **given)
    assert message in found
    assert found.count("option '") == 1


def test_polling_without_an_agent_says_what_turns_it_on() -> None:
    message = refusal(streamName="orders", agentPorts="4000")
    assert "it has no effect, because 'agent' is none by default: set that to driver or workers" in message


def test_every_option_of_the_interface_is_declared_once() -> None:
    """32 backoff options, 32 others of the source and 12 of the connection; each with a description."""
    keys = [option.key for option in (*SOURCE_OPTIONS, *CONNECTION_OPTIONS)]
    assert len(keys) == len({key.lower() for key in keys}) == 32 + 32 + 13
    assert all(option.description.endswith(".") for option in (*SOURCE_OPTIONS, *CONNECTION_OPTIONS))
    for operation in ("subscribeToShard", "getRecords", "describeStreamConsumer", "listShards"):
        for suffix in ("MaxRetries", "BackoffBase", "BackoffMax", "BackoffExponent"):
            assert operation + suffix in keys


def test_declared_defaults_are_shown_as_they_are() -> None:
    """The default in docs/options.md parses to the declared default."""
    for option in (*SOURCE_OPTIONS, *CONNECTION_OPTIONS):
        if option.default is not None:
            shown = option.shown_default if option.shown_default is not None else str(option.default)
            assert option.kind.parse(shown) == option.default


@pytest.mark.parametrize("key", ["path", "PATHS"])
def test_a_path_is_refused(key: str) -> None:
    """As in load("clicks"), which names no stream."""
    with pytest.raises(OptionError, match=f"option '{key}' does nothing here"):
        source_config_from_options({"streamName": "clicks", "region": "us-east-1", key: "clicks"})
