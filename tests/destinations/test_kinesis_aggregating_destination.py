"""aggregate=true: what is packed with what, that it arrives where it belongs, and that nothing is lost."""

from __future__ import annotations

import base64
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kinesis_fakes import KEY_SPACE, FakeStream, User, evenly
from kinesis_wire import Wire, answer, refusal

from sluice.aws.clients import client_for
from sluice.aws.connection import ConnectionConfig
from sluice.aws.responses import Outcome
from sluice.destinations.kinesis import KinesisEntry, KinesisStreamsDestination
from sluice.destinations.kinesis.aggregates import Aggregate, Entry, regrouped, routed_by, user_records
from sluice.destinations.kinesis.aggregating_destination import AggregatingDestination
from sluice.destinations.kinesis.shard_map import ShardMap, Shards, shards_of
from sluice.errors import InvalidRecordError, ServiceError
from sluice.kinesis.kpl.deaggregator import MAGIC, hash_key, unpack
from sluice.options import read_options
from sluice.sink import AsyncSinkConfig, AsyncSinkWriter, NoRateLimitingStrategy
from sluice.sink.dead_letters import LocalDeadLetterQueue, Origin
from sluice.sink.options import SINK_OPTIONS

KEYS = st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8) | st.just("a")
HASH_KEYS = st.none() | st.integers(0, KEY_SPACE - 1).map(str) | st.just("0")
ROWS = st.lists(st.tuples(st.binary(max_size=60), KEYS, HASH_KEYS), max_size=60)

Row = tuple[bytes, "str | None", "str | None"]


def rows(count: int, *, keys: int = 50, size: int = 0) -> list[Row]:
    return [(f"{n}".encode().ljust(size), f"key-{n % keys}", None) for n in range(count)]


def batch(given: list[Row]) -> pa.RecordBatch:
    data, keys, hash_keys = zip(*given, strict=True) if given else ((), (), ())
    arrays = [pa.array(data, pa.binary()), pa.array(keys, pa.string()), pa.array(hash_keys, pa.string())]
    return pa.record_batch(arrays, names=["data", "partitionKey", "explicitHashKey"])


def made(stream: FakeStream, **more: Any) -> AggregatingDestination:
    return AggregatingDestination(stream, Shards(stream.listed), **more)


def converted(stream: FakeStream, given: list[Row], **more: Any) -> list[Entry]:
    return list(made(stream, **more).create_converter().convert(batch(given)))


def write(destination: Any, *given: list[Row], letters: Any = None, **config: Any) -> AsyncSinkWriter[Any]:
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
        destination, AsyncSinkConfig(**(settings_ | config)), NoRateLimitingStrategy(), dead_letters=letters
    )
    try:
        for each in given:
            writer.write(batch(each))
        writer.flush()
    finally:
        writer.close()
    return writer


def data_of(found: list[User]) -> list[bytes]:
    return sorted(user.data for user in found)


# --- what is packed with what -------------------------------------------------------------------------


@given(ROWS, st.integers(1, 9), st.integers(30, 400))
@settings(deadline=None)
def test_an_aggregate_belongs_to_one_shard_and_has_its_size(
    given: list[Row], shards: int, limit: int
) -> None:
    """Every row once, in its order within its shard, with its keys; no aggregate of one; none too large."""
    stream = FakeStream(evenly(shards))
    entries = converted(stream, given, limit=limit)
    found: dict[str, list[KinesisEntry]] = {}
    for entry in entries:
        users = user_records(entry)
        (shard,) = {stream.shard_of(routed_by(user)) for user in users}
        found.setdefault(shard, []).extend(users)
        if isinstance(entry, Aggregate):
            assert entry.holds == len(users) > 1
            assert len(entry.record.data) <= limit
            assert (entry.record.partition_key, routed_by(entry.record)) == ("a", routed_by(users[0]))
            assert all(entry.first <= routed_by(user) <= entry.last for user in users)
            assert entry.lane in {None, shard}
    all_found = [user for users in found.values() for user in users]
    assert Counter(user.data for user in all_found) == Counter(data for data, _, _ in given)
    keyed = [row for row in given if row[1] is not None or row[2] is not None]
    for shard, users in found.items():
        wanted = [
            row
            for row in keyed
            if stream.shard_of(int(row[2]) if row[2] else hash_key(row[1] or "")) == shard
        ]
        ours = {row[1] for row in wanted}
        ordered = [
            (user.data, user.partition_key, user.explicit_hash_key)
            for user in users
            if user.explicit_hash_key is not None or user.partition_key in ours
        ]
        assert [(d, h) for d, _, h in ordered] == [(d, h) for d, _, h in wanted]
        assert all(key is None or key == k for (_, k, _), (_, key, _) in zip(ordered, wanted, strict=True))


def test_aggregates_are_filled() -> None:
    """Only the last of each shard has room left."""
    entries = converted(FakeStream(evenly(4)), rows(10_000, size=100), limit=51_200)
    assert len(entries) <= 10_000 * 125 // 51_200 + 4
    assert (
        sum(len(entry.record.data) > 51_200 - 200 for entry in entries if isinstance(entry, Aggregate)) >= 16
    )


def test_rows_without_a_key_share_one() -> None:
    """They may go anywhere, so an aggregate of them has one key, made at random: it is never divided."""
    stream = FakeStream(evenly(64))
    entries = converted(stream, [(b"x" * 100, None, None)] * 2000, limit=5000)
    assert len(entries) < 50
    keys = [{user.partition_key for user in user_records(entry)} for entry in entries]
    assert all(len(each) == 1 for each in keys)
    assert len({next(iter(each)) for each in keys}) == len(entries)
    assert len({stream.shard_of(routed_by(user_records(each)[0])) for each in entries}) > 10
    assert {made(stream).ordering_key(entry) for entry in entries if isinstance(entry, Aggregate)} == {None}


def test_what_is_too_large_goes_alone_and_in_its_place() -> None:
    """A record that would not fit is sent as it is, after those of its shard before it."""
    given: list[Row] = [(b"1", "k", None), (b"2", "k", None), (b"x" * 300, "k", "7"), (b"3", "k", "7")]
    given += [(b"4", "k", None)]
    first, large, last = converted(FakeStream(evenly(1)), given, limit=200)
    assert large == KinesisEntry(b"x" * 300, "k", "7")
    assert [[user.data for user in user_records(entry)] for entry in (first, last)] == [
        [b"1", b"2"],
        [b"3", b"4"],
    ]


def test_a_record_that_is_alone_is_no_aggregate() -> None:
    """As with the producer library: nothing to unpack, its own keys."""
    assert converted(FakeStream(evenly(1)), [(b"1", "k", None)]) == [KinesisEntry(b"1", "k")]
    assert converted(FakeStream(evenly(1)), [(b"1", "k", "7")]) == [KinesisEntry(b"1", "k", "7")]
    (entry,) = converted(FakeStream(evenly(1)), [(b"1", None, "7")])
    assert isinstance(entry, KinesisEntry)
    assert entry.explicit_hash_key == "7"
    assert entry.partition_key


def test_where_no_shard_is_known_records_go_alone() -> None:
    """In a gap of the listing, Kinesis itself decides."""
    stream = FakeStream(evenly(4)[1:])
    (lost,) = (key for n in range(99) if hash_key(key := f"key-{n}") < KEY_SPACE // 4 for _ in [0] if n < 9)
    given: list[Row] = [(b"1", lost, None), (b"2", lost, None)]
    assert converted(stream, given) == [KinesisEntry(b"1", lost), KinesisEntry(b"2", lost)]


def test_rows_that_cannot_be_delivered_are_refused() -> None:
    """By the same rules as without packing."""
    with pytest.raises(InvalidRecordError, match="row 1 of a batch"):
        converted(FakeStream(evenly(1)), [(b"1", "k", None), (b"2", "", None)])


# --- where it goes ------------------------------------------------------------------------------------


@given(ROWS, st.integers(1, 9), st.integers(1, 9), st.integers(60, 400))
@settings(deadline=None, max_examples=50)
def test_a_reshard_between_packing_and_putting_loses_nothing(
    given: list[Row], before: int, after: int, limit: int
) -> None:
    """Readers of both kinds get every row; by the client library's rule each exactly once."""
    stream = FakeStream(evenly(before))
    destination = made(stream, limit=limit)
    entries = list(destination.create_converter().convert(batch(given)))
    stream.reshard(after)
    if entries:
        result = destination.submit(entries)
        assert (result.failed, result.rejected) == ([], [])
    wanted = sorted(data for data, _, _ in given)
    assert data_of(stream.read_by_client_library()) == wanted
    assert not Counter(wanted) - Counter(data_of(stream.read_by_source()))


def test_without_reshards_nothing_is_listed_or_sent_twice() -> None:
    """One listing, one request, and both readers agree to the record."""
    stream = FakeStream(evenly(4))
    destination = made(stream)
    entries = list(destination.create_converter().convert(batch(rows(2000))))
    destination.submit(entries)
    assert (stream.listings, len(stream.requests)) == (1, 1)
    assert stream.read_by_source() == stream.read_by_client_library()
    assert data_of(stream.read_by_source()) == sorted(data for data, _, _ in rows(2000))


def test_a_merge_sends_nothing_twice() -> None:
    """What went to a larger shard than was meant belongs there."""
    stream = FakeStream(evenly(4))
    destination = made(stream)
    entries = list(destination.create_converter().convert(batch(rows(500))))
    stream.reshard(1)
    destination.submit(entries)
    assert len(stream.requests) == 1
    assert data_of(stream.read_by_source()) == sorted(data for data, _, _ in rows(500))
    assert stream.listings == 2


def test_what_went_astray_is_packed_anew() -> None:
    """After a split, one more request has what did not belong; what is packed later is divided at once."""
    stream = FakeStream(evenly(1))
    destination = made(stream)
    converter = destination.create_converter()
    entries = list(converter.convert(batch(rows(500))))
    stream.reshard(4)
    destination.submit(entries)
    assert [len(request) for request in stream.requests] == [1, 4]
    # The lane of a key stays as it was while the task lives.
    later = list(converter.convert(batch(rows(500))))
    assert [destination.ordering_key(entry) for entry in later] == ["shardId-000000000000"]
    destination.submit(later)
    assert [len(request) for request in stream.requests] == [1, 4, 4]


def test_a_stream_that_never_agrees_is_not_asked_for_ever() -> None:
    """What is still astray after three attempts counts as refused, and waits like it."""
    stream = FakeStream(evenly(1))
    destination = made(stream)
    entries = list(destination.create_converter().convert(batch(rows(2000, keys=2000))))
    counts = iter([2, 16, 128, 1, 1])
    stream.before = lambda: stream.reshard(next(counts))
    result = destination.submit(entries)
    assert result.failed == entries
    assert result.codes == {"WrongShard": len(entries)}
    assert len(stream.requests) == 3
    assert destination.submit(entries).failed == []
    assert data_of(stream.read_by_client_library()) == sorted(data for data, _, _ in rows(2000))


def test_an_answer_without_a_shard_is_no_proof() -> None:
    """It cannot be told where the aggregate went, so it is sent again."""
    stream = FakeStream(evenly(1))
    destination = made(stream)
    entries = list(destination.create_converter().convert(batch(rows(10))))
    put = stream.put
    stream.put = lambda records: (put(records)[0], [Outcome() for _ in records])  # type: ignore[method-assign,assignment]
    assert destination.submit(entries).failed == entries


def test_refused_aggregates_are_refused_whole() -> None:
    """The entry itself comes back; of a divided one only what was refused is sent again."""
    stream = FakeStream(evenly(1))
    destination = made(stream)
    (first,) = destination.create_converter().convert(batch(rows(500)))
    second = KinesisEntry(b"x", "key-1")
    stream.refuse = lambda entry, _: "Throttled" if entry.data.startswith(MAGIC) else None
    assert destination.submit([first, second]).failed == [first]
    stream.reshard(4)
    stream.refuse = lambda _, shard: "Throttled" if shard.endswith("2") else None
    destination._shards.forget()
    result = destination.submit([second, first])
    assert len(result.failed) == 1
    assert result.failed[0] is first
    assert result.codes == {"Throttled": 1}
    stream.refuse = lambda _entry, _shard: None
    stream.requests.clear()
    assert destination.submit([first]).failed == []
    assert [len(request) for request in stream.requests] == [1]
    assert data_of(stream.read_by_source()) == sorted([b"x", b"x", *(data for data, _, _ in rows(500))])


def test_a_part_that_is_rejected_waits_for_the_others() -> None:
    """An entry is refused for good only when nothing of it may still be accepted."""
    stream = FakeStream(evenly(1))
    destination = made(stream)
    (entry,) = destination.create_converter().convert(batch(rows(500)))
    stream.reshard(2)
    destination._shards.forget()
    codes = {"shardId-000000000001": "InvalidThing", "shardId-000000000002": "Throttled"}
    stream.refuse = lambda _, shard: codes.get(shard)
    result = destination.submit([entry])
    assert (result.failed, result.rejected) == ([entry], [])
    del codes["shardId-000000000002"]
    result = destination.submit([entry])
    assert result.failed == []
    assert [(each.entry, each.reason) for each in result.rejected] == [(entry, "InvalidThing")]
    # What is left are the rows of the one shard.
    left = destination.unpacked(result.rejected[0].entry)
    assert {stream.shard_of(routed_by(user)) for user in left} == {"shardId-000000000001"}
    assert len(left) + len(stream.read_by_source()) == 500


def test_divided_entries_keep_the_limits_of_a_request() -> None:
    """500 records and 10 MiB, whatever is made of the entries."""
    stream = FakeStream(evenly(1))
    destination = made(stream, limit=2_000)
    entries = list(destination.create_converter().convert(batch(rows(40_000, keys=5000))))[:490]
    stream.reshard(8)
    destination._shards.forget()
    assert destination.submit(entries).failed == []
    assert len(stream.requests) > 2  # FakeStream looks at their limits
    large = [KinesisEntry(bytes(9 * 2**20), "k"), KinesisEntry(bytes(2 * 2**20), "k"), KinesisEntry(b"", "k")]
    stream.requests.clear()
    destination.submit(large)
    assert [len(request) for request in stream.requests] == [1, 2]


def test_regrouping_keeps_every_record_and_key() -> None:
    """Also those with an explicit hash key."""
    given: list[Row] = [(b"%d" % n, f"k{n}", str(n * KEY_SPACE // 40) if n % 2 else None) for n in range(40)]
    (entry,) = converted(FakeStream(evenly(1)), given)
    assert isinstance(entry, Aggregate)
    parts = regrouped(entry, ShardMap(evenly(7)))
    assert len(parts) == 7
    assert sorted(map(repr, (user for part in parts for user in user_records(part)))) == sorted(
        map(repr, user_records(entry))
    )


# --- with the writer ----------------------------------------------------------------------------------


def test_order_holds_whatever_is_refused_and_resharded() -> None:
    """Each key in its order, though records are refused, and shards are split and merged."""
    stream = FakeStream(evenly(2))
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
    write(made(stream, limit=400), *given)

    found: dict[str, list[int]] = {}
    for user in stream.read_by_client_library():
        found.setdefault(user.key, []).append(int(user.data))
    for key in range(17):
        assert found[f"key-{key}"] == list(range(key, 2000, 17))


def test_figures_count_rows() -> None:
    """Accepted, refused and sent again; bytes are those sent."""
    stream = FakeStream(evenly(1))
    refused = iter(["Throttled"])
    stream.refuse = lambda _entry, _shard: next(refused, None)
    figures = write(made(stream), rows(100)).figures
    assert (figures.records, figures.refused, figures.retries, figures.requests) == (100, 100, 100, 2)
    assert figures.bytes == stream.size_in_bytes(stream.requests[0][0])


def test_dead_letters_are_rows(tmp_path: Path) -> None:
    """One letter a row, with its own key, of an aggregate that is refused for good."""
    stream = FakeStream(evenly(1), refuse=lambda _entry, _shard: "InvalidThing")
    queue = LocalDeadLetterQueue(tmp_path, Origin("d"))
    figures = write(made(stream), rows(100), letters=queue).figures
    (file,) = tmp_path.rglob("*.jsonl")
    letters = [json.loads(line) for line in file.read_text().splitlines()]
    assert [letter["attributes"] for letter in letters] == [
        {"partitionKey": f"key-{n % 50}"} for n in range(100)
    ]
    assert {letter["reason"] for letter in letters} == {"InvalidThing"}
    assert (figures.dead_letters, figures.records) == (100, 0)


def test_messages_count_rows() -> None:
    """Of what is refused for good, where there are no dead letters."""
    stream = FakeStream(evenly(1), refuse=lambda _entry, _shard: "InvalidThing")
    with pytest.raises(InvalidRecordError, match="100 records were refused for good"):
        write(made(stream), rows(100))
    stream.refuse = lambda _entry, _shard: "Throttled"
    with pytest.raises(ServiceError, match="100 records are still not accepted"):
        write(made(stream), rows(100), max_retry_duration=0.0)
    with pytest.raises(ServiceError, match="100 of 100 records were not accepted"):
        write(made(stream), rows(100), fail_on_error=True)


def test_too_large_a_record_is_one_letter(tmp_path: Path) -> None:
    """The limit for a record is for a row; aggregates stay below it."""
    stream = FakeStream(evenly(1))
    given: list[Row] = [*rows(50), (b"x" * 500, "k", None), *rows(50)]
    write(
        made(stream, limit=399),
        given,
        letters=LocalDeadLetterQueue(tmp_path, Origin("d")),
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
    """aggregate=true packs, within what a record may have; by default nothing is packed."""
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


def test_what_is_fatal_makes_the_shards_unknown() -> None:
    """The stream may be made again; anything else leaves them as they are."""
    stream = FakeStream(evenly(1))
    destination = made(stream)
    (entry, *_) = destination.create_converter().convert(batch(rows(10)))
    assert not destination.is_fatal(ServiceError("busy", retryable=True))
    destination.submit([entry])
    assert stream.listings == 1
    assert destination.is_fatal(ServiceError("gone", retryable=False))
    destination.submit([entry])
    assert stream.listings == 2
    destination.close()
    assert stream.closed == 1


# --- at the level of HTTP -----------------------------------------------------------------------------

CONNECTION = ConnectionConfig(
    region="eu-west-1", endpoint_url="http://kinesis.test", access_key_id="id", secret_access_key="secret"
)


def over_http(respond: Any) -> tuple[Any, Wire]:
    """The destination as options make it, on a wire that answers with `respond`."""
    shards_of.cache_clear()
    wire = Wire(respond)
    wire.install(client_for(CONNECTION, "kinesis"))
    values = read_options(
        "t", KinesisStreamsDestination.OPTIONS, {"streamName": "orders", "aggregate": "true"}
    )
    return KinesisStreamsDestination.from_options(values, CONNECTION), wire


def test_what_is_sent() -> None:
    """One listing; then records with the producer library's key, by the hash key of their first row."""
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

    destination, wire = over_http(respond)
    writer = write(destination, rows(1000, size=100), rows(1000, size=100))

    assert [operation for operation, _ in wire.calls][:2] == ["ListShards", "PutRecords"]
    assert [params["StreamName"] for _, params in wire.calls] == ["orders"] * len(wire.calls)
    sent = [record for _, params in wire.calls[1:] for record in params["Records"]]
    assert {record["PartitionKey"] for record in sent} == {"a"}
    unpacked = [unpack(base64.b64decode(record["Data"])) for record in sent]
    assert [int(record["ExplicitHashKey"]) for record in sent] == [
        hash_key(each.partition_keys[0]) for each in unpacked
    ]
    assert [data for each in unpacked for data in each.data] == 2 * [
        data for data, _, _ in rows(1000, size=100)
    ]
    assert (writer.figures.records, writer.figures.refused) == (2000, 0)


def test_a_role_that_may_not_list_shards_is_told_so() -> None:
    """At once, and by the name of what is missing."""
    destination, wire = over_http(lambda _operation, _params: refusal("AccessDeniedException"))
    with pytest.raises(ServiceError, match=r"ListShards.*orders") as caught:
        write(destination, rows(10))
    assert destination.is_fatal(caught.value)
    assert len(wire.calls) == 1
