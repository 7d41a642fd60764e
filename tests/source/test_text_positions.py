"""Positions that are no numbers: text that compares by its bytes."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.options import OptionValues
from sluice.source import IteratorStart, LogSource, Page, Split, SplitId, StreamLog, ValueRecord
from sluice.source.model.offsets import HORIZON, After, before
from sluice.source.model.sequence import LONGEST_TEXT, sequence_of
from sluice.source.settings import Limits
from sluice.testing import Subject, check_history

TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=LONGEST_TEXT)


@given(first=TEXT.filter(lambda text: not text.isdecimal()), other=TEXT)
def test_text_compares_by_its_bytes(first: str, other: str) -> None:
    """Unless both are numbers, which compare as such."""
    if other.isdecimal():
        return
    assert (sequence_of(first) < sequence_of(other)) == (first.encode() < other.encode())


@given(first=st.integers(0), other=st.integers(0))
def test_numbers_compare_as_numbers(first: int, other: int) -> None:
    """Whatever their length."""
    assert (sequence_of(str(first)) < sequence_of(str(other))) == (first < other)


@pytest.mark.parametrize("text", ["", "x" * (LONGEST_TEXT + 1)])
def test_what_cannot_be_compared_is_refused(text: str) -> None:
    """An offset log could not hold it."""
    with pytest.raises(ValueError, match=f"1 to {LONGEST_TEXT} bytes"):
        sequence_of(text)


def test_the_position_before_a_text_comes_before_it() -> None:
    """An iterator for it begins with that record."""
    found = before("a/7")
    assert isinstance(found, After)
    assert (found.sequence < sequence_of("a/7"), found.position_record) == (True, "a/7")
    assert before("0") == HORIZON


class WordLog(StreamLog):
    """One split whose records have the names of files as positions."""

    seeks_by_time = False

    def __init__(self, names: list[str]) -> None:
        self.names = names  # in order

    def list_splits(self, stream: str) -> Sequence[Split]:
        return [Split(SplitId(stream, "0"))]

    def get_iterator(self, split: SplitId, start: IteratorStart) -> str:
        del split
        match start.kind:
            case "TRIM_HORIZON":
                return "0"
            case "AT_SEQUENCE_NUMBER":
                return str(bisect_left(self.names, start.sequence_number or ""))
            case "AFTER_SEQUENCE_NUMBER":
                return str(bisect_right(self.names, start.sequence_number or ""))
        raise AssertionError(start)

    def get_records(self, split: SplitId, iterator: str, limit: int) -> Page:
        del split
        at = int(iterator)
        names = self.names[at : at + limit]
        rest = len(self.names) - at - len(names)
        return Page([ValueRecord(name, 1, name) for name in names], str(at + len(names)), rest)


class Words(LogSource):
    """The source of a `WordLog`."""

    name = "words"
    names: ClassVar[list[str]]

    @classmethod
    def from_options(cls, values: OptionValues) -> Words:
        del values
        return cls()

    def schema(self) -> pa.Schema:
        return pa.schema([("name", pa.string())])

    def create_log(self, pause: Callable[[float], None]) -> WordLog:
        del pause
        return WordLog(self.names)

    def to_record_batch(self, split: SplitId, records: Sequence[ValueRecord]) -> pa.RecordBatch:
        del split
        return pa.record_batch(
            [pa.array([each.value for each in records], pa.string())], schema=self.schema()
        )


def test_a_log_with_text_positions_is_read_exactly() -> None:
    """Through limits, a crash and a restart; the offset log has the positions as they are."""
    Words.names = []
    numbers = itertools.count()

    def put(count: int) -> None:
        Words.names += [f"bin-{number // 10:04}/{number:06}" for number in itertools.islice(numbers, count)]

    subject = Subject(
        Words,
        {"startingPosition": "EARLIEST"},
        put,
        expected=lambda: Words.names,
        identity=lambda row: row["name"],
        split=lambda _: None,
        position=lambda row: row["name"],
    )
    history: list[tuple[Any, ...]] = [
        ("put", 250),
        ("batch", Limits(records=40), True),
        ("put", 3),
        ("available", Limits(records=100)),
        ("restart",),
        ("put", 1),
    ]
    query = check_history(subject, history)
    position = query.offsets[-1]["streams"]["words"]["0"]["after"]
    assert position == "bin-0025/000253"
