"""Answers of ``Scan``: the items stay the JSON in which they came.

https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_Scan.html
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from sluice.aws.errors import DamagedAnswerError
from sluice.aws.wire.changes import as_json
from sluice.aws.wire.mended_text import mended_json
from sluice.aws.wire.responses import metadata_of

__all__ = ["ItemPage", "page_of", "read_scan"]

Key = Mapping[str, Mapping[str, Any]]


class _Capacity(msgspec.Struct, rename="pascal"):
    capacity_units: float = 0.0


class _Page(msgspec.Struct, rename="pascal"):
    items: list[msgspec.Raw]
    last_evaluated_key: dict[str, dict[str, str]] | None = None
    consumed_capacity: _Capacity | None = None


class ItemPage(NamedTuple):
    """A page of a table.

    Attributes:
        items: JSON in DynamoDB's form.
        last_key: where the next page starts, as a parameter of the SDK; None: this page is the last one.
        units: read capacity that the page has consumed; None if the service does not tell.
    """

    items: list[msgspec.Raw]
    last_key: Key | None
    units: float | None


_decoder: Final = msgspec.json.Decoder(_Page)


def read_scan(response: Mapping[str, Any]) -> dict[str, Any]:
    """Reads a ``Scan`` answer, with an `ItemPage` as ``Page``.

    Raises:
        DamagedAnswerError: the body is not what the service sends.
    """
    try:
        page = _decode(response["body"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedAnswerError(f"the answer is not what it should be: {error}") from None
    key = page.last_evaluated_key
    last = None if not key else {name: _parameter(value) for name, value in key.items()}
    units = None if page.consumed_capacity is None else page.consumed_capacity.capacity_units
    return {"Page": ItemPage(page.items, last, units), "ResponseMetadata": metadata_of(response)}


def page_of(answer: Mapping[str, Any]) -> ItemPage:
    """The page of an answer, whether the library or the SDK has read it."""
    if "Page" in answer:
        page: ItemPage = answer["Page"]
        return page
    units = (answer.get("ConsumedCapacity") or {}).get("CapacityUnits")
    return ItemPage(list(map(as_json, answer["Items"])), answer.get("LastEvaluatedKey") or None, units)


def _decode(body: bytes) -> _Page:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decoder.decode(mended_json(body))


def _parameter(value: Mapping[str, str]) -> Mapping[str, Any]:
    """A key's value as the SDK takes it: binary is bytes."""
    return {kind: base64.b64decode(text) if kind == "B" else text for kind, text in value.items()}
