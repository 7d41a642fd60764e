"""Record batches: every field, and ranges that begin or end inside an aggregated record."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import aws_kinesis_agg.aggregator
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.aws.wire.record_columns import RecordColumns
from sluice.kinesis.log.kpl.aggregator import Aggregator
from sluice.kinesis.log.record_batches import ARROW_SCHEMA, to_record_batches
from sluice.source.logs.stream_log import AnyRecord, Record
from sluice.source.model.offsets import HORIZON, After, Closed, Position, SplitRange
from sluice.source.model.splits import SplitId

SPLIT = SplitId("clicks", "shardId-000000000007")
WHOLE = SplitRange(SPLIT, HORIZON, Closed())
OTHER_SHARD = "shardId-000000000008"
OTHER = SplitRange(SplitId("orders", OTHER_SHARD), HORIZON, Closed())
PLAIN = Record("1", 0, "k", b"plain")


def aggregated(*data: bytes) -> bytes:
    aggregator = aws_kinesis_agg.aggregator.RecordAggregator()
    for index, each in enumerate(data):
        aggregator.add_user_record(f"key-{index}", each)
    packed: bytes = aggregator.clear_and_get().get_contents()[2]
    return packed


def in_columns(records: Sequence[AnyRecord]) -> RecordColumns:
    """The records as a page in CBOR brings them."""
    return RecordColumns(
        pa.array([record.data for record in records], pa.binary()),
        pa.array([record.partition_key for record in records], pa.string()),
        pa.array([record.sequence_number for record in records], pa.string()),
        pa.array([record.arrival for record in records], pa.timestamp("us", tz="UTC")),
    )


def rows(
    split_range: SplitRange, records: list[Record], *, unpack: bool = True
) -> list[tuple[str, int, bytes]]:
    batches = list(to_record_batches([(split_range, records)], unpack=unpack))
    # Columns become the same batches, also where they are a part of others.
    columns = in_columns([PLAIN, *records, PLAIN])[1:-1]
    assert list(to_record_batches([(split_range, columns)], unpack=unpack)) == batches
    assert all(batch.schema == ARROW_SCHEMA for batch in batches)
    for batch in batches:
        batch.validate(full=True)
    found = [row for batch in batches for row in batch.to_pylist()]
    return [(row["sequenceNumber"], row["subSequenceNumber"], row["data"]) for row in found]


def test_every_field_in_its_place() -> None:
    """One record, seven columns."""
    record = Record("0042", 1_700_000_000_123_000, "schlüssel", b"\x00\xff")
    (batch,) = to_record_batches([(WHOLE, [record])], unpack=True)
    (row,) = batch.to_pylist()
    assert row.pop("approximateArrivalTimestamp").timestamp() == 1_700_000_000.123
    assert row == {
        "data": b"\x00\xff",
        "partitionKey": "schlüssel",
        "sequenceNumber": "0042",
        "subSequenceNumber": 0,
        "streamName": "clicks",
        "shardId": "shardId-000000000007",
    }


@pytest.mark.parametrize("sizes", [(5_000, 3, 7_001, 0, 4_096), (0, 1, 2), (2_048,), (10 * 2**20, 1)])
def test_data_of_every_length(sizes: tuple[int, ...]) -> None:
    """Each record has its data, in whichever way the column is built."""
    records = [Record(str(n), 0, "k", bytes([n]) * size) for n, size in enumerate(sizes)]

    assert rows(WHOLE, records) == [(record.sequence_number, 0, record.data) for record in records]


def test_aggregated_records_are_unpacked_in_order_among_plain_ones() -> None:
    """User records count from 0 inside an aggregated record; a plain record has 0."""
    records = [
        Record("1", 0, "k", b"plain"),
        Record("2", 0, "a", aggregated(b"x", b"y")),
        Record("3", 0, "k", b"z"),
    ]
    assert rows(WHOLE, records) == [("1", 0, b"plain"), ("2", 0, b"x"), ("2", 1, b"y"), ("3", 0, b"z")]


def test_aggregated_records_stay_packed_without_deaggregate() -> None:
    """deaggregate=false gives the data as it is stored."""
    packed = aggregated(b"x", b"y")
    assert rows(WHOLE, [Record("2", 0, "a", packed)], unpack=False) == [("2", 0, packed)]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (After("2", 0), Closed(), [1, 2]),
        (After("2", 2), Closed(), []),
        (HORIZON, After("2", 1), [0, 1]),
        (After("2", 0), After("2", 1), [1]),
        (After("1"), After("2"), [0, 1, 2]),
    ],
)
def test_a_range_may_begin_and_end_inside_an_aggregated_record(
    start: Position, end: After | Closed, expected: list[int]
) -> None:
    """`sub` is the last user record before the position."""
    record = Record("2", 0, "a", aggregated(b"x", b"y", b"z"))
    assert [sub for _, sub, _ in rows(SplitRange(SPLIT, start, end), [record])] == expected


def test_large_pages_become_several_batches() -> None:
    """Batches have the size that Spark takes fastest, and none is empty."""
    records = [Record(str(n), 0, "k", bytes(2**20)) for n in range(20)]
    batches = list(to_record_batches([(WHOLE, records)], unpack=True))
    assert len(batches) > 1
    assert all(0 < batch.num_rows <= 8 for batch in batches)
    assert sum(batch.num_rows for batch in batches) == 20


def test_many_tiny_user_records_become_several_batches() -> None:
    """An aggregated record has a key once, its rows have it each: rows bound the memory of a batch."""
    packed = aggregated_with_one_key(1000, "key" * 80)
    records = [Record(str(n), 0, "a", packed) for n in range(120)]
    batches = list(to_record_batches([(WHOLE, records)], unpack=True))
    assert [batch.num_rows for batch in batches] == [50_000, 50_000, 20_000]
    assert rows(WHOLE, records[:2])[999:1001] == [("0", 999, b"999"), ("1", 0, b"0")]


def test_small_pages_share_a_batch() -> None:
    """Also pages of several ranges: a batch of few rows costs as much as one of hundreds."""
    batches = list(to_record_batches([(WHOLE, [PLAIN]), (OTHER, []), (OTHER, [PLAIN] * 2)], unpack=True))
    assert [batch.column("shardId").to_pylist() for batch in batches] == [[SPLIT.shard, *[OTHER_SHARD] * 2]]
    assert batches[0].column("streamName").to_pylist() == ["clicks", "orders", "orders"]


def test_gathered_pages_go_out_when_they_suffice() -> None:
    """A batch is yielded as soon as its pages are large enough, and the rest at the end."""
    given: list[int] = []

    def pages() -> Iterator[tuple[SplitRange, list[Record]]]:
        for number in range(5):
            given.append(number)
            yield WHOLE, [Record(str(number), 0, "k", bytes(100_000))]

    batches = to_record_batches(pages(), unpack=True)

    assert next(batches).num_rows == 3
    assert given == [0, 1, 2]
    assert [batch.num_rows for batch in batches] == [2]


@given(
    pages=st.lists(
        st.tuples(
            st.sampled_from([0, 1, 2]),
            st.lists(st.tuples(st.sampled_from([0, 10, 90_000]), st.booleans()), max_size=4),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_every_row_comes_once_and_in_order_within_its_range(
    pages: list[tuple[int, list[tuple[int, bool]], bool]],
) -> None:
    """With any mix of ranges, small and large pages, objects and columns, plain and aggregated records."""
    ranges = [SplitRange(SplitId("clicks", f"shardId-{n}"), HORIZON, Closed()) for n in range(3)]
    numbers = itertools.count()
    packed = aggregated(b"x", b"y")
    given_pages = [
        (
            ranges[n],
            [
                Record(str(next(numbers)), 0, "k", packed if is_packed else bytes(size))
                for size, is_packed in records
            ],
        )
        for n, records, _ in pages
    ]
    expected: dict[str, list[tuple[str, int, bytes]]] = {}
    for split_range, records in given_pages:
        for record in records:
            users = [(0, b"x"), (1, b"y")] if record.data == packed else [(0, record.data)]
            shard = expected.setdefault(split_range.split.shard, [])
            shard += [(record.sequence_number, sub, data) for sub, data in users]

    found: dict[str, list[tuple[str, int, bytes]]] = {}
    forms: list[tuple[SplitRange, Sequence[AnyRecord]]] = [
        (split_range, in_columns(records) if is_columns else records)
        for (split_range, records), (_, _, is_columns) in zip(given_pages, pages, strict=True)
    ]
    for batch in to_record_batches(forms, unpack=True):
        assert batch.num_rows
        for row in batch.to_pylist():
            shard = found.setdefault(row["shardId"], [])
            shard.append((row["sequenceNumber"], row["subSequenceNumber"], row["data"]))
    assert found == expected


def aggregated_with_one_key(count: int, key: str) -> bytes:
    aggregator = Aggregator(10**6)
    assert all(aggregator.add(key, b"%d" % n) for n in range(count))
    return aggregator.seal()
