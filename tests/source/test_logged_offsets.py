"""Each offsets value is parsed and written once, however often Spark passes it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.errors import SluiceError
from sluice.source.model.logged_offsets import LoggedOffsets
from sluice.source.model.offsets import COMPACT_FROM, After, Offsets
from sluice.source.model.splits import SplitId

SPLIT = SplitId("s", "a")


def at(number: int) -> dict[str, Any]:
    return Offsets({SPLIT: After(str(number))}, streams=frozenset({"s"})).to_json()


def copied(value: dict[str, Any]) -> dict[str, Any]:
    """As Spark passes it."""
    made: dict[str, Any] = json.loads(json.dumps(value))
    return made


def test_an_equal_value_gives_the_same_object() -> None:
    """Spark parses its JSON at every call, so values are never identical."""
    logged = LoggedOffsets()
    first = logged.parse(copied(at(1)))

    assert first == Offsets.from_json(at(1))
    assert logged.parse(copied(at(1))) is first


def test_start_and_end_of_a_batch_are_known_side_by_side() -> None:
    """They come in turns; what is older is forgotten."""
    logged = LoggedOffsets()
    start, end = logged.parse(at(1)), logged.parse(at(2))

    assert [logged.parse(at(n)) for n in (1, 2)] == [start, end]
    assert logged.parse(at(1)) is start
    assert logged.parse(at(2)) is end
    logged.parse(at(3))
    assert logged.parse(at(1)) is not start


def test_a_difference_in_a_hint_is_a_difference() -> None:
    """Positions compare without hints; values compare with them."""
    logged = LoggedOffsets()
    logged.parse(at(1))
    hinted = copied(at(1))
    hinted["streams"]["s"]["a"]["arrival"] = 7

    position = logged.parse(hinted).position(SPLIT)

    assert isinstance(position, After)
    assert position.arrival == 7_000


def test_what_was_written_is_parsed_like_what_was_logged() -> None:
    """Memory has microseconds, JSON has milliseconds: a restart must not change a batch."""
    logged = LoggedOffsets()
    exact = Offsets({SPLIT: After("1", arrival=1_234_567)}, streams=frozenset({"s"}))

    position = logged.parse(copied(logged.write(exact))).position(SPLIT)

    assert isinstance(position, After)
    assert position.arrival == 1_234_000


def test_the_same_object_is_written_once() -> None:
    """Equal ones need not have the same hints."""
    logged = LoggedOffsets()
    one, other = (
        Offsets({SPLIT: After("1", arrival=millis * 1000)}, streams=frozenset({"s"})) for millis in (4, 5)
    )
    assert one == other

    assert logged.write(one) is logged.write(one)
    assert logged.write(other)["streams"]["s"]["a"] == {"after": "1", "arrival": 5}


def test_what_was_logged_is_written_as_it_was_logged() -> None:
    """Spark 4.0 and 4.1 tell news by the text: another version of the same offsets would make a batch."""
    logged = LoggedOffsets()
    many = Offsets({SplitId("s", f"{n}"): After("1") for n in range(COMPACT_FROM)}, streams=frozenset({"s"}))
    value = copied(many.to_json(1))

    assert many.to_json()["version"] == 2
    assert logged.write(logged.parse(value)) == value


def test_what_cannot_be_parsed_is_refused_each_time() -> None:
    """As `Offsets.from_json` does."""
    logged = LoggedOffsets()
    for _ in range(2):
        with pytest.raises(SluiceError, match="version 3"):
            logged.parse({"version": 3})
