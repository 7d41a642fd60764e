"""aggregate=true: which rows are packed into which aggregates."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from fake_kinesis import KEY_SPACE, FakeStream, Row, aggregating, as_batch, even_shards, row_lists, rows
from hypothesis import given
from hypothesis import strategies as st

from sluice.destinations.kinesis import KinesisEntry
from sluice.destinations.kinesis.aggregates import Aggregate, Entry, hash_key_of, repacked, user_records
from sluice.destinations.kinesis.shard_map import ShardMap
from sluice.errors import InvalidRecordError
from sluice.kinesis.log.kpl.deaggregator import hash_key


def convert(stream: FakeStream, given: list[Row], **options: Any) -> list[Entry]:
    return list(aggregating(stream, **options).create_converter().convert(as_batch(given)))


@given(row_lists(), st.integers(1, 9), st.integers(30, 400))
def test_an_aggregate_belongs_to_one_shard_and_keeps_its_limit(
    given: list[Row], shards: int, limit: int
) -> None:
    """Each row is in one entry, with its keys, in its order within the shard. No aggregate holds one row."""
    stream = FakeStream(even_shards(shards))
    entries = convert(stream, given, limit=limit)
    found: dict[str, list[KinesisEntry]] = {}
    for entry in entries:
        users = user_records(entry)
        (shard,) = {stream.shard_of(hash_key_of(user)) for user in users}
        found.setdefault(shard, []).extend(users)
        if isinstance(entry, Aggregate):
            assert entry.count == len(users) > 1
            assert len(entry.record.data) <= limit
            assert (entry.record.partition_key, hash_key_of(entry.record)) == ("a", hash_key_of(users[0]))
            assert all(entry.first <= hash_key_of(user) <= entry.last for user in users)
            assert entry.ordering_key in {None, shard}
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
    """Only the last aggregate of each shard has room left."""
    entries = convert(FakeStream(even_shards(4)), rows(10_000, size=100), limit=51_200)
    assert len(entries) <= 10_000 * 125 // 51_200 + 4
    assert (
        sum(len(entry.record.data) > 51_200 - 200 for entry in entries if isinstance(entry, Aggregate)) >= 16
    )


def test_rows_without_a_key_share_a_random_one() -> None:
    """All rows of such an aggregate have the same key, so a reshard never splits it."""
    stream = FakeStream(even_shards(64))
    entries = convert(stream, [(b"x" * 100, None, None)] * 2000, limit=5000)
    assert len(entries) < 50
    keys = [{user.partition_key for user in user_records(entry)} for entry in entries]
    assert all(len(each) == 1 for each in keys)
    assert len({next(iter(each)) for each in keys}) == len(entries)
    assert len({stream.shard_of(hash_key_of(user_records(each)[0])) for each in entries}) > 10
    aggregates = [entry for entry in entries if isinstance(entry, Aggregate)]
    assert {aggregating(stream).ordering_key(entry) for entry in aggregates} == {None}


def test_a_row_that_is_too_large_is_a_plain_record() -> None:
    """It stays in its place among the rows of its shard."""
    given: list[Row] = [(b"1", "k", None), (b"2", "k", None), (b"x" * 300, "k", "7"), (b"3", "k", "7")]
    given += [(b"4", "k", None)]
    first, large, last = convert(FakeStream(even_shards(1)), given, limit=200)
    assert large == KinesisEntry(b"x" * 300, "k", "7")
    assert [[user.data for user in user_records(entry)] for entry in (first, last)] == [
        [b"1", b"2"],
        [b"3", b"4"],
    ]


def test_a_row_that_is_alone_is_a_plain_record() -> None:
    """With its own keys, as the producer library does it."""
    assert convert(FakeStream(even_shards(1)), [(b"1", "k", None)]) == [KinesisEntry(b"1", "k")]
    assert convert(FakeStream(even_shards(1)), [(b"1", "k", "7")]) == [KinesisEntry(b"1", "k", "7")]
    (entry,) = convert(FakeStream(even_shards(1)), [(b"1", None, "7")])
    assert isinstance(entry, KinesisEntry)
    assert entry.explicit_hash_key == "7"
    assert entry.partition_key


def test_rows_without_a_known_shard_are_packed_by_their_hash_key() -> None:
    """If the listing has a gap, Kinesis itself chooses the shard: the same one for all rows of a hash key."""
    stream = FakeStream(even_shards(4)[1:])
    lost = [key for n in range(99) if hash_key(key := f"key-{n}") < KEY_SPACE // 4][:3]
    given: list[Row] = [(b"%d" % n, lost[n % 2], None) for n in range(6)]
    given += [(b"x", lost[0], "7"), (b"y", lost[1], "7"), (b"alone", lost[2], None)]
    *packed, alone = convert(stream, given)
    assert alone == KinesisEntry(b"alone", lost[2])
    assert [[user.data for user in user_records(entry)] for entry in packed] == [
        [b"0", b"2", b"4"],
        [b"1", b"3", b"5"],
        [b"x", b"y"],
    ]
    for entry in packed:
        assert isinstance(entry, Aggregate)
        assert entry.first == entry.last == hash_key_of(entry.record) == entry.ordering_key


def test_invalid_rows_are_refused() -> None:
    """By the same rules as without aggregation."""
    with pytest.raises(InvalidRecordError, match="row 1 of a batch"):
        convert(FakeStream(even_shards(1)), [(b"1", "k", None), (b"2", "", None)])


def test_repacking_keeps_every_record_and_key() -> None:
    """Explicit hash keys, too."""
    given: list[Row] = [(b"%d" % n, f"k{n}", str(n * KEY_SPACE // 40) if n % 2 else None) for n in range(40)]
    (entry,) = convert(FakeStream(even_shards(1)), given)
    assert isinstance(entry, Aggregate)
    parts = repacked(entry, ShardMap(even_shards(7)))
    assert len(parts) == 7
    assert sorted(map(repr, (user for part in parts for user in user_records(part)))) == sorted(
        map(repr, user_records(entry))
    )
