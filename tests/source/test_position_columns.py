"""Version 2 of the offsets: the same as version 1 in a fraction of the space, for many splits."""

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
from sluice.source.model.offsets import (
    COMPACT_FROM,
    After,
    AtHorizon,
    AtTime,
    Closed,
    Expiry,
    Offsets,
    Position,
)
from sluice.source.model.splits import SplitId

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
    """Whatever the names, the numbers and the hints: what is read does not depend on the version."""
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


def test_a_log_that_begins_with_position_0_is_no_exception() -> None:
    """As those of `PositionLog` do."""
    positions: dict[SplitId, Position] = {SplitId("s", "a"): After("0"), SplitId("s", "b"): After("4095")}
    after = Offsets(positions).to_json(2)["streams"]["s"]["after"]
    assert after["number"] == {"like": "...", "digits": "000 fff"}


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


def test_few_splits_stay_in_version_1() -> None:
    """Those who read offsets of ordinary queries find what they know; many splits are the others' gain."""
    assert offsets_of(COMPACT_FROM - 1).to_json()["version"] == 1
    assert offsets_of(COMPACT_FROM).to_json()["version"] == 2
    assert COMPACT_FROM == 257  # documented


def test_the_version_may_be_chosen() -> None:
    """For who has to write what another release reads."""
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


def test_unknown_columns_are_ignored() -> None:
    """A later release may write more hints."""
    offsets = Offsets.from_json({**table(mood="good"), "more": []})
    assert offsets.positions == {SplitId("s", "a"): After("512"), SplitId("s", "b"): After("767")}


@pytest.mark.parametrize(
    "value",
    [
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
    with pytest.raises(SluiceError, match=r"these are not offsets of this source"):
        Offsets.from_json(value)


def test_a_later_version_is_refused_by_its_number() -> None:
    """As releases before version 2 refuse version 2."""
    with pytest.raises(
        SluiceError, match=r"version 3; this release reads 1 and 2: use the release that wrote"
    ):
        Offsets.from_json({"version": 3, "streams": {}})
