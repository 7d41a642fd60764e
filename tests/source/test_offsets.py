"""Offsets: their JSON, which users may rely on, and the ranges between two of them."""

from __future__ import annotations

import json

import pytest
from any_position import POSITION
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import SluiceError
from sluice.instants import iso_instant, parse_instant
from sluice.source.model.offsets import (
    HORIZON,
    After,
    AtTime,
    Closed,
    Offsets,
    Position,
    SplitRange,
    before,
)
from sluice.source.model.splits import SplitId

A, B = SplitId("s", "shardId-000000000000"), SplitId("s", "shardId-000000000001")


def test_offsets_have_the_documented_json() -> None:
    """Each kind of position, without hints that are not known."""
    positions: dict[SplitId, Position] = {
        SplitId("clicks", "a"): After("49", 3),
        SplitId("clicks", "b"): HORIZON,
        SplitId("clicks", "c"): AtTime(1_700_000_000_123_456),
        SplitId("orders", "d"): Closed(),
    }
    assert Offsets(positions).to_json() == {
        "version": 1,
        "streams": {
            "clicks": {
                "a": {"after": "49", "sub": 3},
                "b": {"at": "TRIM_HORIZON"},
                "c": {"at": "2023-11-14T22:13:20.123456Z"},
            },
            "orders": {"d": {"closed": True}},
        },
        "created": {},
    }


@given(positions=st.dictionaries(st.builds(SplitId, st.sampled_from("st"), st.sampled_from("abc")), POSITION))
def test_offsets_are_read_as_they_were_written(positions: dict[SplitId, Position]) -> None:
    """With their hints and leading zeros."""
    written = Offsets(positions, {"s": 1_000}, frozenset({"s", "t"})).to_json()
    read = Offsets.from_json(json.loads(json.dumps(written)))
    assert read.to_json() == written
    assert dict(read.positions) == positions
    assert read.streams == {"s", "t"}


def test_unknown_keys_are_ignored() -> None:
    """A later release may write more hints."""
    value = {"version": 1, "streams": {"s": {A.shard: {"after": "5", "mood": "good"}}}, "more": []}
    assert Offsets.from_json(value).position(A) == After("5")


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"version": 3, "streams": {}},
        {"version": 1},
        {"version": 1, "streams": {"s": {"a": {}}}},
        {"version": 1, "streams": {"s": {"a": {"after": 5}}}},
        {"version": 1, "streams": {"s": {"a": {"after": ""}}}},
        {"version": 1, "streams": {"s": {"a": {"after": "x" * 129}}}},
        {"version": 1, "streams": {"s": {"a": {"at": "yesterday"}}}},
        {"version": 1, "streams": {"s": ["a"]}},
    ],
)
def test_offsets_that_no_release_wrote_are_refused(value: dict[str, object]) -> None:
    """Nothing is guessed."""
    with pytest.raises(SluiceError, match=r"offsets"):
        Offsets.from_json(value)


def test_a_refusal_is_short_and_has_no_second_traceback() -> None:
    """Spark shows causes before the error itself, and another source's offsets may name many partitions."""
    other = {"topic": {str(partition): partition for partition in range(10_000)}}
    with pytest.raises(SluiceError, match="these are not offsets of this source") as caught:
        Offsets.from_json(other)
    assert len(str(caught.value)) < 300
    assert caught.value.__suppress_context__


def test_ranges_lie_between_two_offsets() -> None:
    """A split that has not advanced has no range; a new one starts at the horizon."""
    start = Offsets({A: After("5")})
    end = Offsets({A: After("5", arrival=1), B: After("9")})
    assert start.ranges_to(end) == [SplitRange(B, HORIZON, After("9"))]
    assert start.ranges_to(start) == []


def test_the_end_of_the_first_batch_says_where_the_batch_starts() -> None:
    """That start replaces the one that Spark gives. The next batch does not look at it."""
    end = Offsets({A: After("9")}, start={A: After("3")})
    assert Offsets({A: After("5")}).ranges_to(end) == [SplitRange(A, After("3"), After("9"))]
    assert end.ranges_to(Offsets({A: After("12")})) == [SplitRange(A, After("9"), After("12"))]
    assert end.ranges_to(end) == []
    assert Offsets.from_json(end.to_json()).start == {A: After("3")}


def test_a_stream_that_was_created_again_is_read_from_its_horizon() -> None:
    """The positions in the old stream mean nothing in the new one."""
    start = Offsets({A: After("900")}, {"s": 1_000})
    end = Offsets({A: After("5")}, {"s": 2_000})
    assert start.ranges_to(end) == [SplitRange(A, HORIZON, After("5"))]


def test_the_position_before_a_record_names_that_record() -> None:
    """Its own number has as many digits."""
    assert before("00100") == After("00099")
    assert before("00100").position_record == "00100"  # type: ignore[union-attr]
    assert before("0") == HORIZON


def test_sequence_numbers_are_compared_as_numbers() -> None:
    """As texts, 10 comes before 9."""
    assert After("10").sequence > After("9").sequence


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:01.000001Z", 1_000_001),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T00:00:01", 1_000_000),
    ],
)
def test_instants_are_iso_8601(text: str, micros: int) -> None:
    """In any zone; UTC where none is given."""
    assert parse_instant(text) == micros
    assert parse_instant(iso_instant(micros)) == micros
