"""The laws of the model, each of them on and off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from integration.model import ManualClock, ModelError
from integration.streams_model import Laws, StreamsModel
from streams_query import TABLE

KIND = Laws(
    retention=None,
    shard_life=None,
    iterator_life=None,
    read_calls=None,
    describe_calls=None,
    listing_delay=0.0,
    empty_pages=0,
    empty_tail=0,
    portion=10**9,
    whole_seconds=False,
)
HOUR = 3600.0


def model_of(laws: Laws, *, shards: int = 1) -> tuple[StreamsModel, ManualClock, str]:
    clock = ManualClock()
    model = StreamsModel(laws, clock, 3)
    return model, clock, model.enable(TABLE, shards=shards)


def iterator(model: StreamsModel, arn: str, kind: str = "TRIM_HORIZON", **start: str) -> str:
    shard = start.pop("ShardId", None) or model.open_shards(TABLE)[0]
    request = {"StreamArn": arn, "ShardId": shard, "ShardIteratorType": kind, **start}
    found: str = model.call("GetShardIterator", request)["ShardIterator"]
    return found


def get(model: StreamsModel, it: str, limit: int = 1000) -> dict[str, Any]:
    return model.call("GetRecords", {"ShardIterator": it, "Limit": limit})


def code_of(model: StreamsModel, operation: str, **request: Any) -> str | None:
    """The code that a call is refused with; None: it is not."""
    try:
        model.call(operation, request)
    except ModelError as error:
        return error.code
    return None


def shards_of(model: StreamsModel, arn: str) -> list[dict[str, Any]]:
    shards: list[dict[str, Any]] = model.call("DescribeStream", {"StreamArn": arn})["StreamDescription"][
        "Shards"
    ]
    return shards


@pytest.mark.parametrize(("life", "code"), [(900.0, "ExpiredIteratorException"), (None, None)])
def test_an_iterator_lives_for_fifteen_minutes(life: float | None, code: str | None) -> None:
    """API_streams_GetShardIterator."""
    model, clock, arn = model_of(replace(KIND, iterator_life=life))
    it = iterator(model, arn)
    clock.advance(900.0)
    assert code_of(model, "GetRecords", ShardIterator=it) is None
    clock.advance(1.0)
    assert code_of(model, "GetRecords", ShardIterator=it) == code


@pytest.mark.parametrize(("calls", "code"), [(10, "LimitExceededException"), (None, None)])
def test_readers_share_the_reads_of_a_shard(calls: float | None, code: str | None) -> None:
    """More than two readers are throttled."""
    model, clock, arn = model_of(replace(KIND, read_calls=calls))
    it = iterator(model, arn)
    codes = [code_of(model, "GetRecords", ShardIterator=it) for _ in range(11)]
    assert codes == [None] * 10 + [code]
    clock.advance(1.0)
    assert code_of(model, "GetRecords", ShardIterator=it) is None


@pytest.mark.parametrize(("calls", "code"), [(10, "ThrottlingException"), (None, None)])
def test_streams_are_described_ten_times_a_second(calls: float | None, code: str | None) -> None:
    """API_streams_DescribeStream."""
    model, _, arn = model_of(replace(KIND, describe_calls=calls))
    assert [code_of(model, "DescribeStream", StreamArn=arn) for _ in range(11)][-1] == code


def test_records_expire_after_a_day() -> None:
    """They are refused by number, and an iterator at them is, too; a closed shard goes with its last one."""
    model, clock, arn = model_of(replace(KIND, retention=24 * HOUR))
    old = model.put(TABLE, "old")
    clock.advance(HOUR)
    new = model.put(TABLE, "new")
    it, shard = iterator(model, arn), new.shard
    clock.advance(23 * HOUR + 1)

    at = {"StreamArn": arn, "ShardId": shard, "ShardIteratorType": "AT_SEQUENCE_NUMBER"}
    assert code_of(model, "GetRecords", ShardIterator=it) == "TrimmedDataAccessException"
    for number, code in ((old, "TrimmedDataAccessException"), (new, None)):
        assert code_of(model, "GetShardIterator", **at, SequenceNumber=str(number.number)) == code
    assert (
        code_of(model, "GetShardIterator", **at, SequenceNumber=str(new.number + 1)) == "ValidationException"
    )
    page = get(model, iterator(model, arn))
    assert [record["dynamodb"]["SequenceNumber"] for record in page["Records"]] == [str(new.number)]

    model.roll(TABLE)
    assert len(shards_of(model, arn)) == 2
    clock.advance(25 * HOUR)
    assert [each["ShardId"] for each in shards_of(model, arn)] == model.open_shards(TABLE)
    assert code_of(model, "GetShardIterator", **at) == "ResourceNotFoundException"


def test_shards_are_replaced_every_four_hours() -> None:
    """Under any load: the child has the same keys, and names its parent."""
    model, clock, arn = model_of(replace(KIND, shard_life=4 * HOUR), shards=3)
    first = model.open_shards(TABLE)
    clock.advance(4.5 * HOUR)
    second = model.open_shards(TABLE)
    assert len(second) == 3
    assert not set(first) & set(second)
    parents = model.parents(arn)
    assert sorted(parents[child] or "" for child in second) == sorted(first)


def test_a_listing_is_late() -> None:
    """A new shard is missing for a while, and its parent looks open."""
    model, clock, arn = model_of(replace(KIND, listing_delay=2.0), shards=20)
    model.roll(TABLE)
    shown = shards_of(model, arn)
    clock.advance(2.0)
    assert len(shown) < len(shards_of(model, arn)) == 40
    assert any("EndingSequenceNumber" not in each["SequenceNumberRange"] for each in shown)


def test_a_page_is_a_thousand_records_or_a_mebibyte() -> None:
    """Whichever comes first; one record comes in any case."""
    model, _, arn = model_of(KIND)
    for number in range(1500):
        model.put(TABLE, str(number))
    page = get(model, iterator(model, arn))
    assert len(page["Records"]) == 1000
    for number in range(8):
        model.put(TABLE, "large", {"id": {"S": "large"}, "n": {"N": str(number)}, "x": {"S": "x" * 300_000}})
    page = get(model, page["NextShardIterator"], 500)
    page = get(model, page["NextShardIterator"])
    assert len(page["Records"]) == 3
    assert code_of(model, "GetRecords", ShardIterator=page["NextShardIterator"], Limit=1001) is not None


@pytest.mark.parametrize(("empty_pages", "tail"), [(5, 3), (0, 0)])
def test_empty_pages_come_before_records_and_before_the_end(empty_pages: int, tail: int) -> None:
    """No record is in a page that comes too early, and none is left out."""
    model, _, arn = model_of(replace(KIND, empty_pages=empty_pages, empty_tail=tail, portion=10))
    put = [model.put(TABLE, str(number)).number for number in range(200)]
    shard = model.open_shards(TABLE)[0]
    model.roll(TABLE)
    it: str | None = iterator(model, arn, ShardId=shard)
    pages: list[list[int]] = []
    while it is not None:
        answer = get(model, it)
        pages.append([int(record["dynamodb"]["SequenceNumber"]) for record in answer["Records"]])
        it = answer.get("NextShardIterator")
    assert [number for page in pages for number in page] == put
    assert (sum(not page for page in pages) > 10) == bool(empty_pages)


def test_latest_is_behind_the_newest_record() -> None:
    """API_streams_GetShardIterator: "just after the most recent stream record"."""
    model, _, arn = model_of(KIND)
    model.put(TABLE, "before")
    it = iterator(model, arn, "LATEST")
    after = model.put(TABLE, "after")
    assert [r["dynamodb"]["SequenceNumber"] for r in get(model, it)["Records"]] == [str(after.number)]


def test_a_disabled_stream_can_be_read_for_a_day() -> None:
    """Its shards are closed; the next stream of the table has another ARN."""
    model, clock, arn = model_of(replace(KIND, retention=24 * HOUR))
    model.put(TABLE, "last")
    model.disable(TABLE)
    clock.advance(1.0)
    again = model.enable(TABLE)
    assert again != arn
    assert [each["StreamArn"] for each in model.call("ListStreams", {"TableName": TABLE})["Streams"]] == [
        arn,
        again,
    ]
    (shard,) = shards_of(model, arn)
    assert "EndingSequenceNumber" in shard["SequenceNumberRange"]
    clock.advance(25 * HOUR)
    assert code_of(model, "DescribeStream", StreamArn=arn) == "ResourceNotFoundException"
