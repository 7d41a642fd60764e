"""The hooks that only older SDKs need."""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
from botocore.serialize import Serializer
from kinesis_transport import Transport, answer, forget_process_state

from sluice.aws.calling.clients import client_for
from sluice.aws.calling.connection import ConnectionConfig

MOMENT = datetime(2026, 1, 1, 12, 0, 0, 123_456, timezone.utc)
SHARD_ID = "shardId-000000000000"
CONSUMER_ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders/consumer/me:1"


@pytest.fixture(autouse=True)
def _fresh_clients() -> Iterator[None]:
    yield
    forget_process_state()


def written_in_whole_seconds(_serializer: Serializer, value: datetime) -> int:
    """As older SDKs write a timestamp."""
    return calendar.timegm(value.timetuple())


def test_timestamps_keep_their_fraction_where_the_sdk_cuts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading and subscribing at a time start at the microsecond; both operations have the hook."""
    monkeypatch.setattr(Serializer, "_timestamp_unixtimestamp", written_in_whole_seconds)
    config = ConnectionConfig(region="eu-west-1", access_key_id="a", secret_access_key="b")
    client = client_for(config, "kinesis")
    transport = Transport(lambda *_: answer({"ShardIterator": "it"}))
    transport.install(client)

    at: dict[str, Any] = {"Timestamp": MOMENT}
    client.get_shard_iterator(StreamName="s", ShardId=SHARD_ID, ShardIteratorType="AT_TIMESTAMP", **at)
    position = {"Type": "AT_TIMESTAMP", **at}
    client.subscribe_to_shard(ConsumerARN=CONSUMER_ARN, ShardId=SHARD_ID, StartingPosition=position)

    iterator, subscription = (params for _, params in transport.calls)
    assert iterator["Timestamp"] == 1_767_268_800.123456
    assert subscription["StartingPosition"]["Timestamp"] == 1_767_268_800.123456
