"""Positions that are no numbers: text that compares by its bytes."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from value_source import ValueSource

from sluice.source import IteratorStart, Page, Split, SplitId, StreamLog, ValueRecord
from sluice.source.model.offsets import HORIZON, After, before
from sluice.source.model.positions import LONGEST_TEXT, sequence_of
from sluice.source.settings import Limits
from sluice.testing import Subject, check_history

TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=LONGEST_TEXT)
WORD = TEXT.filter(lambda text: not text.isdecimal())


@given(texts=st.tuples(WORD, WORD), numbers=st.tuples(st.integers(0), st.integers(0)))
def test_text_compares_by_its_bytes(texts: tuple[str, str], numbers: tuple[int, int]) -> None:
    """Numbers compare as numbers, for any length."""
    first, other = map(sequence_of, texts)
    assert (first < other) == (texts[0].encode() < texts[1].encode())
    first, other = (sequence_of(str(number)) for number in numbers)
    assert (first < other) == (numbers[0] < numbers[1])


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


class Words(ValueSource):
    """The source of a `WordLog`."""

    name = "words"
    LOG = WordLog
    TYPE = pa.string()
    store: ClassVar[list[str]] = []


def test_a_log_with_text_positions_is_read_exactly() -> None:
    """Through limits, a crash and a restart; the offset log has the positions as they are."""
    numbers = itertools.count()

    def put(count: int) -> None:
        Words.store += [f"bin-{number // 10:04}/{number:06}" for number in itertools.islice(numbers, count)]

    subject = Subject(
        Words,
        {"startingPosition": "EARLIEST"},
        put,
        expected=lambda: Words.store,
        identity=lambda row: row["value"],
        split=lambda _: None,
        position=lambda row: row["value"],
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
