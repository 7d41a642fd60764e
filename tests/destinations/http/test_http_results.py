"""Results of single rows, in the forms of several well-known endpoints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.destinations.http.json_path import JsonPath
from sluice.destinations.http.results import ResultPaths, RowResult

ACCEPTED = RowResult(200, "", "")


def read(body: Any, count: int, results: str, **paths: str) -> dict[int, RowResult]:
    parsed = {name: JsonPath.parse(path) for name, path in paths.items()}
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return dict(ResultPaths(results=JsonPath.parse(results), **parsed).read(raw, count))


OWN = (0, 1, -200, 99, 600, 40403, 12345.0)
"""Numbers that are no HTTP status."""


def test_a_status_for_each_row() -> None:
    """As numbers or as text."""
    body = {"results": [{"status": 201}, {"status": "429"}]}

    assert read(body, 2, "$.results", status="$.status") == {
        0: RowResult(201, "201", ""),
        1: RowResult(429, "429", ""),
    }


def test_a_number_may_be_written_as_a_float() -> None:
    """As where all numbers are floats: of a status, and of a row."""
    assert read(b'[{"status": 200.0}, {"status": 4.29e2}]', 2, "$", status="$.status") == {
        0: RowResult(200, "200", ""),
        1: RowResult(429, "429", ""),
    }
    assert read(b'[{"row": 1.0, "status": 400.0}]', 2, "$", index="$.row", status="$.status") == {
        1: RowResult(400, "400", ""),
    }


def test_as_elasticsearch_answers() -> None:
    """The name of the action is a field around each result."""
    error = {"type": "mapper_parsing_exception"}
    body = {
        "errors": True,
        "items": [{"index": {"status": 201}}, {"create": {"status": 400, "error": error}}],
    }
    found = read(body, 2, "$.items[*].*", status="$.status", error="$.error")

    assert found == {
        0: RowResult(201, "201", ""),
        1: RowResult(400, "400", '{"type":"mapper_parsing_exception"}'),
    }


def test_as_a_rest_proxy_of_kafka_answers() -> None:
    """A row is accepted where its error is null."""
    body = {"offsets": [{"offset": 1, "error_code": None}, {"error_code": 2}, {"offset": 7, "error_code": 0}]}

    assert read(body, 3, "$.offsets", error="$.error_code") == {
        0: ACCEPTED,
        1: RowResult(None, "2", "2"),
        2: ACCEPTED,
    }


def test_as_bigquery_answers() -> None:
    """Only refused rows are listed, by their number; without any, even the array is missing."""
    body = {"insertErrors": [{"index": 2, "errors": [{"reason": "invalid"}]}]}
    found = read(body, 4, "$.insertErrors", index="$.index", error="$.errors[0].reason")

    assert found == {2: RowResult(None, "invalid", "invalid")}
    assert read({}, 4, "$.insertErrors", index="$.index") == {}
    assert read({"insertErrors": None}, 4, "$.insertErrors", index="$.index") == {}
    assert read(b"", 4, "$.insertErrors", index="$.index") == {}
    assert read(b"\r\n", 4, "$.insertErrors[*]", index="$.index") == {}
    assert read({"bad": [{"row": 1}]}, 4, "$.bad", index="$.row") == {1: RowResult(None, "Refused", "")}


def test_an_error_needs_no_status() -> None:
    body = [{"status": 200}, {"status": None, "why": "busy"}, {"why": {"is": "full"}}]

    assert read(body, 3, "$", status="$.status", error="$.why") == {
        0: RowResult(200, "200", ""),
        1: RowResult(None, "busy", "busy"),
        2: RowResult(None, "Refused", '{"is":"full"}'),
    }


def test_true_and_false() -> None:
    """Whether a row was accepted."""
    body = [{"ok": True}, {"ok": False, "why": "no room left on this device"}]

    assert read(body, 2, "$", status="$.ok", error="$.why") == {
        0: ACCEPTED,
        1: RowResult(None, "Refused", "no room left on this device"),
    }


@pytest.mark.parametrize(
    ("body", "paths", "problem"),
    [
        (b"<html>", {"status": "$.status"}, "the answer is not JSON"),
        (b'{"r": "\xff"}', {"status": "$.status"}, "the answer is not JSON"),
        (b"", {"status": "$.status"}, "the answer is empty: .* needs a result for each row"),
        ({"r": [{"status": 200}]}, {"status": "$.status"}, "1 results for 2 rows"),
        ({}, {"status": "$.status"}, "0 results for 2 rows"),
        (b"[" * 100_000, {"status": "$.status"}, "the answer is nested too deeply"),
        (b'{"r": [{"status": 200.5}, {"status": 200}]}', {"status": "$.status"}, "is not a status"),
        (b'{"r": [{"status": 1e300}, {"status": 200}]}', {"status": "$.status"}, "is not a status"),
        (b'{"r": [{"index": 0.5}]}', {"index": "$.index"}, "a result has no row's number"),
        ({"r": None}, {"status": "$.status"}, "'\\$.r' is not an array"),
        ({"r": {"0": 200}}, {"status": "$.status"}, "'\\$.r' is not an array"),
        ({"r": [{"status": 200}, {}]}, {"status": "$.status"}, "a result has no '\\$.status'"),
        (
            {"r": [{"status": 200}, {}]},
            {"status": "$.status", "error": "$.why"},
            "a result has no '\\$.status'",
        ),
        ({"r": [None, None]}, {"status": "$.status", "error": "$.why"}, "a result has no '\\$.status'"),
        ({"r": [{"state": 429}] * 2}, {"status": "$.status", "error": "$.why"}, "has no '\\$.status'"),
        ({"r": [{"status": 200}, {"status": "late"}]}, {"status": "$.status"}, "is not a status"),
        # Else a code of the endpoint's own, or a wrong path, would make dead letters of rows that it took.
        *(
            ({"r": [{"status": 200}, {"status": own}]}, {"status": "$.status"}, "is not a status")
            for own in OWN
        ),
        ({"r": [{"index": 2}]}, {"index": "$.index"}, "a result has no row's number"),
        ({"r": [{"index": True}]}, {"index": "$.index"}, "a result has no row's number"),
        ({"r": [{}]}, {"index": "$.index"}, "a result has no row's number"),
    ],
)
def test_an_answer_that_does_not_fit_is_damaged(body: Any, paths: dict[str, str], problem: str) -> None:
    """Rows count as accepted only if the endpoint says so."""
    with pytest.raises(ValueError, match=problem):
        read(body, 2, "$.r", **paths)
