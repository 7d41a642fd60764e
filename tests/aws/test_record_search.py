"""Records that are searched for: the same bounds as by stepping from one to the next, or none."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_cbor import ARRIVAL, plainly_written

from sluice.aws.wire import record_bounds
from sluice.aws.wire.record_bounds import Layout, RecordBounds
from sluice.aws.wire.record_search import search_bounds

FIELDS = ["SequenceNumber", ARRIVAL, "PartitionKey", "Data"]
SIZES = (0, 1, 23, 24, 255, 256, 257, 65_535, 65_536)

Found = tuple["array[int] | None", "array[int] | None"]


def record(size: int, key: str = "k", fill: bytes = b"x") -> dict[str, Any]:
    return {"SequenceNumber": "4" * 56, ARRIVAL: 1, "PartitionKey": key, "Data": fill * size}


def page(records: list[dict[str, Any]], names: list[str], *, counted: bool) -> bytes:
    ordered = [{name: each[name] for name in names} for each in records]
    return plainly_written({"Records": ordered, "MillisBehindLatest": 7}, counted=counted)


def both(body: bytes) -> Found:
    """What the search finds, and what stepping finds."""
    found: list[Any] = []

    def find(*asked: Any) -> None:
        found.append(search_bounds(*asked))

    stepped = RecordBounds.of_array(body, body.index(b"\x67Records") + 8, find)
    return found[0], None if stepped is None else stepped[0].bounds


@given(
    st.lists(
        st.builds(
            record,
            st.sampled_from(SIZES) | st.integers(0, 70),
            st.sampled_from(["", "k" * 23, "k" * 24, "k" * 300, "\u00ff\u00bf", "\U0001f40d"]),
            st.sampled_from([b"\xff", b"\xa4", b"\xbf", b"x"]),
        ),
        min_size=1,
        max_size=8,
    ),
    st.permutations(FIELDS),
    st.booleans(),
)
def test_the_search_finds_what_stepping_finds(
    records: list[dict[str, Any]], names: list[str], counted: bool
) -> None:
    """For any lengths of data and keys, any order of fields, and with or without the array's length."""
    searched, stepped = both(page(records, names, counted=counted))

    assert stepped is not None
    assert searched == stepped


@pytest.mark.parametrize("counted", [False, True])
def test_data_that_look_like_a_record_are_no_record(counted: bool) -> None:
    """The chain breaks there, so the records are found by stepping."""
    inner = page([record(3)], FIELDS, counted=counted)
    inner = inner[inner.index(b"\x67Records") + 9 :]  # a record and what follows it
    body = page([record(5), {**record(0), "Data": inner}, record(2)], FIELDS, counted=counted)

    searched, stepped = both(body)

    assert searched is None
    assert stepped is not None
    assert len(stepped) == 3 * 5 + 1


@given(st.data(), st.booleans())
def test_a_damaged_page_has_the_bounds_of_stepping_or_none(data: st.DataObject, counted: bool) -> None:
    """For any changed byte, and for any cut."""
    body = page([record(size, "key") for size in (3, 300, 24, 0)], FIELDS, counted=counted)
    first = body.index(b"\x67Records") + 9
    place = data.draw(st.integers(first + 1, len(body) - 1))
    change = data.draw(st.none() | st.binary(min_size=1, max_size=1))
    damaged = body[:place] if change is None else body[:place] + change + body[place + 1 :]
    count = 4 if counted else None
    layout = record_bounds.Layout.of_record(body, first)
    assert layout is not None

    searched = search_bounds(damaged, first, count, layout)

    if searched is not None:
        assert searched == record_bounds._walk(damaged, first, count, layout)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x5f\x58\x1c" + b"x" * 28 + b"\xff", id="a string in chunks, of 31 bytes"),
        pytest.param(b"\x78\x05xxxxx", id="a text"),
        pytest.param(b"\x05xxxxx", id="a number"),
    ],
)
def test_data_written_in_another_way_has_no_bounds(data: bytes) -> None:
    """Even where the bytes that follow are as many as the head would mean for another type or form."""
    body = page([record(5)] * 3, FIELDS, counted=False)
    first = body.index(b"\x67Records") + 9
    layout = Layout.of_record(body, first)
    assert layout is not None
    head, _, tail = body.rpartition(b"\x45xxxxx")

    assert search_bounds(body, first, None, layout) is not None
    assert search_bounds(head + data + tail, first, None, layout) is None
