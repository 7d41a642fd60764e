"""DynamoDB's attribute values and plain JSON, both ways, to the last digit."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from boto3.dynamodb.types import TypeDeserializer
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import OptionError, SluiceError
from sluice.functions import _dynamodb_json, _to_dynamodb_json, dynamodb_json, to_dynamodb_json
from sluice.functions.attribute_values import attribute_json, plain_json
from sluice.functions.columns import BadValueError

# https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_AttributeValue.html
BOTH_WAYS = [
    ('{"a":{"S":"Hello"}}', '{"a":"Hello"}'),
    ('{"a":{"N":"123.45"}}', '{"a":123.45}'),
    ('{"a":{"N":"123.4500"}}', '{"a":123.4500}'),
    ('{"a":{"N":"99999999999999999999999999999999999999"}}', '{"a":99999999999999999999999999999999999999}'),
    ('{"a":{"N":"-1E-130"}}', '{"a":-1E-130}'),
    ('{"a":{"N":"-0"}}', '{"a":-0}'),
    ('{"a":{"BOOL":true},"b":{"BOOL":false}}', '{"a":true,"b":false}'),
    ('{"a":{"NULL":true}}', '{"a":null}'),
    ('{"a":{"L":[{"S":"Cookies"},{"N":"3.14159"},{"L":[]}]}}', '{"a":["Cookies",3.14159,[]]}'),
    ('{"a":{"M":{"Name":{"S":"Joe"},"Age":{"N":"35"}}}}', '{"a":{"Name":"Joe","Age":35}}'),
    ('{"":{"S":""}}', '{"":""}'),
    ("{}", "{}"),
    # Single values, and items whose attributes are named like types.
    ('{"S":"x"}', '"x"'),
    ('{"N":"1.0"}', "1.0"),
    ('{"NULL":true}', "null"),
    ('{"BOOL":false}', "false"),
    ('{"L":[{"N":"1"}]}', "[1]"),
    ('{"S":{"S":"x"}}', '{"S":"x"}'),
    ('{"M":{"S":"x"}}', '{"M":"x"}'),
    ('{"M":{"M":{}}}', '{"M":{}}'),
    ('{"M":{"M":{"M":{"S":"x"}}}}', '{"M":{"M":"x"}}'),
    ('{"L":{"L":[]}}', '{"L":[]}'),
]
ONE_WAY = [
    ('{"a":{"B":"dGVzdA=="}}', '{"a":"dGVzdA=="}'),
    ('{"a":{"SS":["Giraffe","Hippo"]}}', '{"a":["Giraffe","Hippo"]}'),
    ('{"a":{"NS":["42.20","-19"]}}', '{"a":[42.20,-19]}'),
    ('{"a":{"BS":["U3Vubnk=","UmFpbnk="]}}', '{"a":["U3Vubnk=","UmFpbnk="]}'),
    ('{"NS":["1"]}', "[1]"),
    ('{"M":{}}', "{}"),
    ('{"M":{"a":{"N":"1"}}}', '{"a":1}'),
    (' {"a" : {"N" : "1"}} ', '{"a":1}'),
    # Unknown types, and values of another form, stay as they are.
    ('{"a":{"X":"1"}}', '{"a":{"X":"1"}}'),
    ('{"a":1}', '{"a":1}'),
    ('{"a":{"N":"no number"}}', '{"a":"no number"}'),
    ('{"a":{"S":"half \\ud83d"}}', '{"a":"half \ufffd"}'),
    ("null", None),
]


@pytest.mark.parametrize(("typed", "plain"), [*BOTH_WAYS, *ONE_WAY])
def test_plain_json(typed: str, plain: str | None) -> None:
    """What the API's reference shows of each type."""
    assert plain_json(typed.encode()) == plain


@pytest.mark.parametrize(("typed", "plain"), BOTH_WAYS)
def test_attribute_values(typed: str, plain: str) -> None:
    """The other way. Spaces do not matter."""
    assert attribute_json(plain.encode()) == typed
    assert attribute_json(re.sub(r"([:,\[{])", r" \1 ", plain).encode()) == typed


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]x", b"\xff\xfe{}", b"{'a': 1}", b"[" * 100_000, b'{"a":NaN}']
)
def test_what_is_no_json(data: bytes) -> None:
    """Either way, the message has none of the data."""
    for make in (plain_json, attribute_json):
        with pytest.raises(BadValueError, match="not JSON"):
            make(data)


@pytest.mark.parametrize("data", [b"[]", b"1", b'"S"', b"true"])
def test_json_that_holds_no_attribute_values(data: bytes) -> None:
    """Neither an item nor a value: the column is another one."""
    with pytest.raises(BadValueError, match="neither an item nor an attribute value"):
        plain_json(data)


NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,45})(\.[0-9]{1,45})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["M", "S", "N", "L", "NULL"]
)
DOCUMENTS = st.recursive(
    st.one_of(st.just("null"), st.sampled_from(["true", "false"]), NUMBERS, TEXT.map(json.dumps)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda each: f"[{','.join(each)}]"),
        st.dictionaries(TEXT, inner, max_size=3).map(
            lambda each: "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in each.items()) + "}"
        ),
    ),
    max_leaves=10,
)


def exact(text: str) -> Any:
    """A document with its numbers as they are written."""
    return json.loads(text, parse_float=lambda digits: ("number", digits), parse_int=lambda d: ("number", d))


@given(DOCUMENTS)
def test_any_document_comes_back(document: str) -> None:
    """There and back, digit by digit, with any names."""
    typed = attribute_json(document.encode())
    assert exact(plain_json(typed.encode()) or "") == exact(document)


@given(st.dictionaries(TEXT, st.integers(-(10**37), 10**37) | TEXT | st.booleans() | st.none(), max_size=4))
def test_attribute_values_are_those_of_the_sdk(item: dict[str, Any]) -> None:
    """Its deserializer reads what is made."""
    typed = json.loads(attribute_json(json.dumps(item).encode()))
    read = {name: TypeDeserializer().deserialize(value) for name, value in typed.items()}
    assert read == item


@given(st.binary(max_size=60))
def test_garbage_raises_nothing_else(data: bytes) -> None:
    """Only the error that `errors` is about."""
    for make in (plain_json, attribute_json):
        with suppress(BadValueError):
            make(data)


def test_columns() -> None:
    """String and binary, large or not, sliced, with nulls; strings that are no UTF-8; bad values as asked."""
    for kind in (pa.string(), pa.large_string(), pa.binary()):
        values = pa.array(["", '{"a":{"N":"1.0"}}', None], kind).slice(1)
        plain = _dynamodb_json.of_arrays(values)
        assert plain.to_pylist() == ['{"a":1.0}', None]
        assert _to_dynamodb_json.of_arrays(plain).to_pylist() == ['{"a":{"N":"1.0"}}', None]
    broken = pa.array([b'{"a":"\xff"}']).view(pa.string())
    assert _to_dynamodb_json.of_arrays(broken).to_pylist() == ['{"a":{"S":"\ufffd"}}']
    for function in (_dynamodb_json, _to_dynamodb_json):
        assert function.of_arrays(pa.array(["no"]), errors="null").to_pylist() == [None]
        with pytest.raises(SluiceError, match=f"^{function.name}: a value is not JSON"):
            function.of_arrays(pa.array(["no"]))
        with pytest.raises(
            OptionError, match=f"{function.name}: the column is int64: allowed is binary or string"
        ):
            function.of_arrays(pa.array([1]))
    for make in (dynamodb_json, to_dynamodb_json):
        with pytest.raises(OptionError, match="errors is 'no'"):
            make("data", errors="no")
