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


def offsets_at(number: int, arrival: int | None = None) -> Offsets:
    return Offsets({SPLIT: After(str(number), arrival=arrival)}, streams=frozenset({"s"}))


def copied(value: dict[str, Any]) -> dict[str, Any]:
    """As Spark passes it: parsed at every call, so values are never identical."""
    made: dict[str, Any] = json.loads(json.dumps(value))
    return made


def arrival_in(offsets: Offsets) -> int | None:
    position = offsets.position(SPLIT)
    assert isinstance(position, After)
    return position.arrival


def test_start_and_end_of_a_batch_are_parsed_once() -> None:
    """They alternate; older values are forgotten."""
    logged = LoggedOffsets()
    values = [offsets_at(number).to_json() for number in (1, 2, 3)]
    start, end = (logged.parse(copied(value)) for value in values[:2])

    assert start == offsets_at(1)
    assert logged.parse(copied(values[0])) is start
    assert logged.parse(copied(values[1])) is end
    logged.parse(values[2])
    assert logged.parse(copied(values[0])) is not start


def test_values_differ_by_hints_and_are_exact_to_the_millisecond() -> None:
    """Positions compare without hints. Memory has microseconds: a restart must not change a batch."""
    logged = LoggedOffsets()
    assert arrival_in(logged.parse(copied(logged.write(offsets_at(1, 1_234_567))))) == 1_234_000
    assert arrival_in(logged.parse(copied(logged.write(offsets_at(1, 7_000))))) == 7_000
    assert arrival_in(logged.parse(copied(logged.write(offsets_at(1))))) is None


def test_the_same_object_is_written_once() -> None:
    """Equal ones need not have the same hints."""
    logged = LoggedOffsets()
    one, other = offsets_at(1, 4_000), offsets_at(1, 5_000)

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
    logged = LoggedOffsets()
    for _ in range(2):
        with pytest.raises(SluiceError, match="version 3"):
            logged.parse({"version": 3})
