"""Aggregated records as we read them, compared with the vendor's implementation of the format."""

from __future__ import annotations

import base64
import hashlib
import itertools
import logging
from typing import Any, NamedTuple

import pytest
from aws_kinesis_agg.aggregator import RecordAggregator
from aws_kinesis_agg.deaggregator import deaggregate_records, iter_deaggregate_records
from aws_kinesis_agg.messages_pb2 import AggregatedRecord
from hypothesis import given
from hypothesis import strategies as st

from sluice.kinesis.log.kpl import deaggregator
from sluice.kinesis.log.kpl.deaggregator import deaggregate
from sluice.kinesis.log.kpl.format import MAGIC
from sluice.source.logs.stream_log import Record

ALL = (0, 2**128 - 1)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
HASH_KEYS = st.integers(0, 2**128 - 1).map(str)
USERS = st.lists(st.tuples(KEYS, st.binary(max_size=300), st.none() | HASH_KEYS), min_size=1, max_size=30)


class UserRecord(NamedTuple):
    place: int
    partition_key: str
    data: bytes
    hash_key: str | None = None


def users_in(
    record: Record, hash_range: tuple[int, int] | None, shard: object = "a shard"
) -> list[UserRecord]:
    """The user records, one by one."""
    return list(map(UserRecord._make, zip(*deaggregate(record, hash_range, shard), strict=True)))


def whole(data: bytes, partition_key: str = "p") -> Record:
    return Record("4242", 1_700_000_000_000_000, partition_key, data)


def sealed(message: bytes) -> bytes:
    return MAGIC + message + hashlib.md5(message).digest()  # noqa: S324 - the format's checksum


def packed(users: list[tuple[str, bytes, str | None]]) -> bytes:
    """An aggregated record as the vendor's protobuf classes write it."""
    message = AggregatedRecord()
    for key, data, hash_key in users:
        inner = message.records.add()
        if key not in message.partition_key_table:
            message.partition_key_table.append(key)
        inner.partition_key_index = list(message.partition_key_table).index(key)
        inner.data = data
        if hash_key is not None:
            message.explicit_hash_key_table.append(hash_key)
            inner.explicit_hash_key_index = len(message.explicit_hash_key_table) - 1
    return sealed(message.SerializeToString())


def vendor_view(data: bytes) -> list[tuple[int, str, bytes]]:
    """Place, partition key and data as the vendor's Python library reads them."""
    raw: dict[str, Any] = {
        "SequenceNumber": "4242",
        "PartitionKey": "p",
        "ApproximateArrivalTimestamp": 0,
        "Data": data,
    }

    found = []
    for record in iter_deaggregate_records([raw], data_format="Boto3"):
        inner = record["kinesis"]
        plain = not inner.get("aggregated")
        found.append(
            (
                inner.get("subSequenceNumber", 0),
                inner["partitionKey"],
                inner["data"] if plain else base64.b64decode(inner["data"]),
            )
        )
    return found


@given(USERS)
def test_what_the_vendor_packs_is_unpacked(users: list[tuple[str, bytes, str | None]]) -> None:
    """All user records with place, keys and data, in order."""
    assert users_in(whole(packed(users)), ALL) == [
        UserRecord(sub, key, data, hash_key) for sub, (key, data, hash_key) in enumerate(users)
    ]


@given(st.lists(st.tuples(KEYS, st.binary(min_size=1, max_size=200)), min_size=1, max_size=20))
def test_the_vendors_aggregator_and_ours_agree(users: list[tuple[str, bytes]]) -> None:
    """Both read the same from what the vendor's aggregator writes."""
    aggregator = RecordAggregator()
    for key, data in users:
        aggregator.add_user_record(key, data)
    _, _, data = aggregator.clear_and_get().get_contents()
    ours = users_in(whole(data), ALL)
    assert [(user.place, user.partition_key, user.data) for user in ours] == vendor_view(data)
    assert len(ours) == len(users)


@given(USERS, st.data())
def test_a_damaged_record_is_returned_as_it_is(
    users: list[tuple[str, bytes, str | None]], data: st.DataObject
) -> None:
    """One flipped bit behind the magic number: one plain record with all bytes, as the vendor returns it."""
    good = packed(users)
    at = data.draw(st.integers(len(MAGIC), len(good) - 1))
    bad = good[:at] + bytes([good[at] ^ (1 << data.draw(st.integers(0, 7)))]) + good[at + 1 :]
    assert [user.data for user in users_in(whole(bad), ALL)] == [bad]
    assert vendor_view(bad) == [(0, "p", bad)]


@given(st.binary(max_size=60).map(sealed))
def test_noise_under_a_good_checksum_never_raises(data: bytes) -> None:
    """Either the user records of the message, or the record as it is."""
    found = users_in(whole(data), ALL)
    assert all(user.data == data for user in found) or all(len(user.data) < len(data) for user in found)


@given(USERS, st.data())
def test_a_cut_message_under_a_good_checksum_is_never_partly_dropped(
    users: list[tuple[str, bytes, str | None]], data: st.DataObject
) -> None:
    """A message that ends inside a field is damaged: its first user records alone would lose the others."""
    message = packed(users)[len(MAGIC) : -16]
    last = AggregatedRecord.FromString(message).records[-1].ByteSize()
    cut = sealed(message[: -data.draw(st.integers(1, last))])
    assert [user.data for user in users_in(whole(cut), ALL)] == [cut]


def record_field(number: int, value: bytes) -> bytes:
    assert len(value) < 128
    return bytes([number << 3 | 2, len(value)]) + value


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (
            record_field(1, b"k") + record_field(3, b"\x08\x01" + record_field(3, b"d")),
            "index 1 in a table of 1",
        ),
        (record_field(1, b"k") + record_field(3, record_field(3, b"d")), "lacks its partition key"),
        (record_field(1, b"k") + record_field(3, b"\x08\x00"), "lacks its partition key or its data"),
        (
            record_field(1, b"k") + record_field(3, b"\x08\x00\x10\x00" + record_field(3, b"d")),
            "index 0 in a table of 0",
        ),
        (record_field(1, b"\xff"), "codec can't decode"),
        (b"\x0a\x7f", "ends inside a field"),
        (b"\x0b", "wire type 3"),
        (b"\x00\x00", "number 0"),
        (b"\x08" + b"\xff" * 12, "too long"),
        (b"\x80", "out of range"),
    ],
)
def test_why_a_message_is_refused(message: bytes, why: str, caplog: pytest.LogCaptureFixture) -> None:
    """The log says how the message is malformed, and the row gets the record as it is."""
    deaggregator._damaged = iter([1])  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING):
        users = users_in(whole(sealed(message)), ALL, "clicks/shardId-7")
    assert [user.data for user in users] == [sealed(message)]
    assert why in caplog.text
    assert "clicks/shardId-7: record 4242 " in caplog.text


def test_a_flood_of_damage_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand damaged records make ten lines."""
    deaggregator._damaged = itertools.count(1)
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            users_in(whole(MAGIC + b"x" * 20), ALL)
    assert len(caplog.records) == 10


@pytest.mark.parametrize("data", [b"", b"plain", MAGIC, MAGIC + b"x" * 16, MAGIC[:3]])
def test_plain_data_is_passed_on(data: bytes) -> None:
    """Also data too short for a message; the place is 0."""
    assert users_in(whole(data), ALL) == [UserRecord(0, "p", data)]


def test_unknown_fields_are_skipped() -> None:
    """Tags, and fields that later versions may add."""
    inner = (
        b"\x08\x00"
        + record_field(3, b"d")
        + record_field(4, b"\x0a\x01t")
        + b"\x2d1234"
        + b"\x319bytes..\x38\x96\x01"
    )
    message = record_field(1, b"k") + record_field(3, inner) + b"\x4d1234" + record_field(15, b"later")
    assert [(user.partition_key, user.data) for user in users_in(whole(sealed(message)), ALL)] == [
        ("k", b"d")
    ]


def test_long_data_and_tables_of_many_keys() -> None:
    """Lengths and indexes of several bytes."""
    users: list[tuple[str, bytes, str | None]] = [
        (f"key-{n}", bytes([n % 256]) * 500, None) for n in range(300)
    ]
    users.append(("long", b"x" * 40_000, None))
    found = users_in(whole(packed(users)), ALL)
    assert [(user.partition_key, user.data, user.hash_key) for user in found] == users


# --- user records in the wrong shard ------------------------------------------------------------------

MIDDLE = 2**127
LOWER, UPPER = (0, MIDDLE - 1), (MIDDLE, 2**128 - 1)


def placed(data: bytes, hash_range: tuple[int, int], partition_key: str) -> list[tuple[int, str]]:
    return [(user.place, user.partition_key) for user in users_in(whole(data, partition_key), hash_range)]


def test_records_that_the_producer_library_sends_again_are_left_out() -> None:
    """Its aggregated records have the key 'a'; user records outside the shard's range come again."""
    users = [("x", b"1", "0"), ("y", b"2", str(MIDDLE)), ("z", b"3", str(MIDDLE - 1)), ("w", b"4", None)]
    by_key = int(hashlib.md5(b"w").hexdigest(), 16)  # noqa: S324 - how Kinesis hashes keys
    data = packed([(key, value, hash_key) for key, value, hash_key in users])
    last = [(3, "w")]
    assert placed(data, LOWER, "a") == [(0, "x"), (2, "z")] + (last if by_key < MIDDLE else [])
    assert placed(data, UPPER, "a") == [(1, "y")] + (last if by_key >= MIDDLE else [])
    assert placed(data, (MIDDLE - 1, MIDDLE - 1), "a") == [(2, "z")]


@given(USERS, st.integers(1, 2**128 - 1))
def test_two_halves_of_a_stream_get_each_record_once(
    users: list[tuple[str, bytes, str | None]], border: int
) -> None:
    """Wherever the hash keys are divided, every user record belongs to exactly one side."""
    users = [("first", b"", None), *users]
    data = packed(users)
    found = placed(data, (0, border - 1), "a") + placed(data, (border, 2**128 - 1), "a")
    assert sorted(sub for sub, _ in found) == list(range(len(users)))


def test_other_producers_lose_nothing() -> None:
    """They send no user record again, so all are kept in any shard."""
    data = packed([("x", b"1", "0"), ("y", b"2", str(MIDDLE))])
    assert placed(data, UPPER, "x") == [(0, "x"), (1, "y")]
    assert len(users_in(whole(data, "a"), None)) == 2


def test_nothing_is_lost_where_the_producer_is_unknown() -> None:
    """Others use the key of the first user record. Where that is "a", any producer may have written it."""
    users = [("a", b"1", None), ("x", b"2", "0"), ("y", b"3", str(MIDDLE))]
    data = packed([(key, value, hash_key) for key, value, hash_key in users])
    for hash_range in (LOWER, UPPER, (7, 7)):
        assert [key for _, key in placed(data, hash_range, "a")] == ["a", "x", "y"]


@given(st.lists(st.tuples(KEYS | st.just("a"), st.binary(min_size=1, max_size=9)), min_size=1, max_size=9))
def test_nothing_is_lost_of_the_vendors_aggregator_for_other_languages(
    users: list[tuple[str, bytes]],
) -> None:
    """With any keys, in any shard: that aggregator sends nothing again."""
    aggregator = RecordAggregator()
    for user in users:
        aggregator.add_user_record(*user)
    key, _, data = aggregator.clear_and_get().get_contents()
    for hash_range in (LOWER, UPPER, (7, 7)):
        assert len(users_in(whole(data, key), hash_range)) == len(users)


def test_user_records_keep_their_places() -> None:
    """Offsets hold places, so user records that are left out must not shift the others."""
    data = packed([("x", b"1", "7"), ("y", b"2", "5"), ("x", b"3", None), ("z", b"4", "6")])
    assert placed(data, (5, 6), "a") == [(1, "y"), (3, "z")]


@given(USERS)
def test_the_order_of_fields_does_not_matter(users: list[tuple[str, bytes, str | None]]) -> None:
    """Tables behind records, and data before keys: protobuf allows any order of fields."""
    message = AggregatedRecord.FromString(packed(users)[len(MAGIC) : -16])
    raw = b""
    for record in message.records:
        fields = record.SerializeToString()
        data_field = AggregatedRecord(records=[record]).records[0]
        data_field.ClearField("data")
        keys = data_field.SerializePartialToString()
        inner = fields[len(keys) :] + keys
        raw += AggregatedRecord(records=[]).SerializeToString() + b"\x1a" + _varint(len(inner)) + inner
    del message.records[:]
    shuffled = sealed(raw + message.SerializeToString())
    assert users_in(whole(shuffled), ALL) == users_in(whole(packed(users)), ALL)


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def test_a_hash_key_that_is_no_number_leaves_the_record_as_it_is() -> None:
    """Its shard is unknown."""
    data = packed([("x", b"1", "zero")])
    assert [user.data for user in users_in(whole(data, "a"), ALL)] == [data]


def test_the_vendors_library_is_what_we_compare_with() -> None:
    """Guards the tests above: the vendor reads its own format as they assume."""
    assert vendor_view(packed([("k", b"v", None)])) == [(0, "k", b"v")]
    assert deaggregate_records([]) == []
