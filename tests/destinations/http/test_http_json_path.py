"""Paths into JSON documents."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.destinations.http.json_path import JsonPath

DOCUMENT: dict[str, Any] = {
    "items": [{"index": {"status": 201}}, {"create": {"status": 429}}],
    "a.b": {"c": 1},
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("$", [DOCUMENT]),
        ("$.items", [DOCUMENT["items"]]),
        ("$.items[1].create.status", [429]),
        ("$.items[*].*.status", [201, 429]),
        ("$['a.b'].c", [1]),
        ("$.items[*].index", [{"status": 201}]),
        ("$.items[2]", []),
        ("$.missing.status", []),
        ("$.items.status", []),
        ("$['a.b'][0]", []),
        ("$.a-b", []),
    ],
)
def test_a_path_finds_its_matches(path: str, found: list[Any]) -> None:
    """In the order of the document; a path without a match is no error."""
    assert JsonPath.parse(f" {path} ").find(DOCUMENT) == found


def test_the_first_match() -> None:
    """None if there is none."""
    assert JsonPath.parse("$.items[*].*.status").first(DOCUMENT) == 201
    assert JsonPath.parse("$.nothing").first(DOCUMENT) is None


@pytest.mark.parametrize(
    "text", ["", "items", "$.", "$items", "$[", "$[-1]", "$[x]", "$..a", "$.a b[", '$["a"]']
)
def test_other_text_is_no_path(text: str) -> None:
    """The option's error says what is allowed."""
    with pytest.raises(ValueError, match=r".*"):
        JsonPath.parse(text)
