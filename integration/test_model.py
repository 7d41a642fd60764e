"""The model behind a socket: unmodified boto3, and faults on the wire."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError

from integration.model import LOST_ANSWER, SECOND, KinesisModel, Laws, ModelError, RealClock
from integration.model.sending import WireFault
from integration.model.server import ModelServer, serving
from integration.support.kinesis import REGION

S0 = "shardId-000000000000"
EXACT = Laws(
    empty_pages=0,
    late_tip=0.0,
    listing_delay=0.0,
    listing_gaps=0.0,
    status_delay=(0.1, 0.2),
    consumer_delay=(0.1, 0.2),
)
"""All laws but those of chance, for tests that look at one answer. What takes time takes little."""


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serving(EXACT) as server:
        yield server


@pytest.fixture
def model(server: ModelServer) -> KinesisModel:
    return server.model


Connect = Callable[..., Any]
"""Makes a client that is closed when its test ends."""


@pytest.fixture
def connect() -> Iterator[Connect]:
    with contextlib.ExitStack() as stack:

        def make(endpoint: str, *, key: str = "test") -> Any:
            client = boto3.session.Session().client(
                "kinesis",
                endpoint_url=endpoint,
                region_name=REGION,
                aws_access_key_id=key,
                aws_secret_access_key="test",  # noqa: S106 - nobody checks it
                config=Config(read_timeout=60, retries={"total_max_attempts": 1}),
            )
            stack.callback(client.close)
            return client

        yield make


@pytest.fixture
def client(server: ModelServer, connect: Connect) -> Any:
    return connect(server.endpoint)


def wait_active(client: Any, stream: str) -> dict[str, Any]:
    while True:
        summary: dict[str, Any] = client.describe_stream_summary(StreamName=stream)[
            "StreamDescriptionSummary"
        ]
        if summary["StreamStatus"] == "ACTIVE":
            return summary
        time.sleep(0.1)


def wait_for_consumer(client: Any, arn: str) -> None:
    while (
        client.describe_stream_consumer(ConsumerARN=arn)["ConsumerDescription"]["ConsumerStatus"] != "ACTIVE"
    ):
        time.sleep(0.1)


def register(client: Any, stream_arn: str, name: str = "reader") -> str:
    answer = client.register_stream_consumer(StreamARN=stream_arn, ConsumerName=name)
    arn: str = answer["Consumer"]["ConsumerARN"]
    wait_for_consumer(client, arn)
    return arn


def refusal(function: Any, **request: Any) -> str:
    with pytest.raises(ClientError) as caught:
        function(**request)
    return str(caught.value.response["Error"]["Code"])


def subscribe(client: Any, arn: str) -> Any:
    position = {"Type": "TRIM_HORIZON"}
    return client.subscribe_to_shard(ConsumerARN=arn, ShardId=S0, StartingPosition=position)["EventStream"]


def test_streams_are_made_written_read_and_resharded_by_boto3(client: Any, model: KinesisModel) -> None:
    client.create_stream(StreamName="made", ShardCount=1)
    arn = wait_active(client, "made")["StreamARN"]
    entries = [{"PartitionKey": f"k{n}", "Data": bytes([n])} for n in range(20)]
    put = client.put_records(StreamARN=arn, Records=entries)
    assert put["FailedRecordCount"] == 0
    one = client.put_record(StreamName="made", PartitionKey="\u00fc", Data=b"", ExplicitHashKey="7")
    assert one["ShardId"] == S0

    start = {
        "ShardIteratorType": "AT_SEQUENCE_NUMBER",
        "StartingSequenceNumber": put["Records"][0]["SequenceNumber"],
    }
    iterator = client.get_shard_iterator(StreamName="made", ShardId=S0, **start)["ShardIterator"]
    page = client.get_records(ShardIterator=iterator, StreamARN=arn)
    assert [record["Data"] for record in page["Records"]] == [*(entry["Data"] for entry in entries), b""]
    arrival = page["Records"][0]["ApproximateArrivalTimestamp"]
    client.get_shard_iterator(
        StreamName="made", ShardId=S0, ShardIteratorType="AT_TIMESTAMP", Timestamp=arrival
    )

    model.laws = replace(
        model.laws, status_delay=(100.0, 100.0)
    )  # else it may be over before a slow machine's next call
    client.split_shard(StreamName="made", ShardToSplit=S0, NewStartingHashKey=str(2**127))
    assert refusal(client.split_shard, StreamName="made", ShardToSplit=S0, NewStartingHashKey="9") == (
        "ResourceInUseException"
    )
    model.laws = replace(model.laws, status_delay=EXACT.status_delay)
    model.clock.advance(100.0)
    wait_active(client, "made")
    closed, *children = client.list_shards(StreamName="made")["Shards"]
    assert "EndingSequenceNumber" in closed["SequenceNumberRange"]
    assert [child["ParentShardId"] for child in children] == [S0, S0]
    end = client.get_records(ShardIterator=page["NextShardIterator"])
    assert "NextShardIterator" not in end
    assert len(end["ChildShards"]) == 2

    ids = [child["ShardId"] for child in children]
    client.merge_shards(StreamName="made", ShardToMerge=ids[0], AdjacentShardToMerge=ids[1])
    wait_active(client, "made")
    client.update_shard_count(StreamName="made", TargetShardCount=2, ScalingType="UNIFORM_SCALING")
    assert wait_active(client, "made")["OpenShardCount"] == 2
    pages = client.list_shards(StreamName="made", MaxResults=4)
    assert len(client.list_shards(NextToken=pages["NextToken"])["Shards"]) == 2
    assert len(client.describe_stream(StreamName="made")["StreamDescription"]["Shards"]) == 6
    client.increase_stream_retention_period(StreamName="made", RetentionPeriodHours=48)
    client.delete_stream(StreamName="made")


TOO_SOON = ("LimitExceededException", "ResourceInUseException")


def next_records(events: Iterator[Any]) -> Any:
    """The next event that has records: on a slow machine, events without any come before it."""
    return next(found for event in events if (found := event["SubscribeToShardEvent"])["Records"])


def test_fan_out_by_boto3(client: Any, model: KinesisModel) -> None:
    model.laws = replace(
        model.laws, resubscribe_after=3600.0
    )  # else a slow machine's next call may be late enough
    model.create("s")
    model.put("s", "k", b"first")
    stream_arn = wait_active(client, "s")["StreamARN"]
    arn = register(client, stream_arn)
    assert [
        each["ConsumerARN"] for each in client.list_stream_consumers(StreamARN=stream_arn)["Consumers"]
    ] == [arn]

    with contextlib.closing(subscribe(client, arn)) as stream:
        events = iter(stream)
        first = next_records(events)
        assert [record["Data"] for record in first["Records"]] == [b"first"]
        assert first["ContinuationSequenceNumber"] == first["Records"][0]["SequenceNumber"]
        # Within a second of the first call it is one too many; on a slow machine it comes later.
        assert refusal(subscribe, client=client, arn=arn) in TOO_SOON
        model.clock.advance(1.1)
        assert refusal(subscribe, client=client, arn=arn) == "ResourceInUseException"

        model.put("s", "k", b"second")
        second = next_records(events)
        assert [record["Data"] for record in second["Records"]] == [b"second"]
        model.split("s", S0)
        last = list(events)[-1]["SubscribeToShardEvent"]
        assert len(last["ChildShards"]) == 2
    client.deregister_stream_consumer(ConsumerARN=arn)


def test_errors_and_lost_answers_reach_clients_as_the_services(
    client: Any, connect: Connect, server: ModelServer, model: KinesisModel
) -> None:
    model.create("s")
    assert refusal(client.describe_stream_summary, StreamName="none") == "ResourceNotFoundException"
    for code in ("InternalFailure", "KMSThrottlingException", "LimitExceededException"):
        model.faults.force("ListShards", ModelError(code))
        assert refusal(client.list_shards, StreamName="s") == code
    model.faults.force("PutRecord", ModelError(LOST_ANSWER))
    with pytest.raises(ConnectionClosedError):
        client.put_record(StreamName="s", PartitionKey="k", Data=b"ambiguous")
    assert [record.data for record in model.oracle.records("s")] == [b"ambiguous"]
    old = connect(server.endpoint, key="OLD")
    model.expire_credentials("OLD")
    assert refusal(old.list_shards, StreamName="s") == "ExpiredTokenException"
    client.list_shards(StreamName="s")


def test_event_streams_are_cut_and_fall_silent(client: Any, server: ModelServer, model: KinesisModel) -> None:
    model.create("s")
    model.laws = replace(model.laws, resubscribe_after=None, subscribe_calls=None)
    arn = register(client, wait_active(client, "s")["StreamARN"])
    model.put("s", "k", b"x" * 1000)
    for fault in (WireFault(operation="SubscribeToShard", kind=kind, at=300) for kind in ("cut", "flip")):
        server.wire.set(fault)
        with (
            contextlib.closing(subscribe(client, arn)) as events,
            pytest.raises(Exception, match=r"(?i)checksum|broken|incomplete|prematurely"),
        ):
            list(events)
    server.wire.set()
    with contextlib.closing(subscribe(client, arn)) as stream:
        next(iter(stream))
        (subscription,) = model.subscriptions("s", S0)
        subscription.fall_silent()
        model.put("s", "k", b"never pushed")
        time.sleep(0.5)
    assert model.oracle.records("s")[1].was_read is False


def test_the_date_header_shows_the_clock(connect: Connect) -> None:
    with serving(EXACT, RealClock(offset=-90.0)) as server:
        client = connect(server.endpoint)
        server.model.clock.step(-3600.0)
        before, machine = server.model.clock.now() / SECOND, time.time() - 3690
        headers = client.list_streams()["ResponseMetadata"]["HTTPHeaders"]
        shown = parsedate_to_datetime(headers["date"]).timestamp()
        assert before - 1 <= shown <= server.model.clock.now() / SECOND  # whole seconds
        assert machine - 1.1 <= shown <= time.time() - 3690 + 0.1
