"""Aggregated records as we write them, read by the vendor's implementation of the format and by ours."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest
from aws_kinesis_agg.deaggregator import iter_deaggregate_records
from aws_kinesis_agg.messages_pb2 import AggregatedRecord
from hypothesis import given
from hypothesis import strategies as st

from sluice.kinesis.log.kpl.aggregator import Aggregator
from sluice.kinesis.log.kpl.deaggregator import Unpacked, unpack
from sluice.kinesis.log.kpl.format import MAGIC

MANY = 10**9
# Also empty keys, which the format has and the service refuses.
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(["a", "k"])
HASH_KEYS = st.integers(0, 2**128 - 1).map(str) | st.sampled_from(["0", "7"])
DATA = st.binary(max_size=300) | st.sampled_from([127, 128, 17_000]).map(bytes)
USERS = st.lists(st.tuples(KEYS, DATA, st.none() | HASH_KEYS), max_size=20)

User = tuple[str, bytes, "str | None"]


def packed(users: list[User], limit: int = MANY) -> Aggregator:
    aggregator = Aggregator(limit)
    for user in users:
        assert aggregator.add(*user)
    return aggregator


def vendor_view(data: bytes) -> list[tuple[str, bytes]]:
    """Partition keys and data as the vendor's Python library reads them.

    Not the explicit hash keys: it gives a user record without one the first of the table.
    """
    raw: dict[str, Any] = {
        "SequenceNumber": "1",
        "PartitionKey": "a",
        "ApproximateArrivalTimestamp": 0,
        "Data": data,
    }
    found = [record["kinesis"] for record in iter_deaggregate_records([raw], data_format="Boto3")]
    assert all(record["aggregated"] for record in found)
    assert [record["subSequenceNumber"] for record in found] == list(range(len(found)))
    return [(record["partitionKey"], base64.b64decode(record["data"])) for record in found]


@given(USERS)
def test_the_vendor_reads_what_we_pack(users: list[User]) -> None:
    """All keys and data, in order; the vendor's protobuf classes read the hash keys."""
    sealed = packed(users).seal()
    assert not users or vendor_view(sealed) == [(key, data) for key, data, _ in users]
    message = AggregatedRecord.FromString(sealed[len(MAGIC) : -16])
    hash_keys = message.explicit_hash_key_table
    assert [
        hash_keys[record.explicit_hash_key_index] if record.HasField("explicit_hash_key_index") else None
        for record in message.records
    ] == [hash_key for _, _, hash_key in users]


@given(USERS)
def test_we_read_what_we_pack(users: list[User]) -> None:
    """All columns, in order."""
    aggregator = packed(users)
    expected = Unpacked(
        [key for key, _, _ in users], [data for _, data, _ in users], [h for _, _, h in users]
    )
    assert unpack(aggregator.seal()) == expected
    assert aggregator.count == len(users)


@given(USERS)
def test_tables_hold_each_key_once(users: list[User]) -> None:
    """In the order of their first use, and before the records, as the producer library writes them."""
    message = AggregatedRecord.FromString(packed(users).seal()[len(MAGIC) : -16])
    assert list(message.partition_key_table) == list(dict.fromkeys(key for key, _, _ in users))
    assert list(message.explicit_hash_key_table) == list(
        dict.fromkeys(h for _, _, h in users if h is not None)
    )
    assert message.SerializeToString() == packed(users).seal()[len(MAGIC) : -16]


@given(USERS, st.integers(0, 3000))
def test_the_size_is_exact_and_never_passes_the_limit(users: list[User], limit: int) -> None:
    """A user record is refused only where there is no room, and changes nothing then."""
    aggregator = Aggregator(limit)
    taken: list[User] = []
    for user in users:
        if aggregator.add(*user):
            taken.append(user)
        else:
            assert packed([*taken, user]).size > limit
        sealed = aggregator.seal()
        assert len(sealed) == aggregator.size
        assert not taken or aggregator.size <= limit
    assert aggregator.count == len(taken)
    keys, data, hash_keys = unpack(aggregator.seal())
    assert list(zip(keys, data, hash_keys, strict=True)) == taken


def test_many_keys_and_long_data() -> None:
    """Indexes and lengths of one, two and three bytes."""
    users: list[User] = [(f"key-{n}", b"x", str(n) if n % 3 else None) for n in range(17_000)]
    users += [("long" * 500, bytes(3_000_000), None), ("key-16999", b"", "9")]
    assert list(zip(*unpack(packed(users).seal()), strict=True)) == [(k, data, h) for k, data, h in users]


def test_the_bytes_of_an_aggregated_record() -> None:
    """Written by hand from the format's description."""
    aggregator = packed([("k", b"one", None), ("l", b"", "5"), ("k", b"two", None)])
    message = (
        b"\x0a\x01k\x0a\x01l"
        b"\x12\x015"
        b"\x1a\x07\x08\x00\x1a\x03one"
        b"\x1a\x06\x08\x01\x10\x00\x1a\x00"
        b"\x1a\x07\x08\x00\x1a\x03two"
    )
    assert aggregator.seal() == b"\xf3\x89\x9a\xc2" + message + hashlib.md5(message).digest()  # noqa: S324


@pytest.mark.parametrize("length", [0, 1, 122, 127, 128, 16_384])
@pytest.mark.parametrize("keys", [1, 127, 128, 129])
def test_lengths_at_the_edges_of_a_byte(length: int, keys: int) -> None:
    """A length or an index takes one byte more from 128 on, and from 16,384 on."""
    users: list[User] = [(f"{n}", bytes(length), None) for n in range(keys)]
    users += [("x" * length, bytes(length - 4 if length > 4 else length), None)]
    aggregator = packed(users)
    assert aggregator.size == len(aggregator.seal())
    assert vendor_view(aggregator.seal()) == [(key, data) for key, data, _ in users]
