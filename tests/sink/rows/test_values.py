"""Any row and any entry becomes JSON that strict readers take, and nothing fails for a value."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.instants import far_date, far_instant
from sluice.sink.contracts import Origin
from sluice.sink.letters.dead_letters import (
    DeadLetter,
    dead_letter_line,
    dead_letter_of_entry,
    dead_letter_of_row,
)
from sluice.sink.rows.values import json_text, json_value, python_value

MILLENNIA = 1_700_000_000_000 * 1_000_000
"""A timestamp whose milliseconds were read as seconds, in microseconds."""


def refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def strict(text: str | bytes) -> Any:
    """Reads JSON as the standard has it: without NaN and Infinity."""
    return json.loads(text, parse_constant=refuse)


def not_utf8(*values: bytes) -> pa.Array:
    """A column of strings as Spark makes it of ``cast(data AS string)``."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


def stored(**columns: Any) -> tuple[dict[str, Any], Any]:
    """The dead letter of a row, as it is written, and its data."""
    row = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    letter = strict(dead_letter_line(dead_letter_of_row(row, "why", data_is_sent=True), Origin("d")))
    return letter, letter["data"] and base64.b64decode(letter["data"])


FAR: dict[str, tuple[pa.Array, Any]] = {
    "timestamp": (pa.array([MILLENNIA], pa.timestamp("us", "UTC")), "+55840-11-08 22:13:20+00:00"),
    "of another zone": (
        pa.array([MILLENNIA + 1], pa.timestamp("us", "Europe/Berlin")),
        "+55840-11-08 22:13:20.000001+00:00",
    ),
    "of no known zone": (pa.array([0], pa.timestamp("us", "No/Where")), "1970-01-01 00:00:00+00:00"),
    "timestamp_ntz": (pa.array([MILLENNIA], pa.timestamp("us")), "+55840-11-08 22:13:20"),
    "the first": (pa.array([-(2**63)], pa.timestamp("us", "UTC")), "-290308-12-21 19:59:05.224192+00:00"),
    "nanoseconds": (pa.array([1001], pa.timestamp("ns")), "1970-01-01 00:00:00.000001"),
    "date": (pa.array([2**31 - 1], pa.date32()), "+5881580-07-11"),
    "date before the year 1": (pa.array([-719_529], pa.date32()), "-0001-12-31"),
    "time": (pa.array([1], pa.time64("ns")), "1 <time64[ns]>"),
    "interval": (pa.array([2**63 - 1], pa.duration("s")), f"{2**63 - 1} <duration[s]>"),
    "string": (not_utf8(b"caf\xe9"), "caf\\xe9"),
    "NaN": (pa.array([math.nan]), "NaN"),
    "infinity": (pa.array([math.inf], pa.float32()), "Infinity"),
    "negative infinity": (pa.array([-math.inf]), "-Infinity"),
}


@pytest.mark.parametrize("name", FAR)
def test_a_value_that_python_or_json_cannot_hold_is_kept_as_text(name: str) -> None:
    """In a separate column, as an attribute in addition to ``data``, and inside of other types."""
    column, text = FAR[name]
    nested = pa.StructArray.from_arrays([column, column], names=["a", "a"])
    of_list = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), nested)
    of_map = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["k"]), column)

    assert json.loads(stored(id=pa.array([1]), value=column)[1]) == {"id": 1, "value": text}
    letter, data = stored(data=pa.array([b"d"]), value=column)
    assert (data, letter["attributes"]) == (b"d", {"value": text})
    assert json.loads(stored(x=of_list, y=of_map)[1]) == {
        "x": [{"a": text, "a (2)": text}],
        "y": [["k", text]],
    }


def test_data_that_is_no_utf8_is_kept_byte_for_byte() -> None:
    """A string column holds what Spark was given."""
    assert stored(DATA=not_utf8(b"\xff\xfe"))[1] == b"\xff\xfe"
    assert stored(data=pa.array(["grün"]))[1] == "grün".encode()


def test_values_that_python_can_hold_are_as_before() -> None:
    """Text of dates and decimals, base64 of bytes, pairs of maps, nulls of attributes left out."""
    row = {
        "day": pa.array([date(2026, 1, 31)]),
        "at": pa.array([datetime(2026, 1, 31, tzinfo=timezone.utc)]),
        "price": pa.array([Decimal("1.50")]),
        "raw": pa.array([b"\xff"]),
        "tags": pa.array([{"a": [1, None]}]),
        "map": pa.array([[("k", 1.5)]], pa.map_(pa.string(), pa.float64())),
        "none": pa.nulls(1),
    }
    assert json.loads(stored(**row)[1]) == {
        "day": "2026-01-31",
        "at": "2026-01-31 00:00:00+00:00",
        "price": "1.50",
        "raw": "/w==",
        "tags": {"a": [1, None]},
        "map": [["k", 1.5]],
        "none": None,
    }
    assert "none" not in stored(data=pa.array([b""]), **row)[0]["attributes"]


class Named(NamedTuple):
    data: bytes


class Mute:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Broken(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")


@dataclass
class Half:
    data: bytes

    def __repr__(self) -> str:
        return "half"


def half() -> Half:
    made = Half(b"")
    del made.data
    return made


def cycle() -> dict[str, Any]:
    made: dict[str, Any] = {}
    made["both"] = [made, made]
    return made


def deep(levels: int) -> Any:
    value: Any = "end"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({1: "a", "1": "b", None: "c", "null": "d"}, {"1": "a", "1 (2)": "b", "null": "c", "null (2)": "d"}),
        ({"n": -(16**4500)}, {"n": f"-0x1{'0' * 4500}"}),
        ({"n": 10**600}, {"n": 10**600}),
        ([cycle()], [{"both": ["{'both': [{...}, {...}]}"] * 2}]),
        (deep(90), deep(90)),
        ([Broken(a=1)], ["{'a': 1}"]),
        ([1, Half, half()], [1, str(Half), "half"]),
        ({"score": math.nan, "n": {"x": [Broken()]}}, {"score": "NaN", "n": {"x": ["{}"]}}),
        (
            {"score": math.nan, "all": [math.inf, -math.inf]},
            {"score": "NaN", "all": ["Infinity", "-Infinity"]},
        ),
        (
            {("a", 1): 2, b"k": 3, 4: 5, None: 6, True: 7},
            {'["a", 1]': 2, "aw==": 3, "4": 5, "null": 6, "true": 7},
        ),
        ({"at": datetime(2026, 1, 31, tzinfo=timezone.utc)}, {"at": "2026-01-31 00:00:00+00:00"}),
        ({"x": Mute(), "s": {1}}, {"x": "<Mute>", "s": "{1}"}),
    ],
)
def test_an_entry_of_any_values_is_kept(entry: Any, expected: Any) -> None:
    """As its data, and as an attribute."""
    letter = strict(dead_letter_line(DeadLetter("r", None, {"entry": entry}), Origin("d")))

    assert strict(dead_letter_of_entry(entry, "r").data or b"") == expected
    assert letter["attributes"]["entry"] == expected


@pytest.mark.parametrize(
    ("entry", "expected"), [(Half, str(Half)), (half(), "half"), (Named, str(Named)), (Broken(a=1), {"a": 1})]
)
def test_an_entry_that_does_not_give_its_fields_is_kept(entry: Any, expected: Any) -> None:
    """A class is no entry of its kind, and an object may lack what its class promises."""
    letter = dead_letter_of_entry(entry, "r")

    assert (letter.form, strict(letter.data or b"")) == ("entry", expected)


@pytest.mark.parametrize("levels", [101, 10_000, 100_000])
def test_what_is_too_deep_for_python_is_kept(levels: int) -> None:
    """As text from a hundred levels on, or as the name of its type if Python cannot write the text."""
    found = strict(dead_letter_of_entry({"x": deep(levels)}, "r").data or b"")["x"]
    for _ in range(99):
        (found,) = found

    assert found.strip("[]") in ("'end'", "<list>")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.datetimes(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.binary() | st.integers(), inner),
)


@given(ANYTHING)
def test_whatever_an_entry_holds_is_json(value: Any) -> None:
    """One line, without constants that JSON has not."""
    line = dead_letter_line(DeadLetter("r", None, {"value": value}), Origin("d"))

    assert line.count(b"\n") == 1
    assert strict(line)["attributes"]["value"] == strict(json_text(value))
    assert json_value(json_value(value)) == json_value(value)


KINDS = [
    pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Asia/Kolkata")
]
KINDS += [pa.duration(unit) for unit in ("s", "ms", "us", "ns")]
KINDS += [pa.date64(), pa.time64("us"), pa.time64("ns"), pa.int64(), pa.uint64(), pa.float64()]


@given(st.sampled_from(KINDS), st.binary(min_size=8, max_size=8))
def test_whatever_a_row_holds_is_json(kind: pa.DataType, raw: bytes) -> None:
    """Any eight bytes as a value of any type."""
    column = pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(raw)])

    row = pa.record_batch([column], names=["x"])
    strict(dead_letter_of_row(row, "r", data_is_sent=True).data or b"")
    assert python_value(pa.nulls(1, kind)[0]) is None


@given(st.integers(-(2**31), 2**31 - 1))
def test_far_dates_continue_those_that_python_knows(days: int) -> None:
    """The same text where Python has one; elsewhere the day after the day before."""
    shown = far_date(days)
    if -719_162 <= days <= 2_932_896:
        assert shown == (date(1970, 1, 1) + timedelta(days=days)).isoformat()
    year, month, day = shown[0] + shown[1:].partition("-")[0], *shown.rsplit("-", 2)[1:]
    like = 2000 + int(year) % 400
    # The calendar is the same every 400 years.
    cycles = (int(year) - like) // 400
    assert days == (date(like, int(month), int(day)) - date(1970, 1, 1)).days + cycles * 146_097
    assert far_instant(days * 86_400_000_000 + 1) == f"{shown} 00:00:00.000001"
