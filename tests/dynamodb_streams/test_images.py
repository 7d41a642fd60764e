"""Items as plain JSON keep every digit and every byte."""

from __future__ import annotations

import base64
import json
from decimal import Context, Decimal
from typing import Any, cast

import msgspec
import pytest
from boto3.dynamodb.types import Binary, TypeDeserializer
from hypothesis import given
from hypothesis import strategies as st

from sluice.dynamodb_streams.images import IMAGE_FORMATS, as_sent, key_of, plain


def raw(item: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(item).encode())


DECIMAL38 = Context(prec=38)
DIGITS = st.decimals(allow_nan=False, allow_infinity=False, places=6).map(lambda n: n.normalize(DECIMAL38))
NUMBER = st.one_of(
    st.integers(-(10**38) + 1, 10**38 - 1).map(str), DIGITS.map(str), DIGITS.map(lambda n: format(n, "f"))
)
BASE64 = st.binary(max_size=20).map(lambda data: base64.b64encode(data).decode())
SCALAR = st.one_of(
    st.fixed_dictionaries({"S": st.text(max_size=20)}),
    st.fixed_dictionaries({"N": NUMBER}),
    st.fixed_dictionaries({"B": BASE64}),
    st.fixed_dictionaries({"BOOL": st.booleans()}),
    st.just({"NULL": True}),
    st.fixed_dictionaries({"SS": st.lists(st.text(max_size=5), min_size=1, max_size=3, unique=True)}),
    st.fixed_dictionaries(
        {"NS": st.lists(st.integers(-(10**37), 10**37).map(str), min_size=1, max_size=3, unique=True)}
    ),
    st.fixed_dictionaries({"BS": st.lists(BASE64, min_size=1, max_size=3, unique=True)}),
)
ATTRIBUTE = st.recursive(
    SCALAR,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"L": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"M": st.dictionaries(st.text(max_size=5), inner, max_size=3)}),
    ),
    max_leaves=8,
)
ITEM = st.dictionaries(st.text(max_size=8), ATTRIBUTE, max_size=4)


def with_bytes(value: object) -> Any:
    """An attribute as the SDK gives it: binary values are bytes."""
    match value:
        case {"B": str(text)}:
            return {"B": base64.b64decode(text)}
        case {"BS": list(texts)}:
            return {"BS": [base64.b64decode(text) for text in texts]}
        case {"L": list(values)}:
            return {"L": [with_bytes(each) for each in values]}
        case {"M": dict(values)}:
            return {"M": {name: with_bytes(each) for name, each in values.items()}}
    return value


def in_json(value: object) -> object:
    """Sets and bytes as JSON has them."""
    if isinstance(value, Binary):  # has no public value in the stubs
        return base64.b64encode(bytes(cast("bytes", value))).decode()
    if isinstance(value, set):
        return sorted(map(in_json, value), key=str)
    if isinstance(value, list):
        return list(map(in_json, value))
    if isinstance(value, dict):
        return {name: in_json(each) for name, each in value.items()}
    return value


def as_vendor(attribute: Any) -> object:
    """What the vendor's own deserializer makes of an attribute."""
    return in_json(TypeDeserializer().deserialize(with_bytes(attribute)))


def without_order(attribute: object, value: object) -> object:
    """`value` with the arrays of sets sorted, as `as_vendor` has them."""
    match attribute:
        case {"SS": _} | {"NS": _} | {"BS": _}:
            assert isinstance(value, list)
            return sorted(value, key=str)
        case {"L": list(inner)}:
            assert isinstance(value, list)
            return [without_order(a, v) for a, v in zip(inner, value, strict=True)]
        case {"M": dict(inner)}:
            assert isinstance(value, dict)
            return {name: without_order(inner[name], each) for name, each in value.items()}
    return value


@given(ITEM)
def test_an_item_means_what_the_vendor_s_deserializer_reads(item: dict[str, dict[str, object]]) -> None:
    """Every type, nested in every other: exact numbers, sets as arrays, binary as base64."""
    text = plain(raw(item))
    assert text is not None
    parsed = json.loads(text, parse_float=Decimal, parse_int=Decimal)
    assert parsed.keys() == item.keys()
    for name, attribute in item.items():
        assert without_order(attribute, parsed[name]) == as_vendor(attribute)


@pytest.mark.parametrize(
    "number",
    ["0", "-1", "12345678901234567890123456789012345678", "0.1", "-9.99E+125", "1E-130", "100.00"],
)
def test_a_number_keeps_its_digits(number: str) -> None:
    """No float comes in between: the digits are those that the service sent."""
    assert plain(raw({"n": {"N": number}})) == f'{{"n":{number}}}'


@pytest.mark.parametrize(("sent", "shown"), [("+5", "5"), (".5", "0.5"), ("007", "7"), ("five", '"five"')])
def test_what_is_no_number_in_json_does_not_break_the_row(sent: str, shown: str) -> None:
    """A reader cannot stop at an item: what other servers write becomes JSON in any case."""
    assert plain(raw({"n": {"N": sent}})) == f'{{"n":{shown}}}'


@pytest.mark.parametrize("absent", [b"", b"null"])
def test_no_image_is_null(absent: bytes) -> None:
    """``KEYS_ONLY`` streams and deletions have images missing."""
    assert plain(msgspec.Raw(absent)) is None
    assert as_sent(msgspec.Raw(absent)) is None


@pytest.mark.parametrize("image_format", IMAGE_FORMATS)
def test_the_key_of_an_item_is_always_the_same_text(image_format: str) -> None:
    """The attributes of a stream's key come in another order than those of an item."""
    image = IMAGE_FORMATS[image_format]
    of_stream = key_of(msgspec.Raw(b'{"b":{"N":"1"},"a":{"S":"k"}}'))
    of_item = key_of(msgspec.Raw(b'{"x":{"S":"y"},"a":{"S":"k"},"b":{"N":"1"}}'), ["b", "a"])

    assert image(of_stream) == image(of_item) == image(msgspec.Raw(b'{"a":{"S":"k"},"b":{"N":"1"}}'))


def test_what_has_no_key_stays_without() -> None:
    assert as_sent(key_of(msgspec.Raw())) is None
