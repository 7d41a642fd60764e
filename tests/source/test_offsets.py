"""Offsets: their JSON in both versions, which users may rely on, and the ranges between two of them."""

from __future__ import annotations

import itertools
import json
from random import Random
from typing import Any

import pytest
from any_position import POSITION
from hypothesis import given
from hypothesis import strategies as st
from integration.model import numbers

from sluice.errors import SluiceError
from sluice.instants import iso_instant, parse_instant
from sluice.source.model.offsets import (
    COMPACT_FROM,
    HORIZON,
    After,
    AtHorizon,
    AtTime,
    Closed,
    Expiry,
    Offsets,
    Position,
    SplitRange,
    before,
)
from sluice.source.model.splits import SplitId

A, B = SplitId("s", "shardId-000000000000"), SplitId("s", "shardId-000000000001")
NAME = (
    st.text(max_size=4)
    | st.text("{},.-01", max_size=6)
    | st.integers(0, 40).map(lambda number: f"shardId-{number:012d}")
    | st.integers(0, 400).map(str)
)
TEXT = st.text("az0 -*.%{", min_size=1, max_size=5)
LETTERS: st.SearchStrategy[Position] = st.builds(After, TEXT, next=st.none() | TEXT)
POSITIONS = st.dictionaries(st.builds(SplitId, st.sampled_from("st"), NAME), POSITION | LETTERS, max_size=30)
SECOND = 1_800_000_000


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


def test_the_documented_form() -> None:
    """As the module describes it, for people who read the log itself."""
    positions: dict[SplitId, Position] = {
        SplitId("clicks", f"shardId-{n:012d}"): After(str(0x2A00 + 16 * n), arrival=(7_000 + n) * 1000)
        for n in (*range(8, 12), 40)
    }
    positions |= {
        SplitId("clicks", "a"): After("2"),
        SplitId("clicks", "shardId-000000000000"): Closed(unlisted_at=5_000),
        SplitId("clicks", "shardId-000000000001"): Closed(unlisted_at=5_000),
        SplitId("clicks", "shardId-000000000002"): Closed(),
        SplitId("clicks", "shardId-000000000041"): AtTime(1_234_567, pinned=2_000_000),
        SplitId("orders", "x{1,2}"): AtHorizon(caught_up_at=3_000),
    }
    assert Offsets(positions).to_json(2)["streams"] == {
        "clicks": {
            "after": {
                "splits": "{a,shardId-000000000008,shardId-000000000009,shardId-000000000010,"
                "shardId-000000000011,shardId-000000000040}",
                "number": {"like": "....", "digits": "0002 2a80 2a90 2aa0 2ab0 2c80"},
                "arrival": {"from": 7008, "plus": "- 0 1 2 3 32"},
            },
            "closed": {
                "splits": "shardId-00000000000{0..2}",
                "unlisted": {"from": 5, "plus": "0*2 -"},
            },
            "time": {
                "splits": "shardId-000000000041",
                "at": {"from": 1_234_567, "plus": "0"},
                "pinned": {"from": 2000, "plus": "0"},
            },
        },
        "orders": {"horizon": {"splits": ["x{1,2}"], "idle": {"from": 3, "plus": "0"}}},
    }
    del positions[SplitId("clicks", "a")]
    after = Offsets(positions).to_json(2)["streams"]["clicks"]["after"]
    assert after["splits"] == "shardId-0000000000{08..11,40}"
    assert after["number"] == {"like": "2..0", "digits": "a8 a9 aa ab c8"}


def parsed(offsets: Offsets, version: int) -> Offsets:
    """As it comes back from Spark's log."""
    value = offsets.to_json(version)
    assert value["version"] == version
    return Offsets.from_json(json.loads(json.dumps(value)))


@given(
    positions=POSITIONS,
    start=st.none() | POSITIONS,
    listed=st.none() | st.integers(0, 10**12).map(lambda millis: millis * 1000),
)
def test_both_versions_say_the_same(
    positions: dict[SplitId, Position], start: dict[SplitId, Position] | None, listed: int | None
) -> None:
    """For any names, numbers and hints: the parsed offsets do not depend on the version."""
    offsets = Offsets(
        positions,
        {"s": 1_000},
        frozenset("stu"),
        start,
        {"s": "arn"},
        {"s": Expiry(5_000, 6_000)},
        listed,
        {"s": "x"},
    )
    one, two = parsed(offsets, 1), parsed(offsets, 2)
    assert two == one
    assert two.to_json(1) == one.to_json(1) == offsets.to_json(1)
    assert two.to_json(2) == offsets.to_json(2)
    assert two.positions == positions
    assert two.streams == frozenset("stu")


@given(older=POSITIONS, newer=POSITIONS, versions=st.sampled_from(list(itertools.product((1, 2), repeat=2))))
def test_a_batch_may_begin_in_one_version_and_end_in_the_other(
    older: dict[SplitId, Position], newer: dict[SplitId, Position], versions: tuple[int, int]
) -> None:
    """A reshard takes a query over the limit and back; the ranges of the batch are those of version 1."""
    ends = Offsets(older, streams=frozenset("st")), Offsets(newer, streams=frozenset("st"))
    begin, end = (parsed(offsets, version) for offsets, version in zip(ends, versions, strict=True))
    ranges = begin.ranges_to(end)
    expected = parsed(ends[0], 1).ranges_to(parsed(ends[1], 1))
    assert [repr(each) for each in ranges] == [repr(each) for each in expected]  # with their hints


def offsets_of(shards: int, closed: int = 0) -> Offsets:
    """Shards that opened within ten minutes, with any number of records; the first ones are closed."""
    random = Random(shards)
    positions: dict[SplitId, Position] = {}
    for index in range(shards):
        split = SplitId("clicks", f"shardId-{index:012d}")
        created = SECOND - 2 * 86_400 + 600 * index // shards
        number = numbers.encode(created, index, random.randrange(2**33), SECOND)
        arrival = SECOND * 10**6 + random.randrange(10**6)
        idle = arrival + random.randrange(10**6)
        positions[split] = Closed() if index < closed else After(number, arrival=arrival, caught_up_at=idle)
    return Offsets(positions, {"clicks": SECOND * 10**6}, frozenset({"clicks"}))


@pytest.mark.parametrize("shards", [512, 2_048, 10_000])
def test_many_shards_take_a_fifth_of_the_space(shards: int) -> None:
    """Sequence numbers are as the service makes them. 10,000 shards took 1.7 MB."""
    offsets = offsets_of(shards)
    sizes = {version: len(json.dumps(offsets.to_json(version))) for version in (1, 2)}
    assert sizes[2] < 35 * shards + 500
    assert sizes[2] < sizes[1] / 4.5


def test_shards_closed_long_ago_take_next_to_no_space() -> None:
    """They stay in the offsets until their records have expired, for up to a year."""
    both, open_ones = (
        len(json.dumps(o.to_json(2))) for o in (offsets_of(4_000, closed=3_500), offsets_of(500))
    )
    assert abs(both - open_ones) < 2_000
    assert len(json.dumps(offsets_of(4_000, closed=4_000).to_json(2))) < 200


def test_the_number_of_splits_decides_the_version() -> None:
    """Offsets of ordinary queries stay easy to read. A version may be chosen for another release."""
    assert offsets_of(COMPACT_FROM - 1).to_json()["version"] == 1
    assert offsets_of(COMPACT_FROM).to_json()["version"] == 2
    assert COMPACT_FROM == 257  # documented
    assert offsets_of(COMPACT_FROM).to_json(1)["version"] == 1
    assert offsets_of(1).to_json(2)["version"] == 2


def test_names_are_expanded_once() -> None:
    """Splits are the same from batch to batch: their ids are the same objects, which saves memory."""
    value = offsets_of(300).to_json(2)
    one, two = ({str(split): split for split in Offsets.from_json(value).positions} for _ in range(2))
    assert all(one[name] is two[name] for name in one)


def table(**columns: Any) -> dict[str, Any]:
    number = {"like": "2..", "digits": "00 ff"}
    after = {"splits": "{a,b}", "number": number, **columns}
    return {"version": 2, "streams": {"s": {"after": after}}}


@pytest.mark.parametrize(
    "value",
    [
        table(mood="good"),
        {"version": 1, "streams": {"s": {"a": {"after": "512", "mood": "good"}, "b": {"after": "767"}}}},
    ],
)
def test_unknown_keys_are_ignored(value: dict[str, Any]) -> None:
    """A later release may write more hints."""
    positions = Offsets.from_json({**value, "more": []}).positions
    assert positions == {SplitId("s", "a"): After("512"), SplitId("s", "b"): After("767")}


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"version": 1},
        {"version": 1, "streams": {"s": {"a": {}}}},
        {"version": 1, "streams": {"s": {"a": {"after": 5}}}},
        {"version": 1, "streams": {"s": {"a": {"after": ""}}}},
        {"version": 1, "streams": {"s": {"a": {"after": "x" * 129}}}},
        {"version": 1, "streams": {"s": {"a": {"at": "yesterday"}}}},
        {"version": 1, "streams": {"s": ["a"]}},
        {"version": 2},
        {"version": 2, "streams": {"s": {"a": {"after": "5"}}}},
        {"version": 2, "streams": {"s": {"frozen": {"splits": "a"}}}},
        {"version": 2, "streams": {"s": {"closed": {}}}},
        {"version": 2, "streams": {"s": {"after": {"splits": "a"}}}},
        table(splits="{a..c}"),
        table(splits="a"),
        table(splits="{a,b,c}"),
        table(number={"like": "2..", "digits": "0 ff"}),
        table(number={"like": "2..", "digits": "00 fg"}),
        table(number={"like": "2..", "digits": "00"}),
        table(number={"like": "200", "digits": "00 ff"}),
        table(number={"like": "200", "digits": ""}),
        table(number={"digits": "00 ff"}),
        table(number={"like": "2..", "digits": "00 -"}),
        table(number={"texts": ["1", ""]}),
        table(number={"texts": ["1", 2]}),
        table(arrival={"from": 1, "plus": "1"}),
        table(arrival={"from": 1, "plus": "1*x"}),
        table(arrival={"from": 1, "plus": "1 y"}),
        table(arrival={"plus": "1 2"}),
        table(arrival=[1, 2]),
    ],
)
def test_what_no_release_wrote_is_refused(value: dict[str, Any]) -> None:
    """No split is left out, and no number is guessed."""
    with pytest.raises(SluiceError, match=r"these are not offsets of this source|have version None"):
        Offsets.from_json(value)


def test_a_later_version_is_refused_by_its_number() -> None:
    """As releases before version 2 refuse version 2."""
    with pytest.raises(
        SluiceError, match=r"version 3; this release reads 1 and 2: use the release that wrote"
    ):
        Offsets.from_json({"version": 3, "streams": {}})


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
    """That start replaces Spark's. The next batch does not look at it."""
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
