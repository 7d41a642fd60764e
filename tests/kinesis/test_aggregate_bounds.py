"""What one aggregated record may cost its reader, however it was built: a bounded multiple of its size."""

from __future__ import annotations

import gc
import hashlib
import tracemalloc
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.kinesis.log import record_batches
from sluice.kinesis.log.kpl import deaggregator
from sluice.kinesis.log.kpl.format import MAGIC
from sluice.kinesis.log.record_batches import to_record_batches
from sluice.source.logs.stream_log import Record
from sluice.source.model.offsets import HORIZON, Closed, SplitRange
from sluice.source.model.splits import SplitId

SPLIT = SplitId("clicks", "shardId-000000000007")
ALMOST_ALL = SplitRange(SPLIT, HORIZON, Closed(), hash_range=(0, 2**128 - 2))
SIZE = 256 * 2**10
MIB = 2**20

LARGEST_BATCH = 40 * MIB
"""Above what a batch of 50,000 user records takes with the longest names and sequence numbers."""

MULTIPLE = 64
"""Python's objects for a user record of six bytes take more than that, but less than this many times."""


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(value)) + value


def user(key: int, data: bytes = b"", hash_key: int | None = None) -> bytes:
    index = b"" if hash_key is None else b"\x10" + varint(hash_key)
    return field(3, b"\x08" + varint(key) + index + field(3, data))


def sealed(message: bytes) -> bytes:
    return MAGIC + message + hashlib.md5(message).digest()  # noqa: S324 - the format's checksum


def filled(tables: bytes, make: Callable[[int], bytes]) -> bytes:
    """An aggregated record of `SIZE` bytes: its tables, and as many user records as there is room for."""
    parts, room, number = [tables], SIZE - len(tables), 0
    while (room := room - len(each := make(number))) >= 0:
        parts.append(each)
        number += 1
    return sealed(b"".join(parts))


HOSTILE = {
    "a key of 256 characters in every row": filled(field(1, b"k" * 256), lambda _: user(0)),
    "256 characters of four bytes": filled(field(1, "\U0001f600".encode() * 256), lambda _: user(0)),
    "a key longer than Kinesis takes": filled(field(1, b"k" * 20_000), lambda _: user(0)),
    "a key of half the record": filled(field(1, b"k" * (SIZE // 2)), lambda _: user(0)),
    "the smallest user records": filled(field(1, b""), lambda _: user(0)),
    "distinct data in each": filled(field(1, b"k"), lambda n: user(0, n.to_bytes(3, "big"))),
    "nothing but keys": filled(b"", lambda n: field(1, b"%02x" % (n % 256))),
    "pairs of keys and long hash keys": filled(
        b"".join(field(1, b"%d" % n) for n in range(300))
        + b"".join(field(2, b"7" * 4_000) for _ in range(60)),
        lambda n: user(n % 300, hash_key=n // 300 % 60),
    ),
    "pairs of keys and hash keys": filled(
        b"".join(field(1, b"%d" % n) for n in range(300)) + b"".join(field(2, b"%d" % n) for n in range(300)),
        lambda n: user(n % 300, hash_key=n // 300 % 300),
    ),
    "unknown fields": filled(b"", lambda _: field(9, b"")),
}


def unpacked(records: list[Record]) -> int:
    """Unpacks records, and lets each batch go as Spark does. Returns how large all of them were together."""
    written = 0
    arrow_before = pa.total_allocated_bytes()
    for batch in to_record_batches([(ALMOST_ALL, records)], unpack=True):
        written += batch.nbytes
        assert batch.nbytes <= LARGEST_BATCH
        assert pa.total_allocated_bytes() - arrow_before <= 2 * LARGEST_BATCH
    return written


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_an_aggregate_takes_a_bounded_multiple_of_its_size(data: bytes) -> None:
    """Its record batches and Python objects stay within a multiple of it, and its rows within their own
    bound.
    """
    records = [Record("7" * 56, 0, "a", data)]
    pa.array([0])  # imports pandas, once
    gc.collect()
    deaggregator.hash_key.cache_clear()
    tracemalloc.start()
    try:
        written = unpacked(records)
        _, peak = tracemalloc.get_traced_memory()
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert written <= 5_000 * len(data)
    assert peak <= MULTIPLE * len(data)
    assert kept <= 3 * len(data)


def test_a_stream_of_aggregates_leaves_nothing_behind() -> None:
    """Keys are looked up in a cache, which must not keep what producers have chosen."""
    gc.collect()
    deaggregator.hash_key.cache_clear()
    tracemalloc.start()
    try:
        for number in range(40):
            data = sealed(field(1, b"%d" % number * 50_000) + user(0))
            for _ in to_record_batches([(ALMOST_ALL, [Record("1", 0, "a", data)])], unpack=True):
                pass
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < MIB


def test_keys_longer_than_a_batch_have_a_batch_each() -> None:
    """A row is never cut: a batch may be as large as its only row."""
    key = b"k" * (20 * MIB)
    data = sealed(field(1, key) + user(0, b"x") + user(0, b"y"))
    batches = list(
        to_record_batches([(SplitRange(SPLIT, HORIZON, Closed()), [Record("1", 0, "a", data)])], unpack=True)
    )
    assert [batch.column("data").to_pylist() for batch in batches] == [[b"x"], [b"y"]]
    assert {len(each) for batch in batches for each in batch.column("partitionKey").to_pylist()} == {len(key)}


KEYS = st.sampled_from(["", "k", "kk" * 40, "schlüssel", "\U0001f600" * 30])


@given(
    st.lists(
        st.lists(st.tuples(KEYS, st.sampled_from([b"", b"x", b"y" * 150])), min_size=1, max_size=12),
        max_size=6,
    ),
    st.sampled_from([1, 100, 500, 10_000]),
)
def test_wherever_batches_are_cut_their_rows_are_the_same(
    aggregates: list[list[tuple[str, bytes]]], most: int
) -> None:
    """By bytes, keys included: every user record is there once, in order, and no batch is beyond its size."""
    records = []
    for number, users in enumerate(aggregates):
        keys = list(dict.fromkeys(key for key, _ in users))
        message = b"".join(field(1, key.encode()) for key in keys)
        message += b"".join(user(keys.index(key), data) for key, data in users)
        records.append(Record(str(number), 0, "p", sealed(message)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_batches, "_UNPACKED_BYTES", most)
        batches = list(to_record_batches([(SplitRange(SPLIT, HORIZON, Closed()), records)], unpack=True))

    found = [
        (row["sequenceNumber"], row["subSequenceNumber"], row["partitionKey"], row["data"])
        for batch in batches
        for row in batch.to_pylist()
    ]
    assert found == [
        (str(number), sub, key, data)
        for number, users in enumerate(aggregates)
        for sub, (key, data) in enumerate(users)
    ]
    for batch in batches:
        sizes = [len(row["data"]) + len(row["partitionKey"].encode()) for row in batch.to_pylist()]
        assert sizes
        assert sum(sizes) <= most or len(sizes) == 1
