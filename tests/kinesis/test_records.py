"""Records of the wire: arrival times to the microsecond, singly and as a column; equality."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.aws.wire.records import WireRecord
from sluice.instants import EPOCH
from sluice.kinesis.log.record_batches import arrivals_of
from sluice.source.logs.stream_log import AnyRecord, Record

SECONDS = st.one_of(
    st.floats(-62_135_596_800.0, 253_402_300_798.0),
    st.integers(-62_135_596_800, 253_402_300_798).map(float),
    st.integers(0, 4 * 10**15).map(lambda value: value / 1_000_000),
    # Halves of a microsecond, which are rounded half to even.
    st.integers(-(2**38), 2**38).map(lambda value: value / 128),
    st.floats(-1e-5, 1e-5),
)


def wire_record(seconds: float) -> WireRecord:
    return WireRecord("1", seconds, "k", b"a")


@given(st.lists(SECONDS, max_size=20))
def test_a_column_of_arrivals_is_that_of_the_records(seconds: list[float]) -> None:
    """And what `datetime.fromtimestamp` makes of the same number."""
    records = [wire_record(each) for each in seconds]
    column = arrivals_of(records)

    assert column.type == pa.timestamp("us", tz="UTC")
    assert column.cast(pa.int64()).to_pylist() == [record.arrival for record in records]
    assert [record.arrival for record in records] == [
        (datetime.fromtimestamp(each, timezone.utc) - EPOCH) // timedelta(microseconds=1) for each in seconds
    ]


def test_other_records_have_a_column_of_arrivals() -> None:
    """Plain records, and several classes mixed."""
    plain: list[AnyRecord] = [Record("1", 1_700_000_000_123_456, "k", b"")]
    mixed: list[AnyRecord] = [wire_record(1.5), *plain]

    assert arrivals_of(plain).cast(pa.int64()).to_pylist() == [1_700_000_000_123_456]
    assert arrivals_of(mixed).cast(pa.int64()).to_pylist() == [1_500_000, 1_700_000_000_123_456]
    assert arrivals_of([]).type == pa.timestamp("us", tz="UTC")


def test_a_time_is_rounded_half_to_even() -> None:
    """As Python rounds."""
    seconds = (1.5, -1.5, 1 / 128, 3 / 128, -1 / 128, -3 / 128)
    expected = [1_500_000, -1_500_000, 7_812, 23_438, -7_812, -23_438]

    records = [wire_record(value) for value in seconds]
    assert [record.arrival for record in records] == expected
    assert arrivals_of(records).cast(pa.int64()).to_pylist() == expected


@pytest.mark.parametrize(
    "other",
    [
        Record("2", 1_500_000, "k", b"a"),
        Record("1", 1_500_001, "k", b"a"),
        Record("1", 1_500_000, "l", b"a"),
        Record("1", 1_500_000, "k", b"b"),
        ("1", 1_500_000, "k", b"a"),
        None,
    ],
)
def test_records_with_equal_fields_are_equal(other: Any) -> None:
    """Of any class."""
    record = wire_record(1.5)
    same = Record("1", 1_500_000, "k", b"a")

    assert record == same
    assert same == record
    assert hash(record) == hash(same)
    assert record != other
