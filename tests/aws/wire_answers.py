"""Answers of the service as bytes, in all the ways to write JSON, and how they are parsed."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from botocore.parsers import ResponseParserFactory
from botocore.session import Session
from urllib3._collections import HTTPHeaderDict

from sluice.aws.wire.hooks import ParserFactory

_SESSION = Session()


def shape_of(service: str, operation: str) -> Any:
    return _SESSION.get_service_model(service).operation_model(operation).output_shape


def response_of(body: bytes, status: int = 200) -> dict[str, Any]:
    """The argument that the SDK calls a parser with."""
    headers: Any = HTTPHeaderDict({"x-amzn-RequestId": "r-1", "Content-Type": "application/x-amz-json-1.1"})
    return {"headers": headers, "status_code": status, "context": {}, "body": body}


def parsed_by_us(response: dict[str, Any], shape: Any) -> Any:
    return ParserFactory().create_parser("json").parse(response, shape)


def parsed_by_the_sdk(response: dict[str, Any], shape: Any) -> Any:
    parser: Any = ResponseParserFactory().create_parser("json")
    return parser.parse(response, shape)


def _string(style: Random, text: str) -> str:
    how = style.choice(["plain", "ascii", "every character"])
    if how == "plain":
        return json.dumps(text, ensure_ascii=False)
    if how == "ascii":
        return json.dumps(text).replace("/", "\\/")
    units = text.encode("utf-16-be").hex()
    return '"' + "".join(f"\\u{units[n : n + 4]}" for n in range(0, len(units), 4)) + '"'


def _number(style: Random, value: float) -> str:
    plain = json.dumps(value)
    if not isinstance(value, float) or "e" in plain:
        return plain
    # The same number, written with an exponent or with zeros at its end.
    whole, _, fraction = plain.removeprefix("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return plain
    sign, zeros, places = plain[: -len(whole + fraction) - 1], style.randint(0, 12), len(fraction)
    return style.choice(
        [
            plain,
            f"{plain}00",
            f"{sign}{digits}e-{places}",
            f"{sign}{digits}{'0' * zeros}E-{zeros + places:03}",
        ]
    )


def written(style: Random, value: Any) -> str:
    """`value` as JSON, with random white space, escapes, exponents and order of fields."""
    space = style.choice(["", "", " ", "\n\t ", "\r\n"])
    if isinstance(value, str):
        return space + _string(style, value)
    if isinstance(value, dict):
        names = style.sample(list(value), len(value))
        fields = [f"{space}{_string(style, name)}{space}:{written(style, value[name])}" for name in names]
        return f"{space}{{{','.join(fields)}{space}}}{space}"
    if isinstance(value, list):
        return f"{space}[{','.join(written(style, each) for each in value)}{space}]{space}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return space + _number(style, value)
    return space + json.dumps(value)
