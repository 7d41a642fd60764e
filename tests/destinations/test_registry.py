"""Options of a sink: destinations by name, and one error for everything that is wrong."""

from __future__ import annotations

import pickle
from importlib import metadata
from typing import Any, ClassVar

import pytest
from fake_service import read_async_sink

from sluice.destinations import read_sink, registry
from sluice.destinations.kinesis import KinesisStreamsDestination
from sluice.errors import OptionError
from sluice.options import TEXT, Option, OptionValues
from sluice.sink import SinkLimits
from sluice.sink.setup import AsyncSinkSetup, CommittingSinkSetup

KINESIS = {"destination": "kinesis", "streamName": "orders", "region": "eu-west-1"}


class Custom:
    """A user's destination."""

    TABLE = Option("customTable", TEXT, None, "Where to.")
    OPTIONS: ClassVar[Any] = (TABLE,)
    LIMITS: ClassVar[SinkLimits] = SinkLimits(
        max_batch_size=7, max_batch_size_in_bytes=100, max_record_size_in_bytes=100
    )

    def __init__(self, table: str, region: str | None) -> None:
        self.table = table
        self.region = region

    @classmethod
    def from_options(cls, values: OptionValues, connection: Any) -> Custom | None:
        table = values.get(cls.TABLE)
        if table is None:
            values.reject(cls.TABLE.key, "is required")
            return None
        return cls(table, connection.region)


class NotOne:
    """Has nothing that a destination must have."""


class Silent(Custom):
    """Returns None without a reason."""

    @classmethod
    def from_options(cls, values: OptionValues, connection: Any) -> Custom | None:  # noqa: ARG003
        return None


def refused(**options: str) -> str:
    with pytest.raises(OptionError) as caught:
        read_sink(options)
    return str(caught.value)


def test_kinesis_is_built_in() -> None:
    """Found in any case; with its own limits, and without a call to the service."""
    made = read_async_sink(KINESIS | {"destination": "Kinesis", "maxbatchsize": "100"})

    assert isinstance(made.destination, KinesisStreamsDestination)
    assert made.config.max_batch_size == 100
    assert made.config.max_batch_size_in_bytes == 10 * 2**20
    strategy: Any = made.create_strategy()
    assert strategy.limit == 100 * 50


def test_a_two_phase_destination_refuses_the_options_of_batches() -> None:
    """A class is two-phase if it has a committer. It takes the connection's options and its own."""
    made = read_sink({"destination": "s3", "path": "s3://lake/x", "region": "eu-west-1"})
    message = refused(destination="s3", path="s3://lake/x", maxBatchSize="5", deadLetterPath="/x")

    assert isinstance(made, CommittingSinkSetup)
    assert isinstance(read_sink(KINESIS), AsyncSinkSetup)
    assert "option 'maxBatchSize' is not for destination 's3'" in message
    assert "option 'deadLetterPath' is not for destination 's3'" in message


@pytest.mark.parametrize(
    ("key", "owner"),
    [
        ("queueUrl", "sqs"),
        ("PARTITIONBY", "s3' or 'files"),
        ("header.x-a", "http"),
    ],
)
def test_an_option_of_another_destination_is_known_as_such(key: str, owner: str) -> None:
    """Of its own options none is spelled like it, and to propose the nearest one says nothing."""
    expected = f"option '{key}' is for destination '{owner}': this is destination 'kinesis'"
    assert expected in refused(**KINESIS, **{key: "x"})


class HalfCommitting:
    """Has a committer, but no writer."""

    OPTIONS: ClassVar[Any] = ()

    def create_committer(self, epoch: Any) -> None: ...


def test_the_destination_is_required() -> None:
    """There is no default."""
    assert "option 'destination' is required" in refused(streamName="orders")


def test_the_error_of_an_unknown_destination_lists_all() -> None:
    """A name without a colon is not imported."""
    message = refused(destination="kinesiss")

    assert (
        "option 'destination' is 'kinesiss': allowed are dynamodb, files, firehose, http, kinesis, s3, "
        "sqs" in message
    )


def test_a_destination_by_module_and_name() -> None:
    """Any class with OPTIONS, LIMITS and from_options. It gets its own options and the connection."""
    made = read_async_sink({"destination": f"{__name__}:Custom", "CUSTOMTABLE": "t", "region": "eu-west-1"})

    assert isinstance(made.destination, Custom)
    assert (made.destination.table, made.destination.region) == ("t", "eu-west-1")
    assert made.config.max_batch_size == 7


def test_a_destination_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered under the group sluice.destinations."""

    class Point:
        name = "Mine"
        value = f"{__name__}:Custom"

    monkeypatch.setattr(metadata, "entry_points", lambda group: {registry.ENTRY_POINT_GROUP: [Point]}[group])

    assert isinstance(read_sink({"destination": "mine", "customTable": "t"}).destination, Custom)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{__name__}:NotOne", "has no OPTIONS, from_options, LIMITS"),
        (f"{__name__}:HalfCommitting", "has no from_options, create_writer"),
        (f"{__name__}:Nowhere", "cannot be loaded"),
        ("no.such.module:Name", "cannot be loaded"),
        (f"{__name__}:Silent", "gave no reason"),
        (f"{__name__}:Custom", "option 'customTable' is required"),
    ],
)
def test_a_class_that_is_no_destination_is_refused(name: str, message: str) -> None:
    """The error has the reason."""
    assert message in refused(destination=name)


def test_no_secret_is_shown() -> None:
    """Neither in errors nor in the repr of a configuration."""
    secret = {"awsAccessKeyId": "AKIAIOSFODNN7EXAMPLE", "awsSecretAccessKey": "very-secret"}

    assert "very-secret" not in refused(destination="kinesis", nonsense="1", **secret)
    assert "very-secret" not in repr(read_async_sink(KINESIS | secret).config)


def test_equal_options_share_a_rate_limiting_strategy() -> None:
    """Other options do not."""
    assert (
        read_async_sink(KINESIS).strategy_cache_key
        == read_async_sink(dict(reversed(KINESIS.items()))).strategy_cache_key
    )
    assert (
        read_async_sink(KINESIS).strategy_cache_key
        != read_async_sink(KINESIS | {"maxBatchSize": "5"}).strategy_cache_key
    )
    assert pickle.dumps(read_async_sink(KINESIS).config)


def test_a_path_is_refused_where_the_destination_has_none() -> None:
    """As in start("s3://lake/x") with another destination."""
    stream = {"destination": "kinesis", "streamName": "s", "region": "eu-west-1"}
    with pytest.raises(OptionError, match="'path' is for destination 's3' or 'files': this is"):
        read_sink(stream | {"path": "s3://lake/x"})
