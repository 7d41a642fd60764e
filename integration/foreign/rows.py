"""The rows of the course: as Spark makes them, as Python expects them, and as servers give them back."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

ROWS: Final = 20_000
PER_BATCH: Final = 2_000

_TEXTS: Final[tuple[str | None, ...]] = (
    "plain",
    "",
    None,
    "x" * 4000,
    "\U0001f980\U0001f1ee\U0001f1f8 e\u0301",
    "\u05e9\u05dc\u05d5\u05dd \u202eabc",
    "a\0b",
    "\x01\x1f\x7f\x85",
    "\u2028\u2029\ufeff",
    "\"quoted\" \\ / <&> 'single'\r\n\t",
    "\ud7ff\ue000\ufffd\U0010ffff",
)
_BINARY: Final[tuple[bytes | None, ...]] = (b"", None, bytes(range(256)), b"\xff\xfe", b"\x1f\x8b")
_PRICES: Final[tuple[str | None, ...]] = (
    "0.0000000001",
    None,
    "-1234567890123456789012345678.0123456789",
    "9999999999999999999999999999.9999999999",
    "3.5000000000",
)
_LISTS: Final[tuple[tuple[int, ...] | None, ...]] = ((), None, (1, -(2**63), 2**63 - 1), (0,))
_MAPS: Final[tuple[Mapping[str, str] | None, ...]] = (
    {"k": "v"},
    None,
    {},
    {"a.b": "", "\u00e9\U0001f980": "\0", "$x": "\u2028"},
)
PARTS: Final[tuple[str | None, ...]] = (
    "plain",
    "",
    None,
    "a b",
    "a/b",
    "a=b",
    "a%2Fb",
    "a+b",
    "..",
    "007",
    "2024-01-01",
    "\u00e9 e\u0301",
    "\U0001f980",
    "a:b*?\"<>|#&'",
    "\\",
    "x" * 100,
)
"""Values that are hard to have in the name of a directory."""

Row = dict[str, Any]


def awkward(numbers: DataFrame) -> DataFrame:
    """Columns ``id, text, data, price, list, map`` for the column ``value`` of a stream of numbers."""
    return numbers.where(f"value < {ROWS}").select(
        f.col("value").alias("id"),
        _pick([f.lit(each) for each in _TEXTS]).cast("string").alias("text"),
        _pick([f.lit(each) for each in _BINARY]).cast("binary").alias("data"),
        _pick([f.lit(each) for each in _PRICES]).cast("decimal(38,10)").alias("price"),
        _pick([_list(each) for each in _LISTS]).cast("array<bigint>").alias("list"),
        _pick([_map(each) for each in _MAPS]).cast("map<string,string>").alias("map"),
    )


def part_of() -> Column:
    """One of `PARTS` for each row of `awkward`."""
    return _pick([f.lit(each) for each in PARTS], "id").cast("string").alias("part")


def expected(number: int) -> Row:
    """The row with this number, without the columns that are null."""
    price = _PRICES[number % len(_PRICES)]
    items, pairs = _LISTS[number % len(_LISTS)], _MAPS[number % len(_MAPS)]
    row: Row = {
        "id": number,
        "text": _TEXTS[number % len(_TEXTS)],
        "data": _BINARY[number % len(_BINARY)],
        "price": None if price is None else Decimal(price),
        "list": None if items is None else list(items),
        "map": None if pairs is None else dict(pairs),
    }
    return {name: value for name, value in row.items() if value is not None}


def from_json(text: str | bytes) -> Row:
    """A row that was written as Spark's `to_json` writes it."""
    row: Row = json.loads(text, parse_float=Decimal)
    if "data" in row:
        row["data"] = base64.b64decode(row["data"])
    if "price" in row:
        row["price"] = Decimal(row["price"])
    return {name: value for name, value in row.items() if value is not None}


def _pick(values: list[Column], by: str = "value") -> Column:
    """The value whose turn it is."""
    turn = f.col(by) % len(values)
    chosen = f.when(turn == 0, values[0])
    for index, value in enumerate(values[1:], 1):
        chosen = chosen.when(turn == index, value)
    return chosen


def _list(items: tuple[int, ...] | None) -> Column:
    return f.lit(None) if items is None else f.array(*map(f.lit, items)).cast("array<bigint>")


def _map(pairs: Mapping[str, str] | None) -> Column:
    if pairs is None:
        return f.lit(None)
    columns = [f.lit(each) for pair in pairs.items() for each in pair]
    return f.create_map(*columns).cast("map<string,string>")
