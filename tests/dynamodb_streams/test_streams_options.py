"""The options of the source, and the positions that they make."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from integration.streams_model import Laws
from streams_query import TABLE, StreamsQuery, new_model, put_many

from sluice.dynamodb_streams.options import StreamsConfig
from sluice.dynamodb_streams.source import DynamoDbStreamsSource
from sluice.dynamodb_streams.starting_positions import ByShard, initial_positions
from sluice.dynamodb_streams.streams import TableRef
from sluice.errors import OptionError
from sluice.source.model.offsets import HORIZON, After, AtHorizon, Closed, Position, before
from sluice.source.model.splits import Split, SplitId

SHARD = "shardId-00000001414576573621-f55eea83"
NUMBER = "300000000000000499659"
ARN = "arn:aws:dynamodb:eu-west-1:123456789012:table/orders/stream/2026-11-22T17:37:41.720"


def config_of(streaming: bool | None = None, **options: str) -> StreamsConfig:
    return DynamoDbStreamsSource.configured({"tableName": "orders", **options}, streaming=streaming).config


def problem(options: dict[str, str], *, streaming: bool | None = None) -> str:
    with pytest.raises(OptionError) as error:
        DynamoDbStreamsSource.configured(options, streaming=streaming)
    return str(error.value)


def test_a_table_is_enough() -> None:
    """Everything else has a default; a batch read starts with what there is."""
    source = DynamoDbStreamsSource.configured({"TABLENAME": "orders, clicks"}, streaming=True)
    assert source.config.tables == (TableRef("orders"), TableRef("clicks"))
    assert source.streams == ["orders", "clicks"]
    assert source.starting_text == "LATEST"
    batch = DynamoDbStreamsSource.configured({"tableName": "orders"}, streaming=False)
    assert batch.starting_text == "TRIM_HORIZON"


def test_an_arn_names_table_and_region() -> None:
    """Offsets and rows know the stream by its table's name."""
    config = DynamoDbStreamsSource.configured({"streamArn": ARN}).config
    assert config.tables == (TableRef("orders", ARN),)
    assert config.connection.region == "eu-west-1"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, ["tableName", "streamArn", "required"]),
        ({"tableName": "a,b"}, ["tableName", "3 to 255"]),
        ({"tableName": ARN}, ["tableName", "streamArn"]),
        ({"tableName": "orders,orders"}, ["tableName", "more than once"]),
        ({"tableName": "orders", "streamArn": ARN}, ["tableName", "streamArn", "exclude"]),
        ({"streamArn": "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"}, ["streamArn", "dynamodb"]),
        ({"streamArn": f"{ARN},{ARN.replace('eu-west-1', 'us-east-1')}"}, ["streamArn", "same region"]),
        ({"streamArn": ARN, "region": "us-east-1"}, ["region", "eu-west-1"]),
        ({"tableName": "orders", "imageFormat": "avro"}, ["imageFormat", "json", "dynamodb-json"]),
        ({"tableName": "orders", "getRecordsLimit": "1001"}, ["getRecordsLimit", "1000"]),
        ({"tableName": "orders", "emptyPagesAtTip": "0"}, ["emptyPagesAtTip"]),
        ({"tableName": "orders", "startingPosition": "AT_TIMESTAMP"}, ["startingPosition", "TRIM_HORIZON"]),
        (
            {"tableName": "orders", "startingTimestamp": "2026-01-01"},
            ["startingTimestamp", "does not read it"],
        ),
        ({"tableName": "orders", "endingTimestamp": "2026-01-01"}, ["endingTimestamp", "does not read it"]),
        ({"tableName": "orders", "streamName": "x"}, ["streamName", "streamArn"]),
    ],
)
def test_what_cannot_work_is_refused_by_name(options: dict[str, str], named: list[str]) -> None:
    """The message has the option, and what is allowed."""
    message = problem(options)
    assert all(word in message for word in named), message


@pytest.mark.parametrize(
    ("position", "why"),
    [
        ("{", "not JSON"),
        ("{}", "lists no shard"),
        ({SHARD: {"AT_SEQUENCE_NUMBR": NUMBER}}, "AT_SEQUENCE_NUMBER"),
        ({SHARD: {"AT_SEQUENCE_NUMBER": 300000000000000499659}}, "digits"),
        ({SHARD: {"AT_SEQUENCE_NUMBER": "12"}}, "21 to 40 digits"),
        ({SHARD: {"TRIM_HORIZON": False}}, "expected true"),
        ({SHARD: {"AT_SEQUENCE_NUMBER": NUMBER, "SHARD_END": True}}, "expected one of"),
        ({"clicks": {SHARD: {"SHARD_END": True}}}, "clicks"),
    ],
)
def test_a_starting_position_that_cannot_be_meant(position: Any, why: str) -> None:
    """A typing error must not start a query somewhere else."""
    text = position if isinstance(position, str) else json.dumps(position)
    assert why in problem({"tableName": "orders", "startingPosition": text})


def test_positions_by_shard_need_the_table_where_there_are_several() -> None:
    """Shards of one table need no name of it."""
    at = {SHARD: {"AFTER_SEQUENCE_NUMBER": NUMBER}}
    expected = ByShard({SplitId("orders", SHARD): ("AFTER_SEQUENCE_NUMBER", NUMBER)})
    assert config_of(startingPosition=json.dumps(at)).start == expected
    assert config_of(startingPosition=json.dumps({"orders": at})).start == expected
    message = problem({"tableName": "orders,clicks", "startingPosition": json.dumps(at)})
    assert "with several tables" in message


def test_limits_are_of_streams_alone() -> None:
    """A batch read has no triggers."""
    source = DynamoDbStreamsSource.configured({"tableName": "orders", "maxRecordsPerTrigger": "5"})
    assert source.limits.records == 5
    assert "streaming reads only" in problem(
        {"tableName": "orders", "maxRecordsPerTrigger": "5"}, streaming=False
    )


def test_the_source_can_be_pickled() -> None:
    """Spark sends it to tasks."""
    source = DynamoDbStreamsSource.configured({"tableName": "orders", "region": "eu-west-1"})
    copy = pickle.loads(pickle.dumps(source))
    assert copy.config == source.config
    assert copy.settings == source.settings


def test_a_query_that_starts_at_numbers() -> None:
    """One shard at a record, one behind one, one left out; all others from their oldest record."""
    model = new_model(Laws(), 9, shards=4)
    put_many(model, 200)
    (arn,) = {each["StreamArn"] for each in model.call("ListStreams", {})["Streams"]}
    by_shard: dict[str, list[int]] = {}
    for record in model.records(arn):
        by_shard.setdefault(record.shard, []).append(record.number)
    (a, first), (b, second), (c, _), (d, fourth) = sorted(by_shard.items())
    start = ByShard(
        {
            SplitId(TABLE, a): ("AT_SEQUENCE_NUMBER", str(first[5])),
            SplitId(TABLE, b): ("AFTER_SEQUENCE_NUMBER", str(second[5])),
            SplitId(TABLE, c): ("SHARD_END", None),
        }
    )
    query = StreamsQuery(model, start=start)
    query.run_to_end()

    assert query.numbers() == sorted([*first[5:], *second[6:], *fourth])
    assert d

    listed = model.call("DescribeStream", {"StreamArn": arn})["StreamDescription"]["Shards"]
    starts = {each["ShardId"]: each["SequenceNumberRange"]["StartingSequenceNumber"] for each in listed}
    whole = ByShard({SplitId(TABLE, shard): ("AT_SEQUENCE_NUMBER", at) for shard, at in starts.items()})
    query = StreamsQuery(model, start=whole)
    query.run_to_end()
    assert query.numbers() == sorted(number for numbers in by_shard.values() for number in numbers)

    unknown = StreamsQuery(model, start=ByShard({SplitId(TABLE, SHARD): ("SHARD_END", None)}))
    with pytest.raises(OptionError, match=SHARD):
        unknown.run_batch()


@pytest.mark.parametrize(
    ("kind", "offset", "expected"),
    [
        ("AT", -1, HORIZON),
        ("AT", 0, HORIZON),
        ("AFTER", -1, HORIZON),
        ("AFTER", 0, After(NUMBER)),  # it may be that of the first record
        ("AT", 5, before(str(int(NUMBER) + 5))),
        ("AT", 9, before(str(int(NUMBER) + 9))),  # it may be that of the last record
        ("AFTER", 9, Closed()),
        ("AT", 10, Closed()),
    ],
)
def test_numbers_of_the_start_and_the_end_of_a_shard(kind: str, offset: int, expected: Position) -> None:
    """As a listing shows them."""
    shard = SplitId("orders", SHARD)
    split = Split(shard, starting_sequence=NUMBER, ending_sequence=str(int(NUMBER) + 9))
    start = ByShard({shard: (f"{kind}_SEQUENCE_NUMBER", str(int(NUMBER) + offset))})
    log: Any = None
    position = initial_positions(start, [split], 5, log)[shard]
    assert position == expected
    assert not isinstance(position, AtHorizon) or position.pinned == 5
