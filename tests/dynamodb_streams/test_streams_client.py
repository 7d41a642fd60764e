"""DynamoDB Streams as a log, over the strict model of the service."""

from __future__ import annotations

from typing import Any

import pytest
from integration.model import SECOND, FaultPlan
from integration.streams_model import Laws, ModelCalls, StreamsModel
from streams_query import TABLE, new_log, new_model, put_many

from sluice.dynamodb_streams.client import DynamoDbStreamsLog
from sluice.dynamodb_streams.streams import TableRef
from sluice.errors import ServiceError
from sluice.source.logs.stream_log import IteratorStart, Page
from sluice.source.model.splits import SplitId

HORIZON = IteratorStart("TRIM_HORIZON")
PLAIN = Laws(empty_pages=0, empty_tail=0, listing_delay=0.0, portion=10**9)


def only_split(model: StreamsModel) -> SplitId:
    (shard,) = model.open_shards(TABLE)
    return SplitId(TABLE, shard)


def numbers(page: Page) -> list[int]:
    return [int(record.sequence_number) for record in page.records]


def next_page(log: DynamoDbStreamsLog, model: StreamsModel, split: SplitId, page: Page, limit: int) -> Page:
    assert page.next_iterator is not None
    model.clock.advance(0.1)
    return log.get_records(split, page.next_iterator, limit)


def test_a_stream_is_known_by_its_label() -> None:
    """The label is the time at which the stream was enabled. A stream that is enabled anew has another."""
    model = new_model(PLAIN)
    log = new_log(model)
    first = log.describe(TABLE)
    assert first.created == model.clock.now() // 1000 * 1000
    assert first.retention == 24 * 3600

    model.disable(TABLE)
    assert log.describe(TABLE) == first  # its records can still be read
    model.clock.advance(1.0)
    model.enable(TABLE)

    assert log.describe(TABLE).created == first.created + SECOND


def test_a_stream_named_by_its_arn_stays_the_one_that_is_read() -> None:
    """The ARN of a disabled stream reads what it has left."""
    model = new_model(PLAIN)
    (arn,) = {each["StreamArn"] for each in model.call("ListStreams", {})["Streams"]}
    put_many(model, 3)
    model.disable(TABLE)
    model.enable(TABLE)
    log = DynamoDbStreamsLog(ModelCalls(model), [TableRef(TABLE, arn)], empty_pages=5)

    (split,) = log.list_splits(TABLE)
    page = log.get_records(split.id, log.get_iterator(split.id, HORIZON) or "", 10)

    assert split.is_closed
    assert len(page.records) == 3
    assert page.next_iterator is None


def test_a_table_without_a_stream_says_what_to_do() -> None:
    """The error names the table, and what enables a stream."""
    log = DynamoDbStreamsLog(ModelCalls(StreamsModel()), [TableRef("plain")], empty_pages=5)
    with pytest.raises(ServiceError, match=r"ListStreams of plain: .*StreamEnabled") as error:
        log.describe("plain")
    assert error.value.missing


def test_shards_are_listed_in_pages() -> None:
    """A hundred to a page; each shard once, though the stream changes between two pages."""
    model = new_model(PLAIN, shards=130)
    model.roll(TABLE)
    rolled = iter([lambda: model.roll(TABLE)])

    def roll_meanwhile(operation: str, request: Any) -> None:
        if operation == "DescribeStream" and "ExclusiveStartShardId" in request:
            next(rolled, lambda: None)()

    model.faults = FaultPlan(callback=roll_meanwhile)
    splits = new_log(model).list_splits(TABLE)

    assert len({split.id for split in splits}) == len(splits) >= 260
    assert all(int(split.starting_sequence) > 0 for split in splits)
    by_id = {split.id.shard: split for split in splits}
    children = [split for split in splits if split.parents]
    assert len(children) >= 130
    assert all(by_id[parent].is_closed for split in children for parent in split.parents if parent in by_id)


def test_a_closed_shard_ends_exactly() -> None:
    """Its last page has no iterator, and no page before does, empty or not."""
    model = new_model(Laws(empty_pages=5, empty_tail=4, portion=3), seed=3)
    put_many(model, 20)
    log, split = new_log(model), only_split(model)
    model.roll(TABLE)

    page, read = Page((), log.get_iterator(split, HORIZON), 1), []
    while page.next_iterator is not None:
        page = next_page(log, model, split, page, 4)
        read += numbers(page)
    assert len(read) == 20
    assert page.millis_behind == 0


def test_latest_is_pinned_once() -> None:
    """The first iterator of a start at LATEST reads nothing old; a later one skips nothing new."""
    model = new_model(PLAIN)
    put_many(model, 3000)
    log, split = new_log(model), only_split(model)
    instant = model.clock.now() // (60 * SECOND) * 60 * SECOND
    log.start_at_latest([split], instant)
    later = put_many(model, 7, name="later")
    start = IteratorStart("TRIM_HORIZON", timestamp=instant)
    calls = model.calls["GetRecords"]

    assert numbers(log.get_records(split, log.get_iterator(split, start) or "", 100)) == later
    assert model.calls["GetRecords"] == calls + 1
    page, read = Page((), log.get_iterator(split, start), 1), []
    for _ in range(6):
        page = next_page(log, model, split, page, 1000)
        read += numbers(page)
    assert len(read) == 3007
    assert read[-7:] == later


def test_trimmed_records_differ_from_a_faulty_service() -> None:
    """A number that has expired is an invalid start; an iterator whose record has expired is an old one."""
    model = new_model(PLAIN)
    first = model.put(TABLE, "first")
    log, split = new_log(model), only_split(model)
    iterator = log.get_iterator(split, HORIZON) or ""
    model.clock.advance(600)
    model.laws = Laws(retention=500.0)
    model.put(TABLE, "second")

    with pytest.raises(ServiceError) as error:
        log.get_iterator(split, IteratorStart("AT_SEQUENCE_NUMBER", sequence_number=str(first.number)))
    assert error.value.invalid_argument
    with pytest.raises(ServiceError) as error:
        log.get_records(split, iterator, 10)
    assert error.value.expired_iterator
    assert error.value.code == "TrimmedDataAccessException"
    assert not error.value.missing


@pytest.mark.parametrize("code", ["LimitExceededException", "ThrottlingException"])
def test_a_refusal_for_load_is_throttling(code: str) -> None:
    """More than two readers a shard, or too many calls: readers wait, and do not fail."""
    model = new_model(PLAIN)
    log, split = new_log(model), only_split(model)
    iterator = log.get_iterator(split, HORIZON) or ""
    model.faults.force("GetRecords", code, times=20)
    with pytest.raises(ServiceError) as error:
        log.get_records(split, iterator, 10)
    assert error.value.throttling
