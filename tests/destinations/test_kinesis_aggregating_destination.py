"""aggregate=true: aggregates get to their shards, through reshards and refusals, and nothing is lost."""

from __future__ import annotations

import base64
import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_kinesis import (
    KEY_SPACE,
    FakeStream,
    Row,
    User,
    aggregating,
    as_batch,
    even_shards,
    row_lists,
    rows,
)
from fake_service import CONNECTION, FakeService, answer, refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.aws.calling.connection import ConnectionConfig
from sluice.destinations.kinesis import KinesisEntry, KinesisStreamsDestination
from sluice.destinations.kinesis.aggregating_destination import AggregatingDestination
from sluice.destinations.kinesis.shard_map import Shard, shard_map_cache
from sluice.errors import InvalidRecordError, ServiceError
from sluice.kinesis.log.kpl.deaggregator import hash_key, unpack
from sluice.kinesis.log.kpl.format import MAGIC
from sluice.options import read_options
from sluice.sink import AsyncSinkConfig, AsyncSinkWriter, NoRateLimitingStrategy
from sluice.sink.contracts import Origin
from sluice.sink.letters.dead_letters import LocalDeadLetterQueue
from sluice.sink.options import SINK_OPTIONS


def convert(destination: AggregatingDestination, given: list[Row]) -> list[Any]:
    return list(destination.create_converter().convert(as_batch(given)))


def write(
    destination: Any, *given: list[Row], dead_letters: Any = None, **config: Any
) -> AsyncSinkWriter[Any]:
    settings_ = {
        "max_batch_size": 500,
        "max_batch_size_in_bytes": 10 * 2**20,
        "max_record_size_in_bytes": 10 * 2**20,
        "max_in_flight_requests": 8,
        "max_buffered_requests": 10_000,
        "max_time_in_buffer": 0.05,
        "request_timeout": 60.0,
        "max_retry_duration": 60.0,
    }
    writer = AsyncSinkWriter(
        destination,
        AsyncSinkConfig(**(settings_ | config)),
        NoRateLimitingStrategy(),
        dead_letters=dead_letters,
    )
    try:
        for each in given:
            writer.write(as_batch(each))
        writer.flush()
    finally:
        writer.close()
    return writer


def data_of(found: list[User]) -> list[bytes]:
    return sorted(user.data for user in found)


# --- shards -----------------------------------------------------------------------------------------


@given(row_lists(), st.integers(1, 9), st.integers(1, 9), st.integers(60, 400))
@settings(max_examples=50)
def test_a_reshard_between_packing_and_sending_loses_nothing(
    given: list[Row], before: int, after: int, limit: int
) -> None:
    """The source gets every row; the KCL gets every row exactly once."""
    stream = FakeStream(even_shards(before))
    destination = aggregating(stream, limit=limit)
    entries = convert(destination, given)
    stream.reshard(after)
    if entries:
        result = destination.submit(entries)
        assert (result.failed, result.rejected) == ([], [])
    wanted = sorted(data for data, _, _ in given)
    assert data_of(stream.read_by_client_library()) == wanted
    assert not Counter(wanted) - Counter(data_of(stream.read_by_source()))


def test_a_misrouted_aggregate_is_packed_again() -> None:
    """After a shard was split, one more request has its records."""
    stream = FakeStream(even_shards(1))
    destination = aggregating(stream)
    converter = destination.create_converter()
    entries = list(converter.convert(as_batch(rows(500))))
    stream.reshard(4)
    destination.submit(entries)
    assert [len(request) for request in stream.requests] == [1, 4]
    # The ordering key of a row stays the same for the whole task.
    later = list(converter.convert(as_batch(rows(500))))
    assert [destination.ordering_key(entry) for entry in later] == ["shardId-000000000000"]
    destination.submit(later)
    assert [len(request) for request in stream.requests] == [1, 4, 4]


THROTTLED = ServiceError("Rate exceeded", code="LimitExceededException", retryable=True)
# Not retryable, and all the same not fatal for a while, as the SDK may find new ones.
EXPIRED = ServiceError("expired", code="ExpiredTokenException", retryable=False)


def failing_once(number: int, call: Callable[[], Any] = lambda: None, error: ServiceError = THROTTLED) -> Any:
    """`call`, which fails the `number`-th time, counted from 1."""
    numbers = itertools.count(1)

    def wrapped() -> Any:
        if next(numbers) == number:
            raise error
        return call()

    return wrapped


def split_second_shard(stream: FakeStream) -> None:
    """Of two shards, the first stays as it is."""
    first, second = stream.shards
    children = even_shards(4)[2:]
    stream.shards = [
        first,
        second._replace(is_closed=True),
        *(each._replace(id=f"child-{each.id}") for each in children),
    ]


def test_a_listing_that_is_refused_sends_nothing_again_that_is_in_its_shard() -> None:
    """Where the shards of a reshard cannot be listed, aggregates have failed that may be in a wrong one."""
    stream = FakeStream(even_shards(2), passing=frozenset({EXPIRED.code}))
    stream.list_shards = failing_once(2, stream.list_shards, EXPIRED)  # type: ignore[method-assign]
    destination = aggregating(stream)
    entries = convert(destination, rows(500))
    split_second_shard(stream)
    result = destination.submit(entries)

    assert result.failed == [
        each for each in entries if destination.ordering_key(each) == "shardId-000000000001"
    ]
    assert result.codes == {EXPIRED.code: 1}
    assert destination.submit(result.failed).failed == []
    assert data_of(stream.read_by_client_library()) == sorted(data for data, _, _ in rows(500))


def test_without_a_listing_rows_are_packed_by_their_hash_keys() -> None:
    """They fit the shards of that time, even if these have changed since. The next good listing ends it."""
    now, listings = [0.0], itertools.count(1)
    stream = FakeStream(even_shards(2))
    listed = stream.list_shards

    def list_shards() -> list[Shard]:
        if 1 < next(listings) < 4:
            raise THROTTLED
        return listed()

    stream.list_shards = list_shards  # type: ignore[method-assign]
    destination = aggregating(stream, lambda: now[0])
    written: list[int] = []
    for at in (0.0, 31.0, 62.0, 93.0):
        entries = convert(destination, rows(500))
        now[0] = at
        assert destination.submit(entries).failed == []
        written.append(len(stream.requests[-1]))
        if not at:
            split_second_shard(stream)

    assert written == [2, 50, 50, 3]
    wanted = sorted(data for _ in written for data, _, _ in rows(500))
    assert data_of(stream.read_by_client_library()) == wanted
    assert data_of(stream.read_by_source()) == wanted


@pytest.mark.parametrize("error", [THROTTLED, EXPIRED])
def test_a_request_that_fails_sends_nothing_again_that_was_accepted_before(error: ServiceError) -> None:
    """Where a reshard makes several requests of one, and a later one fails."""
    stream = FakeStream(even_shards(1), passing=frozenset({EXPIRED.code}))
    destination = aggregating(stream, limit=2_000)
    entries = convert(destination, rows(40_000, keys=5000))[:490]
    wanted = sorted(user.data for entry in entries for user in destination.unpacked(entry))
    stream.reshard(8)
    destination._shards.invalidate()
    stream.before = failing_once(3, error=error)
    result = destination.submit(entries)

    assert set(result.codes) == {error.code}
    assert 0 < len(result.failed) < len(entries)
    assert destination.submit(result.failed).failed == []
    assert data_of(stream.read_by_source()) == wanted


@pytest.mark.parametrize(("number", "error"), [(1, THROTTLED), (1, EXPIRED), (2, EXPIRED)])
def test_a_request_that_fails_first_or_for_good_is_an_error(number: int, error: ServiceError) -> None:
    """The writer judges it."""
    stream = FakeStream(even_shards(1))
    destination = aggregating(stream)
    entries = convert(destination, rows(500))
    stream.reshard(2)
    stream.before = failing_once(number, error=error)
    with pytest.raises(ServiceError, match=str(error)):
        destination.submit(entries)


def test_an_aggregate_is_sent_again_if_the_answer_names_no_shard() -> None:
    """It may have gone to the wrong one."""
    stream = FakeStream(even_shards(1))
    destination = aggregating(stream)
    entries = convert(destination, rows(10))
    put = stream.put
    stream.put = lambda records: (put(records)[0], [None for _ in records])  # type: ignore[method-assign,assignment]
    assert destination.submit(entries).failed == entries


def test_a_refused_aggregate_comes_back_as_the_same_entry() -> None:
    """Of a split one, only the refused parts are sent again."""
    stream = FakeStream(even_shards(1))
    destination = aggregating(stream)
    (first,) = convert(destination, rows(500))
    second = KinesisEntry(b"x", "key-1")
    stream.refuse = lambda entry, _: "Throttled" if entry.data.startswith(MAGIC) else None
    assert destination.submit([first, second]).failed == [first]
    stream.reshard(4)
    stream.refuse = lambda _, shard: "Throttled" if shard.endswith("2") else None
    destination._shards.invalidate()
    result = destination.submit([second, first])
    assert len(result.failed) == 1
    assert result.failed[0] is first
    assert result.codes == {"Throttled": 1}
    stream.refuse = lambda _entry, _shard: None
    stream.requests.clear()
    assert destination.submit([first]).failed == []
    assert [len(request) for request in stream.requests] == [1]
    assert data_of(stream.read_by_source()) == sorted([b"x", b"x", *(data for data, _, _ in rows(500))])


def test_split_entries_keep_the_limits_of_a_request() -> None:
    """500 records and 10 MiB."""
    stream = FakeStream(even_shards(1))
    destination = aggregating(stream, limit=2_000)
    entries = convert(destination, rows(40_000, keys=5000))[:490]
    stream.reshard(8)
    destination._shards.invalidate()
    assert destination.submit(entries).failed == []
    assert len(stream.requests) > 2  # FakeStream checks their limits
    large = [KinesisEntry(bytes(9 * 2**20), "k"), KinesisEntry(bytes(2 * 2**20), "k"), KinesisEntry(b"", "k")]
    stream.requests.clear()
    destination.submit(large)
    assert [len(request) for request in stream.requests] == [1, 2]


# --- with the writer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("listings", [1, 1000])
def test_rows_of_a_key_keep_their_order(listings: int) -> None:
    """Although records are refused, and shards are split and merged; also if they cannot be listed again."""
    stream, seconds = FakeStream(even_shards(2)), itertools.count()
    listed, left = stream.list_shards, iter(range(listings))

    def list_shards() -> list[Shard]:
        if next(left, None) is None:
            raise THROTTLED
        return listed()

    stream.list_shards = list_shards  # type: ignore[method-assign]
    refusals = itertools.count()
    stream.refuse = lambda _entry, _shard: "Throttled" if next(refusals) % 11 == 0 else None
    counts, puts = iter([4, 3, 5]), itertools.count(1)

    def reshard() -> None:
        if next(puts) % 10 == 0 and (count := next(counts, None)):
            stream.reshard(count)

    stream.before = reshard
    given: list[list[Row]] = [
        [(f"{n}".encode(), f"key-{n % 17}", None) for n in range(start, start + 400)]
        for start in range(0, 2000, 400)
    ]
    write(aggregating(stream, lambda: float(next(seconds)), limit=400), *given)

    found: dict[str, list[int]] = {}
    for user in stream.read_by_client_library():
        found.setdefault(user.key, []).append(int(user.data))
    for key in range(17):
        assert found[f"key-{key}"] == list(range(key, 2000, 17))


def test_figures_count_rows() -> None:
    """Records, refusals and retries are rows; bytes are those of the sent records."""
    stream = FakeStream(even_shards(1))
    refused = iter(["Throttled"])
    stream.refuse = lambda _entry, _shard: next(refused, None)
    figures = write(aggregating(stream), rows(100)).figures
    assert (figures.records, figures.refused, figures.retries, figures.requests) == (100, 100, 100, 2)
    assert figures.bytes == stream.size_in_bytes(stream.requests[0][0])
    assert figures.refused_by_code == {"Throttled": 100}
    assert figures.destination == {"kinesis_records_put": 1, "user_records_put": 100}


def test_dead_letters_are_rows(tmp_path: Path) -> None:
    """Each row of a rejected aggregate becomes a separate dead letter, with its own key."""
    stream = FakeStream(even_shards(1), refuse=lambda _entry, _shard: "InvalidThing")
    queue = LocalDeadLetterQueue(tmp_path, Origin("d"))
    figures = write(aggregating(stream), rows(99), dead_letters=queue).figures
    (file,) = tmp_path.rglob("*.jsonl")
    dead_letters = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["attributes"] for each in dead_letters] == [
        {"partitionKey": f"key-{n % 50}"} for n in range(99)
    ]
    assert {each["reason"] for each in dead_letters} == {"InvalidThing"}
    assert (figures.dead_letters, figures.records) == (99, 0)


@pytest.mark.parametrize("throttled", [(), ("shardId-000000000002",)])
def test_of_a_split_aggregate_only_the_rows_of_a_rejected_part_are_refused(
    tmp_path: Path, throttled: Sequence[str]
) -> None:
    """Each row is either a record or a dead letter, whether the other part was accepted before or with it."""
    stream = FakeStream(even_shards(1))
    codes: dict[str, str] = dict.fromkeys(throttled, "Throttled")
    stream.refuse = lambda _, shard: (
        "InvalidThing" if shard == "shardId-000000000001" else codes.pop(shard, None)
    )
    destination = aggregating(stream)
    convert(destination, rows(1))  # from now on the converter packs for one shard
    stream.reshard(2)
    destination._shards.invalidate()
    figures = write(destination, rows(500), dead_letters=LocalDeadLetterQueue(tmp_path, Origin("d"))).figures
    (file,) = tmp_path.rglob("*.jsonl")
    letters = file.read_text().splitlines()

    assert 0 < len(letters) < 500
    assert (figures.dead_letters, figures.records) == (len(letters), len(stream.read_by_source()))
    assert figures.dead_letters + figures.records == 500
    with pytest.raises(InvalidRecordError, match=f"^kinesis stream 's': {len(letters)} records were refused"):
        write(destination, rows(500))


def test_a_row_that_is_too_large_is_one_dead_letter(tmp_path: Path) -> None:
    """`maxRecordSizeInBytes` applies to a row, and aggregates stay below it."""
    stream = FakeStream(even_shards(1))
    given: list[Row] = [*rows(50), (b"x" * 500, "k", None), *rows(50)]
    write(
        aggregating(stream, limit=399),
        given,
        dead_letters=LocalDeadLetterQueue(tmp_path, Origin("d")),
        max_record_size_in_bytes=400,
        oversized_records="deadLetter",
    )
    (file,) = tmp_path.rglob("*.jsonl")
    assert len(file.read_text().splitlines()) == 1
    assert len(stream.read_by_source()) == 100


# --- as a destination ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "limit"),
    [({}, 51_200), ({"maxRecordSizeInBytes": "1KiB"}, 1023), ({"maxBatchSizeInBytes": "2000"}, 1999)],
)
def test_the_option(given: dict[str, str], limit: int) -> None:
    """Aggregates keep below the limits for records and batches. Without the option nothing is packed."""
    declared = [*KinesisStreamsDestination.OPTIONS, *SINK_OPTIONS]
    options = {"streamName": "s", "destination": "kinesis"} | given
    here = ConnectionConfig(region="eu-west-1")
    plain = KinesisStreamsDestination.from_options(read_options("t", declared, options), here)
    assert isinstance(plain, KinesisStreamsDestination)
    packing = KinesisStreamsDestination.from_options(
        read_options("t", declared, options | {"aggregate": "true"}), here
    )
    assert isinstance(packing, AggregatingDestination)
    assert packing._limit == limit
    assert packing.name == plain.name == "kinesis stream 's'"


def test_shards_are_listed_again_after_a_fatal_error() -> None:
    """The stream may have been created again. Other errors do not invalidate the shards."""
    stream = FakeStream(even_shards(1))
    destination = aggregating(stream)
    (entry, *_) = convert(destination, rows(10))
    assert not destination.is_fatal(ServiceError("busy", retryable=True))
    destination.submit([entry])
    assert stream.listings == 1
    assert destination.is_fatal(ServiceError("gone", retryable=False))
    destination.submit([entry])
    assert stream.listings == 2
    destination.close()
    assert stream.closed == 1


# --- requests over HTTP -------------------------------------------------------------------------------


def from_options(respond: Any) -> tuple[Any, FakeService]:
    """The destination made from options, and the service that it calls."""
    shard_map_cache.cache_clear()
    service = FakeService("kinesis", respond)
    values = read_options(
        "t", KinesisStreamsDestination.OPTIONS, {"streamName": "orders", "aggregate": "true"}
    )
    return KinesisStreamsDestination.from_options(values, CONNECTION), service


def test_the_requests() -> None:
    """One listing; then aggregates with the producer library's key, and the hash key of their first row."""
    keys = {"StartingHashKey": "0", "EndingHashKey": str(KEY_SPACE - 1)}
    shard = {
        "ShardId": "shardId-000000000000",
        "HashKeyRange": keys,
        "SequenceNumberRange": {"StartingSequenceNumber": "1"},
    }

    def respond(operation: str, params: dict[str, Any]) -> Any:
        if operation == "ListShards":
            return answer({"Shards": [shard]})
        fine = {"SequenceNumber": "1", "ShardId": "shardId-000000000000"}
        return answer({"FailedRecordCount": 0, "Records": [fine] * len(params["Records"])})

    destination, service = from_options(respond)
    writer = write(destination, rows(1000, size=100), rows(1000, size=100))

    assert [operation for operation, _ in service.calls][:2] == ["ListShards", "PutRecords"]
    assert [params["StreamName"] for _, params in service.calls] == ["orders"] * len(service.calls)
    sent = [record for _, params in service.calls[1:] for record in params["Records"]]
    assert {record["PartitionKey"] for record in sent} == {"a"}
    unpacked = [unpack(base64.b64decode(record["Data"])) for record in sent]
    assert [int(record["ExplicitHashKey"]) for record in sent] == [
        hash_key(each.partition_keys[0]) for each in unpacked
    ]
    assert [data for each in unpacked for data in each.data] == 2 * [
        data for data, _, _ in rows(1000, size=100)
    ]
    assert (writer.figures.records, writer.figures.refused) == (2000, 0)


def test_without_permission_to_list_shards_the_task_fails() -> None:
    """At once; the error names the operation and the stream."""
    destination, service = from_options(lambda _operation, _params: refusal("AccessDeniedException"))
    with pytest.raises(ServiceError, match=r"ListShards.*orders") as caught:
        write(destination, rows(10))
    assert destination.is_fatal(caught.value)
    assert len(service.calls) == 1
