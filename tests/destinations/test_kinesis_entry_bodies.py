"""Records in the body of a request: byte by byte what msgspec writes, however it is written."""

from __future__ import annotations

import msgspec
import pybase64
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.destinations.kinesis.converter import KinesisEntry
from sluice.destinations.kinesis.entry_bodies import encode_entries

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SIZES = st.one_of(st.integers(0, 5), st.integers(390, 410), st.just(50_000))
ENTRIES = st.lists(
    st.builds(
        KinesisEntry,
        st.builds(lambda size, fill: bytes([fill]) * size, SIZES, st.integers(0, 255)),
        TEXTS,
        st.none() | st.integers(0, 2**128 - 1).map(str),
    ),
    max_size=5,
)


@given(ENTRIES)
def test_entries_are_written_as_msgspec_writes_them(entries: list[KinesisEntry]) -> None:
    assert encode_entries(entries) == msgspec.json.encode(entries)


@pytest.mark.parametrize(("size", "is_vectorised"), [(399, False), (400, True)])
def test_data_of_long_records_are_written_with_vector_instructions(
    monkeypatch: pytest.MonkeyPatch, size: int, is_vectorised: bool
) -> None:
    """Of short ones not: a call for each takes longer."""
    calls: list[bytes] = []
    original = pybase64.b64encode

    def b64encode(data: bytes) -> bytes:
        calls.append(data)
        encoded: bytes = original(data)
        return encoded

    monkeypatch.setattr(pybase64, "b64encode", b64encode)

    encode_entries([KinesisEntry(b"x" * (size - 1), "k"), KinesisEntry(b"y" * (size + 1), "k")])

    assert bool(calls) == is_vectorised
